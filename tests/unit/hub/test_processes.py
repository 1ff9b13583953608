"""What an edge keeps of its runs and tasks: recorded, folded until done, named by snapshots."""

from __future__ import annotations

from tests.unit.hub.kit import DESK, Kit, body
from trunkline import effects, entries, events


def step(kit: Kit, subject: str, name: str, *, done: bool = False) -> effects.Reply:
    said = kit.feed(events.ProcessStepped(DESK, "p", "spaces", subject, name, body({"is": name}), done))
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
