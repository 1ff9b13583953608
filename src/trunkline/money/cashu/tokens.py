"""A Cashu token: proofs of one mint, as the text that one hands to another (NUT-00), read and written.

Owns both forms: V3 (``cashuA``, JSON), which is only read, and V4 (``cashuB``, CBOR). Does not own what a proof is
worth: a token that was read is well formed and nothing more; whether the mint signed it is ``checking``.

Invariant: a ``Token`` that ``read_token`` gave is written by ``write_token`` to a text that reads as the same token.
Whatever the text is, ``read_token`` gives a token or raises ``ProofRefused``.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from trunkline import strictjson
from trunkline.money import cbor
from trunkline.money.cashu.curve import POINT_BYTES, SCALAR_BYTES
from trunkline.money.refusals import ProofRefused, malformed

# A locked proof with everything is 900 bytes as CBOR; 64 powers of two make any amount, twice that leaves room.
MAX_PROOFS: Final = 128
MAX_TOKEN_CHARS: Final = 262_144
# The most that a number of 64 bits with a sign holds: what mints count with.
MAX_AMOUNT: Final = 2**63 - 1
MAX_SECRET_CHARS: Final = 4096
MAX_URL_CHARS: Final = 2048
_V3, _V4 = "cashuA", "cashuB"
# 8 bytes: an id of the first version, or the short form of one of the second, which has 33.
_KEYSET_ID: Final = re.compile(r"[0-9a-f]{16}(?:[0-9a-f]{50})?")
_URL: Final = re.compile(r"https?://[!-~]+")
# What a token is in that names no unit, and all ecash that is paid with and taken here.
UNIT: Final = "sat"
_UNIT: Final = re.compile(r"[a-z0-9]{1,16}")
_BASE64: Final = re.compile(r"[A-Za-z0-9_+/-]*={0,2}")
_FOR_URLS: Final = str.maketrans("+/", "-_")


class Dleq(Struct, frozen=True):
    """What proves that the mint's key signed: ``e`` and ``s`` of the mint, and the factor ``r`` that hid the secret."""

    e: bytes
    s: bytes
    r: bytes


class Proof(Struct, frozen=True):
    """One piece of ecash: an amount of a keyset, a secret, and the mint's signature on it."""

    keyset_id: str
    amount: int
    secret: str
    signature: bytes
    dleq: Dleq | None = None
    # JSON text: what opens the lock that the secret is (NUT-11, NUT-14).
    witness: str = ""


class Token(Struct, frozen=True):
    """Proofs of one mint."""

    mint: str
    unit: str
    proofs: tuple[Proof, ...]
    memo: str = ""

    @property
    def amount(self) -> int:
        """What all proofs are worth together, in the token's unit."""
        return sum(proof.amount for proof in self.proofs)


def read_token(text: str) -> Token:
    """The token that this text is, in either form, with or without ``cashu:`` in front."""
    text = text.removeprefix("cashu:")
    if len(text) > MAX_TOKEN_CHARS:
        raise ProofRefused("too_large")
    if text.startswith(_V4):
        return _from_cbor(base64_bytes(text[len(_V4) :]))
    if text.startswith(_V3):
        return _from_json(base64_bytes(text[len(_V3) :]))
    raise malformed("a token begins with cashuA or cashuB")


def write_token(token: Token) -> str:
    """The token as text, V4."""
    groups: dict[str, list[Proof]] = {}
    for proof in token.proofs:
        groups.setdefault(proof.keyset_id, []).append(proof)
    parts: list[cbor.Value] = [
        {"i": bytes.fromhex(keyset_id), "p": [_proof_as_cbor(proof) for proof in proofs]}
        for keyset_id, proofs in groups.items()
    ]
    value: dict[str, cbor.Value] = {"t": parts}
    if token.memo:
        value["d"] = token.memo
    value |= {"m": token.mint, "u": token.unit}
    return _V4 + base64.urlsafe_b64encode(cbor.encode(value)).decode().rstrip("=")


def proof_as_json(proof: Proof, *, with_dleq: bool = True) -> dict[str, object]:
    """A proof in the form that mints and V3 tokens have. The mint is not told the factor: it would know who paid."""
    value: dict[str, object] = {
        "amount": proof.amount,
        "id": proof.keyset_id,
        "secret": proof.secret,
        "C": proof.signature.hex(),
    }
    if proof.dleq is not None and with_dleq:
        value["dleq"] = {"e": proof.dleq.e.hex(), "s": proof.dleq.s.hex(), "r": proof.dleq.r.hex()}
    if proof.witness:
        value["witness"] = proof.witness
    return value


def mint_url(url: str) -> str:
    """A mint's address in the form that tokens name it by: no slash at its end."""
    if len(url) > MAX_URL_CHARS or _URL.fullmatch(url) is None:
        raise malformed("the mint's address is no URL")
    return mint_name(url)


def mint_name(text: str) -> str:
    """The same of a text that may be no address at all, to see whether it names a mint that is known."""
    return text.rstrip("/")


def base64_bytes(text: str) -> bytes:
    """The bytes of base64 in either alphabet, with or without its padding."""
    if _BASE64.fullmatch(text) is None:
        raise malformed("this is no base64")
    text = text.rstrip("=").translate(_FOR_URLS)
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise malformed("this is no base64") from None


def field(value: Any, kind: type[Any], name: str) -> Any:
    """A value of CBOR, if it is there and of its type."""
    # `is`: True is an int to isinstance.
    if type(value) is not kind:
        raise malformed(f"field {name} is missing or not of its type")
    return value


