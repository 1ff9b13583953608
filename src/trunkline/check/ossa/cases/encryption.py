"""Cases about encryption: sealed payloads both ways, bound to their message, and what must be sealed.

Owns these cases, and how a sealed call is made for them. Sealing and opening is ``wire``'s.
"""

from __future__ import annotations

import json
import uuid

from joserfc.jwk import OKPKey

from trunkline.check.ossa import wire
from trunkline.check.ossa.actor import Actor
from trunkline.check.ossa.bench import OssaBench, case, expect_error, expect_response, marker
from trunkline.check.ossa.endpoint import Answer
from trunkline.check.ossa.wire import EXCHANGE, MEMBER
from trunkline.check.suite import Failed, Skipped


def _key(bench: OssaBench) -> OKPKey:
    if bench.keys.sealing is None:
        raise Failed("`GET /ossa/v1/keys` shows no X25519 key to encrypt to", "Show one, with `use` `enc`.")
    return bench.keys.sealing


def _own_key(actor: Actor) -> OKPKey:
    if actor.identity.sealing is None:
        raise Skipped(
            'the identities have no "enc_jwk": make new ones with `trunkline token new ossa --agent ID --json`'
        )
    return actor.identity.sealing


async def _sealed_call(bench: OssaBench, by: Actor, payload: object) -> Answer:
    message_id = str(uuid.uuid4())
    sealed = wire.seal(payload, message_id, _key(bench))
    return await bench.call(sealed, by=by, messageId=message_id)


@case(
    "encryption.key-is-shown",
    "standard",
    "OSSA-072",
    "`GET /ossa/v1/keys` has an X25519 key to encrypt to.",
    "Show it beside the Ed25519 key, with `use` `enc`.",
)
async def _(bench: OssaBench) -> None:
    _key(bench)


@case(
    "encryption.request",
    "standard",
    "OSSA-072",
    "An encrypted request is handled, and reaches the provider encrypted to its own key, never as plain text.",
    "Every hop is encrypted to the next one's key: ECDH-ES+A256KW and A256GCM, with the new messageId in the header.",
)
async def _(bench: OssaBench) -> None:
    provider, caller, mark = await bench.provider(), bench.caller(), marker()
    own = _own_key(provider)
    expect_response(await _sealed_call(bench, caller, {"mark": mark}), "an encrypted request")
    if any(mark in one.raw for one in provider.arrivals):
        raise Failed("the provider was sent the payload as plain text")
    delivered = provider.deliveries(mark)
    if not delivered:
        raise Failed("the provider was given no payload that it can decrypt")
    try:
        wire.open_sealed(delivered[0].message, own)
    except ValueError as error:
        raise Failed(str(error)) from None


@case(
    "encryption.reply",
    "standard",
    "OSSA-072",
    "The reply to an encrypted request is encrypted to the caller's key, with A256GCM and its own messageId.",
    "An encrypted payload counts as sensitive, and so does its answer.",
)
async def _(bench: OssaBench) -> None:
    caller, mark = bench.caller(), marker()
    own = _own_key(caller)
    answer = await _sealed_call(bench, caller, {"mark": mark})
    message = expect_response(answer, "an encrypted request")
    if mark.encode() in answer.body:
        raise Failed("the reply is plain text")
    try:
        opened = wire.open_sealed(message, own)
    except ValueError as error:
        raise Failed(str(error)) from None
    if mark not in json.dumps(opened):
        raise Failed(f"the reply, decrypted, is {opened!r}")


@case(
    "encryption.sensitive-must-be",
    "standard",
    "OSSA-072",
    "A message with `sensitive: true` and a plain payload is refused with 400.",
    "Refuse it before it is stored or passed on.",
)
async def _(bench: OssaBench) -> None:
    provider, mark = await bench.provider(), marker()
    expect_error(await bench.call({"mark": mark}, sensitive=True), 400, what="a sensitive message in plain text")
    if provider.deliveries(mark):
        raise Failed("it was refused, but the provider was given it")


@case(
    "encryption.flipped-bit",
    "standard",
    "OSSA-073",
    "A ciphertext with one changed bit is refused with 400.",
    "Let the library verify the tag; never use what it gives before that.",
)
async def _(bench: OssaBench) -> None:
    message_id = str(uuid.uuid4())
    parts = str(wire.seal({"a": 1}, message_id, _key(bench))[MEMBER]).split(".")
    parts[3] = ("A" if parts[3][0] != "A" else "B") + parts[3][1:]
    answer = await bench.call({MEMBER: ".".join(parts)}, messageId=message_id)
    expect_error(answer, 400, what="a changed ciphertext")


@case(
    "encryption.moved-ciphertext",
    "advanced",
    "OSSA-073",
    "A ciphertext that was made for another message is refused with 400.",
    "Compare `messageId` of the JWE's protected header with that of the message.",
)
async def _(bench: OssaBench) -> None:
    provider, mark = await bench.provider(), marker()
    sealed = wire.seal({"mark": mark}, str(uuid.uuid4()), _key(bench))
    expect_error(await bench.call(sealed), 400, what="a ciphertext of another message")
    if provider.deliveries(mark):
        raise Failed("it was refused, but the provider was given it")


@case(
    "encryption.other-cipher",
    "advanced",
    "OSSA-072",
    "A payload that is encrypted with A128GCM is refused with 400.",
    "AES-256-GCM alone, whatever a header says.",
)
async def _(bench: OssaBench) -> None:
    message_id = str(uuid.uuid4())
    sealed = wire.seal({"a": 1}, message_id, _key(bench), enc="A128GCM")
    expect_error(await bench.call(sealed, messageId=message_id), 400, what="A128GCM")


@case(
    "encryption.wrong-key",
    "advanced",
    "OSSA-073",
    "A payload that is encrypted to another key is refused with 400.",
    "What cannot be opened is refused; the error does not say why.",
)
async def _(bench: OssaBench) -> None:
    message_id = str(uuid.uuid4())
    sealed = wire.seal({"a": 1}, message_id, OKPKey.generate_key("X25519"))
    expect_error(await bench.call(sealed, messageId=message_id), 400, what="a payload for another key")


@case(
    "encryption.by-socket",
    "standard",
    "OSSA-072",
    "An encrypted request by WebSocket gets an encrypted reply.",
    "One path for both transports.",
)
async def _(bench: OssaBench) -> None:
    provider, caller, mark = await bench.provider(), bench.first, marker()
    own = _own_key(caller)
    message_id = str(uuid.uuid4())
    sealed = wire.seal({"mark": mark}, message_id, _key(bench))
    answer = await caller.ask(caller.make("request", provider.named, "echo", sealed, messageId=message_id))
    if answer.kind != "response":
        raise Failed(f"an encrypted request was answered by {answer}")
    try:
        wire.open_sealed(answer.message, own)
    except ValueError as error:
        raise Failed(str(error)) from None


@case(
    "encryption.malformed",
    "standard",
    "OSSA-073 OSSA-048",
    "A payload that claims to be encrypted and is not is refused with 400.",
    'An object whose only member is "$encrypted" is a ciphertext or an error, never plain text.',
)
async def _(bench: OssaBench) -> None:
    for value in ("not.a.jwe", ""):
        expect_error(await bench.call({MEMBER: value}), 400, what=f"the ciphertext {value!r}")
    caller = bench.caller()
    answer = await caller.request(EXCHANGE, "subscribe", {MEMBER: "a.b.c.d.e"})
    expect_error(answer, 400, what="a subscription with a broken ciphertext")
