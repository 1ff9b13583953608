"""Jobs over Nostr: from a buyer's request to the result, beside three events that go through the same relay.

The buyer is this process, with a plain WebSocket to the embedded relay of an exchange; the job is the raw provider's
echo, offered to strangers. Beside it two plain WebSockets send each other three events in turn, which is the least that
a job consists of: a request, that it is being worked on, and a result. Nobody but the relay checks those. All events of
this process are signed before the clock starts.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import orjson
from msgspec import Raw
from websockets.asyncio.client import ClientConnection, connect

from bench.children import Children, Failed
from bench.exchange import Exchange
from bench.loads import SMALL, Attach, Attached, Done
from bench.plan import Stage
from bench.results import Jobs
from trunkline import canonical
from trunkline.config import NostrKinds
from trunkline.edges.nostr import messages
from trunkline.edges.nostr.events import Draft, Event, encoded, signed
from trunkline.edges.nostr.keys import Signer
from trunkline.jobs.tool_schemas import schema_id_of

AGENT: Final = "bench.nostr"
TOOL: Final = f"{AGENT}/echo"
KINDS: Final = NostrKinds()
WARM: Final = 5
# Of a job and of what stands beside it. The relay takes 600 a minute from a connection, the exchange's own included.
EVENTS: Final = 3
WITHIN_S: Final = 30.0
_CONFIG: Final = f"""
[nostr]
relay = "127.0.0.1:0"
offer = ["{TOOL}"]
requests_per_minute = 1000000
"""


def measure(stage: Stage) -> Jobs:
    """Jobs one after the other, and as often three events."""
    with Children(stage.room("nostr")) as children:
        exchange = Exchange(children, children.folder / "home", "nostr", _CONFIG)
        provider = children.ours("nostr-provider", "bench.ends", "provider")
        provider.wait(Done)
        offer = Attach(exchange.socket, exchange.identities(AGENT), tool="echo", side_effects=False)
        provider.ask(offer, Attached)
        url = exchange.ready("relay")
        job_us, events_us = [], []
        for _ in range(stage.plan.rounds):
            job_us.append(asyncio.run(_jobs_us(url, stage.plan.jobs)))
            events_us.append(asyncio.run(_events_us(url, stage.plan.jobs)))
    found = Jobs(tuple(job_us), tuple(events_us))
    stage.say(f"a job over Nostr: {found.ratio.median:.2f} of three events through its relay")
    return found


def _socket(url: str) -> connect:
    return connect(url, open_timeout=WITHIN_S, compression=None, proxy=None)


_numbers: Final = itertools.count(1)


def _pair() -> Signer:
    return Signer(int.to_bytes(time.time_ns() + next(_numbers), 32, "big"))


async def _jobs_us(url: str, count: int) -> float:
    """The median from request to result."""
    buyer = _pair()
    schema_id = schema_id_of(TOOL)
    made = []
    for number in range(WARM + count):
        body = Raw(msgspec.json.encode({"text": f"{number:08}".ljust(SMALL, "x")}))
        named = Raw(msgspec.json.encode({"schema_id": schema_id, "inputs": body}))
        draft = messages.request_draft(
            KINDS,
            schema_id,
            body,
            canonical.openagents_hash(named),
            created_at=int(time.time()),
            nonce=str(number),
            provider="",
        )
        made.append(signed(draft, buyer))
    async with _socket(url) as socket:
        await _subscribe(socket, {"kinds": [KINDS.result, KINDS.feedback], "#p": [buyer.public]})
        return await _median_us(made, lambda event: _bought(socket, event))


async def _bought(socket: ClientConnection, event: Event) -> None:
    await _publish(socket, event)
    while True:
        received = await _received(socket)
        if ["e", event.id] not in [tag[:2] for tag in received["tags"]]:
            continue
        if received["kind"] == KINDS.result:
            return
        if ["status", messages.Status.ERROR] in [tag[:2] for tag in received["tags"]]:
            raise Failed(f"the job was not done: {received}")


async def _events_us(url: str, count: int) -> float:
    """The median of three events in turn between two connections."""
    ends = _pair(), _pair()
    now = int(time.time())
    turns = [
        [
            signed(Draft(KINDS.feedback, f"{n} {at}".ljust(SMALL, "x"), (("p", ends[1 - at % 2].public),), now), end)
            for at, end in zip(range(EVENTS), itertools.cycle(ends), strict=False)
        ]
        for n in range(WARM + count)
    ]
    async with _socket(url) as one, _socket(url) as other:
        sockets = (one, other)
        for socket, end in zip(sockets, ends, strict=True):
            await _subscribe(socket, {"kinds": [KINDS.feedback], "#p": [end.public]})

        async def in_turn(events: Sequence[Event]) -> None:
            for at, event in enumerate(events):
                await _publish(sockets[at % 2], event)
                while (await _received(sockets[1 - at % 2]))["id"] != event.id:
                    pass

        return await _median_us(turns, in_turn)


async def _median_us(made: Sequence[Any], work: Callable[[Any], Any]) -> float:
    times = []
    for one in made:
        begun = time.perf_counter()
        await work(one)
        times.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(times[WARM:])


async def _subscribe(socket: ClientConnection, wanted: dict[str, object]) -> None:
    await socket.send(orjson.dumps(["REQ", "bench", wanted]).decode())
    while (await _frame(socket))[0] != "EOSE":
        pass


async def _publish(socket: ClientConnection, event: Event) -> None:
    await socket.send(f'["EVENT",{encoded(event).decode()}]')


async def _received(socket: ClientConnection) -> dict[str, Any]:
    """The next event that somebody else published; our own must have been taken."""
    while True:
        frame = await _frame(socket)
        if frame[0] == "EVENT":
            found: dict[str, Any] = frame[2]
            return found
        if frame[0] != "OK" or not frame[2]:
            raise Failed(f"the relay says {frame}")


async def _frame(socket: ClientConnection) -> list[Any]:
    frame: list[Any] = orjson.loads(await asyncio.wait_for(socket.recv(), WITHIN_S))
    return frame
