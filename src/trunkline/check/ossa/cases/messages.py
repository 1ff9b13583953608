"""Cases about the form of messages: what is taken, and what is refused with 400 before anything else happens.

Each message that must be refused is right but for one thing, and signed after that thing was broken, so that an
endpoint which overlooks the fault would take it.

Owns these cases, and the ways in which a message is broken. Sending is the actors'.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final

from trunkline.check.ossa import wire
from trunkline.check.ossa.actor import Actor
from trunkline.check.ossa.bench import (
    OssaBench,
    case,
    echoed,
    expect_error,
    expect_nothing,
    expect_response,
    marker,
)
from trunkline.check.ossa.endpoint import Answer
from trunkline.check.ossa.observer import counted
from trunkline.check.ossa.wire import EXCHANGE, Message
from trunkline.check.suite import Failed

Break = Callable[[Message], None]
SHAPE: Final = (
    "Validate every message against the JSON Schema and the interfaces before it is handled; answer with 400."
)


def _set(*path: str, to: object) -> Break:
    def change(draft: Message) -> None:
        place: Any = draft
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = to

    return change


def _drop(*path: str) -> Break:
    def change(draft: Message) -> None:
        place: Any = draft
        for name in path[:-1]:
            place = place[name]
        del place[path[-1]]

    return change


def _refused(case_id: str, rows: str, must: str, breaks: dict[str, Break], mend: str = SHAPE, code: int = 400) -> None:
    """List a case: each of these messages is refused with this code."""

    @case(f"messages.{case_id}", "core", rows, must, mend)
    async def run(bench: OssaBench) -> None:
        await bench.provider()
        for name, change in breaks.items():
            caller = bench.caller()
            mark = marker()
            provider = await bench.provider()
            draft = caller.draft("request", provider.named, "echo", {"mark": mark}, correlationId=mark)
            change(draft)
            expect_error(await caller.post(wire.sign(draft, caller.identity)), code, what=name)
            if provider.deliveries(mark):
                raise Failed(f"{name} was refused, but the provider was given it")


_refused(
    "parts",
    "OSSA-001 OSSA-093",
    "A message without `header` or without `body` is refused with 400.",
    {"a message without header": _drop("header"), "a message without body": _drop("body")},
)
_refused(
    "header-fields",
    "OSSA-003 OSSA-005 OSSA-006 OSSA-007 OSSA-008 OSSA-009 OSSA-094",
    "A header without one of its six required fields is refused with 400.",
    {
        f"a header without {name}": _drop("header", name)
        for name in ("messageId", "type", "version", "timestamp", "sender", "recipient")
    },
)
_refused(
    "id-is-uuid-v4",
    "OSSA-003 OSSA-095",
    "`messageId` is a UUID of version 4; anything else is refused with 400.",
    {
        "a messageId that is no UUID": _set("header", "messageId", to="message-1"),
        "a messageId that is a UUID of version 1": _set("header", "messageId", to=str(uuid.uuid1())),
    },
    "Check the version of the UUID, not only its form.",
)
_refused(
    "unknown-type",
    "OSSA-005 OSSA-033 OSSA-034 OSSA-096",
    "`type` is one of the twelve words, spelled as in the specification; others are refused with 400.",
    {f"type {word!r}": _set("header", "type", to=word) for word in ("query", "ack", "acknowledgement", "Request")},
    "Compare with the twelve wire values exactly: `acknowledgment` and `negative_acknowledgment`, all in lower case.",
)
_refused(
    "version-form",
    "OSSA-006",
    "`version` has three numbers; another form is refused with 400.",
    {f"version {text!r}": _set("header", "version", to=text) for text in ("1.0", "v1.0.0", "1.0.0-beta")},
)
_refused(
    "other-major-version",
    "OSSA-055 OSSA-006",
    "A message of another major version is refused with 501.",
    {"version '2.0.0'": _set("header", "version", to="2.0.0")},
    "Answer 501 with `details.supported` to another major version; a higher minor version is taken.",
    501,
)
_refused(
    "timestamp-form",
    "OSSA-007 OSSA-095",
    "`timestamp` is a date-time of ISO 8601; another form is refused with 400.",
    {
        f"timestamp {value!r}": _set("header", "timestamp", to=value)
        for value in ("yesterday", "2026-13-45T10:00:00Z", 1758882600)
    },
    "Turn format checking on: most JSON Schema validators ignore `format` unless told otherwise.",
)
_refused(
    "sender-identity",
    "OSSA-008 OSSA-019 OSSA-020",
    "`sender` is an identity with `agentId` and `agentType`; without one of them it is refused with 400.",
    {
        "a sender that is a string": _set("header", "sender", to="agent-001"),
        "a sender without agentId": _drop("header", "sender", "agentId"),
        "a sender without agentType": _drop("header", "sender", "agentType"),
        "a sender whose agentType is 'Not A Type'": _set("header", "sender", "agentType", to="Not A Type"),
    },
)
_refused(
    "recipient-identity",
    "OSSA-009 OSSA-019 OSSA-020",
    "`recipient` is an identity or a list of 1 to 100; anything else is refused with 400.",
    {
        "a recipient that is a string": _set("header", "recipient", to="agent-002"),
        "a recipient without agentId": _drop("header", "recipient", "agentId"),
        "a recipient without agentType": _drop("header", "recipient", "agentType"),
        "an empty list of recipients": _set("header", "recipient", to=[]),
        "a list of 101 recipients": _set(
            "header", "recipient", to=[{"agentId": f"agent-{n}", "agentType": "worker"} for n in range(101)]
        ),
    },
)
_refused(
    "priority-range",
    "OSSA-013",
    "`priority` is a whole number from 0 to 9; others are refused with 400.",
    {f"priority {value!r}": _set("header", "priority", to=value) for value in (-1, 10, 2.5, "5")},
)
_refused(
    "optional-fields",
    "OSSA-011 OSSA-015 OSSA-082",
    "Optional header fields have their type: `correlationId` a string, `expiresAt` a date-time, `qos` 0, 1 or 2.",
    {
        "correlationId 7": _set("header", "correlationId", to=7),
        "expiresAt 'soon'": _set("header", "expiresAt", to="soon"),
        "qos 3": _set("header", "qos", to=3),
        "qos '1'": _set("header", "qos", to="1"),
    },
)
_refused(
    "body-fields",
    "OSSA-016 OSSA-017 OSSA-097",
    "A body has a string `action` and a `payload`; without one of them it is refused with 400.",
    {
        "a body without action": _drop("body", "action"),
        "a body whose action is a number": _set("body", "action", to=7),
        "a body without payload": _drop("body", "payload"),
        "a body whose error is a string": _set("body", "error", to="it failed"),
    },
)
_refused(
    "error-info",
    "OSSA-018 OSSA-058 OSSA-059",
    "`body.error` has a number `code` of the ten, a `message` and a `timestamp`; otherwise it is refused with 400.",
    {
        "an error without code": _set("body", "error", to={"message": "no", "timestamp": wire.timestamp()}),
        "an error without message": _set("body", "error", to={"code": 404, "timestamp": wire.timestamp()}),
        "an error without timestamp": _set("body", "error", to={"code": 404, "message": "no"}),
        "an error whose code is a string": _set(
            "body", "error", to={"code": "404", "message": "no", "timestamp": wire.timestamp()}
        ),
        "an error with code 418": _set(
            "body", "error", to={"code": 418, "message": "no", "timestamp": wire.timestamp()}
        ),
    },
)


# --- what is taken ----------------------------------------------------------------------------------------------------


@case(
    "messages.example-request",
    "core",
    "OSSA-099 OSSA-011",
    "The request of the specification's section 9.1 is taken and answered.",
    "Take a free text as correlationId, a priority, and an action with an underscore.",
)
async def _(bench: OssaBench) -> None:
    payload = {"resource": "deployment-config", "standards": ["ossa-security", "ossa-lifecycle"]}
    thread = f"correlation-{marker()}"
    answer = await bench.call(payload, action="validate_compliance", correlationId=thread, priority=5)
    message = expect_response(answer)
    if echoed(message) != payload:
        raise Failed(f"the payload did not arrive as it was sent: the provider was given {echoed(message)!r}")
    if message["header"].get("correlationId") != thread:
        raise Failed(f"the response has correlationId {message['header'].get('correlationId')!r}")


@case(
    "messages.any-payload",
    "core",
    "OSSA-017",
    "A payload may be any JSON value: an object, a list, a text, a number, a boolean or null.",
    'Require that `payload` is there, not that it is an object. A call\'s input may wrap it as {"value": …}.',
)
async def _(bench: OssaBench) -> None:
    for payload in ({"a": [1, None]}, [1, "two"], "text", 3.5, False, None):
        given = echoed(expect_response(await bench.call(payload), f"the payload {payload!r}"))
        if given not in (payload, {"value": payload}):
            raise Failed(f"of the payload {payload!r} the provider was given {given!r}")


@case(
    "messages.minor-version",
    "core",
    "OSSA-006",
    "A message of a higher minor version of the same major one is taken.",
    "Compare the major number only.",
)
async def _(bench: OssaBench) -> None:
    expect_response(await bench.call({}, version="1.7.3"), "version '1.7.3'")


@case(
    "messages.priorities",
    "core",
    "OSSA-013",
    "Priorities 0 and 9 are taken.",
    "0 is the highest priority and not the absence of one.",
)
async def _(bench: OssaBench) -> None:
    for priority in (0, 9):
        expect_response(await bench.call({}, priority=priority), f"priority {priority}")


@case(
    "messages.identity-fields",
    "standard",
    "OSSA-021 OSSA-022",
    "`instanceName` and `version` of an identity are taken, and stand in the reply's recipient.",
    "Answer to the sender as it named itself.",
)
async def _(bench: OssaBench) -> None:
    caller = bench.caller()
    sender = {**caller.named, "instanceName": "instance-1", "version": "2.1.0"}
    message = expect_response(await bench.call({}, by=caller, sender=sender))
    if message["header"]["recipient"] != sender:
        raise Failed(f"the response is addressed to {message['header']['recipient']!r}")


@case(
    "messages.unknown-fields",
    "standard",
    "OSSA-098",
    "Header fields that the specification does not have are taken and reach the recipient unchanged.",
    "Keep additional properties of the header and pass them on; the schema does not forbid them.",
)
async def _(bench: OssaBench) -> None:
    provider, mark = await bench.provider(), marker()
    extra = {"tenant": "north", "depth": [1, {"a": None}]}
    expect_response(await bench.call({"mark": mark}, xCheck=extra))
    delivered = provider.deliveries(mark)
    if not delivered or delivered[0].header.get("xCheck") != extra:
        seen = delivered[0].header.get("xCheck") if delivered else "nothing"
        raise Failed(f"a header field with {extra!r} arrived as {seen!r}")


@case(
    "messages.unknown-fields-signed",
    "standard",
    "OSSA-098 OSSA-002",
    "Unknown members beside `header` and `body`, and inside `body`, do no harm.",
    "Additional properties are allowed everywhere; they are part of what is signed.",
)
async def _(bench: OssaBench) -> None:
    caller, provider = bench.caller(), await bench.provider()
    draft = caller.draft("request", provider.named, "echo", {})
    draft["extension"] = {"a": 1}
    draft["body"]["note"] = "kept"
    expect_response(await caller.post(wire.sign(draft, caller.identity)))


@case(
    "messages.heartbeat",
    "core",
    "OSSA-031 OSSA-086",
    "A heartbeat is taken and gets an empty answer.",
    "A heartbeat needs no reply; with HTTP answer 202 without a body.",
)
async def _(bench: OssaBench) -> None:
    caller = bench.caller()
    expect_nothing(await caller.post(caller.make("heartbeat", EXCHANGE, "heartbeat", {"status": "ok"})), "a heartbeat")


@case(
    "messages.acknowledgments-end-it",
    "standard",
    "OSSA-033 OSSA-034 OSSA-086",
    "`acknowledgment` and `negative_acknowledgment` are taken, and are not answered.",
    "An acknowledgment is never acknowledged, and one for a message that nobody knows is dropped.",
)
async def _(bench: OssaBench) -> None:
    caller = bench.caller()
    named = {"messageId": str(uuid.uuid4())}
    expect_nothing(await caller.post(caller.make("acknowledgment", EXCHANGE, "acknowledgment", named)), "an ack")
    draft = caller.draft("negative_acknowledgment", EXCHANGE, "negative_acknowledgment", named)
    draft["body"]["error"] = {"code": 400, "message": "a gap", "timestamp": wire.timestamp()}
    expect_nothing(await caller.post(wire.sign(draft, caller.identity)), "a nack")


# --- JSON -------------------------------------------------------------------------------------------------------------


def _json_case(case_id: str, must: str, mend: str, texts: Callable[[Actor, Message], dict[str, bytes]]) -> None:
    """List a case: each of these texts, made from a right message, is refused with 400 and nothing of it is echoed."""

    @case(f"messages.{case_id}", "core", "OSSA-048", must, mend)
    async def run(bench: OssaBench) -> None:
        provider = await bench.provider()
        caller = bench.caller()
        for name, text in texts(caller, provider.named).items():
            expect_error(await caller.post(text), 400, what=name)


def _replaced(caller: Actor, to: Message, signed: object, written: str) -> bytes:
    """A message signed with one payload and written with another text in its place."""
    hole = marker()
    draft = caller.draft("request", to, "echo", signed)
    message = wire.sign(draft, caller.identity)
    message["body"] = {"action": "echo", "payload": hole}
    return wire.encode(message).replace(f'"{hole}"'.encode(), written.encode())


def _nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


_json_case(
    "no-json",
    "What is not JSON, or not an object, is refused with 400.",
    "Answer 400 with an OSSA error addressed to agentId `unknown`.",
    lambda *_: {"no JSON": b"{not json", "an empty body": b"", "a list": b"[1]", "bytes that are no UTF-8": b'"\xff"'},
)
_json_case(
    "duplicate-keys",
    "A key that stands twice is refused with 400.",
    "Two readers of such a message may see two different ones: refuse it while parsing.",
    lambda by, to: {
        "a payload with a key twice": _replaced(by, to, {"a": 2}, '{"a":1,"a":2}'),
        "a header with a key twice": wire.encode(by.make("request", to, "echo", {})).replace(
            b'"type":"request"', b'"type":"event","type":"request"'
        ),
    },
)
_json_case(
    "no-numbers-beyond-json",
    "NaN and Infinity are refused with 400: they are not JSON.",
    "Many parsers take them unless told otherwise.",
    lambda by, to: {word: _replaced(by, to, None, word) for word in ("NaN", "Infinity", "-Infinity")},
)
_json_case(
    "lone-surrogates",
    "A text with half of a surrogate pair is refused with 400.",
    "It is no Unicode text and has no UTF-8 form.",
    lambda by, to: {"a lone surrogate": _replaced(by, to, "x", r'"\ud800"')},
)
_json_case(
    "depth",
    "A message nested deeper than 64 levels is refused with 400.",
    "Limit the depth while parsing: a deep message may exhaust the stack of whoever reads it later.",
    lambda by, to: {
        "a payload of 70 levels": wire.encode(by.make("request", to, "echo", _nested(70))),
        "a body of 100000 brackets": b"[" * 100_000,
    },
)
_json_case(
    "large-integers",
    "An integer beyond 2^53 - 1 is refused with 400, since RFC 8785 has no form for it.",
    "Two signers would sign two different numbers: refuse it, and let senders write it as a text.",
    lambda by, to: {"the integer 2^53 + 1": _replaced(by, to, 9007199254740992.0, "9007199254740993")},
)


@case(
    "messages.depth-taken",
    "standard",
    "OSSA-017",
    "A message of some forty levels is taken.",
    "The limit is 64.",
)
async def _(bench: OssaBench) -> None:
    expect_response(await bench.call({"deep": _nested(40)}), "a payload of 40 levels")


@case(
    "messages.nothing-is-echoed",
    "standard",
    "OSSA-048",
    "Nothing of a message that cannot be read is repeated in the answer.",
    "Say what is wrong without a word of it: what is echoed lands in somebody's log or page.",
)
async def _(bench: OssaBench) -> None:
    caller = bench.caller()
    for text in ('{"header": "%s"', '{"header": {"type": "%s"}, "body": {}}', '{"%s": 1, "%s": 2}'):
        mark = marker()
        answer = await caller.post(text.replace("%s", mark).encode())
        expect_error(answer, 400, what="a broken message")
        if mark.encode() in answer.body:
            raise Failed(f"a word of a broken message came back: {answer}")


@case(
    "messages.unknown-sender-is-unknown",
    "standard",
    "OSSA-068",
    "The error for a message whose sender cannot be read is addressed to agentId `unknown`.",
    'Use {"agentId": "unknown", "agentType": "unknown"} as the recipient.',
)
async def _(bench: OssaBench) -> None:
    answer: Answer = await bench.caller().post(b"{not json")
    to = expect_error(answer, 400)["header"]["recipient"]
    if not isinstance(to, dict) or to.get("agentId") != "unknown":
        raise Failed(f"the error is addressed to {to!r}")


@case(
    "messages.every-message-is-valid",
    "core",
    "OSSA-001 OSSA-003 OSSA-069 OSSA-092 OSSA-096",
    "Every message of the endpoint has the shape that the specification gives.",
    "Validate what is sent like what is received: UUID v4, version, timestamp, sender, recipient, action, payload.",
    is_last=True,
)
async def _(bench: OssaBench) -> None:
    await bench.speak()
    if bench.observer.shape:
        raise Failed(counted(bench.observer.shape))


@case(
    "messages.status-fits",
    "core",
    "OSSA-048",
    "The HTTP status says what the message says: 200 for a response, 202 for an acknowledgment, else the error's code.",
    "Take the status from `error.code`; refusals have an OSSA error as their body.",
    is_last=True,
)
async def _(bench: OssaBench) -> None:
    await bench.speak()
    if bench.observer.statuses:
        raise Failed(counted(bench.observer.statuses))
