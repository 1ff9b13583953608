"""Who speaks OSSA in a simulation: an agent that is asked, agents that ask, and wires on which messages are lost.

Messages are signed bytes, and everything behind the listener is the real edge (``edges.ossa.peers``). ``petra`` works
for others and remembers by the ids of requests what she did, as quality 2 asks of a provider; ``quentin`` and ``rosa``
ask, repeat what they asked under the same id, and are told results of commands. ``breaches`` holds the record against
what they saw. TLS, HTTP, WebSockets, encryption, topics and agents behind a URL are left out.

Invariant: a message of a caller has a number in its payload that no other one has, so that it is known in the record.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from random import Random
from typing import Any, Final

import msgspec
from msgspec import Raw

from trunkline import events
from trunkline.config import Ossa
from trunkline.edges.edge import KeyTerms, RunningEdge, Surroundings
from trunkline.edges.exchange import BaseSink
from trunkline.edges.ossa import messages, reading, signing
from trunkline.edges.ossa.attachment import Way
from trunkline.edges.ossa.identity import Known
from trunkline.edges.ossa.keys import AgentKeys, keys_of, pair_of
from trunkline.edges.ossa.messages import ERROR, HEARTBEAT, REQUEST, RESPONSE, ErrorInfo, Identity, Message, Refused
from trunkline.edges.ossa.peer import DISCONNECTED, OssaPeer
from trunkline.edges.ossa.peers import DEFECT, OssaPeers
from trunkline.edges.ossa.providing import Sending
from trunkline.edges.ossa.translate import EDGE, US
from trunkline.effects import ToSession
from trunkline.errors import LedgerError
from trunkline.model import OPERATOR, Now, Principal, Status, ToolDefinition, stamp
from trunkline.testing.clock import ManualLoop
from trunkline.testing.network import LATENCY_S
from trunkline.testing.promises import Breach, Record
from trunkline.testing.witness import Witness

PROVIDER: Final = "petra"
CALLERS: Final = ("quentin", "rosa")
ACTIONS: Final = {"work": True, "look": False}
# Of the messages in either direction so many are lost, until the quiet at the end.
LOSS: Final = 0.15
HEARTBEAT_S: Final = 25.0
# Who was not answered says what he does once more.
REGISTER_AGAIN_S: Final = 5.0
# What a caller may be told now and something else later: it is nothing that is on record.
PASSING: Final = frozenset({401, 403, 408, 429, 503, 507})


def definitions() -> dict[str, ToolDefinition]:
    """What the provider offers."""
    found = (
        ToolDefinition(f"{PROVIDER}/{name}", "", Raw(b'{"type":"object"}'), side_effects=side_effects)
        for name, side_effects in ACTIONS.items()
    )
    return {tool.tool_id: tool for tool in found}


class Wire:
    """One connection of one agent. A message takes its time, or is lost."""

    def __init__(self, user: User) -> None:
        self._user = user
        self.is_open = True
        self.peer: OssaPeer | None = None

    @property
    def has_room(self) -> bool:
        """There always is."""
        return self.is_open

    def send(self, data: bytes, sending: Sending) -> None:
        """The exchange sends something."""
        self.say(data, sending.call_id)

    def replied(self, replies: list[tuple[Message, bytes]]) -> None:
        """Replies to what the agent asked here."""
        for _, data in replies:
            self.say(data)

    def say(self, data: bytes, call_id: str = "") -> None:
        """Something leaves the exchange."""
        self._user.users.left()
        self._user.users.later(self._arrive, data, call_id)

    def _arrive(self, data: bytes, call_id: str) -> None:
        if self._user.wire is self:
            self._user.receive(reading.read(data), call_id)


class User(ABC):
    """One agent: it can sign, connects, and comes back."""

    def __init__(self, users: OssaUsers, name: str) -> None:
        self.users = users
        self.name = name
        self.identity = Identity(name, "worker")
        rng = users.rng
        self.pair = pair_of(KeyTerms(name, "worker"), rng.randbytes(32), rng.randbytes(32))
        jwk: Any = self.pair.shown["jwk"]
        self._key = signing.key_of(signing.decoded(jwk["d"]))
        self.wire: Wire | None = None

    @property
    def sha256(self) -> str:
        """What the exchange knows its key by."""
        return hashlib.sha256(self.pair.kid.encode()).hexdigest()

    def message(self, kind: str, to: Identity, action: str, payload: object = None, **fields: Any) -> Message:
        """A message of its, without a signature."""
        body = Raw(json.dumps({} if payload is None else payload).encode())
        return Message(
            self.users.new_id(), kind, self.identity, (to,), stamp(self.users.wall_ms), action, body, **fields
        )

    def say(self, message: Message) -> None:
        """Send it now, by the connection there is. What is said again has a new time and the same id."""
        wire = self.wire
        if wire is not None:
            message = msgspec.structs.replace(message, timestamp=stamp(self.users.wall_ms))
            data = signing.sign(message, self._key)
            self.users.later(self.users.arrive, wire, data)

    def connect(self) -> None:
        """Be there, if the exchange is."""
        if self.wire is None and self.users.is_open:
            self.wire = Wire(self)
            self.users.witness.note(self.name, "connects")
            self._beat(self.wire)
            self.begin()

    @abstractmethod
    def begin(self) -> None:
        """What is said first."""

    def _beat(self, wire: Wire) -> None:
        if self.wire is wire:
            self.say(self.message(HEARTBEAT, US, HEARTBEAT))
            self.users.loop.call_later(HEARTBEAT_S, self._beat, wire)

    def leave(self) -> None:
        """The connection ends; some time later there is another."""
        wire, self.wire = self.wire, None
        if wire is not None:
            self.users.witness.note(self.name, "loses its connection")
            self.users.ended(wire)
            self.users.loop.call_later(self.users.rng.uniform(0.1, 10.0), self.connect)

    @abstractmethod
    def receive(self, message: Message, call_id: str) -> None:
        """Something came."""


class Provider(User):
    """Works for others, once for each request, whatever is lost."""

    def __init__(self, users: OssaUsers) -> None:
        super().__init__(users, PROVIDER)
        # By the id of the request, across all connections: what was answered.
        self._answers: dict[str, Message] = {}
        self._is_registered = False

    def begin(self) -> None:
        """Say what it does, until that was heard."""
        self._is_registered = False
        self._register(self.wire)

    def _register(self, wire: Wire | None) -> None:
        if self.wire is wire and wire is not None and not self._is_registered:
            offers = [{"name": name, "side_effects": side_effects} for name, side_effects in ACTIONS.items()]
            self.say(self.message(REQUEST, US, "register", {"actions": offers, "replace": True}))
            self.users.loop.call_later(REGISTER_AGAIN_S, self._register, wire)

    def receive(self, message: Message, call_id: str) -> None:
        """A request is worked on, now or later; some are refused, and some cost it its connection."""
        if message.type == RESPONSE:
            self._is_registered = True
        if message.type != REQUEST:
            return
        rng, known = self.users.rng, self._answers.get(message.message_id)
        which = 1.0 if self.users.is_quiet else rng.random()
        if known is not None:
            self.say(known)
        elif which < 0.06:
            self.leave()
        elif which < 0.1:
            self.users.witness.note(self.name, "never answers", call_id)
        elif which < 0.2:
            self.say(self._error(message, 503))
        else:
            self._work(message, call_id, fails=which < 0.25)

    def _work(self, message: Message, call_id: str, *, fails: bool) -> None:
        tool = self.users.tools[f"{PROVIDER}/{message.action}"]
        caller = message.sender.agent_id
        self.users.witness.executed(self.name, call_id, tool, caller, None, bytes(message.payload))
        answer = self._error(message, 500) if fails else self._response(message)
        self._answers[message.message_id] = answer
        after_s = 0.01 if self.users.is_quiet else self.users.rng.choice((0.01, 0.01, 1.0, 12.0))
        self.users.loop.call_later(after_s, self.say, answer)

    def _response(self, to: Message) -> Message:
        done = {"done": json.loads(bytes(to.payload))}
        return self.message(RESPONSE, to.sender, to.action, done, correlation_id=to.correlation_id)

    def _error(self, to: Message, code: int) -> Message:
        info = ErrorInfo(code, "not now", stamp(self.users.wall_ms))
        return self.message(ERROR, to.sender, "error", error=info, correlation_id=to.correlation_id)


class Caller(User):
    """Asks, and asks again."""

    def __init__(self, users: OssaUsers, name: str) -> None:
        super().__init__(users, name)
        self.asked: dict[int, Message] = {}
        # By number: every reply but receipts.
        self.replies: dict[int, list[Message]] = {}
        self._by_correlation: dict[str, list[int]] = {}

    def begin(self) -> None:
        """It speaks when it asks."""

    def ask(self, number: int) -> None:
        """A new message, for the provider."""
        rng = self.users.rng
        kind, action = rng.choice((REQUEST, REQUEST, messages.COMMAND)), rng.choice(list(ACTIONS))
        correlation_id = f"{self.name}-{number}" if rng.random() < 0.6 else None
        to = Identity(PROVIDER, "worker")
        message = self.message(kind, to, action, {"n": number, "by": self.name}, correlation_id=correlation_id)
        self.asked[number] = message
        self.users.witness.note(self.name, f"asks {PROVIDER} to {action} number {number}")
        self.say(message)

    def repeat(self, number: int) -> None:
        """The same once more."""
        self.say(self.asked[number])

    def receive(self, message: Message, call_id: str) -> None:
        """A reply; a result of a command is acknowledged, mostly."""
        del call_id
        if message.type == messages.COMMAND_RESULT and (self.users.is_quiet or self.users.rng.random() < 0.8):
            self.say(self.message(messages.ACK, US, messages.ACK, {"messageId": message.message_id}))
        if message.type in {RESPONSE, messages.COMMAND_RESULT, ERROR}:
            for number, asked in self.asked.items():
                if asked.correlation == message.correlation_id:
                    self.replies.setdefault(number, []).append(message)


class OssaUsers(BaseSink):
    """All of them; itself the conversation in which their keys are made."""

    def __init__(self, loop: ManualLoop, rng: Random, witness: Witness, left: Callable[[], None]) -> None:
        self.loop = loop
        self.rng = rng
        self.witness = witness
        self.left = left
        self.tools = definitions()
        self._peers: OssaPeers | None = None
        self._server: asyncio.AbstractEventLoop | None = None
        self._count = 0
        # In the end nothing is lost, and everybody does what they should.
        self.is_quiet = False
        self.provider = Provider(self)
        self.callers = [Caller(self, name) for name in CALLERS]

    @property
    def everybody(self) -> list[User]:
        """Who connects."""
        return [self.provider, *self.callers]

    def new_id(self) -> str:
        """An id that follows from the seed."""
        return str(uuid.UUID(bytes=self.rng.randbytes(16), version=4))

    @property
    def wall_ms(self) -> int:
        """What everybody's clock shows: it is one machine."""
        return int(self.loop.clock.wall * 1000)

    @property
    def is_open(self) -> bool:
        """Whether an exchange is there."""
        return self._peers is not None

    # -- the exchange comes and goes -----------------------------------------------------------------------------------

    def open(self, given: Surroundings, peers: OssaPeers) -> None:
        """An exchange serves: who has no key is given one, then everybody comes."""
        self._peers, self._server = peers, asyncio.get_running_loop()
        session = given.feed.open_session(self)
        for user in self.everybody:
            if given.views.credential(EDGE, user.sha256) is None:
                boss, digest = Principal(OPERATOR), user.sha256
                issued = events.TokenIssued(
                    session, user.name, boss, EDGE, user.name, digest, (), "worker", user.pair.public
                )
                with suppress(LedgerError):
                    given.feed.feed([issued])
            self.loop.call_later(self.rng.uniform(0.0, 3.0), user.connect)

    def close(self) -> None:
        """The exchange is gone, and with it all connections."""
        self._peers = self._server = None
        for user in self.everybody:
            user.wire = None

    def send(self, effect: ToSession, now: Now) -> None:
        """A key was made."""
        del effect, now
        self.left()

    # -- the wires -----------------------------------------------------------------------------------------------------

    def later(self, work: Callable[..., None], *arguments: Any) -> None:
        """A message arrives after a moment, or not at all."""
        if self.is_quiet or self.rng.random() >= LOSS:
            self.loop.call_later(self.rng.uniform(*LATENCY_S), work, *arguments)

    def arrive(self, wire: Wire, data: bytes) -> None:
        """A message of an agent reaches the exchange, whose loop takes it."""
        if self._server is not None:
            self._server.call_soon(self._take, wire, data)

    def _take(self, wire: Wire, data: bytes) -> None:
        peers = self._peers
        if peers is None or not wire.is_open:
            return
        try:
            known: Known = _finished(peers.identities.read(data))
            peer = peers.peer(known)
            if wire.peer is not peer:
                wire.peer = peer
                peer.attach(wire, "wire")
            peers.receive(known, wire.replied)
        except Refused as refused:
            if not refused.is_of_error:
                wire.say(peers.refusal(refused, "wire"))
        except LedgerError:
            pass  # the disk is broken: the exchange says so itself

    def ended(self, wire: Wire) -> None:
        """A connection broke, and the exchange notices."""
        wire.is_open = False
        if self._server is not None:
            self._server.call_soon(self._detach, wire)

    def _detach(self, wire: Wire) -> None:
        if wire.peer is not None and self._peers is not None:
            with suppress(LedgerError):
                wire.peer.detach(wire, DISCONNECTED)

    # -- what they do --------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Somebody wants something."""
        self._count += 1
        self.rng.choice(self.callers).ask(self._count)

    def repeat(self) -> None:
        """Somebody says the same again: the answer got lost, or it is impatient."""
        caller = self.rng.choice(self.callers)
        if caller.asked:
            caller.repeat(self.rng.choice(list(caller.asked)[-8:]))

    def somebody_goes(self) -> None:
        """A connection breaks."""
        self.rng.choice([self.provider, *self.everybody]).leave()

    def repeat_everything(self) -> None:
        """In the end: each message once more."""
        for caller in self.callers:
            caller.connect()
            for number in caller.asked:
                self.loop.call_later(self.rng.uniform(0.0, 4.0), caller.repeat, number)