# --- V4 ---------------------------------------------------------------------------------------------------------------


def _proof_as_cbor(proof: Proof) -> cbor.Value:
    value: dict[str, cbor.Value] = {"a": proof.amount, "s": proof.secret, "c": proof.signature}
    if proof.dleq is not None:
        value["d"] = {"e": proof.dleq.e, "s": proof.dleq.s, "r": proof.dleq.r}
    if proof.witness:
        value["w"] = proof.witness
    return value


def _from_cbor(data: bytes) -> Token:
    value = field(cbor.decode(data), dict, "the token")
    groups = [field(group, dict, "t") for group in field(value.get("t"), list, "t")]
    proofs = [
        _proof_of_cbor(field(group.get("i"), bytes, "i").hex(), field(part, dict, "p"))
        for group in groups
        for part in field(group.get("p"), list, "p")
    ]
    memo = value.get("d")
    return token(
        field(value.get("m"), str, "m"),
        field(value.get("u"), str, "u"),
        proofs,
        "" if memo is None else field(memo, str, "d"),
    )


def _proof_of_cbor(keyset_id: str, value: dict[str, cbor.Value]) -> Proof:
    dleq, witness = value.get("d"), value.get("w")
    read = None
    if dleq is not None:
        found = field(dleq, dict, "d")
        read = Dleq(*(field(found.get(name), bytes, f"d.{name}") for name in ("e", "s", "r")))
    return _proof(
        keyset_id,
        field(value.get("a"), int, "a"),
        field(value.get("s"), str, "s"),
        field(value.get("c"), bytes, "c"),
        read,
        "" if witness is None else field(witness, str, "w"),
    )


# --- V3 ---------------------------------------------------------------------------------------------------------------

_Hex = Annotated[str, Meta(pattern=r"^(?:[0-9a-fA-F]{2})*\Z")]


class _DleqV3(Struct):
    e: _Hex
    s: _Hex
    r: _Hex


class _ProofV3(Struct):
    amount: int
    id: _Hex
    secret: str
    C: _Hex
    dleq: _DleqV3 | None = None
    witness: str | None = None


class _OfMintV3(Struct):
    mint: str
    proofs: list[_ProofV3]


class _TokenV3(Struct):
    token: Annotated[list[_OfMintV3], Meta(min_length=1)]
    unit: str | None = None
    memo: str | None = None


def _from_json(data: bytes) -> Token:
    try:
        strictjson.check(data)
        read = msgspec.json.decode(data, type=_TokenV3)
    except (strictjson.NotStrictJson, msgspec.MsgspecError):
        raise malformed("the token is no JSON of version 3") from None
    mints = {mint_url(part.mint) for part in read.token}
    if len(mints) != 1:
        raise malformed("a token of several mints")
    proofs = [_proof_of_json(proof) for part in read.token for proof in part.proofs]
    # Without a unit it is the first one that there was.
    return token(mints.pop(), read.unit or UNIT, proofs, read.memo or "")


def proof_of_json(data: bytes) -> Proof:
    """A proof in the form that mints and V3 tokens have."""
    try:
        return _proof_of_json(msgspec.json.decode(data, type=_ProofV3))
    except msgspec.MsgspecError:
        raise malformed("a proof that cannot be read") from None


def _proof_of_json(read: _ProofV3) -> Proof:
    dleq = None if read.dleq is None else Dleq(*map(bytes.fromhex, (read.dleq.e, read.dleq.s, read.dleq.r)))
    return _proof(read.id.lower(), read.amount, read.secret, bytes.fromhex(read.C), dleq, read.witness or "")


# --- both -------------------------------------------------------------------------------------------------------------


def token(mint: str, unit: str, proofs: list[Proof], memo: str) -> Token:
    """Proofs of one mint as a token, refused unless each part has its form."""
    if not 0 < len(proofs) <= MAX_PROOFS:
        raise malformed(f"a token has 1 to {MAX_PROOFS} proofs")
    if _UNIT.fullmatch(unit) is None:
        raise malformed("the unit has no form of one")
    # Those of one keyset side by side, as V4 has them: so that both forms read as the same token.
    order = {proof.keyset_id: at for at, proof in reversed([*enumerate(proofs)])}
    made = Token(mint_url(mint), unit, tuple(sorted(proofs, key=lambda proof: order[proof.keyset_id])), memo)
    if made.amount > MAX_AMOUNT:
        raise malformed("more than a mint can count")
    return made


def _proof(keyset_id: str, amount: int, secret: str, signature: bytes, dleq: Dleq | None, witness: str) -> Proof:
    if _KEYSET_ID.fullmatch(keyset_id) is None:
        raise malformed("the id of a keyset has 8 or 33 bytes")
    if not 0 < amount <= MAX_AMOUNT:
        raise malformed("an amount that no proof has")
    if not 0 < len(secret) <= MAX_SECRET_CHARS or len(witness) > MAX_SECRET_CHARS:
        raise malformed("a secret that is empty or too long")
    if len(signature) != POINT_BYTES:
        raise malformed("a signature has 33 bytes")
    if dleq is not None and {len(dleq.e), len(dleq.s), len(dleq.r)} != {SCALAR_BYTES}:
        raise malformed("each part of a DLEQ proof has 32 bytes")
    return Proof(keyset_id, amount, secret, signature, dleq, witness)
