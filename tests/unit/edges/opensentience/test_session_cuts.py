"""Whole, byte by byte, in random pieces: the same events and the same answers. And no bytes raise anything."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.requirement import requirement
from tests.unit.edges.opensentience.core_side import (
    CALL,
    ECHO,
    SESSION,
    Talk,
    chunk,
    deliver,
    envelope,
    frame,
    framed,
    hello,
    messages,
    ready,
    result,
    tool,
)
from trunkline.edges.opensentience.messages import FROM_AGENT
from trunkline.effects import Admit
from trunkline.events import AgentArrived, AgentLeft, Event

CONVERSATION = b"".join(
    [
        frame(envelope("agent.tools.register", {"tools": [tool(), tool("é" * 3), tool("b", description="é😀")]})),
        frame(envelope("agent.tool.stream", chunk(1, data={"text": "é😀\n"}), **ECHO)),
        frame(envelope("agent.later", {"x": 1}, request_id="r")),
        frame(
            envelope("agent.tool.call", {"call_id": "mine", "tool_id": "a/b", "input": {"é": [1.5]}}, request_id="r")
        ),
        framed(json.dumps(envelope("agent.heartbeat", {"session_id": "wrong"}), indent=3).encode()),
        frame(envelope("agent.tool.stream", chunk(5, done=True), **ECHO)),
        frame(envelope("agent.tool.result", result(), **ECHO)),
        frame(envelope("agent.tool.result", result(status="cancelled"))),
        frame(envelope("agent.pong")),
    ]
)
BROKEN = CONVERSATION + framed(b'{"v":1,"v":1}') + CONVERSATION


def outcome(pieces: list[bytes]) -> tuple[list[Event], list[dict[str, Any]], str]:
    """What follows from these pieces, with everything that the session wants to do at once."""
    talk = ready()
    talk.send(deliver(CALL))
    for piece in pieces:
        talk.receive(piece)
    said = [{**message, "id": "", "ts": ""} for message in messages(talk.session.take_output())]
    return talk.events, said, talk.state


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({place % (len(data) + 1) for place in at})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True) if a < b]


@requirement("OS-013", "OS-025")
def test_byte_by_byte_gives_the_same_as_whole() -> None:
    # The last has more frames than are read in one turn.
    for data in (CONVERSATION, BROKEN, CONVERSATION * 10):
        assert outcome([bytes([byte]) for byte in data]) == outcome([data])


@requirement("OS-013", "OS-025")
@given(st.lists(st.integers(min_value=0, max_value=len(BROKEN)), max_size=30))
def test_random_pieces_give_the_same_as_whole(at: list[int]) -> None:
    assert outcome(cut(CONVERSATION, at)) == outcome([CONVERSATION])
    assert outcome(cut(BROKEN, at)) == outcome([BROKEN])


@requirement("OS-013")
@given(st.lists(st.integers(min_value=0, max_value=2000), max_size=20))
def test_the_handshake_may_be_cut_anywhere_too(at: list[int]) -> None:
    talk = Talk()
    greeting = frame(envelope("agent.hello", hello()))
    events: list[Event] = []
    for piece in cut(greeting + CONVERSATION, at):
        events += talk.receive(piece)
    assert [type(event) for event in events] == [AgentArrived]
    talk.events.clear()
    talk.send(Admit(SESSION, 0, "id-of-agent.hello"))
    whole = ready()
    whole.receive(CONVERSATION)
    assert talk.events == whole.events


leaves = st.none() | st.booleans() | st.integers(-3, 2**54) | st.floats() | st.text(max_size=8) | st.just(CALL)
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
names = {name for kind in FROM_AGENT.values() for name in kind.__struct_fields__}
fields = st.sampled_from(sorted(names))
payloads = st.dictionaries(fields, anything, max_size=7) | anything
mutants = st.fixed_dictionaries(
    {"type": st.sampled_from(sorted(FROM_AGENT)) | st.text(max_size=9), "payload": payloads},
    optional={
        "v": leaves,
        "id": leaves,
        "ts": leaves,
        "request_id": leaves,
        "correlation_id": leaves,
        "actor": anything,
        "error": anything,
    },
)


@settings(max_examples=100)
@given(st.lists(mutants | st.binary(max_size=30), max_size=6), st.booleans())
def test_no_message_raises_and_the_agent_leaves_at_most_once(sent: list[Any], welcomed: bool) -> None:
    talk = ready() if welcomed else Talk()
    talk.session.send(deliver(CALL), talk.now) if welcomed else None
    for message in sent:
        if isinstance(message, bytes):
            talk.receive(framed(message))
        else:
            talk.receive(frame({**envelope("x"), **message}))
        messages(talk.session.take_output())
    talk.receive(b"")
    assert talk.state == "closed"
    left = [type(event) for event in talk.events].count(AgentLeft)
    assert left == (1 if welcomed or any(type(event) is AgentArrived for event in talk.events) else 0)


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=60), max_size=8))
def test_no_bytes_raise(pieces: list[bytes]) -> None:
    for talk in (ready(), Talk()):
        for piece in pieces:
            talk.receive(piece)
        talk.receive(b"")
        assert talk.state == "closed"
