"""Encrypted payloads of OSSA messages: a JWE with A256GCM, bound to the message that it is part of.

``body.payload`` is ``{"$encrypted": …}``: the compact form for one recipient, the JSON form for several. The content
key is wrapped for an X25519 key (``ECDH-ES+A256KW``). The protected header has the
``messageId``, so a ciphertext cannot be moved to another message. Encryption is from hop to hop: we open what is for
us, and seal it anew for whom it goes on to.

Invariant: no other algorithm is tried, whatever a header says; what cannot be opened is refused with 400 and tells
nothing of why.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from msgspec import Raw

from trunkline import strictjson
from trunkline.edges.ossa.messages import BAD_REQUEST, MAX_DEPTH, MAX_RECIPIENTS, Message, Refused

if TYPE_CHECKING:
    from joserfc.jwe import GeneralJSONSerialization, JWERegistry
    from joserfc.jwk import OKPKey

MEMBER: Final = "$encrypted"
WRAPPED: Final = "ECDH-ES+A256KW"
CONTENT: Final = "A256GCM"
_MAYBE_SEALED: Final = b'"$encrypted"'


@functools.cache
def _registry() -> JWERegistry:
    # joserfc is imported with the first message that is encrypted (``keys.SealingKey``).
    from joserfc.jwe import JWERegistry

    return JWERegistry(algorithms=[WRAPPED, CONTENT], strict_check_header=False, verify_all_recipients=False)


def is_sealed(payload: Raw) -> bool:
    """Whether this is an encrypted payload."""
    return _sealed(payload) is not None


def _sealed(payload: Raw) -> str | dict[str, Any] | None:
    if _MAYBE_SEALED not in bytes(payload):
        return None
    found = msgspec.json.decode(payload)
    if type(found) is not dict or found.keys() != {MEMBER} or type(found[MEMBER]) not in {str, dict}:
        return None
    sealed: str | dict[str, Any] = found[MEMBER]
    return sealed


def seal(payload: Raw, message_id: str, keys: Sequence[OKPKey]) -> Raw:
    """The payload, to be opened by whoever has one of these X25519 keys."""
    from joserfc import jwe

    if len(keys) == 1:
        protected = {"alg": WRAPPED, "enc": CONTENT, "kid": keys[0].kid, "messageId": message_id}
        return _member(jwe.encrypt_compact(protected, bytes(payload), keys[0], registry=_registry()))
    sealed = jwe.GeneralJSONEncryption({"enc": CONTENT, "messageId": message_id}, bytes(payload))
    for key in keys:
        sealed.add_recipient({"alg": WRAPPED, "kid": key.kid}, key)
    return _member(jwe.encrypt_json(sealed, None, registry=_registry()))


def _member(sealed: object) -> Raw:
    return Raw(msgspec.json.encode({MEMBER: sealed}))


def open_sealed(message: Message, key: OKPKey) -> Raw:
    """The payload of an encrypted message. ``Refused`` with 400 if it cannot be opened, or is of another message."""
    sealed = _sealed(message.payload)
    if sealed is None:
        raise Refused(BAD_REQUEST, "body.payload: not encrypted")
    from joserfc import jwe
    from joserfc.errors import JoseError

    try:
        if isinstance(sealed, str):
            opened = jwe.decrypt_compact(sealed, key, registry=_registry())
            header, plain = opened.headers(), opened.plaintext
        else:
            if len(sealed["recipients"]) > MAX_RECIPIENTS:
                raise ValueError("too many recipients")
            found = jwe.decrypt_json(cast("GeneralJSONSerialization", sealed), lambda _: key, registry=_registry())
            header, plain = found.protected, found.plaintext
        if header.get("messageId") != message.message_id or plain is None:
            raise ValueError("of another message")
        strictjson.check(plain, max_depth=MAX_DEPTH)
    except (JoseError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise Refused(BAD_REQUEST, "body.payload: cannot be decrypted as part of this message") from None
    return Raw(plain)
