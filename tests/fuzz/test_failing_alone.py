"""Whatever a conversation raises ends that conversation and nothing else (decision 47); what the hub raises is fatal.

Each test plants an exception in one conversation of one real edge, at each kind of effect and at each call of the
exchange to its sink, while a bystander on another edge goes on.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import uvloop
from msgspec.structs import replace

from tests.fuzz.failing import DRIVES, Plan, Planted, World, judge, judge_end
from trunkline import events
from trunkline.edges.exchange import BaseSink
from trunkline.effects import Deliver, ToSession
from trunkline.entries import CallSettled, Noticed
from trunkline.hub.hub import Hub
from trunkline.model import EMPTY_OBJECT, Now
from trunkline.testing.memory import BOSS, MemoryExchange

# What the peers of each edge are told in its story, by the name of the effect.
KINDS = {
    "http": {"Answer", "Progress", "Reply", "Wait"},
    "opensentience": {
        "Admit", "Answer", "Cancel", "Close", "ConfirmTools", "ConfirmWithdrawal", "Deliver", "Progress", "Refuse",
        "Reply", "Wait",
    },
    "space": {"Admit", "Answer", "ConfirmTools", "Deliver", "Reply", "Wait"},
    "chiffon": {"Admit", "Answer", "ConfirmTools", "Deliver", "Progress", "Wait"},
    "trunkline": {"Admit", "Answer", "ConfirmTools", "Deliver", "Notify", "Reply"},
    "pylon": {"Admit", "Answer", "ConfirmTools", "Deliver", "Reply", "Wait"},
    "mcp": {"Answer", "Progress", "Reply", "Wait"},
    "mounts": {"Admit", "Cancel", "ConfirmTools", "Deliver"},
    "nostr": {"Admit", "Answer", "ConfirmTools", "Deliver", "Progress", "Reply", "Wait"},
    "jobs": {"Admit", "ConfirmTools", "Deliver"},
}  # fmt: skip
# Those of them that wait for the disk, where there are side effects or a person's word.
WAITING = {
    "http": {"Answer", "Reply", "Wait"},
    "opensentience": {"Admit", "Answer", "Deliver", "Reply", "Wait"},
    "space": {"Admit", "Answer", "Deliver", "Reply"},
    "chiffon": {"Admit", "Deliver"},
    "trunkline": {"Answer", "Notify", "Reply"},
    "pylon": {"Answer", "Deliver", "Wait"},
    "mcp": {"Reply", "Wait"},
    "mounts": {"Admit", "Deliver"},
    "nostr": {"Answer", "Deliver", "Reply"},
    "jobs": {"Admit"},
}
EACH = [(edge, kind) for edge, kinds in KINDS.items() for kind in sorted(kinds)]
# The first few of a kind: later ones meet nothing new.
TIMES = 3


def run(folder: Path, plan: Plan, seed: int = 0) -> Plan:
    """One story with this plan, judged."""
    folder.mkdir()

    async def story() -> None:
        async with World(folder, plan, seed) as world:
            await world.tell()
            if plan.victim is not None:
                judge(world)
        judge_end(world)

    uvloop.run(story())
    return plan


def run_until_raised(folder: Path, plan: Plan, seed: int = 0) -> Plan:
    """One story in which the moment of this plan came. One in which nothing came to that is told again: everybody in it
    waits for a short time only, and the machine may have been busy.
    """
    told = plan
    for n in range(3):
        told = run(folder / str(n), replace(plan, seen=Counter(), waited=set()), seed)
        if told.victim is not None:
            break
    return told


def run_each_time(folder: Path, **terms: Any) -> int:
    """How many moments of a story raised, as above."""
    return next((found for n in range(3) if (found := _run_each_time(folder / str(n), **terms))), 0)


def _run_each_time(folder: Path, **terms: Any) -> int:
    """The story again and again, each time with the next moment as the one that raises; how many there were."""
    folder.mkdir()
    for n in itertools.count(1):
        plan = run(folder / f"s{n}", Plan(n=n, **terms))
        if plan.victim is None:
            return n - 1
        if n == TIMES:
            return n
    raise AssertionError


@pytest.mark.parametrize("edge", DRIVES)
def test_each_story_tells_its_peers_every_kind_that_is_tried_here_and_no_other(short_path: Path, edge: str) -> None:
    seen: Counter[str] = Counter()
    waited: set[str] = set()
    for seed in range(4):
        plan = run(short_path / f"s{seed}", Plan(edge, "never", at_disk=seed % 2 == 1), seed)
        seen += plan.seen
        waited |= plan.waited
    assert waited >= WAITING[edge]
    assert {name.partition(" ")[2] for name in seen if name.startswith("send ")} == KINDS[edge]


@pytest.mark.parametrize(("edge", "kind"), EACH)
def test_what_is_raised_at_an_effect_ends_that_conversation_alone(short_path: Path, edge: str, kind: str) -> None:
    assert run_each_time(short_path, edge=edge, method="send", effect=kind)


@pytest.mark.parametrize(("edge", "kind"), [(edge, kind) for edge, kind in EACH if kind in WAITING[edge]])
def test_what_is_raised_when_the_disk_answers_ends_that_conversation_alone(
    short_path: Path, edge: str, kind: str
) -> None:
    assert run_each_time(short_path, edge=edge, method="send", effect=kind, at_disk=True)


@pytest.mark.parametrize("edge", DRIVES)
@pytest.mark.parametrize("method", ["flush", "pause_reading", "resume_reading"])
def test_what_is_raised_by_the_other_methods_of_a_sink_ends_that_conversation_alone(
    short_path: Path, edge: str, method: str
) -> None:
    assert run_each_time(short_path, edge=edge, method=method)


@pytest.mark.parametrize(("edge", "kind"), EACH)
def test_a_conversation_that_cannot_even_be_let_go_of_ends_alone(short_path: Path, edge: str, kind: str) -> None:
    assert run_until_raised(short_path, Plan(edge, "send", kind, in_abort=True)).victim


@pytest.mark.parametrize("edge", DRIVES)
@pytest.mark.parametrize("seed", range(6))
def test_at_any_moment_of_any_story(short_path: Path, edge: str, seed: int) -> None:
    plan = run(short_path / "dry", Plan(edge, "never"), seed)
    moments = [
        (name.partition(" ")[0], name.partition(" ")[2], n) for name, n in sorted(plan.seen.items()) if name != "abort"
    ]
    method, effect, most = moments[seed * 7 % len(moments)]
    plan = Plan(edge, method, effect, n=1 + seed % most, in_abort=bool(seed % 2), at_disk=bool(seed % 3 == 2))
    if not plan.at_disk:
        assert run_until_raised(short_path, plan, seed).victim
    else:
        run(short_path / "s", plan, seed)


# --- what is fatal ----------------------------------------------------------------------------------------------------


class Heard(BaseSink):
    """A conversation that keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[ToSession] = []

    def send(self, effect: ToSession, now: Now) -> None:
        self.heard.append(effect)