class OssaOnWires(RunningEdge):
    """OSSA, whose agents connect by the wires of the simulation."""

    def __init__(self, given: Surroundings, users: OssaUsers) -> None:
        self._given = given
        self._users = users
        config = Ossa(rate={"worker": 1_000_000})
        entropy = users.rng.randbytes
        self._peers = OssaPeers(given.feed, given.views, config, keys_of(b"e" * 64), given.key, entropy, ways=self)

    def reach(self, peer: OssaPeer, keys: AgentKeys) -> None:
        """Nobody here is reached by a URL."""

    def send_away(self, way: Way) -> None:
        """End a connection."""
        assert isinstance(way, Wire)
        way.is_open = False

    async def start(self) -> None:
        """Let them in."""
        self._peers.take_up()
        self._users.open(self._given, self._peers)

    async def stop(self) -> None:
        """Nobody is heard any more."""
        self._users.close()
        self._peers.stop()


def _finished(work: Coroutine[Any, Any, Any]) -> Any:
    """What this gives, which waits for nobody: messages of this size are checked at once."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


# --- what must hold ---------------------------------------------------------------------------------------------------


def breaches(users: OssaUsers, record: Record) -> Iterator[Breach]:
    """One message is one call with one outcome, told to everybody who repeats it in the same words."""
    calls: dict[tuple[str, int], list[Any]] = {}
    for accepted in record.accepted.values():
        if accepted.caller.startswith("ossa:") and accepted.tool_id in users.tools:
            number = json.loads(bytes(accepted.input))["n"]
            calls.setdefault((accepted.caller, number), []).append(accepted)
    for caller in users.callers:
        for number, asked in caller.asked.items():
            found = calls.get((f"ossa:{caller.name}", number), [])
            ids = tuple(one.call_id for one in found)
            has_effects = ACTIONS[asked.action]
            if has_effects and len(found) > 1:
                yield Breach(f"message {number} of {caller.name} is {len(found)} calls", ids)
            replies = caller.replies.get(number, [])
            good = [one for one in replies if one.error is None]
            if len({(one.message_id, bytes(one.payload)) for one in good}) > (1 if has_effects else len(good)):
                yield Breach(f"message {number} of {caller.name} was answered in different words", ids)
            if good and has_effects:
                ends = [record.outcome(one) for one in found]
                if not any(end is not None and end.status is Status.SUCCEEDED for end in ends):
                    yield Breach(f"{caller.name} was told that {number} was done, and it is not on record", ids)
                after = [one.error for one in replies[replies.index(good[0]) :] if one.error is not None]
                others = {error.code for error in after if error.message != DEFECT} - PASSING
                if others:
                    yield Breach(f"{caller.name} was told that {number} was done, and then {sorted(others)}", ids)
            if not replies:
                yield Breach(f"{caller.name} was never told how {number} ended", ids)
