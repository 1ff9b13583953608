"""One agent of the suite: it signs and sends, by either transport, and keeps everything that it is sent.

An actor with a WebSocket also provides actions: each has one behaviour, named in ``ACTIONS``, so that cases call them
and then look at what was delivered. It answers a repeat of a delivery with the same reply, as QoS 2 asks of a receiver.

Invariant: whatever arrives goes to the observer before anybody looks at it.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from websockets.asyncio.client import ClientConnection

from trunkline.check.ossa import wire
from trunkline.check.ossa.endpoint import PATIENCE_S, Answer, Endpoint, described
from trunkline.check.ossa.observer import Observer
from trunkline.check.ossa.wire import EXCHANGE, Identity, Keys, Message
from trunkline.check.suite import Failed

# How long the action `slow` takes.
SLOW_S: Final = 0.8
# How long the end of a check waits for what it ends at the endpoint.
GOODBYE_S: Final = 1.5
NEEDS_REGISTER: Final = (
    'Answer a request `register` to the recipient `trunkline` with {"registered": [every name that was offered]}: '
    "without actions of its own the suite cannot be called."
)

# What is registered, and how a call of it ends.
ACTIONS: Final = {
    "echo": "gives its payload back",
    "validate_compliance": "gives its payload back, under the name that the specification's example has",
    "slow": "gives its payload back after a while",
    "silent": "never answers",
    "broken": "answers with error 500",
    "busy": "answers with error 503",
    "flawed": "answers with a response that carries an error",
    "progress": "sends a stream before it answers",
    "forbidden": "gives its payload back, unless policy denies it",
}


@dataclass(frozen=True)
class Arrival:
    """A message that came by WebSocket, when, and as it was on the wire."""

    at: float
    message: Message
    raw: str
    # Decrypted, if it was encrypted and could be.
    payload: Any
    socket: ClientConnection

    @property
    def header(self) -> Message:
        """Its header; empty if it has none."""
        header = self.message.get("header")
        return header if isinstance(header, dict) else {}

    @property
    def kind(self) -> str:
        """Its type."""
        return str(self.header.get("type"))

    @property
    def action(self) -> str:
        """Its action."""
        body = self.message.get("body")
        return str(body.get("action")) if isinstance(body, dict) else ""

    def __str__(self) -> str:
        return described(self.message)


class Actor:
    """An identity on the wire."""

    def __init__(
        self, endpoint: Endpoint, identity: Identity, keys: Keys, observer: Observer, patience_s: float
    ) -> None:
        self.identity = identity
        self.keys = keys
        self.arrivals: list[Arrival] = []
        # Topics whose events are not acknowledged.
        self.unacknowledged: set[str] = set()
        # Requests and commands that were sent: an identity has a hundred for each minute.
        self.spent = 0
        # Held by a case that connects and disconnects it.
        self.presence = asyncio.Lock()
        # How long it waits for something that is due.
        self.patience_s = patience_s
        self._endpoint = endpoint
        self._observer = observer
        self._socket: ClientConnection | None = None
        self._arrived = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies: dict[str, Message] = {}
        self._connecting = asyncio.Lock()
        self._offering = asyncio.Lock()
        self._offered: set[str] = set()
        self._refusal: Failed | None = None
        # By their names: what was subscribed to is ended with the check, also what outlives a connection.
        self._subscriptions: list[str] = []

    @property
    def named(self) -> Message:
        """As it stands in a header."""
        return self.identity.named

    # --- sending ------------------------------------------------------------------------------------------------------

    def draft(self, kind: str, to: object, action: str, payload: object, **header: object) -> Message:
        """An unsigned message of this agent."""
        return wire.message(kind, self.named, to, action, payload, header)

    def make(self, kind: str, to: object, action: str, payload: object, **header: object) -> Message:
        """A signed message of this agent."""
        return wire.sign(self.draft(kind, to, action, payload, **header), self.identity)

    async def post(self, message: Message | bytes, timeout_s: float = PATIENCE_S) -> Answer:
        """Send a message, or bytes that should be one, by HTTPS."""
        self._count(message)
        answer = await self._endpoint.post(message if isinstance(message, bytes) else wire.encode(message), timeout_s)
        self._observer.answered(answer, message if isinstance(message, dict) else None)
        return answer

    async def request(self, to: Message, action: str, payload: object, **header: object) -> Answer:
        """Send a request by HTTPS."""
        return await self.post(self.make("request", to, action, payload, **header))

    async def say(self, message: Message) -> None:
        """Send a message by WebSocket."""
        self._count(message)
        socket = await self.connected()
        await socket.send(wire.encode(message).decode())

    async def ask(self, message: Message, *, kinds: Iterable[str] = ("response", "error")) -> Arrival:
        """Send a message by WebSocket and wait for what belongs to it; ``Failed`` if nothing comes."""
        seen = len(self.arrivals)
        await self.say(message)
        header, wanted = message["header"], frozenset(kinds)
        thread = header.get("correlationId", header["messageId"])
        found = await self.wait(lambda one: one.header.get("correlationId") == thread and one.kind in wanted, seen)
        if found is None:
            what = " or ".join(sorted(wanted))
            raise Failed(f"no {what} with its correlation came on the WebSocket within {self.patience_s:.0f} s")
        return found

    def _count(self, message: Message | bytes) -> None:
        if isinstance(message, bytes) or message.get("header", {}).get("type") in {"request", "command"}:
            self.spent += 1

    # --- receiving ----------------------------------------------------------------------------------------------------

    async def connected(self) -> ClientConnection:
        """The WebSocket, opened and claimed by a heartbeat if there was none."""
        async with self._connecting:
            if self._socket is None:
                self._socket = await self._endpoint.open_socket()
                self._start(self._read(self._socket))
                heartbeat = self.make("heartbeat", EXCHANGE, "heartbeat", {"status": "ok"})
                await self._socket.send(wire.encode(heartbeat).decode())
            return self._socket

    async def disconnect(self) -> None:
        """Close the WebSocket; the actions stay registered."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    def forget_socket(self) -> None:
        """Leave the WebSocket open, and use another one from now on."""
        self._socket = None

    async def close(self) -> None:
        """End everything, and leave nothing behind that would outlive the connection."""
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await asyncio.gather(*map(self._unsubscribe, self._subscriptions), return_exceptions=True)
        with suppress(OSError):
            await self.disconnect()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def offer(self, *actions: str) -> None:
        """Register actions, once each; ``Failed`` if they are not taken."""
        async with self._offering:
            missing = [name for name in actions if name not in self._offered]
            if missing:
                await self._register(missing)

    async def _register(self, names: list[str]) -> None:
        if self._refusal is not None:
            raise self._refusal
        offers = [
            {
                "name": name,
                "description": f"Check: {ACTIONS[name]}.",
                "input_schema": {"type": "object"},
                "side_effects": False,
            }
            for name in names
        ]
        request = self.make("request", EXCHANGE, "register", {"actions": offers}, correlationId=str(uuid.uuid4()))
        before = len(self.arrivals)
        await self.say(request)
        # By what it says, not by its correlation: without these actions there is hardly a case that can be tried.
        answer = await self.wait(
            lambda one: one.kind == "error" or (isinstance(one.payload, dict) and "registered" in one.payload), before
        )
        registered = answer.payload.get("registered") if answer is not None else None
        if not isinstance(registered, list) or len(registered) != len(names):
            # Once is enough: every case would wait for it.
            seen = f"`register` of {', '.join(names)} was answered by {answer or 'nothing'}"
            self._refusal = Failed(seen, NEEDS_REGISTER)
            raise self._refusal
        self._offered.update(names)

    async def subscribe(self, topic: str, **more: object) -> str:
        """Subscribe by WebSocket; the name of the subscription."""
        wanted = {"topic": topic, **more}
        request = self.make("request", EXCHANGE, "subscribe", wanted, correlationId=str(uuid.uuid4()))
        answer = await self.ask(request)
        name = answer.payload.get("subscription") if isinstance(answer.payload, dict) else None
        if not isinstance(name, str):
            raise Failed(f"`subscribe` was answered by {answer}, without a string `subscription`")
        self._subscriptions.append(name)
        return name

    async def _unsubscribe(self, name: str) -> None:
        """No case: nobody looks at the answer."""
        request = self.make("request", EXCHANGE, "unsubscribe", {"subscription": name})
        await self._endpoint.post(wire.encode(request), GOODBYE_S)

    async def wait(
        self, wanted: Callable[[Arrival], bool], since: int = 0, timeout_s: float | None = None
    ) -> Arrival | None:
        """The first arrival that is wanted, or None after some time."""

        def found() -> Arrival | None:
            return next((one for one in self.arrivals[since:] if wanted(one)), None)

        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s or self.patience_s), self._arrived:
                await self._arrived.wait_for(lambda: found() is not None)
        return found()

    def deliveries(self, marker: str) -> list[Arrival]:
        """Requests and commands whose payload has this marker."""
        return [
            one
            for one in self.arrivals
            if one.kind in {"request", "command"}
            and isinstance(one.payload, dict)
            and one.payload.get("mark") == marker
        ]

    def events(self, topic: str) -> list[Arrival]:
        """Events on a topic, redeliveries included."""
        return [one for one in self.arrivals if one.kind == "event" and one.header.get("topic") == topic]

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, socket: ClientConnection) -> None:
        async for frame in socket:
            raw = frame if isinstance(frame, str) else frame.decode("utf-8", "replace")
            try:
                message = json.loads(raw)
            except ValueError:
                message = None
            self._observer.received(message)
            if not _is_usable(message):
                continue
            arrival = Arrival(time.monotonic(), message, raw, self._opened(message), socket)
            async with self._arrived:
                self.arrivals.append(arrival)
                self._arrived.notify_all()
            if arrival.kind in {"request", "command"}:
                self._start(self._serve(socket, arrival))
            elif self._is_to_be_acknowledged(arrival):
                await self.acknowledge(arrival)

    def _is_to_be_acknowledged(self, arrival: Arrival) -> bool:
        qos = arrival.header.get("qos", 0)
        is_asked_for = arrival.kind == "event" and isinstance(qos, int) and qos >= 1
        return is_asked_for and arrival.header.get("topic") not in self.unacknowledged

    def _opened(self, message: Message) -> Any:
        payload = message["body"]["payload"]
        if wire.is_sealed(payload) and self.identity.sealing is not None:
            with suppress(ValueError):
                return wire.open_sealed(message, self.identity.sealing)
        return payload

    async def acknowledge(self, arrival: Arrival) -> None:
        """Say that a message was taken."""
        named = {"messageId": arrival.header["messageId"]}
        thread = arrival.header.get("correlationId", ...)
        await self.say(
            self.make("acknowledgment", arrival.header["sender"], "acknowledgment", named, correlationId=thread)
        )

    # --- providing ----------------------------------------------------------------------------------------------------

    async def _serve(self, socket: ClientConnection, asked: Arrival) -> None:
        message_id = asked.header["messageId"]
        if asked.kind == "command":
            await self.acknowledge(asked)
        reply = self._replies.get(message_id)
        if reply is None or asked.action == "busy":
            if asked.action == "silent":
                return
            if asked.action == "slow":
                await asyncio.sleep(SLOW_S)
            if asked.action == "progress":
                await self._stream(socket, asked)
            reply = self._replies[message_id] = self._reply(asked)
        with suppress(OSError):
            await socket.send(wire.encode(reply).decode())

    def _reply(self, asked: Arrival) -> Message:
        thread = asked.header.get("correlationId", asked.header["messageId"])
        kind = "command_result" if asked.kind == "command" else "response"
        error: Message | None = None
        payload: object = {"echo": asked.payload, "by": self.identity.agent_id}
        if asked.action in {"broken", "busy"}:
            kind, payload = "error", {}
            code = 500 if asked.action == "broken" else 503
            error = {"code": code, "message": "as the check asked for", "timestamp": wire.timestamp()}
        if asked.action == "flawed":
            error = {"code": 500, "message": "as the check asked for", "timestamp": wire.timestamp()}
        reply_id = str(uuid.uuid4())
        if wire.is_sealed(asked.message["body"]["payload"]) and self.keys.sealing is not None:
            payload = wire.seal(payload, reply_id, self.keys.sealing)
        action = "error" if kind == "error" else asked.action
        draft = self.draft(kind, asked.header["sender"], action, payload, correlationId=thread, messageId=reply_id)
        if error is not None:
            draft["body"]["error"] = error
        return wire.sign(draft, self.identity)

    async def _stream(self, socket: ClientConnection, asked: Arrival) -> None:
        """Two pieces of progress, as a stream that has the correlation of the call."""
        thread = asked.header.get("correlationId", asked.header["messageId"])
        common: Message = {"streamId": str(uuid.uuid4()), "correlationId": thread}
        to = asked.header["sender"]
        for message in (
            self.make("stream_start", to, "progress", {"description": "progress"}, **common),
            self.make("stream_data", to, "progress", {"step": 0}, sequence=0, **common),
            self.make("stream_data", to, "progress", {"step": 1}, sequence=1, **common),
            self.make("stream_end", to, "progress", {}, sequence=2, **common),
        ):
            await socket.send(wire.encode(message).decode())


def _is_usable(message: object) -> bool:
    """Whether a case can look at it; what is wrong with it otherwise is the observer's to say."""
    if not isinstance(message, dict):
        return False
    header, body = message.get("header"), message.get("body")
    if not isinstance(header, dict) or not isinstance(body, dict) or "payload" not in body:
        return False
    return isinstance(header.get("messageId"), str) and isinstance(header.get("sender"), dict)
