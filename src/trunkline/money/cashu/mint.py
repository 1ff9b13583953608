"""The words of a mint's HTTP interface (NUT-01, 02, 03, 04, 06, 07, 09, 23), typed: what is sent, and what is read.

Owns the form. Does not own the connection: an edge sends the bodies and hands the answers in. A mint is a stranger like
any other, so its answers are read within bounds and never believed where they can be checked.

Invariant: whatever a mint answers, a function here gives a value or raises ``ProofRefused``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from trunkline import strictjson
from trunkline.money.cashu.curve import hash_to_curve
from trunkline.money.cashu.keysets import Keyset, read_keyset
from trunkline.money.cashu.swaps import Output, Promise
from trunkline.money.cashu.tokens import MAX_PROOFS, Proof, proof_as_json
from trunkline.money.refusals import ProofRefused, malformed

KEYSETS_PATH: Final = "/v1/keysets"
KEYS_PATH: Final = "/v1/keys/"
SWAP_PATH: Final = "/v1/swap"
STATES_PATH: Final = "/v1/checkstate"
INFO_PATH: Final = "/v1/info"
QUOTE_PATH: Final = "/v1/mint/quote/bolt11"
MINT_PATH: Final = "/v1/mint/bolt11"
RESTORE_PATH: Final = "/v1/restore"
# Mints keep the old ones: so many are years.
MAX_KEYSETS: Final = 256
# What a mint has to support: to say what is spent (7) and what it signed (9), without which an answer that is lost is
# money that is lost; locks (10, 11, 14); and to prove its signatures (12).
_NEEDED: Final = ("7", "9", "10", "11", "12", "14")
# By these numbers a mint says that it refused and did nothing (`error_codes.md` of the NUTs, and 11000 of nutshell, the
# reference implementation, for a transaction that it does not take). Not 11003 and 11004: there the outputs are signed.
SPENT, PENDING = 11001, 11002
NOT_DONE: Final = frozenset(
    {10001, 10003, 11000, SPENT, PENDING, *range(11005, 11016), 12001, 12002, *range(20001, 20010)}
)

Hex32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Hex33 = Annotated[str, Meta(pattern=r"^[0-9a-f]{66}\Z")]
State = Literal["UNSPENT", "PENDING", "SPENT"]
T = TypeVar("T")


class KeysetLine(Struct, frozen=True):
    """One line of a mint's list of keysets."""

    id: Annotated[str, Meta(max_length=66)]
    unit: Annotated[str, Meta(max_length=16)]
    active: bool = True
    input_fee_ppk: Annotated[int, Meta(ge=0)] | None = None
    final_expiry: Annotated[int, Meta(ge=0)] | None = None


class ProofState(Struct, frozen=True):
    """What a mint knows of a proof; ``witness`` is what opened its lock when it was spent."""

    Y: Hex33
    state: State
    witness: str | None = None


class MintQuote(Struct, frozen=True):
    """An invoice of a mint, for ecash that is had once it was paid. Whoever knows ``quote`` can have it."""

    quote: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_-]+\Z")]
    request: Annotated[str, Meta(max_length=8192)]
    state: Literal["UNPAID", "PENDING", "PAID", "ISSUED"] = "UNPAID"
    expiry: Annotated[int, Meta(ge=0)] | None = None


class _Keysets(Struct):
    keysets: Annotated[list[KeysetLine], Meta(max_length=MAX_KEYSETS)]


class _WithKeys(Struct):
    id: str
    keys: dict[str, str]


class _Keys(Struct):
    keysets: Annotated[list[_WithKeys], Meta(max_length=MAX_KEYSETS)]


class _Dleq(Struct):
    e: Hex32
    s: Hex32


class _Signature(Struct):
    id: str
    amount: int
    C_: Hex33
    dleq: _Dleq


class _Signatures(Struct):
    signatures: Annotated[list[_Signature], Meta(max_length=MAX_PROOFS)]


class _Blinded(Struct):
    B_: Hex33


class _Restored(Struct):
    outputs: Annotated[list[_Blinded], Meta(max_length=MAX_PROOFS)]


class _States(Struct):
    states: Annotated[list[ProofState], Meta(max_length=MAX_PROOFS)]


class _Info(Struct):
    nuts: dict[str, Any] = {}


class _Refusal(Struct):
    detail: Any = ""
    code: int = 0


