"""Cases about security: signatures that must not pass, times outside the window, TLS, answers by strangers.

Owns these cases, and how a signature is forged. Signing rightly is ``wire``'s.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import ssl
from collections.abc import Callable
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from trunkline.check.ossa import wire
from trunkline.check.ossa.actor import Actor
from trunkline.check.ossa.bench import OssaBench, case, echoed, expect_error, expect_response, marker
from trunkline.check.ossa.wire import EXCHANGE, Identity, Message
from trunkline.check.suite import Failed

VERIFY: Final = (
    "Take the key from the registry by `kid`, see that it belongs to `sender.agentId`, and verify Ed25519 over the "
    "RFC 8785 form of the message without `signature`. Refuse with 401 before anything is handled."
)
Forge = Callable[[OssaBench, Actor, Message], Message]


def _forged(case_id: str, rows: str, must: str, forge: Forge, mend: str = VERIFY) -> None:
    """List a case: a message that was forged in this way gets 401 and reaches nobody."""

    @case(f"security.{case_id}", "core", rows, must, mend)
    async def run(bench: OssaBench) -> None:
        provider, caller, mark = await bench.provider(), bench.caller(), marker()
        draft = caller.draft("request", provider.named, "echo", {"mark": mark})
        expect_error(await caller.post(forge(bench, caller, draft)), 401, what="the forged request")
        if provider.deliveries(mark):
            raise Failed("the forged request was refused, but the provider was given it")


def _with_header(draft: Message, head: Message, signature: bytes) -> Message:
    return {**draft, "signature": f"{wire.encoded(wire.encode(head))}..{wire.encoded(signature)}"}


def _stranger(like: Identity) -> Identity:
    """Somebody with the name and the kid of another, and a key of their own."""
    return Identity(like.agent_id, like.agent_type, like.kid, Ed25519PrivateKey.generate(), None, "")


def _tampered(_: OssaBench, by: Actor, draft: Message) -> Message:
    signed = wire.sign({**draft, "body": {**draft["body"], "payload": {"harmless": True}}}, by.identity)
    return {**draft, "signature": signed["signature"]}


def _changed_header(_: OssaBench, by: Actor, draft: Message) -> Message:
    signed = wire.sign({**draft, "header": {**draft["header"], "priority": 9}}, by.identity)
    return {**draft, "signature": signed["signature"]}


def _other_name(bench: OssaBench, by: Actor, draft: Message) -> Message:
    victim = next(one for one in bench.everybody if one is not by)
    draft["header"]["sender"] = victim.named
    return wire.sign(draft, by.identity)


def _other_kid(bench: OssaBench, by: Actor, draft: Message) -> Message:
    victim = next(one for one in bench.everybody if one is not by)
    draft["header"]["sender"] = victim.named
    return wire.sign(draft, by.identity, kid=victim.identity.kid)


def _with_public_key_as_secret(_: OssaBench, by: Actor, draft: Message) -> Message:
    head = {"alg": "HS256", "kid": by.identity.kid, "typ": "ossa+jws"}
    secret = by.identity.key.public_key().public_bytes_raw()
    signed = wire.signing_input(draft, wire.encoded(wire.encode(head)))
    return _with_header(draft, head, hmac.new(secret, signed, hashlib.sha256).digest())


def _attached(_: OssaBench, by: Actor, draft: Message) -> Message:
    """A whole JWS of something else, by the right key."""
    head = wire.encoded(wire.encode({"alg": "EdDSA", "kid": by.identity.kid, "typ": "ossa+jws"}))
    content = wire.encoded(b'{"something":"else"}')
    return {
        **draft,
        "signature": f"{head}.{content}.{wire.encoded(by.identity.key.sign(f'{head}.{content}'.encode()))}",
    }


_forged(
    "unsigned",
    "OSSA-069 OSSA-070 OSSA-089",
    "A message without a signature is refused with 401.",
    lambda _, __, draft: draft,
    "Require a signature on every network transport (`require_signature`).",
)
_forged(
    "empty-signature",
    "OSSA-070",
    "A signature that is empty or no JWS is refused with 401.",
    lambda _, __, draft: {**draft, "signature": ""},
)
_forged(
    "alg-none",
    "OSSA-070",
    "A signature with `alg: none` is refused with 401.",
    lambda _, by, draft: _with_header(draft, {"alg": "none", "kid": by.identity.kid, "typ": "ossa+jws"}, b""),
    "Take EdDSA (and its newer name Ed25519), whatever a header says.",
)
_forged(
    "alg-hmac",
    "OSSA-070",
    "A signature made with HMAC and the public key as its secret is refused with 401.",
    _with_public_key_as_secret,
    "Take EdDSA (and its newer name Ed25519), whatever a header says.",
)
_forged("tampered-body", "OSSA-070", "A message whose body was changed after signing is refused with 401.", _tampered)
_forged(
    "tampered-header",
    "OSSA-070",
    "A message whose header was changed after signing is refused with 401.",
    _changed_header,
    "The signature covers the whole message but for `signature`, not the body alone.",
)
_forged(
    "unknown-key",
    "OSSA-071",
    "A signature by a key that nobody registered is refused with 401.",
    lambda _, by, draft: wire.sign(draft, _stranger(by.identity)),
)
_forged(
    "unknown-kid",
    "OSSA-071",
    "A signature that names a key which nobody registered is refused with 401.",
    lambda _, by, draft: wire.sign(draft, by.identity, kid="no-such-key"),
)
_forged(
    "other-agents-name",
    "OSSA-071 OSSA-049",
    "A message that one agent signs in the name of another is refused with 401.",
    _other_name,
    "A valid signature proves who signed; `sender.agentId` must be that agent.",
)
_forged(
    "other-agents-kid",
    "OSSA-071 OSSA-049",
    "A message that names another agent's key without having it is refused with 401.",
    _other_kid,
)
_forged(
    "attached-jws",
    "OSSA-070",
    "A JWS that brings its own content is refused with 401: the message is what must be signed.",
    _attached,
    "The signature is detached: nothing stands between the two dots, and the message itself is verified.",
)


@case(
    "security.signature-type",
    "core",
    "OSSA-002 OSSA-048",
    "A `signature` that is not a string is refused with 400 or 401.",
    "Check its type before it is parsed.",
)
async def _(bench: OssaBench) -> None:
    caller, provider = bench.caller(), await bench.provider()
    draft = caller.draft("request", provider.named, "echo", {})
    expect_error(
        await caller.post({**draft, "signature": {"alg": "none"}}), 400, 401, what="a signature that is an object"
    )


@case(
    "security.forged-by-socket",
    "core",
    "OSSA-070 OSSA-071",
    "What is refused by HTTPS is refused on a WebSocket too, and does not claim the connection.",
    "One path for both transports: verify before the message is used for anything.",
)
async def _(bench: OssaBench) -> None:
    provider, caller, mark = await bench.provider(), bench.first, marker()
    thread, seen = marker(), len(caller.arrivals)
    draft = caller.draft("request", provider.named, "echo", {"mark": mark}, correlationId=thread)
    await caller.say(_tampered(bench, caller, draft))
    # The error may leave out the correlation: nobody has proven that it is the sender's.
    answer = await caller.wait(
        lambda one: one.kind in {"error", "response"} and one.header.get("correlationId", thread) == thread, seen
    )
    if answer is None or answer.message["body"].get("error", {}).get("code") != 401:
        raise Failed(f"a tampered message was answered by {answer or 'nothing'}")
    if provider.deliveries(mark):
        raise Failed("a tampered message reached the provider")


@case(
    "security.canonical-form",
    "core",
    "OSSA-070",
    "A message is verified in its RFC 8785 form: white space, key order and escapes on the wire do not matter.",
    "Parse, remove `signature`, canonicalize (keys by UTF-16 units, numbers as ECMAScript writes them), then verify.",
)
async def _(bench: OssaBench) -> None:
    provider, caller = await bench.provider(), bench.caller()
    payload = {"\ufb33": "a", "\U0001f600": "b", "é": "ü\u2028", "z": 1.0, "a": 1e21, "n": -0.0, "s": 0.000001}
    message = caller.make("request", provider.named, "echo", payload)
    shuffled = {name: message[name] for name in ("signature", "body", "header")}
    text = json.dumps(shuffled, indent=3, ensure_ascii=True)
    given = echoed(expect_response(await caller.post(text.encode()), "a message written in another way"))
    if given != payload:
        raise Failed(f"of {payload!r} the provider was given {given!r}")


@case(
    "security.both-names-of-the-algorithm",
    "standard",
    "OSSA-069",
    "`alg` EdDSA and its newer name Ed25519 (RFC 9864) are both taken.",
    "They are the same algorithm.",
)
async def _(bench: OssaBench) -> None:
    provider, caller = await bench.provider(), bench.caller()
    for alg in ("EdDSA", "Ed25519"):
        draft = caller.draft("request", provider.named, "echo", {})
        expect_response(await caller.post(wire.sign(draft, caller.identity, alg=alg)), f"alg {alg}")


@case(
    "security.old-messages",
    "standard",
    "OSSA-049 OSSA-070",
    "A message whose timestamp is more than a day old, or more than 300 s ahead, is refused with 401.",
    "What a replay guard has forgotten must not be taken: bound the age of messages by how long ids are kept.",
)
async def _(bench: OssaBench) -> None:
    for name, seconds in (("a message of 25 hours ago", -90_000), ("a message of 10 minutes ahead", 600)):
        expect_error(await bench.call({}, timestamp=wire.timestamp(seconds)), 401, what=name)


@case(
    "security.clock-skew",
    "standard",
    "OSSA-007",
    "A message of an hour ago, and one that is 60 s ahead, are taken.",
    "Clocks differ, and messages wait: 24 h back and 300 s ahead are allowed.",
)
async def _(bench: OssaBench) -> None:
    for name, seconds in (("a message of an hour ago", -3600), ("a message of 60 s ahead", 60)):
        expect_response(await bench.call({}, timestamp=wire.timestamp(seconds)), name)


@case(
    "security.foreign-answer",
    "standard",
    "OSSA-071",
    "An answer counts only from the agent that was asked.",
    "Match a reply with its call by who sent it, not by the correlationId alone.",
)
async def _(bench: OssaBench) -> None:
    provider, stranger, mark = await bench.provider(), bench.other, marker()
    call = asyncio.ensure_future(bench.call({"mark": mark}, action="slow", by=bench.first))
    delivered = await provider.wait(lambda one: isinstance(one.payload, dict) and one.payload.get("mark") == mark)
    if delivered is not None:
        to, thread = delivered.header["sender"], delivered.header.get("correlationId")
        await stranger.post(stranger.make("response", to, "slow", {"forged": True}, correlationId=thread))
    message = expect_response(await call)
    if "forged" in json.dumps(message["body"]["payload"]):
        raise Failed("the caller was given the answer of an agent that was never asked")


@case(
    "security.tls-1.3",
    "standard",
    "OSSA-074",
    "The endpoint speaks TLS 1.3, and a TLS 1.2 handshake fails.",
    "Set the lowest version of the listener to TLS 1.3.",
)
async def _(bench: OssaBench) -> None:
    if not await bench.endpoint.speaks(ssl.TLSVersion.TLSv1_3):
        raise Failed("a handshake of TLS 1.3 failed")
    if await bench.endpoint.speaks(ssl.TLSVersion.TLSv1_2):
        raise Failed("a handshake of TLS 1.2 succeeded")


@case(
    "security.no-plain-http",
    "standard",
    "OSSA-074",
    "Nothing is served without TLS.",
    "Close a connection that does not begin with a handshake.",
)
async def _(bench: OssaBench) -> None:
    line = await bench.endpoint.speaks_plainly()
    if " 2" in line[:12]:
        raise Failed(f"a request without TLS was answered by {line!r}")


@case(
    "security.sender-decides-nothing",
    "advanced",
    "OSSA-071",
    "An agent cannot register actions or subscriptions for another one.",
    "Whose actions they are is said by the verified sender, never by the payload or by `recipient`.",
)
async def _(bench: OssaBench) -> None:
    caller, provider, mark = bench.first, await bench.provider(), marker().replace("-", "_")
    offer = {"name": mark, "description": "Check: never offered.", "input_schema": {"type": "object"}}
    payload = {"actions": [{**offer, "side_effects": False}], "agentId": provider.identity.agent_id}
    await caller.post(caller.make("request", EXCHANGE, "register", payload))
    answer = await bench.call({}, action=mark)
    expect_error(answer, 404, what="an action that somebody registered for another agent")
