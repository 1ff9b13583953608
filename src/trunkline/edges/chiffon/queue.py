"""Chiffon over a message queue: NATS JetStream, through nats-py (the extra ``trunkline[nats]``).

Owns the connection to the broker, the token in each message (``auth_token``, stripped before anything else looks at
it), acknowledgements and dead letters. A message is acknowledged when what it leads to is on record, a work_request
when its last word is with the broker, so that a crash in between brings it again. Broker away: it is tried again for
ever, with growing waits; a message of ours that cannot be handed over meanwhile is a failed attempt (5002). Does not
own what messages lead to (``peers``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
import nats
from nats.errors import Error as NatsError

from trunkline.edges.background import Background
from trunkline.edges.chiffon import messages, subjects
from trunkline.edges.chiffon.messages import AGENT_TYPES, ORCHESTRATOR, Fields, Refused
from trunkline.edges.chiffon.orchestrator_session import OrchestratorSession
from trunkline.edges.chiffon.peers import AnyConversation, Caller, Peers
from trunkline.edges.chiffon.session import Probe
from trunkline.edges.chiffon.translate import EDGE
from trunkline.edges.waiting import stored
from trunkline.error_words import in_words
from trunkline.events import Noticed

log = logging.getLogger("trunkline")

# The id under which this exchange takes work on a queue, in the role of an agent.
OWN_AGENT_ID: Final = "trunkline"
PUBLISH_TIMEOUT_S: Final = 5.0
FETCH_S: Final = 5.0
FETCH_MESSAGES: Final = 1
# Waits between tries to reach the broker: doubling up to this.
FIRST_WAIT_S: Final = 0.2
MAX_WAIT_S: Final = 10.0
CLOSE_S: Final = 1.0
# Where we ourselves get messages: nobody else can be reached there.
OWN_SUBJECTS: Final = frozenset({subjects.REPLIES, *(subjects.work(kind, OWN_AGENT_ID) for kind in AGENT_TYPES)})
# What it looks like when the broker is not there, or has no time.
# A field shorter than this is no token, and would be found in ordinary words.
SHORTEST_TOKEN: Final = 8
AWAY: Final = (OSError, NatsError, TimeoutError)


class Queue:
    """The edge's side of the broker. ``start`` once; ``stop`` once, after its tasks."""

    def __init__(self, peers: Peers, background: Background, url: str) -> None:
        self._peers = peers
        self._background = background
        self.url = url
        self.is_connected = False
        self._connection: Any = None
        self._js: Any = None
        # Who is reached by which subject: ids that differ in a dot and an underscore have the same one.
        self._reached_by: dict[str, str] = {}
        # Requests whose last word is not with the broker yet, by conversation and request_id.
        self._unanswered: dict[tuple[int, str], asyncio.Event] = {}

    def start(self) -> None:
        """Begin to look for the broker; nobody waits for it."""
        self._background.spawn(self._serve())

    async def stop(self) -> None:
        """Leave the broker; what was not acknowledged comes again."""
        if self._connection is not None:
            # nats-py writes what is pending even if the connection is lost; uvloop's transport then has a RuntimeError.
            with suppress(*AWAY, RuntimeError):
                async with asyncio.timeout(CLOSE_S):
                    await self._connection.close()

    # -- the connection ------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        wait_s = FIRST_WAIT_S
        while True:
            try:
                await self._connect()
                break
            except AWAY as error:
                log.warning("chiffon: no broker at %s (%s); trying again", self._place(), in_words(error))
                await self.stop()
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, MAX_WAIT_S)
        self.is_connected = True
        log.info("chiffon: connected to the broker at %s", self._place())
        self._background.spawn(self._consume(subjects.REPLIES, "trunkline-orchestrator"))
        self._background.spawn(self._consume(f"chiffon.work.*.{OWN_AGENT_ID}", "trunkline-agent"))

    async def _connect(self) -> None:
        connection = self._connection = await nats.connect(
            self.url,
            allow_reconnect=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=FIRST_WAIT_S,
            connect_timeout=2,
            error_cb=_ignore,
            disconnected_cb=self._disconnected,
            reconnected_cb=self._reconnected,
        )
        self._js = connection.jetstream(timeout=PUBLISH_TIMEOUT_S)
        await subjects.declare(self._js)
        await connection.subscribe(subjects.REGISTER, cb=self._answering(self._register))
        await connection.subscribe(subjects.HEARTBEAT, cb=self._answering(self._heartbeat))
        await connection.flush()
        await connection.publish(subjects.STARTED, b"{}")

    def _place(self) -> str:
        """The broker without a password that its URL may hold."""
        return self.url.rpartition("@")[2]

    async def _disconnected(self) -> None:
        if self.is_connected:
            self.is_connected = False
            log.warning("chiffon: the broker at %s is away", self._place())

    async def _reconnected(self) -> None:
        self.is_connected = True
        log.info("chiffon: the broker at %s is back", self._place())

    # -- what comes in -------------------------------------------------------------------------------------------------

    async def _consume(self, subject: str, name: str) -> None:
        wait_s, inbox = FIRST_WAIT_S, None
        while True:
            try:
                if inbox is None:
                    inbox = await subjects.consumer(self._js, subject, name)
                found = await inbox.fetch(FETCH_MESSAGES, timeout=FETCH_S)
                wait_s = FIRST_WAIT_S
            except TimeoutError:
                continue
            except (OSError, NatsError):
                # A broker that came back without its memory has neither stream nor consumer.
                await asyncio.sleep(wait_s)
                wait_s, inbox = min(2 * wait_s, MAX_WAIT_S), None
                with suppress(*AWAY):
                    await subjects.declare(self._js)
                continue
            for message in found:
                self._background.spawn(self._take(message))

    async def _take(self, message: Any) -> None:
        """One message, judged like any other."""
        with suppress(*AWAY):  # not acknowledged: it comes again
            if message.metadata.num_delivered > subjects.MAX_DELIVERIES:
                await self._bury(message, "ran out of deliveries")
                return
            try:
                caller, fields = self._open(message.data)
                envelope, conversation = self._peers.receive(caller, fields)
            except Refused as refused:
                await self._refuse(message, refused)
                return
            if isinstance(conversation.session, OrchestratorSession):
                self._carry(caller, conversation)
            if envelope.type != "work_request":
                await stored(self._peers.feed)
            elif not await self._is_answered(message, conversation, envelope.request_id.lower()):
                return
            await message.ack()

    async def _is_answered(self, message: Any, conversation: AnyConversation, request_id: str) -> bool:
        """Wait until the last word about a request is with the broker. False: it was lost; the message comes again."""
        session = conversation.session
        assert isinstance(session, OrchestratorSession)
        answered = self._unanswered.setdefault((conversation.number, request_id), asyncio.Event())
        try:
            while session.is_working_on(request_id) and not conversation.is_over:
                with suppress(TimeoutError):
                    async with asyncio.timeout(subjects.IN_PROGRESS_S):
                        await answered.wait()
                        break
                await message.in_progress()
        finally:
            self._unanswered.pop((conversation.number, request_id), None)
        return answered.is_set()

    def _open(self, data: bytes) -> tuple[Caller, Fields]:
        """The sender of a message and its fields without the token (CH-103)."""
        if len(data) > messages.MAX_MESSAGE_BYTES:
            raise messages.invalid(f"larger than {messages.MAX_MESSAGE_BYTES} bytes", status=413)
        fields = messages.read_object(data)
        raw = fields.pop("auth_token", None)
        token = None if raw is None else b""
        if raw is not None:
            with suppress(msgspec.ValidationError):
                token = msgspec.json.decode(raw, type=str).encode()
        caller = self._peers.identify(token)
        subject = _subject_of(caller)
        if subject in OWN_SUBJECTS or self._reached_by.setdefault(subject, caller.agent_id) != caller.agent_id:
            raise messages.invalid("by the queue, messages for this id would reach somebody else", "agent_id")
        return caller, fields

    async def _refuse(self, message: Any, refused: Refused) -> None:
        """Tell the sender, if it is known, and put the message where the operator can look at it."""
        error = refused.error
        if error.error_code == messages.UNAVAILABLE:
            # An agent that has to register first, after a restart of ours: its message waits for that.
            await message.nak(delay=1)
            return
        await self._bury(message, f"{error.error_code}: {error.error_message}")
        with suppress(Refused):
            sender, fields = self._open(message.data)
            envelope = self._peers.refusal(refused, fields, sender.principal.type)
            await self._publish(sender, envelope.message_id, messages.encode(envelope))

    async def _bury(self, message: Any, why: str) -> None:
        """A dead letter, without the token it came with."""
        fields: Fields | None = None
        token = None
        with suppress(Refused):
            fields = messages.read_object(message.data)
            token = fields.pop("auth_token", None)
        body = msgspec.json.encode({"reason": why[:400], "subject": message.subject, "message": fields})
        if token is not None and len(text := bytes(token).strip(b'"')) >= SHORTEST_TOKEN:
            # Some send it a second time, inside the payload.
            body = body.replace(text, b"[masked:auth_token]")
            try:
                msgspec.json.decode(body)
            except msgspec.DecodeError:
                # What was sent as a token is a piece of JSON that stands elsewhere too.
                body = msgspec.json.encode({"reason": why[:400], "subject": message.subject, "message": None})
        kind = messages.sender_type(fields)
        await self._js.publish(subjects.dead(kind), body)
        await message.term()
        self._peers.feed.feed([Noticed("chiffon.dead_letter", EDGE, kind, why)])

    # -- registration and signs of life --------------------------------------------------------------------------------

    def _answering(self, answer: Callable[[bytes], Awaitable[bytes]]) -> Callable[[Any], Awaitable[None]]:
        """A callback that answers one request beside all others."""

        async def respond(message: Any) -> None:
            with suppress(*AWAY):
                await message.respond(await answer(message.data))

        async def callback(message: Any) -> None:
            self._background.spawn(respond(message))

        return callback

    async def _register(self, data: bytes) -> bytes:
        fields: Fields | None = None
        to = ""
        try:
            caller, fields = self._open(data)
            to = caller.principal.type
            answer = await self._peers.register(caller, fields, "nats")
            self._carry(caller, self._peers.conversation_of(caller))
        except Refused as refused:
            return messages.encode(self._peers.refusal(refused, fields, to))
        return msgspec.json.encode(answer)

    async def _heartbeat(self, data: bytes) -> bytes:
        """An agent says that it lives; it is told whether it is known, or has to register again."""
        try:
            caller, _ = self._open(data)
            is_registered = self._peers.heard(caller).carrier == (self, caller)
        except Refused:
            is_registered = False
        return msgspec.json.encode({"registered": is_registered})

    # -- what goes out -------------------------------------------------------------------------------------------------

    def _carry(self, caller: Caller, conversation: AnyConversation) -> None:
        """From here on what this peer has to be sent goes by the queue."""
        if conversation.carrier != (self, caller):
            task = self._background.spawn(self._send_all(caller, conversation), conversation.number)
            conversation.carry((self, caller), task)
            conversation.probe_by(Probe.BY_WORK)  # silent point 15

    async def _send_all(self, caller: Caller, conversation: AnyConversation) -> None:
        async for message in conversation.outgoing():
            try:
                await self._publish(caller, message.message_id, message.data)
            except AWAY as error:
                conversation.not_sent(message, f"the broker did not take it: {in_words(error)}")
                if isinstance(conversation.session, OrchestratorSession):
                    # Nobody sends an answer again by himself; the broker is given a moment.
                    conversation.session.outbox.put_back(message)
                    await asyncio.sleep(FIRST_WAIT_S)
                continue
            answered = self._unanswered.get((conversation.number, message.request_id.lower()))
            if answered is not None and message.type != "work_status":
                answered.set()

    async def _publish(self, to: Caller, message_id: str, data: bytes) -> None:
        """With the token that this peer knows us by (silent point 6), dropped by the broker if it has it already."""
        signed = data[:-1] + b',"auth_token":"%s"}' % to.orchestrator_token.encode()
        await self._js.publish(_subject_of(to), signed, headers={"Nats-Msg-Id": message_id})


def _subject_of(peer: Caller) -> str:
    """Where a peer gets what is for it."""
    kind = peer.principal.type
    return subjects.reply(peer.agent_id) if kind == ORCHESTRATOR else subjects.work(kind, peer.agent_id)


async def _ignore(_: Exception) -> None:
    """nats-py prints a stack for each failed try otherwise. None of our code runs where it is told of by this."""