def read_keyset_lines(body: bytes) -> list[KeysetLine]:
    """The mint's keysets, without their keys."""
    return _read(body, _Keysets).keysets


def read_keys(body: bytes, line: KeysetLine) -> Keyset:
    """The keys of one keyset, whose id is the hash of them."""
    for found in _read(body, _Keys).keysets:
        if found.id == line.id:
            fee, expiry = line.input_fee_ppk or 0, line.final_expiry or 0
            return read_keyset(
                line.id, line.unit, found.keys, active=line.active, input_fee_ppk=fee, final_expiry=expiry
            )
    raise ProofRefused("unknown_keyset", "the mint does not tell its keys")


def swap_body(inputs: Sequence[Proof], outputs: Sequence[Output]) -> bytes:
    """The request for a swap. Factors of the inputs are not in it: the mint would know where they came from."""
    asked = [proof_as_json(proof, with_dleq=False) for proof in inputs]
    return msgspec.json.encode({"inputs": asked, "outputs": _outputs(outputs)})


def quote_body(amount: int, unit: str) -> bytes:
    """The request for an invoice."""
    return msgspec.json.encode({"amount": amount, "unit": unit})


def read_quote(body: bytes) -> MintQuote:
    """The invoice, and whether it was paid."""
    return _read(body, MintQuote)


def mint_body(quote: str, outputs: Sequence[Output]) -> bytes:
    """The request for what was paid."""
    return msgspec.json.encode({"quote": quote, "outputs": _outputs(outputs)})


def restore_body(outputs: Sequence[Output]) -> bytes:
    """The question for what was signed of these outputs before (NUT-09)."""
    return msgspec.json.encode({"outputs": _outputs(outputs)})


def read_restored(body: bytes, outputs: Sequence[Output]) -> list[Promise]:
    """What was signed: all of the outputs in their order, or none. Mints sign a swap whole."""
    found = [one.B_ for one in _read(body, _Restored).outputs]
    if found and found != [output.blinded.hex() for output in outputs]:
        raise malformed("the mint answered about other outputs")
    return read_promises(body)


def read_promises(body: bytes) -> list[Promise]:
    """What the mint signed. Without a DLEQ proof it is refused: nobody else could check the proofs made of it."""
    return [
        Promise(
            found.id, found.amount, bytes.fromhex(found.C_), bytes.fromhex(found.dleq.e), bytes.fromhex(found.dleq.s)
        )
        for found in _read(body, _Signatures).signatures
    ]


def states_body(proofs: Sequence[Proof]) -> bytes:
    """The question whether proofs are spent. It does not tell their secrets."""
    return msgspec.json.encode({"Ys": [hash_to_curve(proof.secret.encode()).hex() for proof in proofs]})


def read_states(body: bytes, proofs: Sequence[Proof]) -> list[ProofState]:
    """What the mint knows of each, in the order of the proofs."""
    states = _read(body, _States).states
    if [state.Y for state in states] != [hash_to_curve(proof.secret.encode()).hex() for proof in proofs]:
        raise malformed("the mint answered about other proofs")
    return states


def check_unspent(states: Sequence[ProofState]) -> None:
    """Refuse a token of which something was spent, or is just now being spent."""
    if any(state.state == "SPENT" for state in states):
        raise ProofRefused("spent")
    if any(state.state == "PENDING" for state in states):
        raise ProofRefused("pending")


def missing_nuts(body: bytes) -> list[str]:
    """What a mint does not say of itself that it does, of all that is needed: at such a mint money could be lost."""
    nuts = _read(body, _Info).nuts
    return [nut for nut in _NEEDED if not isinstance(nuts.get(nut), dict) or nuts[nut].get("supported") is not True]


def refusal_code(body: bytes) -> int:
    """The number by which a mint says why it refused; 0 if it does not."""
    try:
        return _read(body, _Refusal).code
    except ProofRefused:
        return 0


def _outputs(outputs: Sequence[Output]) -> list[dict[str, object]]:
    return [{"amount": output.amount, "id": output.keyset_id, "B_": output.blinded.hex()} for output in outputs]


def _read(body: bytes, kind: type[T]) -> T:
    try:
        strictjson.check(body)
        return msgspec.json.decode(body, type=kind)
    except (strictjson.NotStrictJson, msgspec.MsgspecError):
        raise malformed("an answer of the mint that cannot be read") from None
