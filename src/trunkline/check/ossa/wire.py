"""The wire of OSSA as the suite understands it: messages, canonical form, signatures, encryption.

Written from the specification, and sharing nothing with the edge of this project. Messages are plain JSON values here:
most of what the suite sends is broken on purpose. Does not own connections.

Invariant: what ``sign`` and ``seal`` make is right in every detail; a case that wants it wrong breaks it itself.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from joserfc import jwe
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey

Message = dict[str, Any]

VERSION: Final = "1.0.0"
MAX_MESSAGE_BYTES: Final = 1_048_576
EXCHANGE: Final[Message] = {"agentId": "trunkline", "agentType": "orchestrator"}
TYPES: Final = frozenset(
    {
        "request", "response", "event", "command", "command_result", "stream_start", "stream_data", "stream_end",
        "heartbeat", "error", "acknowledgment", "negative_acknowledgment",
    }
)  # fmt: skip
CODES: Final = frozenset({400, 401, 403, 404, 408, 429, 500, 501, 503, 507})
MEMBER: Final = "$encrypted"
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_registry: Final = jwe.JWERegistry(
    algorithms=["ECDH-ES+A256KW", "ECDH-ES", "dir", "A256GCM", "A128GCM"], strict_check_header=False
)


@dataclass(frozen=True)
class Identity:
    """An agent that the endpoint knows, with its private keys. ``token_id`` is what takes it back."""

    agent_id: str
    agent_type: str
    kid: str
    key: Ed25519PrivateKey
    # None: nobody can encrypt to it.
    sealing: OKPKey | None
    token_id: str

    @property
    def named(self) -> Message:
        """As it stands in a header."""
        return {"agentId": self.agent_id, "agentType": self.agent_type}


def read_identity(value: object) -> Identity:
    """An identity as ``trunkline token new ossa --json`` prints it; ``ValueError`` says what is missing."""
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")  # noqa: TRY004 - what is wrong is the file's content
    jwk, sealing = value.get("jwk"), value.get("enc_jwk")
    if not isinstance(value.get("agent"), str) or not isinstance(jwk, dict) or "d" not in jwk:
        raise ValueError('expected "agent" and a private "jwk"')
    try:
        key = Ed25519PrivateKey.from_private_bytes(_decoded(str(jwk["d"])))
        enc = OKPKey.import_key(sealing) if isinstance(sealing, dict) else None
    except (ValueError, JoseError) as error:
        raise ValueError(f"a key cannot be used: {error}") from None
    kid = jwk.get("kid") or thumbprint(key.public_key())
    return Identity(value["agent"], value.get("type") or "worker", str(kid), key, enc, str(value.get("id", "")))


def thumbprint(key: Ed25519PublicKey) -> str:
    """The name that a key has by itself (RFC 7638)."""
    jwk = {"crv": "Ed25519", "kty": "OKP", "x": encoded(key.public_bytes_raw())}
    return encoded(hashlib.sha256(rfc8785.dumps(jwk)).digest())


# --- making messages --------------------------------------------------------------------------------------------------


def timestamp(seconds_from_now: float = 0.0) -> str:
    """A moment near now, as messages have it."""
    moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds_from_now)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def message(
    kind: str, sender: Message, recipient: object, action: str, payload: object, header: Mapping[str, object]
) -> Message:
    """An unsigned message. A field of ``header`` with the value ``...`` is left out."""
    fields = {
        "messageId": str(uuid.uuid4()),
        "type": kind,
        "version": VERSION,
        "timestamp": timestamp(),
        "sender": sender,
        "recipient": recipient,
        **header,
    }
    given = {name: value for name, value in fields.items() if value is not ...}
    return {"header": given, "body": {"action": action, "payload": payload}}


def encode(value: object) -> bytes:
    """A message as bytes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


# --- signatures: a detached JWS (RFC 7515, appendix F) over the RFC 8785 form -----------------------------------------


def sign(unsigned: Message, identity: Identity, *, alg: str = "EdDSA", kid: str | None = None) -> Message:
    """The message with a signature by this identity."""
    head = {"alg": alg, "kid": identity.kid if kid is None else kid, "typ": "ossa+jws"}
    protected = encoded(encode(head))
    return {**unsigned, "signature": f"{protected}..{encoded(identity.key.sign(signing_input(unsigned, protected)))}"}


def signing_input(unsigned: Message, protected: str) -> bytes:
    """The bytes that a signature is over."""
    content = {name: value for name, value in unsigned.items() if name != "signature"}
    return f"{protected}.{encoded(rfc8785.dumps(content))}".encode()


@dataclass(frozen=True)
class Keys:
    """The public keys that an endpoint shows, by their ``kid``."""

    signing: Mapping[str, Ed25519PublicKey]
    # None: it shows none to encrypt to.
    sealing: OKPKey | None

    def fault_of(self, received: Message) -> str:
        """What is wrong with the signature of a message that the endpoint sent; empty if nothing is."""
        signature = received.get("signature")
        if not isinstance(signature, str):
            return "it has no signature"
        protected, gap, rest = signature.partition("..")
        try:
            head = json.loads(_decoded(protected))
            value = _decoded(rest)
        except ValueError:
            head, value = None, b""
        if not gap or not isinstance(head, dict):
            return "its signature is not a detached JWS (header..signature)"
        if head.get("alg") not in {"EdDSA", "Ed25519"}:
            return f"its signature has alg {head.get('alg')!r}"
        key = self.signing.get(str(head.get("kid")))
        if key is None:
            return f"its signature names kid {head.get('kid')!r}, which is not among the keys shown"
        try:
            key.verify(value, signing_input(received, protected))
        except (InvalidSignature, rfc8785.CanonicalizationError):
            return "its signature does not fit: signed is the RFC 8785 form of the message without `signature`"
        return ""


