"""Proofs of payment made wrong: whatever bytes are handed in, each reader accepts them or refuses with a reason.

Tokens, payment requests, locks, witnesses, answers of a mint, transactions, headers and evidence, mutated as JSON, as
CBOR and as bytes. What a reader accepts it writes, and reads as the same again; what is mutated never pays.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

import msgspec

from tests.fuzz.mutations import Mutator
from tests.unit.money.cashu.toy_mint import PAYEE, URL, ToyMint, released, write_token_v3
from tests.unit.money.onchain.chain import SCRIPT, Chain, transaction
from trunkline.money import cbor
from trunkline.money.cashu import mint, requests, spent, tokens
from trunkline.money.cashu.checking import Asked, check_payment
from trunkline.money.cashu.locks import lock_secret, read_lock, read_witness
from trunkline.money.evidence import read_evidence
from trunkline.money.onchain import payments
from trunkline.money.onchain.headers import REGTEST, read_chain
from trunkline.money.onchain.transactions import read_transaction
from trunkline.money.refusals import ProofRefused

written = msgspec.json.encode
Reader = Callable[[bytes], object]


class Scene:
    """Good proofs, and a reader for each kind."""

    def __init__(self) -> None:
        self.mint = ToyMint()
        self.token = released(self.mint.locked(13))
        self.asked = Asked(URL, "sat", 13, PAYEE[1:])
        self.chain = Chain(transaction((1000, SCRIPT)))
        locked = lock_secret("n", PAYEE, locktime=7, refund_key=PAYEE, lock_hash="ab" * 32)
        request = requests.PaymentRequest(13, "sat", (URL,), PAYEE.hex())
        states = {"states": [{"Y": "02" * 33, "state": "SPENT", "witness": None}]}
        keys = {str(amount): key.hex() for amount, key in self.mint.keyset.keys.items()}
        self.texts: list[tuple[bytes, Reader]] = [
            (tokens.write_token(self.token).encode(), self._token),
            (write_token_v3(self.token).encode(), self._token),
            (requests.write_request(request).encode(), self._request),
            (spent.write_spent(self.token).encode(), self._spent),
        ]
        self.json: list[tuple[bytes, Reader]] = [
            (base64.urlsafe_b64decode(write_token_v3(self.token)[6:] + "=="), self._v3),
            (locked.encode(), lambda data: read_lock(data.decode("utf-8", "replace"))),
            (self.token.proofs[0].witness.encode(), lambda data: read_witness(data.decode("utf-8", "replace"))),
            (written(self.chain.evidence), self._evidence),
            (json.dumps({"quote": "q-1", "request": "lnbc1", "state": "PAID", "expiry": 7}).encode(), self._quote),
            (json.dumps(states).encode(), lambda data: mint.read_states(data, self.token.proofs)),
            (json.dumps({"keysets": [{"id": self.mint.keyset.id, "unit": "sat", "keys": keys}]}).encode(), self._keys),
        ]
        self.binary: list[tuple[bytes, Reader]] = [
            (base64.urlsafe_b64decode(tokens.write_token(self.token)[6:] + "=="), self._v4),
            (bytes.fromhex(self.chain.evidence.transaction), self._transaction),
            (transaction((1000, SCRIPT), witness=True), self._transaction),
            (bytes.fromhex(self.chain.evidence.headers), self._headers),
        ]

    def _token(self, data: bytes) -> bool:
        found = tokens.read_token(data.decode("utf-8", "replace"))
        assert tokens.read_token(tokens.write_token(found)) == found
        assert tokens.read_token(write_token_v3(found)) == found
        try:
            check_payment(found, self.asked, [self.mint.keyset])
        except ProofRefused:
            return True
        # A memo proves nothing and may be another; what proves something may not.
        assert [(one.secret, one.signature, one.amount) for one in found.proofs] == [
            (one.secret, one.signature, one.amount) for one in self.token.proofs
        ]
        return True

    def _v3(self, data: bytes) -> bool:
        return self._token(b"cashuA" + base64.urlsafe_b64encode(data))

    def _v4(self, data: bytes) -> bool:
        return self._token(b"cashuB" + base64.urlsafe_b64encode(data))

    def _spent(self, data: bytes) -> bool:
        found = spent.read_spent(data.decode("utf-8", "replace"))
        assert spent.read_spent(spent.write_spent(found)) == found
        assert all(read_lock(one.secret) is not None and one.witness for one in found.proofs)
        return True

    def _quote(self, data: bytes) -> bool:
        found = mint.read_quote(data)
        assert "/" not in found.quote
        return True

    def _request(self, data: bytes) -> bool:
        found = requests.read_request(data.decode("utf-8", "replace"))
        assert requests.read_request(requests.write_request(found)) == found
        return True

    def _evidence(self, data: bytes) -> bool:
        found = read_evidence(data.decode("utf-8", "replace"), payments.Evidence, payments.MAX_EVIDENCE_BYTES)
        assert read_evidence(written(found).decode(), payments.Evidence, payments.MAX_EVIDENCE_BYTES) == found
        payments.check_payment(self.chain.txid, SCRIPT, 1000, found, [self.chain.checkpoint], REGTEST, confirmations=1)
        # A header on top may be missing; where the payment is may not be another place.
        assert msgspec.structs.replace(found, headers="") == msgspec.structs.replace(self.chain.evidence, headers="")
        return True

    def _keys(self, data: bytes) -> bool:
        line = mint.KeysetLine(self.mint.keyset.id, "sat")
        return mint.read_keys(data, line) == self.mint.keyset

    def _transaction(self, data: bytes) -> bool:
        return bool(read_transaction(data).outputs)

    def _headers(self, data: bytes) -> bool:
        return bool(read_chain(data, [self.chain.checkpoint], REGTEST))


@cache
def scene() -> Scene:
    return Scene()


def judge(seed: int, cases: int) -> int:
    """Make so many proofs wrong; how many of them were read all the same."""
    here, rng, taken = scene(), Random(seed), 0
    for _ in range(cases):
        good, reader = rng.choice([*here.texts, *here.json, *here.binary])
        if (good, reader) in here.json and rng.random() < 0.6:
            data = Mutator(rng.getrandbits(32), [json.loads(good)]).body()
        elif reader == here._v4 and rng.random() < 0.6:
            data = cbor.encode(_changed(rng, cbor.decode(good)))
        else:
            data = _mangled(rng, good)
        with suppress(ProofRefused):
            taken += bool(reader(data))
    return taken


def _mangled(rng: Random, data: bytes) -> bytes:
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.randrange(40))
        match rng.randrange(4):
            case 0 if data and at < len(data):
                data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
            case 1:
                data = data[:at] + data[to:]
            case 2:
                data = data[:to] + data[at:to] * rng.randrange(4) + data[to:]
            case _:
                data = data[:at] + rng.randbytes(rng.randrange(9)) + data[at:]
    return data


def _changed(rng: Random, value: Any) -> Any:
    """The same value with one part of it another."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        return value | {key: _changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], _changed(rng, value[at]), *value[at + 1 :]]
    choices: list[Any] = [None, True, 0, 1, 2**63, 2**64 - 1, b"", b"\x02" * 33, bytes(32), "", "x", "02" * 33, [], {}]
    return rng.choice([*choices, [value], {"a": value}])
