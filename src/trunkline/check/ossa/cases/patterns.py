"""Cases about the patterns: request and response, command and result, publish and subscribe, several recipients.

Owns these cases, and ``publish`` and ``expect_event``, which others use. Actions are the actors'.
"""

from __future__ import annotations

import asyncio

from trunkline.check.ossa import wire
from trunkline.check.ossa.actor import Actor
from trunkline.check.ossa.bench import OssaBench, case, echoed, expect_error, expect_nothing, expect_response, marker
from trunkline.check.ossa.wire import EXCHANGE
from trunkline.check.suite import Failed


@case(
    "patterns.request",
    "core",
    "OSSA-023 OSSA-024 OSSA-035 OSSA-036 OSSA-087",
    "A request by HTTPS reaches the provider of the action, and its response comes back with HTTP 200.",
    "Recipient and action name what is called; the provider's answer is the body of the HTTP response.",
)
async def _(bench: OssaBench) -> None:
    mark = marker()
    message = expect_response(await bench.call({"mark": mark, "numbers": [1, 2.5]}))
    if echoed(message) != {"mark": mark, "numbers": [1, 2.5]}:
        raise Failed(f"the provider was given {echoed(message)!r}")


@case(
    "patterns.request-by-socket",
    "core",
    "OSSA-023 OSSA-024",
    "A request by WebSocket is answered on that WebSocket.",
    "One message for each text frame, the same rules as by HTTPS.",
)
async def _(bench: OssaBench) -> None:
    provider, mark = await bench.provider(), marker()
    answer = await bench.first.ask(bench.first.make("request", provider.named, "echo", {"mark": mark}))
    if answer.kind != "response" or echoed(answer.message) != {"mark": mark}:
        raise Failed(f"the request was answered by {answer}")


@case(
    "patterns.command",
    "standard",
    "OSSA-026 OSSA-027",
    "A command is acknowledged at once, and its result follows as `command_result`.",
    "Acknowledge with payload {messageId} before the work is done; then send `command_result`, or `error`.",
)
async def _(bench: OssaBench) -> None:
    provider, caller, mark = await bench.provider(), bench.first, marker()
    command = caller.make("command", provider.named, "slow", {"mark": mark}, correlationId=mark)
    result = await caller.ask(command, kinds=("command_result", "error"))
    if result.kind != "command_result" or echoed(result.message) != {"mark": mark}:
        raise Failed(f"the command ended with {result}")
    mine = [one for one in caller.arrivals if one.header.get("correlationId") == mark]
    if mine[0].kind != "acknowledgment":
        raise Failed(f"the first that came was {mine[0]}, not an acknowledgment")
    if mine[0].payload != {"messageId": command["header"]["messageId"]}:
        raise Failed(f"the acknowledgment has payload {mine[0].payload!r}, not the command's messageId")


@case(
    "patterns.command-by-post",
    "standard",
    "OSSA-026",
    "A command by HTTPS is answered with HTTP 202 and an acknowledgment that names it.",
    "Do not wait for the result: the acknowledgment is the answer.",
)
async def _(bench: OssaBench) -> None:
    caller, provider = bench.caller(), await bench.provider()
    command = caller.make("command", provider.named, "slow", {})
    answer = await caller.post(command)
    kind = answer.message.get("header", {}).get("type")
    if answer.status != 202 or kind != "acknowledgment":
        raise Failed(f"the command was answered by {answer}")
    if answer.message["body"]["payload"] != {"messageId": command["header"]["messageId"]}:
        raise Failed(f"the acknowledgment has payload {answer.message['body']['payload']!r}")


