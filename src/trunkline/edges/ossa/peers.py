"""Everybody who speaks OSSA with us: who they are, what of theirs is under way, and where they are reached.

Start reading here. Bytes come from a transport (``serve``); ``receive`` judges them in this order: size, JSON, shape,
version, signature and whose key it is, time, encryption, rate; then the message goes to its sender's ``Peer``, which
has an ``Asker`` for what the agent asks for and, while it can be reached, a ``Provider`` for what it is asked.

Owns identities, tickets (who waits for which reply) and the way out: everything is signed here, with our key, and
sealed for its recipient where it has to be. Does not own sockets.

Invariant: nothing of a message changes anything before its signature was checked.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

import msgspec
from msgspec import Raw, Struct

from trunkline.config import Ossa
from trunkline.edges.alarm import Alarm
from trunkline.edges.exchange import BaseSink, Feed, Views
from trunkline.edges.offers import LEAST_TOOL_BYTES, JudgingBudget
from trunkline.edges.ossa import messages, sealing, signing, translate
from trunkline.edges.ossa.asking import COMMANDS, Asker, Command, Saying
from trunkline.edges.ossa.keys import AgentKeys, OwnKeys, agent_keys
from trunkline.edges.ossa.messages import (
    BAD_REQUEST,
    COMMAND,
    ERROR,
    EVENT,
    FORBIDDEN,
    HEARTBEAT,
    INSUFFICIENT,
    INTERNAL_ERROR,
    MAX_MESSAGE_BYTES,
    NACK,
    RATE_LIMITED,
    REQUEST,
    STREAM_END,
    STREAM_START,
    STREAM_TYPES,
    TIMEOUT,
    UNAUTHORIZED,
    UNAVAILABLE,
    ErrorInfo,
    Message,
    Refused,
)
from trunkline.edges.ossa.providing import NOT_ADMITTED, Provider, Sending
from trunkline.edges.ossa.rates import Rate
from trunkline.edges.ossa.streams import Streams
from trunkline.edges.ossa.translate import EDGE, US, derived_id
from trunkline.effects import ConfirmTools, ToSession
from trunkline.events import Event, ProcessStepped
from trunkline.model import (
    AGENT_ID,
    EMPTY_OBJECT,
    Decision,
    Now,
    Principal,
    ToolDefinition,
    reserved_prefix,
    stamp,
)

# Silent point 16.
MAX_AHEAD_MS: Final = 300_000
MAX_AGE_MS: Final = 86_400_000
# How often calls from before a restart are looked at.
LOOK_S: Final = 1.0
STREAMS: Final = "ossa.streams"
OFFERS: Final = "ossa.offers"
# Who has said nothing for so long, waits for nothing and is not connected is forgotten.
FORGET_S: Final = 600.0
# A signature over more than this is checked beside the loop.
HEAVY_BYTES: Final = 65_536
# Why a way ended: the agent went, and nobody sent it away.
DISCONNECTED: Final = "disconnected"
DEFECT: Final = "a defect of the exchange; it is on record"
NOT_YOURS: Final = "the signature's key is not a key of this sender"


class Way(Protocol):
    """How an agent is reached. ``send`` does not wait; what could not be handed over comes back by ``not_sent``."""

    def send(self, data: bytes, sending: Sending) -> None:
        """Send this."""

    @property
    def has_room(self) -> bool:
        """Whether more may be sent now; ``Peer.flush`` is called when there is room again."""


class Known(Struct, frozen=True):
    """A message whose sender is who he says."""

    message: Message
    principal: Principal
    token_sha256: str
    keys: AgentKeys | None
    is_sealed: bool = False


class Ticket(Struct, eq=False):
    """Somebody who waits for replies: ``told`` hears them, all together, once there are as many as expected."""

    to: Message
    expected: int
    told: Callable[[list[tuple[Message, bytes]]], None]
    got: list[tuple[Message, bytes]] = []
    count: int = 0


class Offers(Struct, frozen=True):
    """What an agent that is reached by a URL does: it does not come back after a restart of ours, so this stays."""

    tools: tuple[ToolDefinition, ...]
    token_sha256: str


class Peer(BaseSink):
    """One agent. The exchange knows it by two conversations: this one, in which it asks, and its attachment's."""

    def __init__(self, peers: Peers, known: Known) -> None:
        self._peers = peers
        self._feed = peers.feed
        self.number = peers.feed.open_session(self)
        self.principal = known.principal
        self.token_sha256 = known.token_sha256
        self.keys = known.keys
        self.heard_at = peers.feed.now().mono
        self.rate = Rate(peers.config.rate)
        self.streams = Streams()
        self.asker = Asker(
            self.number,
            known.principal,
            peers.key,
            peers.config.actions,
            find_tool=peers.views.tool,
            find_call=peers.views.call,
            is_away=peers.is_away,
            register=self._register,
        )
        self.attachment: Attachment | None = None
        # Ids of its answers that ended calls.
        self.taken: dict[str, None] = {}
        # Correlations of requests that it was sent and has not answered, each with its call.
        self.late: dict[str, str] = {}
        # What it said it does, for when it comes back.
        self.tools: dict[str, ToolDefinition] = {}
        # Not confirmed yet, by the ref of the message that offers it.
        self._offered: dict[str, tuple[tuple[ToolDefinition, ...], bool]] = {}
        self._offers_subject = ""
        # Streams of its that go to other agents, of which the record says that they began.
        self._forwarded: set[str] = set()
        self._looked_at = 0.0
        self._alarm = Alarm(peers.feed, self._wake_at, self._wake)
        self.is_over = False

    @property
    def agent_id(self) -> str:
        """Who it is."""
        return self.asker.agent_id

    @property
    def is_idle(self) -> bool:
        """Whether it may be forgotten."""
        return not (
            len(self.asker) or self.asker.is_waiting or self.asker.owed() or self.attachment or len(self.streams)
        )

    # -- what it says --------------------------------------------------------------------------------------------------

    def receive(self, known: Known, ticket: int, now: Now) -> bool:
        """A message; whether a reply to ``ticket`` follows. ``Refused`` if it is not taken."""
        message = known.message
        self.principal = self.asker.principal = known.principal
        self.token_sha256, self.keys = known.token_sha256, known.keys or self.keys
        self.heard_at = now.mono
        provider = None if self.attachment is None else self.attachment.provider
        events = [] if provider is None else provider.heard(now)
        if message.type in {REQUEST, COMMAND, EVENT}:
            self.rate.count(message.type, known.principal.type, now.mono)
            events += self.asker.receive(message, ticket, now, is_sealed=known.is_sealed)
            self.step(events)
            return True
        if message.type in STREAM_TYPES:
            events += self._stream(message, now)
        elif message.type != HEARTBEAT:
            events += self._answer(message, provider)
        self.step(events)
        return False

    def _answer(self, message: Message, provider: Provider | None) -> list[Event]:
        events = [] if provider is None else provider.receive(message)
        if message.type == messages.ACK:
            events += self.asker.acknowledged(messages.about(message.payload))
        return events

    def answered(self, known: Known) -> None:
        """An answer that came back on the way that a message went out by."""
        now = self._feed.now()
        attachment = self.attachment
        provider = None if attachment is None else attachment.provider
        events = [] if provider is None else provider.heard(now)
        self.step(events + self._answer(known.message, provider))

    def took(self, sending: Sending) -> None:
        """The agent took an event or a result, says the way it was sent by."""
        events = [] if self.attachment is None else self.attachment.provider.acknowledged(sending)
        self.step(events + self.asker.acknowledged(sending.message.message_id))

    def _stream(self, message: Message, now: Now) -> list[Event]:
        for one in message.recipients:
            target = self._peers.reached(one.agent_id)
            if target is not None and target.attachment is not None and not target.attachment.provider.has_room:
                raise Refused(INSUFFICIENT, f"{one.agent_id} reads too slowly; send this piece again later")
        going, is_gap = self.streams.receive(message, now.mono)
        if is_gap:
            self._nack(message, now)
        events: list[Event] = []
        for piece in going:
            events += self._piece(piece)
        return events

    def _piece(self, piece: Message) -> list[Event]:
        """A piece of a stream in its turn: a call's progress, or something for its recipients."""
        provider = None if self.attachment is None else self.attachment.provider
        if provider is not None and piece.correlation_id is not None:
            if piece.type == STREAM_START:
                if provider.is_working_on(piece.correlation_id):
                    return []
            else:
                done = piece.type == STREAM_END
                sequence = piece.sequence or 0
                payload = EMPTY_OBJECT if done else piece.payload
                found = provider.progressed(piece.correlation_id, sequence, payload, done=done)
                if found is not None:
                    return found + (self._stream_ended(str(piece.stream_id), "ended", piece.sequence) if done else [])
        return self._forward(piece)

    def _forward(self, piece: Message) -> list[Event]:
        targets = [self._peers.reached(one.agent_id) for one in piece.recipients]
        if piece.type == STREAM_START:
            for recipient, target in zip(piece.recipients, targets, strict=True):
                if target is None:
                    self.streams.forget(str(piece.stream_id))
                    raise Refused(UNAVAILABLE, f"{recipient.agent_id} cannot be reached now")
                self._check_stream(piece, recipient.agent_id)
        for recipient, target in zip(piece.recipients, targets, strict=True):
            if target is not None and target.attachment is not None:
                message_id = derived_id(self._peers.key, piece.type, recipient.agent_id, piece.message_id)
                made = msgspec.structs.replace(
                    piece, message_id=message_id, recipients=(recipient,), is_to_list=False, signature=None
                )
                # What came encrypted goes on encrypted: nothing else is taken as sensitive.
                target.attachment.provider.say(made, is_sealed=made.sensitive)
                target.flush()
        if piece.type == STREAM_START:
            return self._stream_begun(piece)
        return self._stream_ended(str(piece.stream_id), "ended", piece.sequence) if piece.type == STREAM_END else []

    def _check_stream(self, piece: Message, agent_id: str) -> None:
        """What policy says to the action that the stream names; an action that nobody registered is nobody's tool."""
        tool_id = f"{agent_id}/{piece.action}"
        if self._peers.views.tool(tool_id) is None:
            return
        verdict = self._peers.views.check(self.principal.identity, tool_id, None)
        if verdict.decision is not Decision.ALLOW:
            self.streams.forget(str(piece.stream_id))
            raise Refused(FORBIDDEN, verdict.reason or "policy does not allow this stream")

    def _stream_begun(self, piece: Message) -> list[Event]:
        told = {"to": [one.agent_id for one in piece.recipients], "action": piece.action}
        self._forwarded.add(str(piece.stream_id))
        return [self._peers.stream_step(self, str(piece.stream_id), "begun", Raw(msgspec.json.encode(told)))]

    def _stream_ended(self, stream_id: str, step: str, count: int | None = None) -> list[Event]:
        if stream_id not in self._forwarded:
            return []
        self._forwarded.discard(stream_id)
        told = EMPTY_OBJECT if count is None else Raw(msgspec.json.encode({"count": count}))
        return [self._peers.stream_step(self, stream_id, step, told, done=True)]

    def _nack(self, message: Message, now: Now) -> None:
        body = Raw(msgspec.json.encode({"messageId": message.message_id}))
        info = ErrorInfo(BAD_REQUEST, "a piece before this one is missing", stamp(now.ms))
        nack = Message(
            derived_id(self._peers.key, NACK, self.agent_id, message.message_id),
            NACK,
            US,
            (message.sender,),
            stamp(now.ms),
            NACK,
            body,
            info,
            correlation_id=message.thread_id,
            stream_id=message.stream_id,
        )
        self.asker.output.append(Saying(nack))

    # -- what it does --------------------------------------------------------------------------------------------------

    def attach(self, way: Way, origin: str) -> None:
        """From here on the agent is reached this way, and no other."""
        if self.attachment is not None:
            if self.attachment.way is way:
                return
            self.detach(self.attachment.way, "replaced")
        self.attachment = Attachment(self, way, origin)
        self.attachment.begin(tuple(self.tools.values()))
        for saying in self.asker.owed():
            self._say_owed(saying)
        self.flush()

    def detach(self, way: Way, reason: str) -> None:
        """A way ended; if it is the one in use, the agent cannot be reached until the next."""
        attachment = self.attachment
        if attachment is not None and attachment.way is way:
            self.attachment = None
            attachment.end(reason)
            self._answer_offers()
            self._peers.detached(self, reason)

    def _answer_offers(self) -> None:
        """What was offered on a way that ended is not confirmed any more: the agent offers it again."""
        offered, self._offered = self._offered, {}
        now = self._feed.now()
        events: list[Event] = []
        for ref in offered:
            events += self.asker.not_registered(ref, UNAVAILABLE, "the connection ended before this was done", now)
        if offered:
            self.step(events)

    def _register(self, ref: str, tools: tuple[ToolDefinition, ...], replace: bool, now: Now) -> list[Event]:
        if self.attachment is None:
            raise Refused(UNAVAILABLE, "connect to /ossa/v1/ws first, or have a key made with --url")
        if self.principal.identity.partition(":")[2] != self.agent_id or AGENT_ID.fullmatch(self.agent_id) is None:
            raise Refused(BAD_REQUEST, "this id cannot be an agent's")
        self._peers.check_offer(self.agent_id, tools, now)
        self._offered[ref] = (tools, replace)
        return self.attachment.provider.register(ref, tools, replace)

    def _keep_offers(self, now: Now) -> list[Event]:
        """What an agent that is reached by a URL offers stays on record, until it offers something else."""
        if self.keys is None or not self.keys.url:
            return []
        earlier, self._offers_subject = self._offers_subject, f"{self.agent_id}/{now.ms}"
        data = Raw(msgspec.json.encode(Offers(tuple(self.tools.values()), self.token_sha256)))
        step = partial(ProcessStepped, self.number, "", OFFERS, caller=self.principal.identity)
        events: list[Event] = [step(self._offers_subject, "offered", data)]
        if earlier and earlier != self._offers_subject:
            events.append(step(earlier, "replaced", EMPTY_OBJECT, done=True))
        return events

    def take_up_offers(self, subject: str, offers: Offers) -> None:
        """After a restart: what it offered before."""
        self._offers_subject = subject
        self.tools = {tool.tool_id: tool for tool in offers.tools}

    def told_registered(self, told: ConfirmTools | str, now: Now) -> list[Event]:
        """What the exchange took of an offer."""
        if not isinstance(told, ConfirmTools):
            self._offered.pop(told, None)
            code, text = NOT_ADMITTED
            return self.asker.not_registered(told, code, text, now)
        offered = self._offered.pop(told.ref, None)
        if offered is None:  # what it offered before, after it came back
            for tool_id, _ in told.rejected:
                self.tools.pop(tool_id, None)
            return []
        tools, replace = offered
        if replace:
            self.tools.clear()
        self.tools.update({tool.tool_id: tool for tool in tools if tool.tool_id in told.registered})
        return [*self._keep_offers(now), *self.asker.registered(told, now)]

    # -- the exchange's side, and the way out --------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange says something to it as a caller."""
        events = self.asker.send(effect, now)
        if events:
            self._feed.feed(events)

    def step(self, events: list[Event]) -> None:
        """These happened; then let everything leave that may."""
        if events:
            self._feed.feed(events)
        self.flush()

    def flush(self) -> None:
        """Answer who waits, hand on what is to be sent, wake up in time."""
        sayings, self.asker.output = self.asker.output, []
        for saying in sayings:
            if saying.is_kept:
                self._drain()  # what was said before it comes before it, where both go the same way
                self._feed.when_stored(partial(self._say_now, saying))
            else:
                self._say_now(saying)
        self._drain()
        self._alarm.set()

    def _drain(self) -> None:
        if self.attachment is not None:
            self.attachment.drain()

    def _say_now(self, saying: Saying) -> None:
        if saying.tickets:
            self._peers.answer(self, saying)
        else:
            self._push(saying)
            if saying.is_kept:
                self._drain()
                self._alarm.set()

    def _push(self, saying: Saying) -> None:
        if self.attachment is None or saying.message is None:
            return  # a result that is owed waits; the rest is of use only at its moment
        if self.asker.is_owed(saying.message.message_id):
            self._say_owed(saying)
        else:
            self.attachment.provider.say(saying.message, is_sealed=saying.is_sealed)

    def _say_owed(self, saying: Saying) -> None:
        if self.attachment is not None and saying.message is not None:
            self.attachment.provider.owe(saying.message, is_sealed=saying.is_sealed, now=self._feed.now())

    def abort(self) -> None:
        """A defect of ours ended the conversation, and the exchange knows."""
        self.is_over = True
        self._alarm.cancel()
        for tickets in self.asker.give_up():
            self._peers.give_up(tickets)
        if self.attachment is not None:
            self.detach(self.attachment.way, "defect")
        self._peers.forget(self)

    def stop(self) -> None:
        """The edge stops: what is open stays on record."""
        self._alarm.cancel()

    def _wake_at(self) -> float | None:
        times = [self.streams.wake_at(), None if self.attachment is None else self.attachment.provider.wake_at()]
        now = self._feed.now()
        if self.asker.is_waiting:
            times.append(self._looked_at + LOOK_S)
        drops_at_ms = self.asker.drops_at_ms
        if drops_at_ms is not None:
            times.append(max(self._looked_at + LOOK_S, now.mono + (drops_at_ms - now.ms) / 1000))
        return min((at for at in times if at is not None), default=None)

    def _wake(self) -> None:
        now = self._feed.now()
        self._looked_at = now.mono
        events = self.asker.look(now)
        for start in self.streams.wake(now.mono):
            info = ErrorInfo(TIMEOUT, "nothing came on this stream for too long", stamp(now.ms))
            message_id = derived_id(self._peers.key, "idle", self.agent_id, start.message_id)
            self.asker.output.append(Saying(translate.failed(start, info, message_id, US)))
            events += self._stream_ended(str(start.stream_id), "idle")
        if self.attachment is not None:
            self.attachment.wake(now)
        self.step(events)


