"""The connections of a Chiffon agent to its orchestrator: over HTTP with a long poll, or over a NATS JetStream queue.

Both give each message to ``on_message`` and send what they are handed, again and again until it arrived or the agent
stops. They do not read the messages: that is ``chiffon_jobs``.

Invariant: a message that came by the queue is acknowledged when its work is done; meanwhile it is kept alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from trunkline.edges import client
from trunkline.edges.chiffon import messages, subjects
from trunkline.edges.chiffon.messages import Envelope
from trunkline.errors import NotAdmitted
from trunkline.sdk.own_tasks import OwnTasks

log = logging.getLogger("trunkline.sdk")

POLL_S: Final = 25
ANSWER_S: Final = 30.0
FIRST_WAIT_S: Final = 0.2
MAX_WAIT_S: Final = 5.0
FETCH_S: Final = 5.0

# Is given a message; returns, if work began with it, what is set when that work has ended. The queue waits for that.
OnMessage = Callable[[bytes], Awaitable["asyncio.Event | None"]]


class RegistrationAnswer(msgspec.Struct):
    """What an orchestrator answers to a registration."""

    protocol_version: str
    orchestrator_token: str = ""


class OrchestratorConnection(Protocol):
    """What ``ChiffonAgent`` needs of its connection, whichever transport it is."""

    async def run(self, on_message: OnMessage) -> None:
        """Bring messages until cancelled; ``NotAdmitted`` if the token is not good."""

    async def send(self, envelope: Envelope) -> None:
        """Say this; returns when it arrived."""


class HttpConnection:
    """Over HTTP: ``POST /api/agent/register``, then ``GET /api/agent/messages`` for ever."""

    def __init__(self, url: str, token: str, registration: dict[str, object]) -> None:
        self._url = url.rstrip("/")
        client.loopback_place(self._url)
        self._token = token
        self._registration = registration
        self._registering = asyncio.Lock()
        self._times = 0

    async def run(self, on_message: OnMessage) -> None:
        """Register, poll, hand over; begin anew whenever the orchestrator does not know us any more."""
        wait_s = FIRST_WAIT_S
        await self._register(self._times)
        while True:
            known = self._times
            try:
                answer = await self._ask("GET", f"/api/agent/messages?wait={POLL_S}", timeout_s=POLL_S + ANSWER_S)
            except client.Unreachable:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, MAX_WAIT_S)
                continue
            wait_s = FIRST_WAIT_S
            if answer.status != 200:
                await self._refused(answer, known)
                continue
            for raw in msgspec.json.decode(answer.body, type=dict[str, list[Raw]])["messages"]:
                await on_message(bytes(raw))

    async def send(self, envelope: Envelope) -> None:
        """Until somebody took it, or refused it for good."""
        wait_s = FIRST_WAIT_S
        while True:
            known = self._times
            try:
                answer = await self._ask("POST", "/api/agent/message", messages.encode(envelope), timeout_s=ANSWER_S)
            except client.Unreachable:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, MAX_WAIT_S)
                continue
            if answer.status < 300:
                return
            if answer.status not in {401, 503}:
                log.warning("%s was refused: HTTP %d", envelope.type, answer.status)
                return
            await self._refused(answer, known)

    async def _refused(self, answer: client.Answer, known: int) -> None:
        if answer.status == 401:
            raise NotAdmitted("5004", "the orchestrator does not know this token")
        await asyncio.sleep(FIRST_WAIT_S)
        if answer.status == 503:
            await self._register(known)

    async def _register(self, known: int) -> None:
        """Once, however many notice at the same time that it is needed."""
        async with self._registering:
            wait_s = FIRST_WAIT_S
            while self._times == known:
                try:
                    body = msgspec.json.encode(self._registration)
                    answer = await self._ask("POST", "/api/agent/register", body, timeout_s=ANSWER_S)
                except client.Unreachable:
                    answer = client.Answer(503, b"")
                if answer.status == 200:
                    msgspec.json.decode(answer.body, type=RegistrationAnswer)
                    self._times += 1
                elif 400 <= answer.status < 500:
                    raise NotAdmitted(*_why(answer.body))
                else:
                    await asyncio.sleep(wait_s)
                    wait_s = min(2 * wait_s, MAX_WAIT_S)

    async def _ask(self, method: str, path: str, body: bytes = b"", *, timeout_s: float) -> client.Answer:
        return await client.request(self._url, method, path=path, body=body, token=self._token, timeout_s=timeout_s)


class NatsConnection:
    """Over NATS: work from ``chiffon.work.<type>.<agent_id>``, answers to ``chiffon.reply.orchestrator``."""

    def __init__(self, url: str, token: str, registration: dict[str, object], admitted: Callable[[str], None]) -> None:
        self._url = url
        self._token = token
        self._registration = registration
        self._admitted = admitted
        self._connection: Any = None
        self._js: Any = None
        self._ready = asyncio.Event()
        self._tasks = OwnTasks()

    async def run(self, on_message: OnMessage) -> None:
        """Connect, register, consume; a broker that is away is waited for."""
        import nats
        from nats.errors import Error as NatsError

        while not self._ready.is_set():
            try:
                self._connection = await nats.connect(
                    self._url,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=FIRST_WAIT_S,
                    connect_timeout=2,
                    error_cb=_ignore,
                )
                self._js = self._connection.jetstream(timeout=ANSWER_S / 6)
                await subjects.declare(self._js)
                self._ready.set()
            except (OSError, NatsError, TimeoutError):
                await asyncio.sleep(FIRST_WAIT_S)
        try:
            await self._register()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._beat())
                group.create_task(self._consume(on_message))
        finally:
            await self._connection.close()

    async def _register(self) -> None:
        from nats.errors import Error as NatsError

        body = msgspec.json.encode({**self._registration, "auth_token": self._token})
        while True:
            try:
                answer = await self._connection.request(subjects.REGISTER, body, timeout=ANSWER_S)
            except (OSError, NatsError, TimeoutError):
                await asyncio.sleep(FIRST_WAIT_S)
                continue
            try:
                found = msgspec.json.decode(answer.data, type=RegistrationAnswer)
            except msgspec.ValidationError:
                raise NotAdmitted(*_why(answer.data)) from None
            if not found.orchestrator_token:
                raise NotAdmitted(*_why(answer.data))
            self._admitted(found.orchestrator_token)
            return

    async def _beat(self) -> None:
        """A sign of life every few seconds, and whenever an orchestrator came up; who is not known registers again."""
        from nats.errors import Error as NatsError

        body, started = msgspec.json.encode({"auth_token": self._token}), asyncio.Event()

        async def wake(_: Any) -> None:
            started.set()

        await self._connection.subscribe(subjects.STARTED, cb=wake)
        while True:
            started.clear()
            wait_s = subjects.HEARTBEAT_S
            try:
                answer = await self._connection.request(subjects.HEARTBEAT, body, timeout=2.0)
                if not msgspec.json.decode(answer.data)["registered"]:
                    await self._register()
            except (OSError, NatsError, TimeoutError):
                wait_s = 1.0
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(started.wait(), wait_s)

    async def _consume(self, on_message: OnMessage) -> None:
        from nats.errors import Error as NatsError

        agent_type, agent_id = str(self._registration["agent_type"]), str(self._registration["agent_id"])
        inbox: Any = None
        while True:
            try:
                if inbox is None:
                    subject = subjects.work(agent_type, agent_id)
                    inbox = await subjects.consumer(self._js, subject, subjects.durable(agent_id))
                found = await inbox.fetch(1, timeout=FETCH_S)
            except TimeoutError:
                continue
            except (OSError, NatsError):
                inbox = None
                await asyncio.sleep(FIRST_WAIT_S)
                with contextlib.suppress(OSError, NatsError, TimeoutError):
                    await subjects.declare(self._js)
                continue
            for message in found:
                self._tasks.spawn(self._work(message, on_message))

    async def _work(self, message: Any, on_message: OnMessage) -> None:
        """Keep the message alive until its work is done, then acknowledge it."""
        from nats.errors import Error as NatsError

        try:
            if message.metadata.num_delivered > subjects.MAX_DELIVERIES:
                await self._js.publish(subjects.dead(str(self._registration["agent_type"])), _buried(message))
                await message.term()
                return
            ended = await on_message(message.data)
            while ended is not None and not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), subjects.IN_PROGRESS_S)
                    break
                await message.in_progress()
            await message.ack()
        except (OSError, NatsError, TimeoutError):
            return  # it comes again, and is recognised

    async def send(self, envelope: Envelope) -> None:
        """Until the broker has it; it drops what it has already."""
        from nats.errors import Error as NatsError

        await self._ready.wait()
        signed = messages.encode(envelope)[:-1] + b',"auth_token":"%s"}' % self._token.encode()
        while True:
            try:
                await self._js.publish(subjects.REPLIES, signed, headers={"Nats-Msg-Id": envelope.message_id})
            except (OSError, NatsError, TimeoutError):
                await asyncio.sleep(FIRST_WAIT_S)
            else:
                return


def _why(body: bytes) -> tuple[str, str]:
    """Code and text of an error envelope."""
    try:
        payload = messages.read_payload(messages.read_envelope(messages.read_object(body)))
    except messages.Refused:
        return "5003", "the orchestrator's answer cannot be read"
    assert isinstance(payload, messages.ErrorPayload)
    return str(payload.error_code), payload.error_message


def _buried(message: Any) -> bytes:
    """A dead letter without the token it came with."""
    fields: dict[str, Raw] | None = None
    with contextlib.suppress(messages.Refused):
        fields = messages.read_object(message.data)
        fields.pop("auth_token", None)
    return msgspec.json.encode({"reason": "ran out of deliveries", "subject": message.subject, "message": fields})


async def _ignore(_: Exception) -> None:
    """nats-py prints a stack for each failed try otherwise."""