def broken(*_: object, **__: object) -> Any:
    raise Planted


@pytest.mark.parametrize("part", ["handle", "append", "need"])
def test_what_the_hub_or_the_ledger_raises_is_fatal(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = MemoryExchange()
    agent = exchange.attach("com.x", "change")
    first = exchange.call("com.x/change")
    monkeypatch.setattr(Hub if part == "handle" else exchange.ledger, part, broken)
    exchange.call("com.x/change")
    assert exchange.died is not None
    assert exchange.died.startswith("Planted in test_failing_alone.py:")
    monkeypatch.undo()
    # Half a step was made: nothing more is, and nobody is told anything.
    agent.finish({})
    assert first.answer is None
    assert len(exchange.recorded(CallSettled)) == 0
    assert exchange.notices() == []


@pytest.mark.parametrize("where", ["send", "flush", "watcher", "told", "timer", "abort", "outside"])
def test_nothing_that_an_edge_raises_is_fatal(where: str) -> None:
    exchange = MemoryExchange()
    agent = exchange.attach("com.x", "change")
    sink: Any = Heard()
    number = exchange.feed.open_session(sink)
    if where in {"send", "flush", "abort"}:
        setattr(sink, where, broken)
    if where == "abort":
        exchange.feed.failed(number, Planted())
    elif where == "outside":
        exchange.feed.failed(0, Planted())
    elif where == "watcher":
        exchange.operator.watch(broken)
    elif where == "told":
        exchange.feed.when_stored(broken)
    elif where == "timer":
        exchange.feed.call_later(1, broken)
        exchange.advance(1)
    exchange.feed.feed([events.CallRequested(number, "r", BOSS, "com.x/change", EMPTY_OBJECT, announce=True)])
    assert exchange.died is None
    assert exchange.operator.status()["defects"] == 1
    [noticed] = exchange.recorded(Noticed)
    assert (noticed.code, noticed.detail) == ("defect", "Planted, 1 so far")
    made = exchange.call("com.x/change")
    assert isinstance(agent.delivered[-1], Deliver)
    agent.finish({})
    assert made.answer is not None


def test_a_defect_that_is_met_again_and_again_is_counted_each_time_and_recorded_now_and_then() -> None:
    exchange = MemoryExchange()
    for _ in range(120):
        exchange.feed.when_stored(broken)
    assert exchange.operator.status()["defects"] == 120
    assert [entry.detail for entry in exchange.recorded(Noticed)] == [
        "Planted, 1 so far",
        "Planted, 10 so far",
        "Planted, 100 so far",
    ]
