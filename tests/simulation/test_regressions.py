"""What ``simulate`` once found, by name. A seed tells its story only to the code it was found in: each is told here
in the fewest steps, and with the seed that it came from."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Raw

from trunkline import entries
from trunkline.hub.state import State
from trunkline.ledger.keys import LedgerKeys
from trunkline.ledger.ledger import Ledger
from trunkline.model import Decision, Status
from trunkline.testing.simulation import simulate

SECRET = "tlk_" + "A1b2" * 10 + "xyz"


@pytest.mark.parametrize("seed", [38])
def test_seeds_that_failed_once(seed: int) -> None:
    simulate(seed)


def test_a_correlation_that_looks_like_a_secret_is_tainted_also_after_a_restart(tmp_path: Path) -> None:
    """Seed 38. The entry is masked, and with it the name under which the taint would be looked up."""
    correlation = f"about {SECRET}"
    accepted = entries.CallAccepted(
        n=1,
        at=1,
        call_id="00000001-0000-8000-a000-000000000001",
        caller="operator",
        tool_id="com.c/read",
        input=Raw(b"{}"),
        decision=Decision.ALLOW,
        rule="r",
        policy="p",
        fingerprint="f",
        sent=True,
        side_effects=False,
        correlation_id=correlation,
    )
    settled = entries.CallSettled(
        n=2,
        at=2,
        call=1,
        call_id=accepted.call_id,
        status=Status.SUCCEEDED,
        output=Raw(b"{}"),
        untrusted=True,
        taints=(correlation,),
    )
    live = State()
    ledger = Ledger.open(
        tmp_path / "ledger.sqlite",
        tmp_path,
        loop=None,
        on_durable=lambda _: None,
        on_failure=pytest.fail,
        keys=LedgerKeys(b"k" * 32),
    )
    for entry in (accepted, settled):
        live.apply(entry)
        ledger.append(entry)
    ledger.flush()
    folded = State()
    for entry in ledger.reader.recovery():
        folded.apply(entry)
    ledger.close()
    assert folded.tainted == live.tainted
    assert folded.is_tainted(correlation, 3)
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in tmp_path.glob("ledger.sqlite*"))
