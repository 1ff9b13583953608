"""Fuzzing of the OpenSentience sessions, both sides: streams of wrong frames, and what must hold after each.

``core`` and ``agent`` judge so many frames; ``cuts`` judges that the pieces a stream arrives in change nothing. Each is
a function of its seed. ``test_opensentience`` does some, ``tools/soak.py`` goes on.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, Final

from tests.fuzz.mutations import Mutator, corpus
from tests.unit.edges.opensentience import agent_side
from tests.unit.edges.opensentience.core_side import (
    NOW,
    SESSION,
    Talk,
    deliver,
    envelope,
    frame,
    framed,
    hello,
    messages,
)
from trunkline import events
from trunkline.edges.opensentience import agent_events
from trunkline.edges.opensentience.agent_session import AgentSession
from trunkline.edges.opensentience.messages import FROM_AGENT, FROM_CORE
from trunkline.effects import Admit
from trunkline.events import AgentArrived, AgentLeft

# What Core may complain of, and with what it may end a conversation.
COMPLAINTS: Final = frozenset(
    f"protocol.{word}"
    for word in (
        "duplicate_id", "frame_too_large", "invalid_message", "throttled", "unexpected_type", "unknown_type",
        "unsupported_version",
    )
)  # fmt: skip
# Frames of one conversation; most end with the first that makes the stream doubtful.
FRAMES: Final = 12
# A frame of the corpus is 5 KB at most, mutated 100; the session's own memory of calls, notes and wishes is bounded.
MAX_FRAME: Final = 70_000
SESSION_ID: Final = "SESSION"
_EVENTS: Final = tuple(
    kind for kind in vars(events).values() if isinstance(kind, type) and kind.__module__ == events.__name__
)
_AGENT_EVENTS: Final = tuple(
    kind for kind in vars(agent_events).values() if isinstance(kind, type) and kind.__module__ == agent_events.__name__
)


def odd_frames() -> list[bytes]:
    """Frames that were found, or thought of, and are kept."""
    return [bytes.fromhex(digits) for _, digits in corpus("odd_frames.jsonl")]


def stream(mutator: Mutator, odd: list[bytes]) -> list[bytes]:
    """Some frames; a few have a length that lies."""
    rng = mutator.rng
    found = []
    for _ in range(rng.randrange(1, FRAMES)):
        kind = rng.random()
        if kind < 0.02:
            found.append(rng.choice(odd))
            continue
        body = mutator.body()
        if kind < 0.05:
            length = rng.choice(
                (0, 1, len(body) - 1, len(body) + 1, 2**16, 2**16 + 1, 2**22, 2**22 + 1, 2**31, 2**32 - 1)
            )
            found.append(struct.pack(">I", max(0, length)) + body)
        else:
            found.append(framed(body))
    return found


# --- Core's side ------------------------------------------------------------------------------------------------------


class Core:
    """One conversation, from some state on, judged after each piece."""

    def __init__(self, mutator: Mutator, beginning: int) -> None:
        self.talk = Talk(strict_types=beginning == 3, max_frame_bytes=MAX_FRAME)
        self.arrived = 0
        self.left = 0
        self.said: list[dict[str, Any]] = []
        self.happened: list[Any] = []
        if beginning:
            self.arrived = 1
            self.talk.admit()
            self.talk.send(deliver())
            self.talk.events.clear()

    def take(self, piece: bytes) -> None:
        """Bytes arrive."""
        talk = self.talk
        before, has_left = talk.state, self.left
        said = len(self.said)
        happened = talk.receive(piece)
        assert not ((before == "closed" or has_left) and happened), "something happened after the end"
        for event in happened:
            assert type(event) in _EVENTS
            self.arrived += type(event) is AgentArrived
            self.left += type(event) is AgentLeft
        # Welcomed as soon as the hub would: the rest of the stream is then read as the conversation.
        if talk.state == "authenticating":
            arrival = next(event for event in happened if type(event) is AgentArrived)
            talk.events.clear()
            talk.session.send(Admit(SESSION, 0, arrival.ref), NOW)
            more = talk.settle()
            self.left += sum(type(event) is AgentLeft for event in more)
            happened = [*happened, *more]
        self.happened += happened
        talk.events.clear()
        self._judge_words()
        if before == "awaiting_hello" and len(self.said) > said and self.said[said]["type"] != "core.welcome":
            assert talk.state == "closed", "a stranger who was complained about may go on"
        assert not self.left or talk.state == "closed"
        # One that has ended is dropped with all it holds.
        held = 0 if talk.state == "closed" else talk.session._decoder.held
        assert held <= MAX_FRAME * 1.1, f"{held} bytes are held"
        assert talk.session._decoder._missing <= MAX_FRAME, "a frame above the limit is waited for"
        assert self.arrived <= 1
        assert self.left <= self.arrived

    def _judge_words(self) -> None:
        # When the rim takes the last words, the conversation is over.
        for message in messages(self.talk.session.take_output()):
            self.said.append({**message, "id": "", "ts": ""})
            assert message["type"] in FROM_CORE
            if message["type"] == "core.error":
                error = message["error"]
                assert error["code"] in COMPLAINTS, error
                assert len(error["message"]) < 1000

    def end(self) -> None:
        """The peer hangs up: everything is over, and was told once."""
        self.left += sum(type(event) is AgentLeft for event in self.talk.receive(b""))
        assert self.talk.state == "closed"
        assert self.left == self.arrived
        assert self.talk.session.wake_at() is None


def core_messages() -> list[Any]:
    """Everything an agent may say, right."""
    text = json.dumps(corpus("to_core.jsonl"))
    # The id that the session of the tests gives itself, so that heartbeats are right before they are wrong.
    welcome = Talk().admit()
    found: list[Any] = json.loads(text.replace(SESSION_ID, welcome["payload"]["session_id"]))
    assert {message["type"] for message in found} >= set(FROM_AGENT)
    return found


def core(seed: int, frames: int) -> int:
    """So many frames to Core; how many."""
    mutator, odd = Mutator(seed, core_messages()), odd_frames()
    done = 0
    while done < frames:
        beginning = mutator.rng.randrange(4)
        session = Core(mutator, beginning)
        if beginning == 0 and mutator.rng.random() < 0.5:
            session.take(frame(envelope("agent.hello", hello())))
        for piece in stream(mutator, odd):
            session.take(piece)
            done += 1
        session.end()
    return done


# --- an agent's side --------------------------------------------------------------------------------------------------


def agent_messages(session: AgentSession) -> list[Any]:
    """Everything that Core may say, right: about this session's own call and wish."""
    call = session.call("com.a/b", b"{}", agent_side.NOW)
    wish = session.request_directive("com.a/b", None, "r", agent_side.NOW)
    session.take_output()
    text = json.dumps(corpus("to_agent.jsonl"))
    found: list[Any] = json.loads(text.replace("MINE", call).replace("WISH", wish))
    assert {message["type"] for message in found} >= set(FROM_CORE)
    return found