@case(
    "patterns.several-recipients",
    "standard",
    "OSSA-010 OSSA-009",
    "A request to two agents reaches both, and HTTPS answers with a list of both replies.",
    "Make one copy for each recipient; each replies for itself.",
)
async def _(bench: OssaBench) -> None:
    provider, second, mark = await bench.provider(), await bench.troubled_provider(), marker()
    caller = bench.caller()
    answer = await caller.post(caller.make("request", [provider.named, second.named], "echo", {"mark": mark}))
    if not isinstance(answer.value, list) or len(answer.messages) != 2:
        raise Failed(f"the answer is not a list of two messages: {answer}")
    senders = {one.get("header", {}).get("sender", {}).get("agentId") for one in answer.messages}
    if senders != {provider.identity.agent_id, second.identity.agent_id}:
        raise Failed(f"the replies come from {', '.join(sorted(map(str, senders)))}")
    if not provider.deliveries(mark) or not second.deliveries(mark):
        raise Failed("not both recipients were given the request")


@case(
    "patterns.one-in-a-list",
    "standard",
    "OSSA-009 OSSA-010",
    "A list of one recipient is a list: HTTPS answers with a list of one reply.",
    "The form of the recipient, not its number, decides the form of the answer.",
)
async def _(bench: OssaBench) -> None:
    caller, provider = bench.caller(), await bench.provider()
    answer = await caller.post(caller.make("request", [provider.named], "echo", {}))
    if not isinstance(answer.value, list) or len(answer.messages) != 1:
        raise Failed(f"the answer is {answer}")


@case(
    "patterns.failure-in-response",
    "advanced",
    "OSSA-018",
    "A response that carries `body.error` is a failure, and the caller is told so.",
    "Look for `body.error` in responses and command results too.",
)
async def _(bench: OssaBench) -> None:
    answer = await bench.call({}, action="flawed")
    if not isinstance(answer.message.get("body", {}).get("error"), dict):
        raise Failed(f"the caller was told {answer}")


# --- publish and subscribe --------------------------------------------------------------------------------------------


async def publish(by: Actor, topic: str, payload: object, **header: object) -> None:
    """Publish an event by HTTPS; ``Failed`` if it is refused."""
    answer = await by.post(by.make("event", EXCHANGE, "published", payload, topic=topic, **header))
    if answer.status not in {200, 202, 204}:
        raise Failed(f"an event was answered by {answer}")


async def expect_event(by: Actor, topic: str, payload: object) -> None:
    """``Failed`` unless the subscriber gets this event."""
    if await by.wait(lambda one: one.kind == "event" and one.header.get("topic") == topic and one.payload == payload):
        return
    others = [one.header.get("topic") for one in by.arrivals if one.kind == "event"]
    seen = f"; events came on {', '.join(map(repr, others[-3:]))}" if others else ""
    raise Failed(f"{by.identity.agent_id} was not told of the event on {topic!r}{seen}")


@case(
    "patterns.publish",
    "standard",
    "OSSA-025 OSSA-040 OSSA-041 OSSA-087",
    "An event reaches every subscriber of its topic, with topic and payload.",
    "`subscribe` of recipient `trunkline` with {topic}; an event goes to `trunkline` with `topic` in its header.",
)
async def _(bench: OssaBench) -> None:
    provider, other, topic = await bench.provider(), bench.other, f"check.{marker()}"
    await asyncio.gather(provider.subscribe(topic), other.subscribe(topic))
    await publish(bench.first, topic, {"n": 1})
    await asyncio.gather(expect_event(provider, topic, {"n": 1}), expect_event(other, topic, {"n": 1}))


@case(
    "patterns.event-without-reply",
    "standard",
    "OSSA-025 OSSA-079",
    "An event with QoS 0 gets an empty answer; with QoS 1 an acknowledgment that names it.",
    "An event has no response. Under QoS 1 and 2 say that it was taken.",
)
async def _(bench: OssaBench) -> None:
    caller, topic = bench.caller(), f"check.{marker()}"
    expect_nothing(await caller.post(caller.make("event", EXCHANGE, "published", {}, topic=topic)), "an event")
    event = caller.make("event", EXCHANGE, "published", {}, topic=topic, qos=1)
    answer = await caller.post(event)
    message = answer.message
    if message.get("header", {}).get("type") != "acknowledgment":
        raise Failed(f"an event with QoS 1 was answered by {answer}")
    if message["body"]["payload"] != {"messageId": event["header"]["messageId"]}:
        raise Failed(f"the acknowledgment has payload {message['body']['payload']!r}")


