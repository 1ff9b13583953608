from __future__ import annotations

import hashlib
import hmac
import secrets

from tests.unit.edges.chiffon.kit import Kit
from trunkline.edges.chiffon.edge import CHIFFON
from trunkline.edges.chiffon.peers import Peers
from trunkline.testing.memory import PROCESS

SECRET = b"tlk_" + b"a" * 28


def test_who_reads_the_record_cannot_make_the_token_that_we_show_to_an_agent() -> None:
    kit = Kit()
    caller = kit.other_token("infra-1", "infra", SECRET)
    on_record = hashlib.sha256(SECRET).hexdigest()
    assert any(on_record in str(entry) for entry in kit.exchange.log), "the hash of its own is there"
    guesses = [
        hmac.digest(on_record.encode(), b"trunkline orchestrator", "sha256").hex()[:32],
        hmac.digest(b"", b"trunkline orchestrator " + on_record.encode(), "sha256").hex(),
        on_record[:32],
    ]
    assert caller.orchestrator_token not in guesses
    assert _shown(kit, b"another key") != caller.orchestrator_token


def _shown(kit: Kit, key: bytes) -> str:
    """The token that an exchange with another key shows to who has the same token."""
    config = kit.exchange.config.chiffon
    views = kit.exchange.views
    other = Peers(kit.peers.feed, views, config, PROCESS, key, secrets.token_bytes)
    return other.identify(SECRET).orchestrator_token


def test_the_token_that_we_show_stays_the_same_after_a_restart() -> None:
    kit = Kit()
    before = kit.other_token("infra-1", "infra", SECRET).orchestrator_token
    assert kit.restarted().peers.identify(SECRET).orchestrator_token == before


def test_tokens_of_both_directions_have_the_form_that_is_masked() -> None:
    assert CHIFFON.tokens is not None
    kit = Kit()
    for token in (CHIFFON.tokens.secret(), kit.other_token("infra-1", "infra", SECRET).orchestrator_token):
        assert token.startswith("tlk_")
        assert len(token) == 32
