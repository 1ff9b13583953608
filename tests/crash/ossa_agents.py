"""OSSA agents for tests with real processes: they connect again, say again what was not answered, and know repeats.

``Speaker`` is one agent with a connection that it keeps up; ``Proxy`` stands between agents and the exchange, cuts
connections and drops whole messages. Agents reach it without TLS; it speaks TLS with the exchange.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import Random
from typing import Any

import websockets
from joserfc.jwk import OKPKey
from msgspec import Raw

from tests import ossa_messages
from tests.ossa_messages import signed
from tests.running import Running
from trunkline.edges.ossa import reading, sealing, signing

CONFIG = """
[ossa]
listen = "127.0.0.1:0"
[ossa.rate]
worker = 1000000
[[policy.rule]]
caller = "ossa:*"
tool = "*"
decision = "allow"
"""
# An agent that sent something and heard nothing says it again.
AGAIN_S = 0.4
WAIT_S = 60.0


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def address(exchange: Running) -> Callable[[], str]:
    """Where its sockets are, also after a restart."""
    return lambda: str(exchange.ready["ossa"]).replace("https", "wss") + "/ossa/v1/ws"


async def until(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> None:
    """Bounded wait."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110  (of another process)
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited {timeout_s:g} s in vain for: {what}") from None


