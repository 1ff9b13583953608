"""Cases about errors: which code stands for what, and the form of an error message.

Owns these cases. What an error has to look like is ``wire.error_fault``'s to say.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import time
from itertools import pairwise

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from trunkline.check.ossa import wire
from trunkline.check.ossa.bench import OssaBench, case, expect_error, expect_response, marker
from trunkline.check.ossa.observer import counted
from trunkline.check.ossa.wire import EXCHANGE
from trunkline.check.suite import Failed, Skipped


@case(
    "errors.form",
    "core",
    "OSSA-032 OSSA-058 OSSA-059 OSSA-061 OSSA-088 OSSA-100 OSSA-102",
    "An error has action `error`, payload {}, a number `code` of the ten, a `message` and a `timestamp`.",
    "Make all errors in one place, in the form of the specification's section 9.2.",
    is_last=True,
)
async def _(bench: OssaBench) -> None:
    await bench.speak()
    if not bench.observer.error_messages:
        raise Failed("no error message came where one was due")
    if bench.observer.errors:
        raise Failed(counted(bench.observer.errors))


@case(
    "errors.unknown-agent",
    "core",
    "OSSA-051",
    "A request to an agent that nobody knows gets 404.",
    "404 says that there is nobody; 503 that somebody is away.",
)
async def _(bench: OssaBench) -> None:
    nobody = {"agentId": f"check-{marker()}", "agentType": "worker"}
    expect_error(await bench.caller().request(nobody, "echo", {}), 404, what="a request to an unknown agent")


@case(
    "errors.unknown-action",
    "core",
    "OSSA-051",
    "A request for an action that the recipient does not have gets 404.",
    "Look the action up before anything is sent to the agent.",
)
async def _(bench: OssaBench) -> None:
    answer = await bench.call({}, action="no_such_action")
    expect_error(answer, 404, what="a request for an unknown action")
    answer = await bench.caller().request(EXCHANGE, "no_such_action", {})
    expect_error(answer, 404, what="a request for an unknown action of the endpoint itself")


@case(
    "errors.supported-versions",
    "standard",
    "OSSA-055 OSSA-060",
    "The error for another major version says in `details.supported` which ones are spoken.",
    'Add {"supported": ["1.0.0"]} as details.',
)
async def _(bench: OssaBench) -> None:
    error = expect_error(await bench.call({}, version="2.0.0"), 501)["body"]["error"]
    details = error.get("details")
    if not isinstance(details, dict) or "1.0.0" not in str(details.get("supported")):
        raise Failed(f"the details are {details!r}")


@case(
    "errors.provider-failed",
    "core",
    "OSSA-054 OSSA-036",
    "A provider that answers with error 500 gives its caller an error 500, at once.",
    "Pass the failure on; 500 is not retried.",
)
async def _(bench: OssaBench) -> None:
    provider, mark = await bench.provider(), marker()
    answer = await bench.call({"mark": mark}, action="broken")
    expect_error(answer, 500, what="a call that fails")
    if b"Traceback" in answer.body:
        raise Failed("the error shows a stack of the endpoint's code")
    if (times := len(provider.deliveries(mark))) != 1:
        raise Failed(f"the provider was asked {times} times; 500 is not retried", "Retry 503, 408 and 429 only.")


@case(
    "errors.away",
    "standard",
    "OSSA-056",
    "A request to an agent that has gone gets 503 at once.",
    "A closed WebSocket makes its agent unavailable, and does not make it unknown.",
)
async def _(bench: OssaBench) -> None:
    absent = bench.absent
    async with absent.presence:
        await absent.offer("echo")
        await absent.connected()
        # Its answer shows that the endpoint knows this connection.
        await absent.subscribe(f"check.{marker()}")
        await absent.disconnect()
        started = time.monotonic()
        answer = await bench.first.request(absent.named, "echo", {})
        expect_error(answer, 503, what="a request to an agent that has gone")
        if (took := time.monotonic() - started) > 5:
            raise Failed(f"503 came after {took:.1f} s")


@case(
    "errors.timeout",
    "advanced",
    "OSSA-037 OSSA-038 OSSA-052",
    "A request that is not answered ends with 408 after 30 seconds.",
    "Count from when the request was taken; the default of `requestTimeout` is 30 s.",
    is_long=True,
)
async def _(bench: OssaBench) -> None:
    troubled, caller = await bench.troubled_provider(), bench.first
    limit = bench.request_timeout_s
    # The endpoint may ask the provider to stop, and wait a little for that.
    latest = limit + bench.patience_s + 0.5
    started = time.monotonic()
    try:
        answer = await caller.post(caller.make("request", troubled.named, "silent", {}), latest)
    except TimeoutError:
        raise Failed(f"nothing came within {latest:.0f} s") from None
    expect_error(answer, 408, what="a request without an answer")
    if (took := time.monotonic() - started) < limit * 0.8:
        raise Failed(f"408 came after {took:.1f} s; expected {limit:.0f} s")


@case(
    "errors.denied",
    "advanced",
    "OSSA-050",
    "What policy denies gets 403.",
    "403 says that the sender is known and may not do this.",
)
async def _(bench: OssaBench) -> None:
    provider = await bench.provider()
    agent, action = bench.denied or (provider.identity.agent_id, "forbidden")
    answer = await bench.caller().request({"agentId": agent, "agentType": "worker"}, action, {})
    if bench.denied is None and answer.status == 200:
        raise Skipped(
            "the policy denies nothing that is tried: deny the action `forbidden` of the check's own agents, or name "
            "an action that is denied (--denied AGENT/ACTION)"
        )
    expect_error(answer, 403, what="an action that is denied")


@case(
    "errors.never-answered-by-errors",
    "standard",
    "OSSA-032",
    "An error message is never answered by an error.",
    "Drop an error that belongs to nothing: two endpoints would go on for ever.",
)
async def _(bench: OssaBench) -> None:
    caller = bench.caller()
    draft = caller.draft("error", EXCHANGE, "error", {}, correlationId=marker())
    draft["body"]["error"] = {"code": 404, "message": "Resource not found", "timestamp": wire.timestamp()}
    answer = await caller.post(wire.sign(draft, caller.identity))
    if answer.body.strip():
        raise Failed(f"an error was answered by {answer}")


@case(
    "errors.retries",
    "advanced",
    "OSSA-039 OSSA-063 OSSA-064 OSSA-066 OSSA-067",
    "A request that a provider answers with 503 is tried three times in all, after 1 s and after 2 s more.",
    "The default policy: 3 attempts, 1000 ms doubled each time, for 503, 408 and 429; same messageId each time.",
)
async def _(bench: OssaBench) -> None:
    troubled, mark = await bench.troubled_provider(), marker()
    answer = await bench.first.request(troubled.named, "busy", {"mark": mark})
    expect_error(answer, 503, what="a provider that is busy each time")
    tries = troubled.deliveries(mark)
    if len(tries) != 3:
        raise Failed(f"the provider was asked {len(tries)} times")
    gaps = [later.at - earlier.at for earlier, later in pairwise(tries)]
    if not 0.8 < gaps[0] < 1.9 or not 1.6 < gaps[1] < 3.5:
        raise Failed(f"the attempts came {gaps[0]:.1f} s and {gaps[1]:.1f} s after each other")
    if len({one.header["messageId"] for one in tries}) != 1:
        raise Failed("the attempts have different messageIds")


@case(
    "errors.bad-json-closes-socket",
    "advanced",
    "OSSA-048",
    "On a WebSocket each broken message gets error 400, and after three in a row the connection is closed.",
    "Who cannot speak the protocol is sent away; a good message in between starts the count again.",
)
async def _(bench: OssaBench) -> None:
    socket = await bench.endpoint.open_socket()
    try:
        await _broken_three_times(bench, socket)
    finally:
        await socket.close()


async def _broken_three_times(bench: OssaBench, socket: ClientConnection) -> None:
    errors = 0
    try:
        async with asyncio.timeout(bench.patience_s):
            for _ in range(3):
                await socket.send("{not json")
            async for frame in socket:
                message = json.loads(frame)
                bench.observer.received(message)
                if message.get("body", {}).get("error", {}).get("code") == 400:
                    errors += 1
    except ConnectionClosed:
        pass
    except TimeoutError:
        raise Failed(f"the connection was still open after three broken messages ({errors} errors came)") from None
    if not errors:
        raise Failed("the connection was closed without an error message")


@case(
    "errors.one-bad-message-is-forgiven",
    "standard",
    "OSSA-048",
    "After one broken message on a WebSocket the connection goes on.",
    "Answer the broken one with 400 and read the next.",
)
async def _(bench: OssaBench) -> None:
    socket = await bench.other.connected()
    await socket.send('{"header": 1}')
    provider = await bench.provider()
    answer = await bench.other.ask(bench.other.make("request", provider.named, "echo", {}))
    if answer.kind != "response":
        raise Failed(f"the next request was answered by {answer}")


@case(
    "errors.details-say-when",
    "core",
    "OSSA-059",
    "The `timestamp` of an error is that of the moment it was made.",
    "Use the clock, in UTC.",
)
async def _(bench: OssaBench) -> None:
    error = expect_error(await bench.caller().request(EXCHANGE, marker(), {}), 404)["body"]["error"]
    if not wire.is_time(error.get("timestamp")):
        raise Failed(f"the timestamp is {error.get('timestamp')!r}")
    moment = dt.datetime.fromisoformat(error["timestamp"])
    if abs((dt.datetime.now(dt.UTC) - moment).total_seconds()) > 300:
        raise Failed(f"the timestamp is {error['timestamp']}, minutes away from now")
    expect_response(await bench.call({}))
