"""Cases about delivery: repeats, acknowledgments and redelivery, exactly once, order, expiry.

Owns these cases, and how they count what reached a handler. Deliveries are the actors'.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from trunkline.check.ossa import wire
from trunkline.check.ossa.actor import SLOW_S, Actor, Arrival
from trunkline.check.ossa.bench import OssaBench, case, expect_error, expect_nothing, expect_response, marker
from trunkline.check.ossa.cases.patterns import expect_event, publish
from trunkline.check.ossa.wire import EXCHANGE, Message
from trunkline.check.suite import Failed

ONCE: Final = "Keep (sender, messageId) with the reply for a day; a repeat gets that reply and is never handled again."
# Redelivery is after 1 s and after 2 s more; so long nothing may come where none is due.
QUIET_S: Final = 1.6


def _handled(provider: Actor, mark: str) -> int:
    """How many different messages reached the provider: a redelivery is the same one."""
    return len({one.header["messageId"] for one in provider.deliveries(mark)})


def _expect_once(provider: Actor, mark: str) -> None:
    if (times := _handled(provider, mark)) != 1:
        raise Failed(f"the provider was given {times} different requests for one messageId")


@case(
    "guarantees.repeat",
    "standard",
    "OSSA-004 OSSA-081",
    "A request that is sent again with the same messageId gets the very same reply and is handled once.",
    ONCE,
)
async def _(bench: OssaBench) -> None:
    provider, caller, mark = await bench.provider(), bench.caller(), marker()
    request = caller.make("request", provider.named, "echo", {"mark": mark}, qos=2)
    first, second = await caller.post(request), await caller.post(request)
    expect_response(first)
    if first.value != second.value:
        raise Failed(f"the repeat was answered by another message: {second}")
    _expect_once(provider, mark)


@case(
    "guarantees.repeat-at-once",
    "advanced",
    "OSSA-004 OSSA-081",
    "Of the same request sent five times at the same moment one is handled, and all get the same reply.",
    "Take the messageId before the work begins: a repeat joins what is running. " + ONCE,
)
async def _(bench: OssaBench) -> None:
    provider, caller, mark = await bench.provider(), bench.caller(), marker()
    request = caller.make("request", provider.named, "slow", {"mark": mark})
    answers = await asyncio.gather(*(caller.post(request) for _ in range(5)))
    expect_response(answers[0])
    _expect_once(provider, mark)
    if any(answer.value != answers[0].value for answer in answers):
        raise Failed("the repeats were answered by different messages")


@case(
    "guarantees.repeat-on-other-transport",
    "advanced",
    "OSSA-004 OSSA-081",
    "A request that was sent by HTTPS and again by WebSocket gets the very same reply and is handled once.",
    "Repeats are recognised by sender and messageId, however they come. " + ONCE,
)
async def _(bench: OssaBench) -> None:
    provider, caller, mark = await bench.provider(), bench.first, marker()
    request = caller.make("request", provider.named, "echo", {"mark": mark})
    answer = await caller.post(request)
    expect_response(answer)
    again = await caller.ask(request)
    if again.message != answer.value:
        raise Failed(f"the repeat by WebSocket was answered by another message: {again}")
    _expect_once(provider, mark)


@case(
    "guarantees.same-id-other-content",
    "advanced",
    "OSSA-004",
    "Another message with an id that its sender has used is refused with 400.",
    "Keep a digest with the id: an old reply must not pass for the answer to a new question.",
)
async def _(bench: OssaBench) -> None:
    provider, caller = await bench.provider(), bench.caller()
    first, other = marker(), marker()
    request = caller.make("request", provider.named, "echo", {"mark": first})
    expect_response(await caller.post(request))
    used = request["header"]["messageId"]
    changed = caller.make("request", provider.named, "echo", {"mark": other}, messageId=used)
    expect_error(await caller.post(changed), 400, what="another request with the same messageId")
    if provider.deliveries(other):
        raise Failed("the second request was handled")


@case(
    "guarantees.ids-belong-to-senders",
    "advanced",
    "OSSA-004",
    "The same messageId from two agents is two messages.",
    "Keep replies by sender and messageId together: one agent must not get another's reply, or block its id.",
)
async def _(bench: OssaBench) -> None:
    provider, one, two = await bench.provider(), bench.first, bench.other
    request = one.make("request", provider.named, "echo", {"by": 1})
    expect_response(await one.post(request))
    message_id = request["header"]["messageId"]
    same = two.make("request", provider.named, "echo", {"by": 2}, messageId=message_id)
    message = expect_response(await two.post(same), "the same messageId from another agent")
    if message["body"]["payload"].get("echo") != {"by": 2}:
        raise Failed("the second agent was given the reply that belongs to the first")


@case(
    "guarantees.repeated-event",
    "advanced",
    "OSSA-004 OSSA-081",
    "An event that is published twice with the same messageId reaches its subscribers once.",
    ONCE,
)
async def _(bench: OssaBench) -> None:
    subscriber, caller, topic = bench.other, bench.first, f"check.{marker()}"
    await subscriber.subscribe(topic, qos=2)
    event = caller.make("event", EXCHANGE, "published", {"n": 1}, topic=topic, qos=2)
    await caller.post(event)
    await caller.post(event)
    await publish(caller, topic, {"n": 2}, qos=2)
    await expect_event(subscriber, topic, {"n": 2})
    ids = {one.header["messageId"] for one in subscriber.events(topic) if one.payload == {"n": 1}}
    if len(ids) != 1:
        raise Failed(f"the subscriber was given {len(ids)} different events")


# --- quality of service -----------------------------------------------------------------------------------------------


async def _undelivered(bench: OssaBench, qos: int, subscribed: int) -> tuple[Actor, str, Arrival]:
    """Publish an event that its subscriber does not acknowledge: the subscriber, the topic, and the first delivery."""
    subscriber, topic = bench.other, f"check.{marker()}"
    subscriber.unacknowledged.add(topic)
    await subscriber.subscribe(topic, qos=subscribed)
    await publish(bench.first, topic, {"n": 1}, qos=qos)
    await expect_event(subscriber, topic, {"n": 1})
    return subscriber, topic, subscriber.events(topic)[0]


@case(
    "guarantees.at-most-once",
    "standard",
    "OSSA-079 OSSA-090",
    "An event with QoS 0 is delivered once, acknowledged or not.",
    "QoS 0 is fire and forget.",
)
async def _(bench: OssaBench) -> None:
    subscriber, topic, _ = await _undelivered(bench, 0, 2)
    await asyncio.sleep(QUIET_S)
    if (times := len(subscriber.events(topic))) != 1:
        raise Failed(f"it was delivered {times} times")


@case(
    "guarantees.at-least-once",
    "standard",
    "OSSA-080 OSSA-090",
    "An event with QoS 1 that is not acknowledged is delivered again with the same messageId, until it is.",
    "Keep it until an acknowledgment names it; redeliver after 1 s, then after 2 s more.",
)
async def _(bench: OssaBench) -> None:
    subscriber, topic, first = await _undelivered(bench, 1, 1)
    second = await subscriber.wait(lambda one: one.at > first.at and one in subscriber.events(topic), timeout_s=4)
    if second is None:
        raise Failed("an event without an acknowledgment was not delivered again within 4 s")
    if second.header["messageId"] != first.header["messageId"]:
        raise Failed("the second delivery has another messageId")
    await subscriber.acknowledge(second)
    # One that left before the acknowledgment arrived may still come: what counts is that it ends.
    await asyncio.sleep(0.3)
    known = len(subscriber.events(topic))
    await asyncio.sleep(2.4)
    if len(subscriber.events(topic)) > known:
        raise Failed("it was delivered again after it had been acknowledged")


@case(
    "guarantees.exactly-once",
    "standard",
    "OSSA-081 OSSA-090",
    "An event with QoS 2 is redelivered with one and the same messageId, so that its receiver can handle it once.",
    "Redelivery uses the same messageId on every attempt.",
)
async def _(bench: OssaBench) -> None:
    subscriber, topic, first = await _undelivered(bench, 2, 2)
    second = await subscriber.wait(lambda one: one.at > first.at and one in subscriber.events(topic), timeout_s=4)
    await subscriber.acknowledge(second or first)
    if second is None:
        raise Failed("an event without an acknowledgment was not delivered again within 4 s")
    if second.header["messageId"] != first.header["messageId"]:
        raise Failed("the second delivery has another messageId: its receiver would handle it twice")


@case(
    "guarantees.lower-level-holds",
    "advanced",
    "OSSA-082",
    "The QoS of a delivery is the lower one of the event and the subscription, and stands in its header.",
    "A subscriber with QoS 0 is not asked to acknowledge; one with QoS 2 gets no more than the publisher gave.",
)
async def _(bench: OssaBench) -> None:
    subscriber, root = bench.other, f"check.{marker()}"
    for published, subscribed in ((2, 1), (1, 2), (2, 0)):
        topic = f"{root}.p{published}s{subscribed}"
        await subscriber.subscribe(topic, qos=subscribed)
        await publish(bench.first, topic, {"n": 1}, qos=published)
        await expect_event(subscriber, topic, {"n": 1})
        given = subscriber.events(topic)[0].header.get("qos", 0)
        if given != min(published, subscribed):
            raise Failed(f"published with {published}, subscribed with {subscribed}: delivered with QoS {given}")


@case(
    "guarantees.durable-subscription",
    "advanced",
    "OSSA-080",
    "Events of a durable subscription wait for a subscriber that is away, and come when it is back.",
    "`durable: true` in `subscribe`: keep what could not be delivered, and send it on the next connection.",
)
async def _(bench: OssaBench) -> None:
    absent, topic = bench.absent, f"check.{marker()}"
    async with absent.presence:
        await absent.subscribe(topic, qos=1, durable=True)
        await absent.disconnect()
        # An answer to something of this agent shows that the endpoint has noticed.
        await absent.post(absent.make("heartbeat", EXCHANGE, "heartbeat", {}))
        await publish(bench.first, topic, {"n": 1}, qos=1)
        await absent.connected()
        try:
            await expect_event(absent, topic, {"n": 1})
        finally:
            await absent.disconnect()


# --- order ------------------------------------------------------------------------------------------------------------


async def _slow_then_fast(bench: OssaBench, slow: str, fast: str) -> tuple[float, float]:
    """When a slow request and a fast one after it were answered, with these correlations."""
    provider, mark = await bench.provider(), marker()
    caller = bench.first

    async def timed(action: str, thread: str) -> float:
        expect_response(await caller.request(provider.named, action, {"mark": mark}, correlationId=thread))
        return time.monotonic()

    first = asyncio.ensure_future(timed("slow", slow))
    await provider.wait(lambda one: isinstance(one.payload, dict) and one.payload.get("mark") == mark)
    second = asyncio.ensure_future(timed("echo", fast))
    slow_at, fast_at = await asyncio.gather(first, second)
    return slow_at, fast_at


@case(
    "guarantees.order-in-correlation",
    "advanced",
    "OSSA-083",
    "Of two requests with the same correlationId the second is not done before the first.",
    "Hold the second back until the first is answered, whatever their priorities.",
)
async def _(bench: OssaBench) -> None:
    thread = marker()
    slow, fast = await _slow_then_fast(bench, thread, thread)
    if fast < slow - SLOW_S / 4:
        raise Failed(f"the second request was answered {slow - fast:.1f} s before the first")


@case(
    "guarantees.no-global-order",
    "advanced",
    "OSSA-084",
    "A slow request does not hold up one with another correlationId.",
    "Queue by correlationId, not by agent or by connection.",
)
async def _(bench: OssaBench) -> None:
    slow, fast = await _slow_then_fast(bench, marker(), marker())
    if fast > slow - SLOW_S / 4:
        raise Failed("the fast request waited for the slow one")


# --- expiry -----------------------------------------------------------------------------------------------------------


@case(
    "guarantees.expired-request",
    "standard",
    "OSSA-015 OSSA-052",
    "A request whose `expiresAt` is over gets 408 and is not handled.",
    "Look at expiresAt on receipt and again before handling.",
)
async def _(bench: OssaBench) -> None:
    provider, mark = await bench.provider(), marker()
    sent, expired = wire.timestamp(-600), wire.timestamp(-300)
    answer = await bench.call({"mark": mark}, timestamp=sent, expiresAt=expired)
    expect_error(answer, 408, what="an expired request")
    if provider.deliveries(mark):
        raise Failed("the provider was given it")


@case(
    "guarantees.expired-event",
    "standard",
    "OSSA-015",
    "An event whose `expiresAt` is over is dropped without an answer.",
    "Only requests are told that they came too late.",
)
async def _(bench: OssaBench) -> None:
    subscriber, caller, topic = bench.other, bench.first, f"check.{marker()}"
    await subscriber.subscribe(topic)
    header: Message = {"topic": topic, "timestamp": wire.timestamp(-600), "expiresAt": wire.timestamp(-300)}
    late = caller.make("event", EXCHANGE, "published", {"n": 0}, **header)
    expect_nothing(await caller.post(late), "an expired event")
    await publish(caller, topic, {"n": 1}, expiresAt=wire.timestamp(60))
    await expect_event(subscriber, topic, {"n": 1})
    if len(subscriber.events(topic)) > 1:
        raise Failed("the expired event was delivered")


@case(
    "guarantees.not-yet-expired",
    "standard",
    "OSSA-015",
    "A request that expires in a minute is handled.",
    "Compare moments, not texts: `expiresAt` may have any offset from UTC.",
)
async def _(bench: OssaBench) -> None:
    later = wire.timestamp(60 - 5 * 3600).replace("Z", "-05:00")
    expect_response(await bench.call({}, expiresAt=later), f"expiresAt {later}")