class Speaker:
    """One agent. ``handle`` does its work: given a payload, the answer; None if it does not answer yet."""

    def __init__(self, exchange: Running, name: str, url: Callable[[], str], *actions: str) -> None:
        status, made = exchange.request("POST", "/v1/tokens", {"edge": "ossa", "agent": name, "type": "worker"})
        assert status == 201, made
        self.name, self._url, self._actions = name, url, actions
        self.made = made
        self.key = signing.key_of(signing.decoded(made["jwk"]["d"]))
        self._opens = OKPKey.import_key(made["enc_jwk"])
        # The exchange's public key to encrypt to, for what is to be encrypted.
        self.seals: OKPKey | None = None
        self.handle: Callable[[Any], Any] = lambda payload: payload
        self.acknowledges = True
        # Everything that came, in order; what was done, by the id of the message that asked for it.
        self.got: list[dict[str, Any]] = []
        self.handled: dict[str, Any] = {}
        self._replies: dict[str, bytes] = {}
        # Replies to what it asked, by correlation.
        self.replies: dict[str, dict[str, Any]] = {}
        self._bells: dict[str, asyncio.Event] = {}
        self._socket: Any = None
        self.connections = 0
        self.is_ready = asyncio.Event()

    # -- messages ------------------------------------------------------------------------------------------------------

    def message(self, kind: str, to: str, action: str, payload: Any, **header: Any) -> dict[str, Any]:
        given = {"message_id": str(uuid.uuid4()), "timestamp": datetime.now(UTC).isoformat(), **header}
        return ossa_messages.message(ossa_messages.identity(self.name), kind, to, action, payload, **given)

    def sealed(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message whose payload only the exchange can read."""
        assert self.seals is not None
        payload = Raw(json.dumps(message["body"]["payload"]).encode())
        sealed = sealing.seal(payload, message["header"]["messageId"], [self.seals])
        return {
            "header": {**message["header"], "sensitive": True},
            "body": {**message["body"], "payload": json.loads(bytes(sealed))},
        }

    def opened(self, message: dict[str, Any]) -> Any:
        """The payload of a message, decrypted if it has to be."""
        payload = message["body"]["payload"]
        if not isinstance(payload, dict) or sealing.MEMBER not in payload:
            return payload
        return json.loads(bytes(sealing.open_sealed(reading.read(json.dumps(message).encode()), self._opens)))

    async def say(self, data: bytes) -> None:
        """Send this if there is a connection; what is lost is said again by whoever needs it."""
        if self._socket is not None:
            with contextlib.suppress(websockets.ConnectionClosed, OSError):
                await self._socket.send(data.decode())

    async def ask(self, message: dict[str, Any], *, wanted: str = "", timeout_s: float = WAIT_S) -> dict[str, Any]:
        """Say the same bytes until there is an answer that stays; ``wanted`` is its type if only one counts."""
        data = signed(message, self.key)
        thread = message["header"].get("correlationId") or message["header"]["messageId"]
        bell = self._bells.setdefault(thread, asyncio.Event())
        async with asyncio.timeout(timeout_s):
            while True:
                await self.say(data)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_S):
                        while not self._is_answer(self.replies.get(thread), wanted):
                            bell.clear()
                            await bell.wait()
                found = self.replies.get(thread)
                if found is not None and self._is_answer(found, wanted):
                    return found

    def _replied(self, thread: str, reply: dict[str, Any]) -> None:
        self.replies[thread] = reply
        if thread in self._bells:
            self._bells[thread].set()

    def _is_answer(self, reply: dict[str, Any] | None, wanted: str) -> bool:
        if reply is None or (wanted and reply["header"]["type"] != wanted):
            return False
        return reply["body"].get("error", {}).get("code") not in {408, 429, 503}

    # -- its connection ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connect, again and again."""
        while True:
            with contextlib.suppress(OSError, websockets.WebSocketException, TimeoutError, KeyError):
                url = self._url()
                context = trusting() if url.startswith("wss") else None
                async with websockets.connect(url, ssl=context, open_timeout=5, ping_interval=None) as self._socket:
                    self.connections += 1
                    await self._talk(self._socket)
            self._socket = None
            self.is_ready.clear()
            await asyncio.sleep(0.05)

    async def _talk(self, socket: Any) -> None:
        offered = {"actions": [{"name": one, "input_schema": {"type": "object"}} for one in self._actions]}
        first = self.message("request", "trunkline", "register", offered)
        if not self._actions:
            first = self.message("heartbeat", "trunkline", "heartbeat", {})
        await socket.send(signed(first, self.key).decode())
        self.is_ready.set()
        beats = asyncio.create_task(self._beat(socket, first))
        try:
            async for text in socket:
                message = json.loads(text)
                self.got.append(message)
                await self._heard(message)
        finally:
            beats.cancel()

    async def _beat(self, socket: Any, first: dict[str, Any]) -> None:
        """Until it is known to have registered, it says so again; that may be lost."""
        with contextlib.suppress(websockets.ConnectionClosed):
            while True:
                await asyncio.sleep(AGAIN_S)
                if first["header"]["messageId"] not in self.replies:
                    await socket.send(signed(first, self.key).decode())

    async def _heard(self, message: dict[str, Any]) -> None:
        header = message["header"]
        match header["type"]:
            case "request":
                await self._work(message)
            case "event" | "command_result":
                if header["type"] == "command_result":
                    self._replied(header["correlationId"], message)
                elif header["messageId"] not in self.handled:
                    self.handled[header["messageId"]] = message["body"]["payload"]
                if self.acknowledges and header.get("qos", 1):
                    ack = self.message(
                        "acknowledgment", "trunkline", "acknowledgment", {"messageId": header["messageId"]}
                    )
                    await self.say(signed(ack, self.key))
            case _:
                if "correlationId" in header:
                    self._replied(header["correlationId"], message)

    async def _work(self, request: dict[str, Any]) -> None:
        """QoS 2: what has the id of an earlier request is answered with the earlier answer, and not done again."""
        header = request["header"]
        name = header["messageId"]
        if name not in self._replies:
            payload = self.opened(request)
            self.handled.setdefault(name, payload)
            answer = self.handle(payload)
            if answer is None:
                return
            thread = header["correlationId"]
            reply = self.message("response", "trunkline", request["body"]["action"], answer, correlationId=thread)
            is_sealed = payload != request["body"]["payload"]
            self._replies[name] = signed(self.sealed(reply) if is_sealed else reply, self.key)
        await self.say(self._replies[name])


@asynccontextmanager
async def speaking(*agents: Speaker) -> AsyncIterator[None]:
    """While it lasts, these keep up their connections."""
    tasks = [asyncio.create_task(agent.run()) for agent in agents]
    try:
        for agent in agents:
            async with asyncio.timeout(WAIT_S):
                await agent.is_ready.wait()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Proxy:
    """Between agents and the exchange. ``loss`` is the share that it drops; connections last ``life_s`` on average."""

    def __init__(self, target: Callable[[], str], seed: int, loss: float, life_s: float = 0.0) -> None:
        self._target, self._rng = target, Random(seed)
        self.loss, self.life_s = loss, life_s
        self.passed = self.dropped = self.cut = 0
        # Events that it dropped, by their topic.
        self.dropped_events: list[str] = []
        self.port = 0

    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ossa/v1/ws"

    @asynccontextmanager
    async def standing(self) -> AsyncIterator[Proxy]:
        async with websockets.serve(self._between, "127.0.0.1", 0, ping_interval=None) as server:
            self.port = next(iter(server.sockets)).getsockname()[1]
            yield self

    async def _between(self, agent: Any) -> None:
        try:
            async with websockets.connect(
                self._target(), ssl=trusting(), open_timeout=5, ping_interval=None
            ) as exchange:
                tasks = [
                    asyncio.create_task(self._pass(agent, exchange)),
                    asyncio.create_task(self._pass(exchange, agent)),
                ]
                life_s = self._rng.expovariate(1 / self.life_s) if self.life_s else None
                done, _ = await asyncio.wait(tasks, timeout=life_s, return_when=asyncio.FIRST_COMPLETED)
                self.cut += not done
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for side in (agent, exchange):
                    side.transport.abort()
        except (OSError, websockets.WebSocketException, TimeoutError, KeyError):
            agent.transport.abort()

    async def _pass(self, source: Any, target: Any) -> None:
        async for text in source:
            if self._rng.random() < self.loss:
                self.dropped += 1
                topic = json.loads(text)["header"].get("topic")
                if topic is not None:
                    self.dropped_events.append(topic)
                continue
            self.passed += 1
            await target.send(text)