@case(
    "patterns.topics-are-apart",
    "standard",
    "OSSA-042",
    "An event on one topic does not reach subscribers of another.",
    "Compare whole segments: `orders` is not a prefix of `orders-old`.",
)
async def _(bench: OssaBench) -> None:
    provider, topic = await bench.provider(), f"check.{marker()}"
    await provider.subscribe(topic)
    for near in (f"{topic}x", f"{topic}.more", topic.rpartition(".")[0], topic.upper()):
        await publish(bench.first, near, {"n": 1})
    await publish(bench.first, topic, {"n": 2})
    await expect_event(provider, topic, {"n": 2})
    strays = [one for one in provider.arrivals if one.kind == "event" and _is_near(one.header.get("topic"), topic)]
    if strays:
        raise Failed(f"a subscriber of {topic!r} was told of an event on {strays[0].header.get('topic')!r}")


def _is_near(found: object, topic: str) -> bool:
    return found != topic and isinstance(found, str) and found.lower().startswith(topic.lower())


@case(
    "patterns.wildcards",
    "standard",
    "OSSA-040 OSSA-041",
    "In a subscription `*` is exactly one segment and `#` is all that follow.",
    "Segments are what stands between dots.",
)
async def _(bench: OssaBench) -> None:
    subscriber, root = bench.other, f"check.{marker()}"
    await subscriber.subscribe(f"{root}.star.*")
    await subscriber.subscribe(f"{root}.hash.#")
    await publish(bench.first, f"{root}.star.a.b", {"n": 0})
    for topic in (f"{root}.star.a", f"{root}.hash.a", f"{root}.hash.a.b.c"):
        await publish(bench.first, topic, {"n": 1})
        await expect_event(subscriber, topic, {"n": 1})
    if subscriber.events(f"{root}.star.a.b"):
        raise Failed("`*` stood for two segments")


@case(
    "patterns.unsubscribe",
    "standard",
    "OSSA-043",
    "After `unsubscribe` no event of that subscription comes.",
    "`unsubscribe` takes {subscription}; it ends that subscription at once.",
)
async def _(bench: OssaBench) -> None:
    subscriber, topic, fence = bench.other, f"check.{marker()}", f"check.{marker()}"
    name = await subscriber.subscribe(topic)
    await subscriber.subscribe(fence)
    await publish(bench.first, topic, {"n": 1})
    await expect_event(subscriber, topic, {"n": 1})
    answer = await subscriber.ask(subscriber.make("request", EXCHANGE, "unsubscribe", {"subscription": name}))
    if answer.kind != "response":
        raise Failed(f"`unsubscribe` was answered by {answer}")
    await publish(bench.first, topic, {"n": 2})
    await publish(bench.first, fence, {"n": 3})
    await expect_event(subscriber, fence, {"n": 3})
    if len(subscriber.events(topic)) > 1:
        raise Failed("an event came after the subscription had ended")


@case(
    "patterns.topic-form",
    "standard",
    "OSSA-041",
    "An event without a topic, or with one of more than 255 characters, is refused with 400.",
    "A topic has segments between dots, 255 characters at most.",
)
async def _(bench: OssaBench) -> None:
    caller = bench.caller()
    for name, header in (("no topic", {}), ("a topic of 256 characters", {"topic": "t" * 256})):
        draft = caller.draft("event", EXCHANGE, "published", {}, **header)
        expect_error(await caller.post(wire.sign(draft, caller.identity)), 400, what=name)
