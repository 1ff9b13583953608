"""What each quality of service promises, behind a network that drops messages and cuts connections, with kills.

``qualities`` is a function of its seed. ``test_ossa`` does a few hundred messages, ``tools/soak.py`` thousands.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from tests.crash.ossa_agents import CONFIG, Proxy, Speaker, address, speaking, until
from tests.ossa_messages import signed
from tests.running import Running, running

# Of one publisher, not answered yet; and how long each step may take. With half of all messages lost a publication
# takes some seconds, so that thousands need more of both.
AT_ONCE = 20
WITHIN_S = 300.0
# Events that nobody acknowledges: published, and not heard or lost yet.
IN_FLIGHT = 200
# A connection lasts so long on average: what is owed is told again at once to who comes back.
LIFE_S = 1.5


async def qualities(
    home: Path, *, seed: int, count: int, loss: float, kills: int, at_once: int = AT_ONCE, within_s: float = WITHIN_S
) -> Proxy:
    """So many messages of each quality; what must hold of them."""
    with running(home, CONFIG) as exchange:
        proxy = Proxy(address(exchange), seed, loss)
        async with proxy.standing():
            alice, bob = Speaker(exchange, "alice", proxy.url), Speaker(exchange, "bob", proxy.url, "work")
            async with speaking(alice, bob):
                await _subscribed(bob)
                await _at_most_once(proxy, alice, bob, count)
                proxy.life_s = LIFE_S if loss else 0.0
                await _told(exchange, alice, bob, count, kills, at_once, within_s)
                await _asked(alice, bob, count // 4, within_s)
    return proxy


async def _subscribed(bob: Speaker) -> None:
    for qos in range(3):
        wish = {"topic": f"q{qos}", "qos": qos, "durable": True}
        await bob.ask(
            bob.message("request", "trunkline", "subscribe", wish, correlationId=f"s{qos}"), wanted="response"
        )


async def _at_most_once(proxy: Proxy, alice: Speaker, bob: Speaker, count: int) -> None:
    """What was sent minus what was dropped, on the way in or on the way out."""
    sent = 0

    def is_all() -> bool:
        heard = len([one for one in bob.got if one["header"].get("topic") == "q0"])
        return heard + proxy.dropped_events.count("q0") >= sent

    # Not all at once: of this quality, what a reader has no room for is let go by the exchange too.
    for first in range(0, count, IN_FLIGHT):
        for n in range(first, min(first + IN_FLIGHT, count)):
            message = alice.message("event", "trunkline", "said", {"n": n}, topic="q0", qos=0)
            await alice.say(signed(message, alice.key))
            sent += 1
        await until(is_all, "events of quality 0")
    await asyncio.sleep(0.1)
    seen = Counter(one["body"]["payload"]["n"] for one in bob.got if one["header"].get("topic") == "q0")
    assert sum(seen.values()) == count - proxy.dropped_events.count("q0")
    assert set(seen.values()) <= {1}


async def _told(
    exchange: Running, alice: Speaker, bob: Speaker, count: int, kills: int, at_once: int, within_s: float
) -> None:
    """At least once, and exactly once for who knows repeats by their ids; the exchange is killed on the way."""
    places = asyncio.Semaphore(at_once)
    done = Counter[str]()

    async def publish(topic: str, n: int) -> None:
        async with places:
            message = alice.message(
                "event", "trunkline", "said", {"n": n, "topic": topic}, topic=topic, qos=int(topic[1])
            )
            reply = await alice.ask(message, wanted="acknowledgment", timeout_s=within_s)
            assert reply["body"]["payload"] == {"messageId": message["header"]["messageId"]}
            done["published"] += 1

    async def kill() -> None:
        for number in range(kills):
            wanted = (number + 1) * 2 * count // (kills + 1)
            await until(lambda wanted=wanted: done["published"] >= wanted, f"{wanted} published", within_s)  # type: ignore[misc]
            await asyncio.to_thread(exchange.kill)
            await asyncio.to_thread(exchange.start)

    async with asyncio.TaskGroup() as group:
        group.create_task(kill())
        for n in range(count):
            for topic in ("q1", "q2"):
                group.create_task(publish(topic, n))

    def handled(topic: str) -> Counter[int]:
        return Counter(one["n"] for one in bob.handled.values() if one.get("topic") == topic)

    for topic in ("q1", "q2"):
        await until(lambda topic=topic: len(handled(topic)) == count, f"all of {topic}", within_s)  # type: ignore[misc]
    assert set(handled("q2").values()) == {1}, "an event was told under two ids"


async def _asked(alice: Speaker, bob: Speaker, count: int, within_s: float) -> None:
    """Each request is done once, however often it was said; whoever was told a result, it was done."""
    replies = await asyncio.gather(
        *(alice.ask(alice.message("request", "bob", "work", {"ask": n}), timeout_s=within_s) for n in range(count))
    )
    done = Counter(one["ask"] for one in bob.handled.values() if "ask" in one)
    assert set(done.values()) <= {1}, "a request was done twice"
    for n, reply in enumerate(replies):
        if reply["header"]["type"] == "response":
            assert reply["body"]["payload"] == {"ask": n}
            assert done[n] == 1
