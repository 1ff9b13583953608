"""OSSA agents on the real edge of an exchange in memory; and one whose exchange is a script, on a clock that jumps."""

from __future__ import annotations

import asyncio
import contextlib
import json
import selectors
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
from joserfc.jwk import OKPKey
from msgspec import Raw

from tests.ossa_messages import new_identity
from trunkline.config import Config, Ossa
from trunkline.edges.edge import KeyTerms
from trunkline.edges.ossa import messages, reading, sealing, signing
from trunkline.edges.ossa.edge import OSSA
from trunkline.edges.ossa.keys import keys_of, new_pair
from trunkline.edges.ossa.messages import ErrorInfo, Identity, Message
from trunkline.edges.topics.edge import TOPICS
from trunkline.model import stamp
from trunkline.sdk import OssaAgent
from trunkline.sdk.ossa_identity import ExchangeKeys, read_keys
from trunkline.testing.memory import MemoryExchange

WAIT_S = 10.0
US = Identity("trunkline", "orchestrator")


# --- the real edge ----------------------------------------------------------------------------------------------------


class World:
    """An exchange, and agents of it."""

    def __init__(self, home: Path, **rate: int) -> None:
        self.home = home
        self.config = Config(ossa=Ossa(listen="127.0.0.1:0", rate=rate))
        self.exchange = MemoryExchange(
            edges=(OSSA, TOPICS), config=self.config, live=asyncio.get_running_loop(), home=home
        )

    @property
    def url(self) -> str:
        found = self.exchange.edges.ready()["ossa"]
        assert found is not None
        return found

    def agent(self, name: str, kind: str = "worker", **options: Any) -> OssaAgent:
        return OssaAgent(new_identity(self.exchange, name, kind), **{"url": self.url, "home": self.home, **options})


@contextlib.asynccontextmanager
async def world(home: Path, **rate: int) -> AsyncIterator[World]:
    found = World(home, **rate)
    await found.exchange.edges.start()
    try:
        yield found
    finally:
        async with asyncio.timeout(WAIT_S):
            await found.exchange.edges.stop()
            await found.exchange.edges.stop_last()
    assert found.exchange.died is None
    assert found.exchange.operator.status()["defects"] == 0


async def until(condition: Callable[[], Any], what: str) -> Any:
    """Ask again and again, for a bounded time."""
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"in vain: {what}"
        await asyncio.sleep(0.005)
    return found


# --- an exchange that follows a script --------------------------------------------------------------------------------


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting, it lets the clock jump to the moment that is waited for."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "everything waits, and nothing will happen"
            self.now += max(timeout, 0.0)
        return found


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop on which seconds take no time."""

    def __init__(self) -> None:
        self.clock = _JumpingSelector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def in_no_time(test: Coroutine[Any, Any, None]) -> None:
    """Run this on a loop whose clock jumps."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(test)


Script = Callable[["ScriptedExchange", Message], None]


class ScriptedExchange:
    """What an agent says is given to ``script``, but for registrations and subscriptions, which are taken."""

    def __init__(self, script: Script = lambda _, __: None, *, taken: bool = True) -> None:
        self.script = script
        self.taken = taken
        self.is_away = False
        self.own = keys_of(b"e" * 64)
        self.received: list[tuple[float, Message]] = []
        self.sockets: list[_ScriptedSocket] = []
        self.pair = new_pair(KeyTerms("alice", "worker"))
        self.opens = OKPKey.import_key(self.pair.shown["enc_jwk"])  # type: ignore[arg-type]

    async def keys(self) -> ExchangeKeys:
        if self.is_away:
            raise ConnectionRefusedError
        return read_keys(bytes(self.own.jwks))

    @contextlib.asynccontextmanager
    async def socket(self) -> AsyncIterator[_ScriptedSocket]:
        found = _ScriptedSocket(self)
        self.sockets.append(found)
        yield found

    def agent(self, **options: Any) -> OssaAgent:
        agent = OssaAgent({"agent": "alice", **self.pair.shown}, url="https://127.0.0.1:1", **options)
        agent._dialling = self
        return agent

    def receive(self, text: str) -> None:
        message = reading.read(text.encode())
        assert message.signature is not None
        if sealing.is_sealed(message.payload):
            message = msgspec.structs.replace(message, payload=sealing.open_sealed(message, self.own.opens))
        self.received.append((asyncio.get_running_loop().time(), message))
        if self.taken and message.action == "register":
            self.reply(message, {"registered": [], "rejected": {}})
        elif self.taken and message.action == "subscribe":
            self.reply(message, {"subscription": f"s{len(self.received)}"})
        else:
            self.script(self, message)

    def of(self, kind: str) -> list[Message]:
        """What the agent said of one kind."""
        return [message for _, message in self.received if message.type == kind and message.action != "register"]

    def times(self, kind: str) -> list[float]:
        """When it said that, in seconds since the first."""
        found = [at for at, message in self.received if message.type == kind and message.action != "register"]
        return [round(at - found[0], 3) for at in found]

    # -- saying --------------------------------------------------------------------------------------------------------

    def say(self, message: Message, *, key: signing.Key | None = None) -> None:
        data = signing.sign(message, key or self.own.signs)
        self.sockets[-1].coming.put_nowait(data.decode())

    def send(self, kind: str, action: str, payload: Any = None, **fields: Any) -> Message:
        """Something unasked, from bob unless it says otherwise."""
        made = Message(
            fields.pop("message_id", None) or str(uuid.uuid4()),
            kind,
            fields.pop("sender", Identity("bob", "worker")),
            (Identity("alice", "worker"),),
            stamp(round(time.time() * 1000)),
            action,
            Raw(json.dumps({} if payload is None else payload).encode()),
            **fields,
        )
        self.say(made)
        return made

    def reply(self, to: Message, payload: Any = None, kind: str = "response", **fields: Any) -> None:
        body = Raw(json.dumps({} if payload is None else payload).encode())
        made = messages.reply(to, kind, to.recipients[0], str(uuid.uuid4()), round(time.time() * 1000), body)
        self.say(msgspec.structs.replace(made, **fields))

    def fail(self, to: Message, code: int, **details: Any) -> None:
        now = stamp(round(time.time() * 1000))
        info = ErrorInfo(code, "refused", now, Raw(json.dumps(details).encode()))
        self.reply(to, kind="error", action="error", error=info, sender=US)

    def receipt(self, to: Message, kind: str = "acknowledgment", **fields: Any) -> None:
        self.reply(to, {"messageId": to.message_id}, kind, action=kind, **fields)

    def hang_up(self) -> None:
        self.sockets[-1].coming.put_nowait(None)


class _ScriptedSocket:
    def __init__(self, exchange: ScriptedExchange) -> None:
        self._exchange = exchange
        self.coming: asyncio.Queue[str | None] = asyncio.Queue()

    async def send(self, message: str, /) -> None:
        self._exchange.receive(message)

    async def __aiter__(self) -> AsyncIterator[str]:
        while (text := await self.coming.get()) is not None:
            yield text


async def settled(times: int = 50) -> None:
    """Let everything happen that needs no time."""
    for _ in range(times):
        await asyncio.sleep(0)