class Attachment(BaseSink):
    """The way to an agent, and the conversation in which the exchange gives it work."""

    def __init__(self, peer: Peer, way: Way, origin: str) -> None:
        self._peer = peer
        self._peers = peer._peers  # noqa: SLF001  (one part of the same thing)
        self._feed = self._peers.feed
        self.way = way
        self._number = self._feed.open_session(self)
        self.provider = Provider(
            self._number,
            peer.principal,
            peer.token_sha256,
            self._peers.key,
            origin,
            told_registered=peer.told_registered,
            is_open=self._peers.is_open,
            taken=peer.taken,
            late=peer.late,
            now=self._feed.now(),
        )

    def begin(self, tools: tuple[ToolDefinition, ...]) -> None:
        """It can be reached: what it subscribed to and what it offered before hold again."""
        self._feed.feed(self.provider.attach())
        if tools:
            self._feed.feed(self.provider.register("again", tools, replace=True))

    def end(self, reason: str) -> None:
        """It cannot be reached any more."""
        self._feed.feed(self.provider.leave(reason))
        self._feed.close_session(self._number)

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange gives it work."""
        events = self.provider.send(effect, now)
        if events:
            self._feed.feed(events)
        if self.provider.is_over:
            self._peer.detach(self.way, "sent away")
            self._peers.sent_away(self._peer, self.way)

    def flush(self) -> None:
        """Something may be different, also for what the agent asked for."""
        self._peer.flush()

    def drain(self) -> None:
        """Send what may leave now."""
        if self.provider.is_over:
            return
        if len(self.provider) and self._feed.identify(EDGE, self._peer.token_sha256) is None:
            # Its key was revoked, and nothing more is for it.
            self._peer.detach(self.way, "sent away")
            self._peers.sent_away(self._peer, self.way)
            return
        now = self._feed.now()
        while self.way.has_room:
            sending = self.provider.next(now)
            if sending is None:
                return
            self._send(sending)

    def _send(self, sending: Sending) -> None:
        seals = self._peer.keys if sending.is_sealed else None
        try:
            if sending.is_owed:  # it stays owed until it is acknowledged, whatever can be said of it
                _, data = self._peers.encoded(sending.message, seals)
            else:
                data = self._peers.encode(sending.message, seals)
        except Refused as refused:
            self._feed.feed(self.provider.unfit(sending, refused.text))
            return
        self.way.send(data, sending)

    def not_sent(self, sending: Sending, why: str) -> None:
        """The way could not hand this over."""
        self._peer.step(self.provider.not_sent(sending, why))

    def wake(self, now: Now) -> None:
        """Tell again what was not acknowledged."""
        events, again = self.provider.wake(now)
        if again and self._feed.identify(EDGE, self._peer.token_sha256) is None:
            again = []
        if events:
            self._feed.feed(events)
        for sending in again:
            if self.way.has_room:
                self._send(sending)

    def abort(self) -> None:
        """A defect of ours ended this conversation, and the exchange knows."""
        self.provider.is_over = True
        if self._peer.attachment is self:
            self._peer.attachment = None
        self._peers.sent_away(self._peer, self.way)


class Peers:
    """All agents. ``key`` makes ids that can be told again."""

    def __init__(
        self, feed: Feed, views: Views, config: Ossa, own: OwnKeys, key: bytes, entropy: Callable[[int], bytes]
    ) -> None:
        self.feed = feed
        self.views = views
        self.config = config
        self.own = own
        self.key = key
        self._entropy = entropy
        self.by_agent: dict[str, Peer] = {}
        self._tickets: dict[int, Ticket] = {}
        self._numbers = itertools.count(1)
        self._judging = JudgingBudget(EDGE, feed.offer_refused)
        # Told when an agent is sent away: its socket has no right to stay.
        self.on_sent_away: Callable[[Way], None] = lambda _: None
        # Told of an agent that is reached by a URL.
        self.on_url: Callable[[Peer, AgentKeys], None] = lambda _, __: None
        self.refused: dict[int, int] = {}
        self.is_over = False

    def new_id(self) -> str:
        """A UUID that nobody can foresee."""
        return str(uuid.UUID(bytes=self._entropy(16), version=4))

    # -- after a restart -----------------------------------------------------------------------------------------------

    def take_up(self) -> None:
        """Go on with what is on record: results of commands that are owed, and agents that are reached by a URL."""
        now = self.feed.now()
        for subject, steps in self.views.open_steps(COMMANDS).items():
            agent_id, _, ref = subject.partition("/")
            peer = self._peer_of(agent_id)
            if peer is not None:
                command = msgspec.json.decode(steps[-1].data, type=Command)
                peer.asker.take_up(ref, command, now)
        for subject in self.views.open_steps(STREAMS):  # nobody remembers how far they were
            self.feed.feed([ProcessStepped(0, "", STREAMS, subject, "lost", EMPTY_OBJECT, done=True)])
        for subject, steps in self.views.open_steps(OFFERS).items():
            peer = self._peer_of(subject.partition("/")[0])
            if peer is not None:
                peer.take_up_offers(subject, msgspec.json.decode(steps[-1].data, type=Offers))
        for peer in self.by_agent.values():
            if peer.keys is not None and peer.keys.url:
                self.on_url(peer, peer.keys)
            peer.flush()

    def _peer_of(self, agent_id: str) -> Peer | None:
        """The peer that has this id, if it still has a key."""
        for view in self.views.credentials(EDGE, agent_id):
            if view.public is not None:
                keys = agent_keys(view.public)
                digest = _digest(keys.kid)
                principal = self.feed.identify(EDGE, digest)
                if principal is not None:
                    return self._peer(Known(_NOTHING, principal, digest, keys))
        return None

    # -- who it is -----------------------------------------------------------------------------------------------------

    async def read(self, data: bytes) -> Known:
        """A message whose sender proved who he is; ``Refused`` if it is not one."""
        message = messages.read(data, any_uuid=self.config.any_uuid)
        try:
            if message.signature is None:
                return self._unsigned(message)
            claim = signing.read_claim(message.signature)
            keys = self._claimed(message, claim.kid)
            if len(data) > HEAVY_BYTES:
                # The canonical form of a megabyte of numbers takes a tenth of a second: others have their turns.
                await asyncio.to_thread(signing.check, data, claim, keys.checks)
            else:
                signing.check(data, claim, keys.checks)
            return self._known(message, keys)
        except Refused as refused:
            refused.to, refused.thread_id = message.sender, message.thread_id
            refused.is_of_error = message.type == ERROR
            raise

    def _claimed(self, message: Message, kid: str) -> AgentKeys:
        """The keys of the credential that a signature names, if it is this sender's."""
        view = self.views.credential(EDGE, _digest(kid))
        agent_id = message.sender.agent_id
        if view is None or view.public is None or view.agent != agent_id or reserved_prefix(agent_id):
            raise Refused(UNAUTHORIZED, NOT_YOURS)
        return agent_keys(view.public)

    def _unsigned(self, message: Message) -> Known:
        """Where signatures are not required, an agent is whom it says, if a key was made for one of that id."""
        if self.config.require_signature:
            raise Refused(UNAUTHORIZED, "the message is not signed")
        for view in self.views.credentials(EDGE, message.sender.agent_id):
            if view.public is not None:
                return self._known(message, agent_keys(view.public))
        raise Refused(UNAUTHORIZED, "no agent of this id has a key here")

    def _known(self, message: Message, keys: AgentKeys) -> Known:
        digest = _digest(keys.kid)
        principal = self.feed.identify(EDGE, digest)
        if principal is None:
            raise Refused(UNAUTHORIZED, NOT_YOURS)
        self._check_time(message)
        return self._opened(Known(message, principal, digest, keys))

    def _check_time(self, message: Message) -> None:
        age_ms = self.feed.now().ms - message.sent_ms
        if not -MAX_AHEAD_MS <= age_ms <= MAX_AGE_MS:
            raise Refused(UNAUTHORIZED, "timestamp: too old, or in the future; whether it is a replay cannot be told")

    def _opened(self, known: Known) -> Known:
        message = known.message
        if sealing.is_sealed(message.payload):
            payload = sealing.open_sealed(message, self.own.opens)
            opened = msgspec.structs.replace(message, payload=payload, sensitive=True)
            return msgspec.structs.replace(known, message=opened, is_sealed=True)
        if message.sensitive:  # silent point 6
            raise Refused(BAD_REQUEST, "sensitive: the payload has to be encrypted")
        return known

    # -- messages ------------------------------------------------------------------------------------------------------

    def peer(self, known: Known) -> Peer:
        """The sender of a message, who may be new."""
        return self._peer(known)

    def _peer(self, known: Known) -> Peer:
        agent_id = known.principal.identity.partition(":")[2]
        found = self.by_agent.get(agent_id)
        if found is None:
            self._forget_idle()
            found = self.by_agent[agent_id] = Peer(self, known)
        if known.keys is not None and known.keys.url and found.attachment is None:
            found.keys = known.keys
            self.on_url(found, known.keys)
        return found

    def _forget_idle(self) -> None:
        before = self.feed.now().mono - FORGET_S
        for peer in [one for one in self.by_agent.values() if one.heard_at < before and one.is_idle]:
            peer.stop()
            self.feed.close_session(peer.number)
            self.forget(peer)

    def forget(self, peer: Peer) -> None:
        """A peer is over."""
        if self.by_agent.get(peer.agent_id) is peer:
            del self.by_agent[peer.agent_id]

    def reached(self, agent_id: str) -> Peer | None:
        """An agent, if it can be reached now."""
        found = self.by_agent.get(agent_id)
        return found if found is not None and found.attachment is not None else None

    def detached(self, peer: Peer, reason: str) -> None:
        """A way ended. Who went and has a URL is reached by that from here on, if his key still counts."""
        keys = peer.keys
        if keys is None or not keys.url or peer.is_over or self.is_over or reason != DISCONNECTED:
            return
        if self.feed.identify(EDGE, peer.token_sha256) is not None:
            self.on_url(peer, keys)

    def is_open(self, call_id: str) -> bool:
        """Whether a call has no outcome yet."""
        view = self.views.call(call_id)
        return view is not None and not view.status.is_outcome

    def check_offer(self, agent_id: str, tools: tuple[ToolDefinition, ...], now: Now) -> None:
        """``Refused`` with 429 unless the exchange would look at these tools, and may so soon."""
        size = sum(max(LEAST_TOOL_BYTES, len(one.input_schema) + len(one.output_schema or b"")) for one in tools)
        refused = self._judging.refused(agent_id, len(tools)) or self._judging.try_take(agent_id, size, now)
        if refused is not None:
            wait_ms = (refused.details or {}).get("retry_after_ms", 1000)
            raise Refused(RATE_LIMITED, refused.message, retryAfterMs=wait_ms)

    def is_away(self, agent_id: str) -> bool:
        """Whether this is an agent of ours that cannot be reached now."""
        return self.reached(agent_id) is None and bool(self.views.credentials(EDGE, agent_id))

    def receive(self, known: Known, told: Callable[[list[tuple[Message, bytes]]], None]) -> int:
        """Hand a message to its sender's conversation. The ticket whose replies ``told`` will hear; 0 if none come.

        ``Refused`` if the message is not taken, and then nothing happened.
        """
        peer = self._peer(known)
        ticket = next(self._numbers)
        self._tickets[ticket] = Ticket(known.message, len(known.message.recipients), told)
        try:
            if peer.receive(known, ticket, self.feed.now()):
                return ticket
        except Refused as refused:
            self._tickets.pop(ticket, None)
            refused.to = refused.to or known.message.sender
            refused.thread_id = refused.thread_id or known.message.thread_id
            refused.is_of_error = known.message.type == ERROR
            raise
        except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
            self._tickets.pop(ticket, None)
            self.feed.failed(peer.number, error)
            raise Refused(INTERNAL_ERROR, DEFECT) from None
        self._tickets.pop(ticket, None)
        return 0

    def stream_step(self, peer: Peer, stream_id: str, step: str, data: Raw, *, done: bool = False) -> Event:
        """What is on record of a stream from one agent to others: that it began, and how it ended."""
        subject = f"{peer.agent_id}/{stream_id}"
        return ProcessStepped(peer.number, "", STREAMS, subject, step, data, done, peer.principal.identity)

    def drop(self, ticket: int) -> None:
        """Who waited is gone."""
        self._tickets.pop(ticket, None)

    def answer(self, peer: Peer, saying: Saying) -> None:
        """Tell those who wait."""
        told = None if saying.message is None else self._encoded(peer, saying)
        for number in saying.tickets:
            ticket = self._tickets.get(number)
            if ticket is None:
                continue
            ticket.count += 1
            if told is not None:
                ticket.got.append(told)
            if ticket.count == ticket.expected:
                del self._tickets[number]
                ticket.told(ticket.got)

    def give_up(self, tickets: tuple[int, ...]) -> None:
        """A defect of ours ended a conversation: who waits in it is told so."""
        for number in tickets:
            ticket = self._tickets.pop(number, None)
            if ticket is not None:
                info = ErrorInfo(INTERNAL_ERROR, DEFECT, stamp(self.feed.now().ms))
                made = translate.failed(ticket.to, info, self.new_id(), US)
                ticket.told([*ticket.got, (made, self.encode(made, None))])

    def _encoded(self, peer: Peer, saying: Saying) -> tuple[Message, bytes]:
        assert saying.message is not None
        return self.encoded(saying.message, peer.keys if saying.is_sealed else None)

    def encoded(self, message: Message, seals: AgentKeys | None) -> tuple[Message, bytes]:
        """An answer as it leaves; one that cannot be said on this wire is an error that says so."""
        try:
            return message, self.encode(message, seals)
        except Refused as refused:
            info = ErrorInfo(INTERNAL_ERROR, f"the answer cannot be sent: {refused.text}", message.timestamp)
            made = msgspec.structs.replace(message, type=ERROR, action="error", payload=EMPTY_OBJECT, error=info)
            return made, self.encode(made, None)

    def encode(self, message: Message, seals: AgentKeys | None) -> bytes:
        """A message of ours as it leaves: sealed for its recipient if ``seals`` is given, and signed.

        ``Refused`` if it is too large for this wire, or has numbers that cannot be signed.
        """
        if seals is not None:
            payload = sealing.seal(message.payload, message.message_id, [seals.seals])
            message = msgspec.structs.replace(message, payload=payload, sensitive=True)
        data = messages.encode(signing.sign(message, self.own.signs))
        if len(data) > MAX_MESSAGE_BYTES:
            raise Refused(INSUFFICIENT, f"larger than {MAX_MESSAGE_BYTES} bytes")
        return data

    def refusal(self, refused: Refused) -> bytes:
        """What the sender of a message that was not taken is told."""
        self.refused[refused.error_code] = self.refused.get(refused.error_code, 0) + 1
        return self.encode(messages.error_reply(refused, US, self.new_id(), self.feed.now().ms), None)

    def sent_away(self, _peer: Peer, way: Way) -> None:
        """An agent's key was revoked, or a defect ended its conversation."""
        self.on_sent_away(way)

    def stop(self) -> None:
        """Say nothing more."""
        self.is_over = True
        for peer in self.by_agent.values():
            peer.stop()

    def status(self) -> Mapping[str, object]:
        """Figures."""
        return {
            "agents": len(self.by_agent),
            "reached": sum(1 for peer in self.by_agent.values() if peer.attachment is not None),
            "open": sum(len(peer.asker) for peer in self.by_agent.values()),
            "refused": sum(self.refused.values()),
        }


def _digest(kid: str) -> str:
    return hashlib.sha256(kid.encode()).hexdigest()


_NOTHING: Final = Message("", HEARTBEAT, US, (US,), "", "")
