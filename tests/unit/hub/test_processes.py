"""What an edge keeps of its runs and tasks: recorded, folded until done, named by snapshots."""

from __future__ import annotations

from tests.unit.hub.kit import DESK, Kit, body
from trunkline import effects, entries, events
from trunkline.model import Limits, Principal


def step(kit: Kit, subject: str, name: str, *, done: bool = False, caller: str = "", text: str = "") -> effects.Reply:
    data = body({"is": name, "text": text} if text else {"is": name})
    said = kit.feed(events.ProcessStepped(DESK, "p", "spaces", subject, name, data, done, caller))
    (reply,) = said
    assert isinstance(reply, effects.Reply)
    return reply


def open_steps(kit: Kit) -> dict[str, list[str]]:
    return {subject: [found.step for found in steps] for (_, subject), steps in kit.state.processes.items()}


def test_a_step_is_told_when_it_is_on_record() -> None:
    kit = Kit()
    reply = step(kit, "run_1", "started")
    (entry,) = kit.log_of(entries.ProcessStep)
    assert (reply.after, reply.id, reply.status) == (entry.n, "run_1", "started")
    assert bytes(entry.data) == b'{"is":"started"}'


def test_what_is_not_done_survives_a_restart_in_order() -> None:
    kit = Kit()
    step(kit, "run_1", "started")
    step(kit, "run_2", "started")
    step(kit, "run_1", "paused")
    kit.crash()
    assert open_steps(kit) == {"run_1": ["started", "paused"], "run_2": ["started"]}


def test_what_is_done_is_only_on_record() -> None:
    kit = Kit()
    step(kit, "run_1", "started")
    step(kit, "run_1", "ended", done=True)
    assert open_steps(kit) == {}
    kit.crash()
    assert open_steps(kit) == {}
    assert [entry.step for entry in kit.log_of(entries.ProcessStep)] == ["started", "ended"]


def test_a_snapshot_names_what_is_open_and_no_more() -> None:
    kit = Kit()
    step(kit, "run_1", "started")
    step(kit, "run_1", "ended", done=True)
    step(kit, "run_2", "started")
    kit.snapshot()
    step(kit, "run_2", "paused")
    kit.crash()
    assert open_steps(kit) == {"run_2": ["started", "paused"]}
    numbers = {entry.subject: entry.n for entry in kit.log_of(entries.ProcessStep)}
    assert numbers["run_1"] not in kit.snapshots[-1][1]


# -- what is written counts --------------------------------------------------------------------------------------------


def test_a_step_counts_for_whom_it_is_made_and_nobody_else() -> None:
    kit = Kit()
    step(kit, "run_1", "started", caller="http:a", text="x" * 3_000)
    step(kit, "run_1", "ended", done=True, caller="http:a", text="x" * 4_000)
    step(kit, "run_2", "started", text="x" * 5_000)
    written = kit.hub.loads.written()
    assert 7_000 < written.pop("http:a") < 9_000
    assert not any(written.values())


def test_what_would_go_beyond_the_bound_is_not_begun_and_nothing_of_it_is_written() -> None:
    kit = Kit()
    kit.in_force(limits=Limits(ledger_bytes_per_hour=10_000))
    assert step(kit, "run_1", "started", caller="http:a", text="x" * 6_000).fault is None
    before = len(kit.log)
    refused = step(kit, "run_2", "started", caller="http:a", text="x" * 6_000)
    assert refused.fault is not None
    assert (refused.fault.code, len(kit.log), open_steps(kit)) == ("limit.rate", before, {"run_1": ["started"]})
    assert step(kit, "run_3", "started", caller="http:b", text="x" * 6_000).fault is None
    assert step(kit, "run_4", "started", caller="operator", text="x" * 60_000).fault is None
    kit.advance(3_601.0)
    assert step(kit, "run_5", "started", caller="http:a", text="x" * 6_000).fault is None


def test_what_is_larger_than_the_bound_by_itself_is_refused_in_every_hour() -> None:
    kit = Kit()
    kit.in_force(limits=Limits(ledger_bytes_per_hour=10_000))
    assert step(kit, "run_1", "started", caller="http:a", text="x" * 20_000).fault is not None
    assert kit.log_of(entries.ProcessStep) == []


def test_what_has_begun_goes_on_to_its_end_and_then_its_caller_waits() -> None:
    kit = Kit()
    kit.attach("com.a", "x")
    kit.in_force(limits=Limits(ledger_bytes_per_hour=10_000))
    step(kit, "run_1", "started", caller="http:a", text="x" * 6_000)
    assert step(kit, "run_1", "ended", done=True, caller="http:a", text="x" * 6_000).fault is None
    assert kit.call("com.a/x", by=Principal("http:a")).code == "limit.rate"
    assert kit.call("com.a/x", by=Principal("http:b")).code is None
