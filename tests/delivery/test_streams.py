"""Chunks in any order: what is shown goes forward, nothing is shown twice, and the rest is on record (P-B5)."""

from __future__ import annotations

import itertools
import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.running import Running, attached
from tests.unit.edges.opensentience.core_side import ECHO, chunk, deliver, ready, result
from trunkline.events import CallFinished, CallProgressed


def shown_of(order: tuple[int, ...]) -> list[int]:
    """Those that are higher than all before them."""
    found: list[int] = []
    for seq in order:
        if seq > max(found, default=0):
            found.append(seq)
    return found


def judge(order: tuple[int, ...]) -> None:
    talk = ready()
    talk.send(deliver())
    for seq in order:
        talk.tell("agent.tool.stream", chunk(seq, data={"text": f"piece {seq}"}), **ECHO)
    talk.tell("agent.tool.result", result(), **ECHO)
    shown = [event.seq for event in talk.events if isinstance(event, CallProgressed)]
    assert shown == shown_of(order), order
    has_gap = any(after > before + 1 for before, after in itertools.pairwise([0, *shown]))
    has_repeat = len(shown) < len(order)
    assert talk.notes().count("stream.gap") == has_gap, order
    assert talk.notes().count("stream.repeated") == has_repeat, order
    assert len([event for event in talk.events if isinstance(event, CallFinished)]) == 1


def test_all_720_orders_of_six_chunks_show_what_goes_forward_and_note_the_rest() -> None:
    for order in itertools.permutations(range(1, 7)):
        judge(order)


def test_missing_and_repeated_chunks_likewise() -> None:
    choice = random.Random(5)
    for _ in range(500):
        judge(tuple(choice.choices(range(1, 8), k=choice.randrange(9))))


@pytest.mark.parametrize(
    "order", [(1, 2, 3, 4, 5, 6), (6, 5, 4, 3, 2, 1), (1, 1, 2, 2, 3, 3), (2, 1, 4, 3, 6, 5), (5, 6)]
)
def test_a_reader_of_a_real_exchange_sees_each_piece_once_and_forward(
    exchange: Running, order: tuple[int, ...]
) -> None:
    agent = attached(exchange, "tools", "streaming")
    agent.register({"name": "talk", "side_effects": False, "capabilities": ["streaming"]})
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(
            exchange.request,
            "POST",
            "/v1/calls",
            {"tool_id": f"{agent.agent_id}/talk", "input": {}},
            headers={"Accept": "text/event-stream"},
        )
        call = agent.wait_for("core.tool.call")
        call_id = call["payload"]["call_id"]
        for seq in order:
            payload = {"call_id": call_id, "seq": seq, "channel": "stdout", "data": {"text": f"<{seq}>"}}
            agent.send("agent.tool.stream", payload, request_id=call_id, correlation_id=call["correlation_id"])
        agent.result(call, output={"said": len(order)})
        status, text = stream.result(20)
    assert status == 200
    seen = [int(piece.partition(">")[0]) for piece in text.split("<")[1:]]
    assert seen == shown_of(order)
    settled = exchange.wait_entry("call.settled", call_id=call_id)
    assert settled["stream"]["chunks"] == len(seen)
    assert settled["stream"]["tail"] == "".join(f"<{seq}>" for seq in seen)
    assert json.loads(text.split("data: ")[-1])["output"] == {"said": len(order)}
