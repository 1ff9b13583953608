"""Nostr Wallet Connect (NIP-47) on the wire: requests and responses of a wallet, encrypted; a connection as a URI.

Owns the form of these messages, on both sides. Does not own wallets, relays or who may do what.

Invariant: whatever an event holds, a reader gives a message of its type or raises ``BadMessage``. A response is
encrypted as its request was.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Struct

from trunkline import strictjson
from trunkline.edges.nostr.events import Draft, Event, Tag, is_id
from trunkline.edges.nostr.keys import CannotDecrypt, Signer
from trunkline.edges.nostr.messages import BadMessage

INFO: Final = 13_194
REQUEST: Final = 23_194
RESPONSE: Final = 23_195
METHODS: Final = ("pay_invoice", "get_balance", "make_invoice", "lookup_invoice", "get_info")
NIP44: Final = "nip44_v2"
NIP04: Final = "nip04"
SCHEME: Final = "nostr+walletconnect"
_SECRET: Final = re.compile(r"[0-9a-f]{64}")
# A method and an invoice fit many times.
MAX_REQUEST_CHARS: Final = 32_768


class WalletRequest(Struct, frozen=True):
    """What a client asks of its wallet."""

    id: str
    client: str
    method: str
    params: dict[str, Any]
    encryption: str
    # When it is not to be carried out any more, in seconds.
    expires_s: int | None = None


class _Asked(Struct):
    method: str
    params: dict[str, Any] = {}


class WalletError(Struct, frozen=True):
    """Why a wallet did not do it, in NIP-47's words."""

    code: str
    message: str


class _Said(Struct):
    result_type: str = ""
    error: WalletError | None = None
    result: dict[str, Any] | None = None


class WalletResponse(Struct, frozen=True):
    """What a wallet answered."""

    request_id: str
    method: str
    error: WalletError | None
    result: dict[str, Any]


_asked: Final = msgspec.json.Decoder(_Asked).decode
_said: Final = msgspec.json.Decoder(_Said).decode


def info_draft(created_at: int) -> Draft:
    """What a wallet can do, for everybody to see."""
    return Draft(INFO, " ".join(METHODS), (("encryption", f"{NIP44} {NIP04}"),), created_at)


def read_request(event: Event, signer: Signer) -> WalletRequest:
    """The request in an event to this wallet."""
    encryption = event.value("encryption") or NIP04
    if encryption not in {NIP44, NIP04}:
        raise BadMessage("it is encrypted in a way that is not known here")
    found = _asked_in(_opened(event, signer, encryption))
    expires = event.value("expiration")
    return WalletRequest(
        event.id, event.pubkey, found.method, found.params, encryption,
        int(expires) if expires.isascii() and expires.isdigit() and len(expires) < 16 else None,
    )  # fmt: skip


def _asked_in(text: str) -> _Asked:
    try:
        strictjson.check(text.encode(), want_object=True)
        return _asked(text)
    except (strictjson.NotStrictJson, msgspec.DecodeError, UnicodeEncodeError):
        raise BadMessage("it is no request {method, params}") from None


def _opened(event: Event, signer: Signer, encryption: str) -> str:
    if len(event.content) > MAX_REQUEST_CHARS:
        raise BadMessage("it is too large")
    try:
        decrypt = signer.decrypt if encryption == NIP44 else signer.decrypt_old
        return decrypt(event.content, event.pubkey)
    except CannotDecrypt as error:
        raise BadMessage(str(error)) from None


def request_draft(
    signer: Signer, wallet: str, method: str, params: dict[str, Any], created_at: int, expires_s: int
) -> Draft:
    """A request to a wallet elsewhere."""
    text = msgspec.json.encode({"method": method, "params": params}).decode()
    tags = (("p", wallet), ("encryption", NIP44), ("expiration", str(expires_s)))
    return Draft(REQUEST, signer.encrypt(text, wallet), tags, created_at)


def response_draft(
    signer: Signer, request_id: str, client: str, encryption: str, method: str, created_at: int, *,
    result: dict[str, Any] | None = None, error: WalletError | None = None,
) -> Draft:  # fmt: skip
    """What a wallet answers: a result, or why there is none."""
    said = {"result_type": method, "error": error, "result": result}
    text = msgspec.json.encode(said).decode()
    encrypt = signer.encrypt if encryption == NIP44 else signer.encrypt_old
    tags: tuple[Tag, ...] = (("p", client), ("e", request_id))
    return Draft(RESPONSE, encrypt(text, client), tags, created_at)


def read_response(event: Event, signer: Signer) -> WalletResponse:
    """The answer of a wallet elsewhere. Old wallets do not say how they encrypt; theirs has ``?iv=`` in it."""
    encryption = NIP04 if "?iv=" in event.content else NIP44
    text = _opened(event, signer, encryption)
    try:
        strictjson.check(text.encode(), want_object=True)
        found = _said(text)
    except (strictjson.NotStrictJson, msgspec.DecodeError, UnicodeEncodeError):
        raise BadMessage("it is no response {result_type, error, result}") from None
    return WalletResponse(event.value("e"), found.result_type, found.error, found.result or {})


class Connection(Struct, frozen=True):
    """How a wallet elsewhere is reached, and the secret by which it knows us."""

    wallet: str
    relays: tuple[str, ...]
    secret: str

    def __repr__(self) -> str:
        """Without the secret."""
        return f"Connection({self.wallet})"


def read_connection(text: str) -> Connection:
    """A connection URI; ``ValueError`` says what is missing without quoting it."""
    parts = urlsplit(text.strip())
    asked = parse_qs(parts.query)
    wallet, secret = parts.netloc or parts.path.lstrip("/"), "".join(asked.get("secret", []))
    if parts.scheme != SCHEME or not is_id(wallet):
        raise ValueError(f"expected {SCHEME}:// and the wallet's public key")
    relays = tuple(asked.get("relay", []))
    if not relays or not all(url.startswith(("ws://", "wss://")) for url in relays):
        raise ValueError("expected relay=wss://…")
    if not _SECRET.fullmatch(secret):
        raise ValueError("expected secret= and 64 hexadecimal digits")
    return Connection(wallet, relays, secret)
