"""Cases about limits: requests in a minute, and bytes in a message.

Owns these cases, and how a flood is sent. Messages are ``wire``'s.
"""

from __future__ import annotations

import asyncio
from typing import Final

from trunkline.check.ossa import wire
from trunkline.check.ossa.actor import Actor
from trunkline.check.ossa.bench import OssaBench, case, expect_error, expect_nothing, expect_response, marker
from trunkline.check.ossa.endpoint import Answer
from trunkline.check.ossa.wire import EXCHANGE, MAX_MESSAGE_BYTES, Message
from trunkline.check.suite import Failed, Skipped

# Requests of the flood that are on their way at once.
ABREAST: Final = 8


async def _flood(bench: OssaBench) -> tuple[list[Answer], Answer]:
    """As many requests as are allowed, and one more; once for each run, whichever case comes first."""
    async with bench.flooding:
        if bench.flood is None:
            provider, flooder = await bench.provider(), bench.flooder
            allowed = max(bench.rate - flooder.spent, 0)
            places = asyncio.Semaphore(ABREAST)

            async def one() -> Answer:
                async with places:
                    return await flooder.request(provider.named, "echo", {})

            answers = await asyncio.gather(*(one() for _ in range(allowed)))
            bench.flood = (answers, await flooder.request(provider.named, "echo", {}))
        return bench.flood


async def _flooded(bench: OssaBench) -> tuple[Actor, Answer]:
    answers, over = await _flood(bench)
    if all(answer.status != 429 for answer in [*answers, over]):
        raise Skipped("the limit was not reached: see limits.rate")
    return bench.flooder, over


@case(
    "limits.rate",
    "standard",
    "OSSA-053 OSSA-076 OSSA-077",
    "An agent has 100 requests in a minute: these are taken, and the next one gets 429.",
    "Count requests and commands of each authenticated agent in a sliding window of 60 s.",
    is_long=True,
)
async def _(bench: OssaBench) -> None:
    answers, over = await _flood(bench)
    refused = [answer for answer in answers if answer.status == 429]
    if refused:
        mend = "If this identity was used within the last minute, wait a minute or give another; see also --rate."
        raise Failed(f"{len(refused)} of the first {len(answers)} requests were refused: {refused[0]}", mend)
    for answer in answers:
        expect_response(answer, "a request below the limit")
    expect_error(over, 429, what=f"request {len(answers) + 1} within a minute")


@case(
    "limits.retry-after",
    "standard",
    "OSSA-053",
    "429 says in `details.retryAfterMs` how long to wait: more than 0 ms and at most a minute.",
    "Give the time until the oldest request of the window is 60 s old.",
    is_long=True,
)
async def _(bench: OssaBench) -> None:
    _, over = await _flooded(bench)
    details = expect_error(over, 429)["body"]["error"].get("details")
    wait = details.get("retryAfterMs") if isinstance(details, dict) else None
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 < wait <= 60_000:
        raise Failed(f"the details are {details!r}")


@case(
    "limits.for-each-agent",
    "standard",
    "OSSA-076",
    "While one agent is over its limit, another is not.",
    "Count for each agent.",
    is_long=True,
)
async def _(bench: OssaBench) -> None:
    await _flooded(bench)
    expect_response(await bench.call({}, by=bench.first), "a request of another agent")


@case(
    "limits.type-is-registered",
    "advanced",
    "OSSA-078",
    "Another `agentType` in a message does not lift the limit.",
    "The class of an agent is the one it was registered with.",
    is_long=True,
)
async def _(bench: OssaBench) -> None:
    flooder, _ = await _flooded(bench)
    provider = await bench.provider()
    sender = {**flooder.named, "agentType": "governor" if flooder.identity.agent_type != "governor" else "worker"}
    answer = await flooder.request(provider.named, "echo", {}, sender=sender)
    expect_error(answer, 429, 400, 401, 403, what="a request under another agentType")


@case(
    "limits.what-is-counted",
    "advanced",
    "OSSA-076",
    "Heartbeats are not counted, and events have a count of their own.",
    "An agent that is over its limit of requests may still say that it lives, and publish.",
    is_long=True,
)
async def _(bench: OssaBench) -> None:
    flooder, _ = await _flooded(bench)
    heartbeat = flooder.make("heartbeat", EXCHANGE, "heartbeat", {})
    expect_nothing(await flooder.post(heartbeat), "a heartbeat over the limit of requests")
    event = flooder.make("event", EXCHANGE, "published", {}, topic=f"check.{marker()}")
    expect_nothing(await flooder.post(event), "an event over the limit of requests")


def _padded(message: Message, size: int) -> bytes:
    """A message written with so much white space that it has exactly this size."""
    data = wire.encode(message)
    return b"{" + b" " * (size - len(data)) + data[1:]


@case(
    "limits.largest-message",
    "standard",
    "OSSA-001",
    "A message of exactly 1048576 bytes is taken.",
    "The limit is on the bytes of the message as it is sent.",
)
async def _(bench: OssaBench) -> None:
    provider, caller = await bench.provider(), bench.caller()
    message = caller.make("request", provider.named, "echo", {})
    expect_response(await caller.post(_padded(message, MAX_MESSAGE_BYTES)), "a message of 1048576 bytes")


@case(
    "limits.too-large",
    "standard",
    "OSSA-048",
    "A message of 1048577 bytes is refused with 400.",
    "Stop reading at the limit; the error's code is 400, the HTTP status 400 or 413.",
)
async def _(bench: OssaBench) -> None:
    provider, caller, mark = await bench.provider(), bench.caller(), marker()
    message = caller.make("request", provider.named, "echo", {"mark": mark})
    answer = await caller.post(_padded(message, MAX_MESSAGE_BYTES + 1))
    if answer.status not in {400, 413}:
        raise Failed(f"a message of 1048577 bytes was answered by {answer}")
    if provider.deliveries(mark):
        raise Failed("it reached the provider")