def read_keys(jwks: object) -> Keys:
    """The keys of a JWKS; those that cannot be used are left out."""
    signing: dict[str, Ed25519PublicKey] = {}
    sealing: OKPKey | None = None
    listed = jwks.get("keys") if isinstance(jwks, dict) else None
    for jwk in listed if isinstance(listed, list) else []:
        if not isinstance(jwk, dict) or jwk.get("kty") != "OKP":
            continue
        try:
            if jwk.get("crv") == "Ed25519":
                key = Ed25519PublicKey.from_public_bytes(_decoded(str(jwk.get("x"))))
                signing[str(jwk.get("kid") or thumbprint(key))] = key
            elif jwk.get("crv") == "X25519" and sealing is None:
                sealing = OKPKey.import_key(jwk)
        except (ValueError, JoseError):
            continue
    return Keys(signing, sealing)


# --- encryption -------------------------------------------------------------------------------------------------------


def seal(payload: object, message_id: str, key: OKPKey, *, enc: str = "A256GCM") -> Message:
    """An encrypted payload for whoever has the private part of ``key``, bound to one message."""
    protected = {"alg": "ECDH-ES+A256KW", "enc": enc, "messageId": message_id}
    if key.kid:
        protected["kid"] = key.kid
    return {MEMBER: jwe.encrypt_compact(protected, encode(payload), key, registry=_registry)}


def is_sealed(payload: object) -> bool:
    """Whether this is an encrypted payload."""
    return isinstance(payload, dict) and payload.keys() == {MEMBER}


def open_sealed(received: Message, key: OKPKey) -> Any:
    """The payload of an encrypted message; ``ValueError`` says what is wrong with it."""
    payload, message_id = received["body"]["payload"], received["header"]["messageId"]
    if not is_sealed(payload):
        raise ValueError("the payload is not encrypted")
    sealed = payload[MEMBER]
    try:
        if isinstance(sealed, str):
            opened = jwe.decrypt_compact(sealed, key, registry=_registry)
            header, plain = opened.headers(), opened.plaintext
        else:
            found = jwe.decrypt_json(sealed, key, registry=_registry)
            header, plain = dict(found.protected), found.plaintext
        value = json.loads(plain or b"")
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"the payload cannot be decrypted: {error}") from None
    if header.get("enc") != "A256GCM":
        raise ValueError(f"the payload is encrypted with {header.get('enc')!r}")
    if header.get("messageId") != message_id:
        raise ValueError("the encrypted payload does not name its message in its protected header (`messageId`)")
    return value


# --- what comes back --------------------------------------------------------------------------------------------------


def shape_fault(received: object) -> str:
    """What is wrong with the shape of a message that the endpoint sent; empty if nothing is."""
    if not isinstance(received, dict):
        return "it is not a JSON object"
    header, body = received.get("header"), received.get("body")
    if not isinstance(header, dict) or not isinstance(body, dict):
        return "`header` or `body` is missing"
    try:
        is_v4 = uuid.UUID(str(header.get("messageId"))).version == 4
    except ValueError:
        is_v4 = False
    recipient = header.get("recipient")
    several = recipient if isinstance(recipient, list) else [recipient]
    wrong = [
        (not is_v4, "messageId is not a UUID of version 4"),
        (header.get("type") not in TYPES, f"type is {header.get('type')!r}"),
        (not re.fullmatch(r"1\.\d+\.\d+", str(header.get("version"))), f"version is {header.get('version')!r}"),
        (not is_time(header.get("timestamp")), f"timestamp is {header.get('timestamp')!r}"),
        (not _is_identity(header.get("sender")), "sender is not an identity (agentId, agentType)"),
        (not several or not all(map(_is_identity, several)), "recipient is not an identity, nor a list of them"),
        (not isinstance(header.get("correlationId", ""), str), "correlationId is not a string"),
        (header.get("priority", 5) not in range(10), f"priority is {header.get('priority')!r}"),
        (not isinstance(body.get("action"), str), "body.action is not a string"),
        ("payload" not in body, "body.payload is missing"),
        (not isinstance(body.get("error", {}), dict), "body.error is not an object"),
    ]
    return next((text for is_wrong, text in wrong if is_wrong), "")


def error_fault(received: Message) -> str:
    """What is wrong with the form of an error message; empty if nothing is."""
    body = received["body"]
    error = body.get("error")
    if not isinstance(error, dict):
        return "an error message without body.error"
    code = error.get("code")
    wrong = [
        (body["action"] != "error", f'body.action is {body["action"]!r}, not "error"'),
        (body["payload"] != {}, "body.payload is not {}"),
        (isinstance(code, bool) or not isinstance(code, int), f"error.code is {code!r}, not a number"),
        (code not in CODES, f"error.code {code!r} is not one of the ten"),
        (not isinstance(error.get("message"), str), "error.message is not a string"),
        (not is_time(error.get("timestamp")), f"error.timestamp is {error.get('timestamp')!r}"),
        (not isinstance(error.get("traceId", ""), str), "error.traceId is not a string"),
    ]
    return next((text for is_wrong, text in wrong if is_wrong), "")


def is_time(value: object) -> bool:
    """Whether this is a moment as ISO 8601 and RFC 3339 write it."""
    if not isinstance(value, str) or _TIME.fullmatch(value) is None:
        return False
    try:
        dt.datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def _is_identity(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), str) for name in ("agentId", "agentType"))


def encoded(data: bytes) -> str:
    """Bytes as JOSE writes them."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
