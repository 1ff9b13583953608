"""Chiffon over a message queue: NATS JetStream, through nats-py (the extra ``trunkline[nats]``).

Owns the connection to the broker, the token in each message (``auth_token``, stripped before anything else looks at
it), acknowledgements and dead letters. A message is acknowledged when what it leads to is on record, so that a crash
in between brings it again. Broker away: it is tried again for ever, with growing waits; a message of ours that cannot
be handed over meanwhile is a failed attempt (5002). Does not own what messages lead to (``switchboard``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Final

import msgspec

from trunkline.edges.chiffon import messages, subjects
from trunkline.edges.chiffon.mailbox import Letter
from trunkline.edges.chiffon.messages import ORCHESTRATOR, Fields, Refused
from trunkline.edges.chiffon.orchestrators import OrchestratorSession
from trunkline.edges.chiffon.session import AgentSession
from trunkline.edges.chiffon.switchboard import Caller, Switchboard, orchestrator_token
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
# How often it is looked whether an outcome is on disk; a commit takes some milliseconds.
LOOK_S: Final = 0.01
RECORDED_S: Final = 20.0


class Queue:
    """The edge's side of the broker."""

    def __init__(self, switchboard: Switchboard, url: str) -> None:
        self._switchboard = switchboard
        self.url = url
        self.is_connected = False
        self._connection: Any = None
        self._js: Any = None
        self._run: asyncio.Task[None] | None = None
        self._senders: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        switchboard.on_left.append(self._left)

    def start(self) -> None:
        """Begin to look for the broker; nobody waits for it."""
        self._run = asyncio.get_running_loop().create_task(self._serve())

    async def stop(self) -> None:
        """Leave the broker; what was not acknowledged comes again."""
        tasks = [*self._tasks, *self._senders.values(), *([self._run] if self._run is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._connection is not None:
            from nats.errors import Error as NatsError

            # nats-py writes what is pending even if the connection is lost; uvloop's transport then has a RuntimeError.
            with contextlib.suppress(OSError, NatsError, TimeoutError, RuntimeError):
                async with asyncio.timeout(1.0):
                    await self._connection.close()

    # -- the connection ------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        import nats
        from nats.errors import Error as NatsError

        wait_s = FIRST_WAIT_S
        while True:
            try:
                self._connection = await nats.connect(
                    self.url,
                    allow_reconnect=True,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=FIRST_WAIT_S,
                    connect_timeout=2,
                    error_cb=_ignore,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._reconnected,
                )
                self._js = self._connection.jetstream(timeout=PUBLISH_TIMEOUT_S)
                await subjects.declare(self._js)
                break
            except (OSError, NatsError, TimeoutError) as error:
                log.warning("chiffon: no broker at %s (%s); trying again", self._place(), type(error).__name__)
                if self._connection is not None:
                    await self._connection.close()
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, MAX_WAIT_S)
        self.is_connected = True
        log.info("chiffon: connected to the broker at %s", self._place())
        await self._connection.subscribe(subjects.REGISTER, cb=self._on_register)
        await self._connection.subscribe(subjects.HEARTBEAT, cb=self._on_heartbeat)
        await self._connection.flush()
        await self._connection.publish(subjects.STARTED, b"{}")
        await asyncio.gather(
            self._consume(subjects.REPLIES, "trunkline-orchestrator"),
            self._consume(f"chiffon.work.*.{OWN_AGENT_ID}", "trunkline-agent"),
        )

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
        from nats.errors import Error as NatsError

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
                with contextlib.suppress(OSError, NatsError, TimeoutError):
                    await subjects.declare(self._js)
                continue
            for message in found:
                self._spawn(self._take(message))

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take(self, message: Any) -> None:
        """One message: judged like any other, acknowledged when its consequence is on record."""
        from nats.errors import Error as NatsError

        fields: Fields | None = None
        try:
            if message.metadata.num_delivered > subjects.MAX_DELIVERIES:
                await self._bury(message, fields, "ran out of deliveries")
                return
            try:
                caller, fields = self.open(message.data)
                reply = self._switchboard.receive(caller, fields)
            except Refused as refused:
                await self._refuse(message, fields, refused)
                return
            session = self._switchboard.session_of(caller)
            if isinstance(session, OrchestratorSession):
                self._carry(caller, session)
                if reply is not None:
                    session.mailbox.put(reply)
            await self._recorded(message, fields, session)
            await message.ack()
        except (OSError, NatsError, TimeoutError):
            return  # not acknowledged: it comes again

    def open(self, data: bytes) -> tuple[Caller, Fields]:
        """The sender of a message and its fields without the token (CH-103)."""
        if len(data) > messages.MAX_MESSAGE_BYTES:
            raise messages.invalid(f"larger than {messages.MAX_MESSAGE_BYTES} bytes", status=413)
        fields = messages.read_object(data)
        raw = fields.pop("auth_token", None)
        token: bytes | None = None
        if raw is not None:
            try:
                token = msgspec.json.decode(raw, type=str).encode() or b"-"
            except msgspec.ValidationError:
                token = b"-"
        return self._switchboard.identify(token), fields

    async def _recorded(self, message: Any, fields: Fields, session: AgentSession | OrchestratorSession) -> None:
        """Wait until what a message says is on disk; of work that others gave us, until it is done."""
        kind = msgspec.json.decode(fields["type"])
        if kind == "work_request" and isinstance(session, OrchestratorSession):
            request_id = msgspec.json.decode(fields["request_id"])
            ended = asyncio.Event()
            session.on_end(request_id, ended.set)
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), subjects.IN_PROGRESS_S)
                    break
                await message.in_progress()
        elif kind == "work_result":
            call_id = msgspec.json.decode(fields["payload"], type=_Named).task_id.lower()
            async with asyncio.timeout(RECORDED_S):
                # Nothing calls back when an entry is on disk; a view shows an outcome only then.
                while (view := self._switchboard.exchange.call(call_id)) is not None and not view.status.is_outcome:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)

    async def _refuse(self, message: Any, fields: Fields | None, refused: Refused) -> None:
        """Tell the sender, if it is known, and put the message where the operator can look at it."""
        error = refused.error
        if error.error_code == messages.UNAVAILABLE:
            # An agent that has to register first, after a restart of ours: its message waits for that.
            await message.nak(delay=1)
            return
        await self._bury(message, fields, f"{error.error_code}: {error.error_message}")
        sender = self._known_sender(message.data)
        if sender is not None:
            now_ms = self._switchboard.exchange.now().ms
            envelope = messages.error_reply(error, sender.principal.type, fields, now_ms)
            await self._publish(self._subject(sender), envelope.message_id, messages.encode(envelope), sender)

    def _known_sender(self, data: bytes) -> Caller | None:
        try:
            return self.open(data)[0]
        except Refused:
            return None

    async def _bury(self, message: Any, fields: Fields | None, why: str) -> None:
        """A dead letter, without the token it came with."""
        if fields is None:
            with contextlib.suppress(Refused):
                fields = messages.read_object(message.data)
                fields.pop("auth_token", None)
        body = msgspec.json.encode({"reason": why[:400], "subject": message.subject, "message": fields})
        kind = messages.sender_type(fields)
        await self._js.publish(subjects.dead(kind), body)
        await message.term()
        self._switchboard.exchange.feed([Noticed("chiffon.dead_letter", "chiffon", kind, why)])

    # -- registration and signs of life --------------------------------------------------------------------------------

    async def _on_register(self, message: Any) -> None:
        fields: Fields | None = None
        try:
            caller, fields = self.open(message.data)
            answer: bytes = msgspec.json.encode(await self._switchboard.register(caller, fields, "nats"))
            self._carry(caller, self._switchboard.session_of(caller))
        except Refused as refused:
            now_ms = self._switchboard.exchange.now().ms
            answer = messages.encode(messages.error_reply(refused.error, "", fields, now_ms))
        await message.respond(answer)

    async def _on_heartbeat(self, message: Any) -> None:
        """An agent says that it lives; it is told whether it is known, or has to register again."""
        try:
            caller, _ = self.open(message.data)
            self._switchboard.session_of(caller).heard(self._switchboard.exchange.now())
            is_registered = caller.agent_id in self._senders
        except Refused:
            is_registered = False
        await message.respond(msgspec.json.encode({"registered": is_registered}))

    # -- what goes out -------------------------------------------------------------------------------------------------

    def _carry(self, caller: Caller, session: AgentSession | OrchestratorSession) -> None:
        """From here on this peer's mailbox is emptied into the queue."""
        if caller.agent_id not in self._senders:
            work = self._send_all(caller, session)
            self._senders[caller.agent_id] = asyncio.get_running_loop().create_task(work)
            if isinstance(session, AgentSession):
                session.probe = lambda: self._probe(session)

    def _left(self, agent_id: str) -> None:
        task = self._senders.pop(agent_id, None)
        if task is not None:
            task.cancel()

    async def _send_all(self, caller: Caller, session: AgentSession | OrchestratorSession) -> None:
        bell = asyncio.Event()
        wake = bell.set
        session.mailbox.listeners.append(wake)
        try:
            while True:
                letters = session.mailbox.take()
                for letter in letters:
                    await self._send(caller, session, letter)
                if not letters:
                    await bell.wait()
                bell.clear()
        finally:
            session.mailbox.listeners.remove(wake)

    async def _send(self, caller: Caller, session: AgentSession | OrchestratorSession, letter: Letter) -> None:
        from nats.errors import Error as NatsError

        try:
            await self._publish(self._subject(caller), letter.message_id, letter.data, caller)
        except (OSError, NatsError, TimeoutError) as error:
            if isinstance(session, AgentSession):
                session.unreachable(letter.request_id, f"the broker did not take it: {type(error).__name__}")
            else:
                # An orchestrator that misses an answer repeats its request; the broker is given a moment.
                session.mailbox.put_back([letter])
                await asyncio.sleep(FIRST_WAIT_S)

    async def _publish(self, subject: str, message_id: str, data: bytes, to: Caller) -> None:
        """With the token that this peer knows us by (silent point 6), dropped by the broker if it has it already."""
        signed = data[:-1] + b',"auth_token":"%s"}' % orchestrator_token(to.token_sha256).encode()
        await self._js.publish(subject, signed, headers={"Nats-Msg-Id": message_id})

    def _subject(self, caller: Caller) -> str:
        if caller.principal.type == ORCHESTRATOR:
            return subjects.reply(caller.agent_id)
        return subjects.work(caller.principal.type, caller.agent_id)

    def _probe(self, session: AgentSession) -> None:
        """Silent point 15: any reply to a ``health_check`` is health; none in time is not."""
        now = self._switchboard.exchange.now()
        request_id = session.send_health_check(now)
        self._spawn(self._await_probe(session, request_id))

    async def _await_probe(self, session: AgentSession, request_id: str) -> None:
        await asyncio.sleep(self._switchboard.settings.timeout_s)
        if session.is_checking(request_id) and not session.is_closed:
            session.probed(self._switchboard.exchange.now(), is_well=False)


class _Named(msgspec.Struct):
    task_id: str


async def _ignore(_: Exception) -> None:
    """nats-py prints a stack for each failed try otherwise; what matters is logged here."""
