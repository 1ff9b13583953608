"""What ``simulate`` once found, by name. A seed tells its story only to the code it was found in: each is told here
in the fewest steps, and with the seed that it came from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec import Raw

from tests.unit.hub import kit as kits
from tests.unit.hub.kit import Kit
from trunkline import entries
from trunkline.hub.state import State
from trunkline.ledger.keys import LedgerKeys
from trunkline.ledger.ledger import Ledger
from trunkline.model import Decision, Status, ToolDefinition
from trunkline.testing.simulation import simulate


def tool(tool_id: str, side_effects: bool) -> ToolDefinition:
    return kits.tool(tool_id, side_effects=side_effects)


SECRET = "tlk_" + "A1b2" * 10 + "xyz"


@pytest.mark.parametrize("seed", [38, 11206])
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
        keys=LedgerKeys(b"k" * 32, os.urandom),
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


@pytest.mark.parametrize("side_effects", [False, True])
@pytest.mark.parametrize("is_named", [False, True])
def test_an_agent_whose_connection_broke_still_calls_for_whom_it_works(side_effects: bool, is_named: bool) -> None:
    """Seed 11206. The same process, back in a new session, may be at work for those who called it in the old one."""
    kit = Kit()
    kit.attach("com.c", "x")
    run_id = kit.launch("com.b")
    kit.arrive("com.b", run_id=run_id)
    kit.offer("com.b", tool("com.b/t", side_effects))
    asked = kit.call("com.b/t")
    kit.leave("com.b")
    kit.arrive("com.b", run_id=run_id)
    inner = kit.call("com.c/x", by="com.b", causation_id=asked.call_id if is_named else None)
    assert inner.accepted.chain == ("operator",)


@pytest.mark.parametrize("side_effects", [False, True])
def test_one_that_outlived_the_exchange_still_calls_for_whom_it_works(side_effects: bool) -> None:
    kit = Kit()
    kit.token("opensentience", "com.b", "secret-b")
    kit.arrive("com.b", token="secret-b")
    kit.offer("com.b", tool("com.b/t", side_effects))
    asked = kit.call("com.b/t")
    kit.crash()
    kit.attach("com.c", "x")
    kit.arrive("com.b", token="secret-b")
    inner = kit.call("com.c/x", by="com.b", causation_id=asked.call_id)
    assert inner.accepted.chain == ("operator",)


def test_a_new_process_of_an_agent_works_for_nobody_yet() -> None:
    kit = Kit()
    kit.attach("com.c", "x")
    kit.attach("com.b", "t")
    kit.call("com.b/t")
    kit.leave("com.b")
    run_id = kit.launch("com.b", pid=200)
    kit.arrive("com.b", run_id=run_id, pid=200)
    assert kit.call("com.c/x", by="com.b").accepted.chain == ()
    kit.crash()
    kit.attach("com.c", "x")
    kit.attach("com.b", "t")
    assert kit.call("com.c/x", by="com.b").accepted.chain == ()


def test_a_call_that_is_sent_again_counts_once() -> None:
    kit = Kit()
    kit.attach("com.c", "x")
    run_id = kit.launch("com.b")
    kit.arrive("com.b", run_id=run_id)
    kit.offer("com.b", tool("com.b/t", side_effects=False))
    asked = kit.call("com.b/t")
    kit.leave("com.b")
    kit.arrive("com.b", run_id=run_id)
    kit.offer("com.b", tool("com.b/t", side_effects=False))
    kit.advance(2.0)
    assert len(asked.deliveries) == 2
    inner = kit.call("com.c/x", by="com.b")
    assert (inner.accepted.chain, inner.accepted.cause) == (("operator",), asked.accepted.n)
    kit.finish(inner)
    kit.finish(asked)
    assert kit.call("com.c/x", by="com.b").accepted.chain == ()
