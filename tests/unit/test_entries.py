"""``entries``: what the ledger keeps whole is what a fold reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.ledger.made import AT, in_process
from trunkline import entries
from trunkline.entries import Entry
from trunkline.hub.state import State
from trunkline.ledger.commit_group import FOLDED_KINDS

# A name that looks like a secret, as far as the rules of masking can tell.
SECRET = "tlk_" + "A1b2" * 10 + "xyz"
# What a fold reads of these are numbers and ids that the exchange made; only what it does not read can be masked.
# Of notices it reads those of a clock that jumped.
OUR_OWN_WORDS = {
    "question.joined",
    "question.closed",
    "token.revoked",
    "notice",
    "topic.unsubscribed",
    "event.taken",
    "event.dropped",
}
# Held for a day if somebody may ask for it again, or if the fold needs the names in it: the writer's own rule.
OUTCOMES = {"call.settled"}


def test_every_kind_that_a_fold_reads_is_held_whole_or_has_nothing_in_it_that_could_be_masked() -> None:
    folded = {kind.__struct_config__.tag for kind in State()._appliers}
    assert folded == FOLDED_KINDS | OUR_OWN_WORDS | OUTCOMES
    assert not FOLDED_KINDS & (OUR_OWN_WORDS | OUTCOMES)


@pytest.mark.parametrize(
    "entry",
    [
        entries.CallSent(n=1, at=AT, call=1, attempt=1, provider=f"{SECRET}/x"),
        entries.CallReturned(n=1, at=AT, call=1, provider=f"{SECRET}/x", code="limit.resource"),
        entries.TokenIssued(n=1, at=AT, token_id="t1", edge="http", agent=SECRET, sha256="ab" * 32),
        entries.PermissionsGranted(n=1, at=AT, agent_id="a", manifest_sha256="ab" * 32, permissions=(f"r:{SECRET}",)),
        entries.AgentsLabelled(n=1, at=AT, agents={SECRET: (SECRET,)}),
        entries.DirectiveStated(n=1, at=AT, directive_id="d", by="x", tool_id=f"{SECRET}/x", reason="r", expires_ms=AT),
    ],
    ids=lambda entry: entry.__struct_config__.tag,
)
def test_a_folded_entry_whose_names_look_like_secrets_is_masked_on_disk_and_whole_for_recovery(
    tmp_path: Path, entry: Entry
) -> None:
    with in_process(tmp_path) as made:
        made.add(entry)
        assert SECRET.encode() not in (made.ledger.reader.line(1) or b"")
        assert list(made.ledger.reader.recovery()) == [entry]