def _agent(beginning: int) -> AgentSession:
    session = agent_side.running() if beginning > 1 else agent_side.ready() if beginning else agent_side.fresh()
    if beginning:
        agent_messages(session)
    session.take_output()
    return session


def _take(session: AgentSession, piece: bytes) -> list[Any]:
    was_closed = session.is_closed()
    happened = session.receive(piece, agent_side.NOW)
    assert not (was_closed and happened), "something happened after the end"
    assert all(type(event) in _AGENT_EVENTS for event in happened)
    return happened


def agent(seed: int, frames: int) -> int:
    """So many frames to an agent; how many."""
    mutator, odd = Mutator(seed, agent_messages(agent_side.ready())), odd_frames()
    done = 0
    while done < frames:
        session = _agent(mutator.rng.randrange(3))
        for piece in stream(mutator, odd):
            _take(session, piece)
            done += 1
            for said in agent_side.spoken(session):
                assert said["type"] in FROM_AGENT
        session.receive(b"", agent_side.NOW)
        assert session.is_closed()
        assert session.wake_at() is None
    return done


# --- pieces -----------------------------------------------------------------------------------------------------------


def _core_story(beginning: int, mutator: Mutator, pieces: Iterator[bytes] | list[bytes]) -> tuple[Any, ...]:
    session = Core(mutator, beginning)
    for piece in pieces:
        session.take(piece)
    session.end()
    return session.happened, session.said


def _agent_story(beginning: int, pieces: Iterator[bytes] | list[bytes]) -> tuple[Any, ...]:
    session = _agent(beginning)
    happened = [event for piece in pieces for event in _take(session, piece)]
    said = [{**message, "id": "", "ts": ""} for message in agent_side.spoken(session)]
    return happened, said, session.state


def _bytes(data: bytes) -> Iterator[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


def cuts(seed: int, streams: int) -> int:
    """So many streams, whole, byte by byte and in random pieces, to both sides; how many."""
    to_core = Mutator(seed, core_messages())
    to_agent = Mutator(seed, agent_messages(agent_side.ready()))
    odd = odd_frames()
    for number in range(streams):
        mutator = to_agent if number % 4 == 0 else to_core
        data = b"".join(stream(mutator, odd))
        beginning = mutator.rng.randrange(3)
        if mutator is to_core:
            whole = _core_story(beginning, mutator, [data])
            ways = [_core_story(beginning, mutator, mutator.pieces(data)) for _ in range(2)]
            ways += [_core_story(beginning, mutator, _bytes(data))] if len(data) < 3000 else []
        else:
            whole = _agent_story(beginning, [data])
            ways = [_agent_story(beginning, mutator.pieces(data)) for _ in range(2)]
            ways += [_agent_story(beginning, _bytes(data))] if len(data) < 3000 else []
        for way in ways:
            assert way == whole, f"stream {number} of seed {seed}"
    return streams
