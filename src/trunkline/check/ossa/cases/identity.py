"""Cases about who speaks: the endpoint's keys, its signatures, addresses of replies, and whose a WebSocket is.

Owns these cases. Keys and signatures are ``wire``'s.
"""

from __future__ import annotations

from trunkline.check.ossa.bench import OssaBench, case, expect_error, expect_response, marker
from trunkline.check.ossa.observer import counted
from trunkline.check.ossa.wire import EXCHANGE
from trunkline.check.suite import Failed


@case(
    "identity.keys-are-shown",
    "core",
    "OSSA-069 OSSA-071",
    "`GET /ossa/v1/keys` is a JWKS with an Ed25519 key to check signatures with, and no private part.",
    "Serve the public keys without a token: kty OKP, crv Ed25519, x, kid.",
)
async def _(bench: OssaBench) -> None:
    if bench.jwks.status != 200:
        raise Failed(f"the keys were answered by HTTP {bench.jwks.status}")
    if not bench.keys.signing:
        raise Failed("there is no usable Ed25519 key among them")
    keys = bench.jwks.message.get("keys", [])
    if any("d" in key or "k" in key for key in keys if isinstance(key, dict)):
        raise Failed("a private key is shown to everybody", "Remove `d` from the keys, and make new ones.")


@case(
    "identity.every-message-is-signed",
    "core",
    "OSSA-069",
    "Every message of the endpoint, forwarded ones and refusals included, has a signature that fits a key it shows.",
    "Sign the RFC 8785 form of the message without `signature`, as a detached JWS with alg EdDSA and the key's kid.",
    is_last=True,
)
async def _(bench: OssaBench) -> None:
    await bench.speak()
    if bench.observer.signature:
        raise Failed(counted(bench.observer.signature))


@case(
    "identity.replies-are-addressed",
    "core",
    "OSSA-012 OSSA-101",
    "In a reply sender and recipient have changed places, and the correlation is that of the request.",
    "Sender is who was asked, recipient who asked; a refusal of the endpoint itself may come from `trunkline`.",
    is_last=True,
)
async def _(bench: OssaBench) -> None:
    await bench.speak()
    if bench.observer.addressing:
        raise Failed(counted(bench.observer.addressing))


@case(
    "identity.correlation",
    "core",
    "OSSA-012",
    "A reply has the `correlationId` of its request, or the request's `messageId` if there was none.",
    "Keep the correlationId in every reply, errors included.",
)
async def _(bench: OssaBench) -> None:
    caller, provider, thread = bench.caller(), await bench.provider(), marker()
    given = expect_response(await bench.call({}, by=caller, correlationId=thread))["header"].get("correlationId")
    if given != thread:
        raise Failed(f"a request with correlationId {thread!r} got a response with {given!r}")
    request = caller.make("request", provider.named, "echo", {})
    given = expect_response(await caller.post(request))["header"].get("correlationId")
    if given != request["header"]["messageId"]:
        raise Failed(f"a request without correlationId got a response with {given!r}, not its messageId")


@case(
    "identity.error-correlation",
    "core",
    "OSSA-101",
    "An error reply swaps sender and recipient and keeps the correlation.",
    "An error is a reply like any other.",
)
async def _(bench: OssaBench) -> None:
    caller, thread = bench.caller(), marker()
    header = expect_error(await caller.request(EXCHANGE, marker(), {}, correlationId=thread), 404)["header"]
    if header["recipient"].get("agentId") != caller.identity.agent_id:
        raise Failed(f"the error is addressed to {header['recipient']!r}")
    if header["sender"].get("agentId") != EXCHANGE["agentId"]:
        raise Failed(f"the error comes from {header['sender']!r}")
    if header.get("correlationId") != thread:
        raise Failed(f"the error has correlationId {header.get('correlationId')!r}")


@case(
    "identity.provider-sees-caller",
    "core",
    "OSSA-008 OSSA-068",
    "A forwarded request names the caller as its sender, the bare action, and a correlation.",
    "Sender is the identity that speaks; the endpoint vouches for it with its own signature.",
)
async def _(bench: OssaBench) -> None:
    caller, provider, mark = bench.caller(), await bench.provider(), marker()
    expect_response(await bench.call({"mark": mark}, by=caller))
    delivered = provider.deliveries(mark)
    if not delivered:
        raise Failed("the provider answered, but was not given the payload that was sent")
    header = delivered[0].header
    if header["sender"].get("agentId") != caller.identity.agent_id:
        raise Failed(f"the provider was told that {header['sender'].get('agentId')!r} asks")
    if delivered[0].action != "echo":
        raise Failed(f"the provider was given the action {delivered[0].action!r}, not `echo`")
    if not isinstance(header.get("correlationId"), str):
        raise Failed("the forwarded request has no correlationId")


@case(
    "identity.newest-socket",
    "standard",
    "OSSA-008",
    "An agent that connects again is reached by its newest WebSocket.",
    "The old connection may be dead without anybody knowing: the newest one is used.",
)
async def _(bench: OssaBench) -> None:
    absent = bench.absent
    async with absent.presence:
        await absent.offer("echo")
        old = await absent.connected()
        absent.forget_socket()
        try:
            # Claims the new one, and its answer shows that it is claimed.
            await absent.subscribe(f"check.{marker()}")
            mark = marker()
            expect_response(await bench.first.request(absent.named, "echo", {"mark": mark}))
            if not absent.deliveries(mark) or absent.deliveries(mark)[0].socket is old:
                raise Failed("the request went to the older of two WebSockets")
        finally:
            await old.close()
            await absent.disconnect()
