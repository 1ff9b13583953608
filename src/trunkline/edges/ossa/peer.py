"""One agent: what it says goes to the right part of it, and what its parts say goes out. Driver of one conversation.

The exchange knows an agent by two conversations: this one, in which it asks (``Asker``), and, while it can be reached,
that of its ``Attachment``, in which it is asked. Streams it sends are put in order here (``OssaStreams``): they are the
progress of a call it works on, or go on to the agents they are addressed to.

Owns what the agent offers, and its streams to others. Does not own who it is (``identity``), nor who waits for its
replies (``peers``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw, Struct

from trunkline.edges.alarm import Alarm
from trunkline.edges.exchange import BaseSink
from trunkline.edges.ossa import messages, translate
from trunkline.edges.ossa.asking import Asker
from trunkline.edges.ossa.attachment import Attachment, Way
from trunkline.edges.ossa.identity import Known
from trunkline.edges.ossa.messages import (
    BAD_REQUEST,
    COMMAND,
    EVENT,
    FORBIDDEN,
    HEARTBEAT,
    INSUFFICIENT,
    NACK,
    REQUEST,
    STREAM_END,
    STREAM_START,
    STREAM_TYPES,
    TIMEOUT,
    UNAVAILABLE,
    ErrorInfo,
    Message,
    Refused,
)
from trunkline.edges.ossa.providing import NOT_ADMITTED, Provider, Sending
from trunkline.edges.ossa.rates import Pace, Rate
from trunkline.edges.ossa.replies import Saying
from trunkline.edges.ossa.streams import OssaStreams
from trunkline.edges.ossa.translate import EDGE, US, derived_id
from trunkline.effects import ConfirmTools, ToSession
from trunkline.events import Event, Noticed, ProcessStepped, WordsPassed
from trunkline.model import (
    AGENT_ID,
    EMPTY_OBJECT,
    Decision,
    Now,
    ToolDefinition,
    stamp,
)

if TYPE_CHECKING:
    from trunkline.edges.ossa.peers import OssaPeers

# How often calls from before a restart are looked at.
LOOK_S: Final = 1.0
STREAMS: Final = "ossa.streams"
OFFERS: Final = "ossa.offers"
# Why a way ended: the agent went, and nobody sent it away.
DISCONNECTED: Final = "disconnected"


class Offers(Struct, frozen=True):
    """What an agent that is reached by a URL does: it does not come back after a restart of ours, so this stays."""

    tools: tuple[ToolDefinition, ...]
    token_sha256: str


class OssaPeer(BaseSink):
    """One agent. The exchange knows it by two conversations: this one, in which it asks, and its attachment's."""

    def __init__(self, peers: OssaPeers, known: Known) -> None:
        self._peers = peers
        self._feed = peers.feed
        self.number = peers.feed.open_session(self)
        self.principal = known.principal
        self.token_sha256 = known.token_sha256
        self.keys = known.keys
        self.heard_at = peers.feed.now().mono
        self.rate = Rate(peers.config.rate)
        self.pace = Pace()
        self.streams = OssaStreams()
        self.asker = Asker(
            self.number,
            known.principal,
            peers.key,
            peers.config.actions,
            find_tool=peers.views.tool,
            find_call=peers.views.call,
            find_keyed=peers.views.keyed,
            absence=peers.absence,
            register=self._register,
        )
        self.attachment: Attachment | None = None
        # Ids of its answers that ended calls.
        self.used: dict[str, None] = {}
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
            len(self.asker) or self.asker.is_waiting or len(self.asker.owed) or self.attachment or len(self.streams)
        )

    # -- what it says --------------------------------------------------------------------------------------------------

    def recognize(self, known: Known) -> None:
        """The key of its newest message is the one it is known by: the one before may be revoked."""
        self.principal = self.asker.principal = known.principal
        self.token_sha256, self.keys = known.token_sha256, known.keys

    def receive(self, known: Known, ticket: int, now: Now) -> bool:
        """A message; whether a reply to ``ticket`` follows. ``Refused`` if it is not taken."""
        message = known.message
        self.recognize(known)
        self.heard_at = now.mono
        provider = None if self.attachment is None else self.attachment.provider
        events = [] if provider is None else provider.heard(now)
        if message.type in {REQUEST, COMMAND, EVENT}:
            self.rate.count(message.type, known.principal.type, now.mono)
            events += self.asker.receive(message, ticket, now, is_sealed=known.is_sealed)
            self.step(events)
            return True
        if message.is_expired(now.ms):
            events.append(self._expired(message))
        elif message.type in STREAM_TYPES:
            events += self._stream(message, now)
        elif message.type != HEARTBEAT:
            events += self._answer(message, provider)
        self.step(events)
        return False

    def _expired(self, message: Message) -> Event:
        what = f"{message.type} {message.message_id}"
        return Noticed("message.expired", EDGE, self.principal.identity, what)

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
        message = known.message
        if message.is_expired(now.ms):
            self.step([*events, self._expired(message)])
        else:
            self.step(events + self._answer(message, provider))

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
        told = tuple(target.principal.identity for target in targets if target is not None)
        self._feed.feed([WordsPassed(self.principal.identity, told, piece.correlation_id)])
        for recipient, target in zip(piece.recipients, targets, strict=True):
            if target is not None and target.attachment is not None:
                message_id = derived_id(self._peers.key, piece.type, recipient.agent_id, piece.message_id)
                made = msgspec.structs.replace(
                    piece,
                    message_id=message_id,
                    sender=translate.of_class(piece.sender, self.principal.type),
                    recipients=(recipient,),
                    is_to_list=False,
                    signature=None,
                )
                # What came encrypted goes on encrypted: nothing else is taken as sensitive.
                target.attachment.provider.say(made, is_sealed=made.sensitive)
                target.flush()
        if piece.type == STREAM_START:
            return self._stream_begun(piece)
        return self._stream_ended(str(piece.stream_id), "ended", piece.sequence) if piece.type == STREAM_END else []

    def _check_stream(self, piece: Message, agent_id: str) -> None:
        """What policy says to the action that the stream names, whether or not somebody registered it."""
        tool_id = f"{agent_id}/{piece.action}"
        views, identity = self._peers.views, self.principal.identity
        if views.tool(tool_id) is None:
            verdict = views.judged(identity, tool_id)
        else:
            verdict = views.check(identity, tool_id, None, views.behalf(identity))
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
        body = messages.receipt(message.message_id)
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
            correlation_id=message.correlation,
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
        for saying in self.asker.owed:
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
        if not self.keys.url:
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

    def on_registered(self, told: ConfirmTools | str, now: Now) -> list[Event]:
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
            if saying.after_disk:
                self._drain()  # what was said before it comes before it, where both go the same way
                self._feed.when_stored(partial(self._say_now, saying))
            else:
                self._say_now(saying)
        self._drain()
        self._alarm.set()

    def _drain(self) -> None:
        if self.attachment is not None and len(self.attachment.provider):
            self.attachment.drain()

    def _say_now(self, saying: Saying) -> None:
        if saying.tickets:
            self._peers.answer(self, saying)
        else:
            self._push(saying)
            if saying.after_disk:
                self._drain()
                self._alarm.set()

    def _push(self, saying: Saying) -> None:
        if self.attachment is None or saying.message is None:
            return  # a result that is owed waits; the rest is of use only at its moment
        if saying.message.message_id in self.asker.owed:
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
        if self.asker.is_waiting:
            times.append(self._looked_at + LOOK_S)
        drops_at_ms = self.asker.owed.drops_at_ms
        if drops_at_ms is not None:
            now = self._feed.now()
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
