"""A mint of a few lines: it signs whatever it is asked, with the proof that NUT-12 describes, and never looks at money.

For tests that need tokens with real signatures. The keys of two mints differ: one's tokens are forged at another.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Sequence

import msgspec
from coincurve import PublicKey

from trunkline.money.cashu.curve import ORDER, challenge, hash_to_curve, public_key
from trunkline.money.cashu.keysets import Keyset, second_version_id
from trunkline.money.cashu.locks import JOB_TAG, PAYMENT_TAG, lock_secret, signed_witness
from trunkline.money.cashu.swaps import Output, Promise, outputs_of, proofs_of
from trunkline.money.cashu.tokens import Proof, Token, proof_as_json

URL = "https://mint.example"
AMOUNTS = tuple(1 << power for power in range(12))
PAYEE_SECRET = hashlib.sha256(b"payee").digest()
PAYER_SECRET = hashlib.sha256(b"payer").digest()
PAYEE, PAYER = public_key(PAYEE_SECRET), public_key(PAYER_SECRET)
LOCKTIME = 2_000_000_000


def proved(secret: bytes, blinded: bytes, signature: bytes) -> tuple[bytes, bytes]:
    """``e`` and ``s``, with the nonce that NUT-12 derives: so that they can be compared with its example."""
    points = [PublicKey(point).format(compressed=False) for point in (public_key(secret), blinded, signature)]
    nonce = hmac.digest(secret, b"Cashu_DLEQ_R_v1" + b"".join(points) + b"\0", "sha256")
    second = PublicKey(blinded).multiply(nonce).format()
    e = challenge(public_key(nonce), second, public_key(secret), signature)
    s = (int.from_bytes(nonce) + int.from_bytes(e) * int.from_bytes(secret)) % ORDER
    return e, s.to_bytes(32)


class ToyMint:
    """Keys that follow from a name."""

    def __init__(self, name: str = "mint", *, unit: str = "sat", fee_ppk: int = 0) -> None:
        self._secrets = {amount: hashlib.sha256(f"{name} {amount}".encode()).digest() for amount in AMOUNTS}
        keys = {amount: public_key(secret) for amount, secret in self._secrets.items()}
        draft = Keyset("", unit, keys, input_fee_ppk=fee_ppk)
        self.keyset = Keyset(second_version_id(draft), unit, keys, input_fee_ppk=fee_ppk)
        self._count = 0

    def chance(self, size: int) -> bytes:
        """Bytes that are different each time, and the same in each run."""
        self._count += 1
        return hashlib.sha256(f"{self.keyset.id} {self._count}".encode()).digest()[:size]

    def promise(self, keyset_id: str, amount: int, blinded: bytes) -> Promise:
        signature = PublicKey(blinded).multiply(self._secrets[amount]).format()
        return Promise(keyset_id, amount, signature, *proved(self._secrets[amount], blinded, signature))

    def signature_of(self, amount: int, secret: str) -> bytes:
        """What this mint would have signed, unblinded."""
        return PublicKey(hash_to_curve(secret.encode())).multiply(self._secrets[amount]).format()

    def signed(self, outputs: Sequence[Output]) -> tuple[Proof, ...]:
        promises = [self.promise(output.keyset_id, output.amount, output.blinded) for output in outputs]
        return proofs_of(outputs, promises, self.keyset)

    def proofs(self, amount: int, secret: Callable[[str], str] = str) -> tuple[Proof, ...]:
        return self.signed(outputs_of(amount, self.keyset, secret, self.chance))

    def token(self, amount: int, secret: Callable[[str], str] = str) -> Token:
        return Token(URL, self.keyset.unit, self.proofs(amount, secret))

    def locked(
        self, amount: int, *, key: bytes = PAYEE, locktime: int = LOCKTIME, lock_hash: str = "", job_hash: str = "",
        payment_id: str = "",
    ) -> Token:  # fmt: skip
        """A token that the payee can spend, and after ``locktime`` the payer."""
        tags = [[name, value] for name, value in ((JOB_TAG, job_hash), (PAYMENT_TAG, payment_id)) if value]

        def secret(nonce: str) -> str:
            return lock_secret(nonce, key, locktime=locktime, refund_key=PAYER, lock_hash=lock_hash, tags=tags)

        return self.token(amount, secret)


def released(token: Token, private_key: bytes = PAYEE_SECRET, preimage: str = "") -> Token:
    """The token with what opens its locks."""
    proofs = [
        Proof(
            proof.keyset_id, proof.amount, proof.secret, proof.signature, proof.dleq,
            signed_witness(proof.secret, private_key, bytes(32), preimage),
        )
        for proof in token.proofs
    ]  # fmt: skip
    return Token(token.mint, token.unit, tuple(proofs), token.memo)


def write_token_v3(token: Token) -> str:
    """The token as text, V3, as older wallets write it."""
    value: dict[str, object] = {
        "token": [{"mint": token.mint, "proofs": [proof_as_json(proof) for proof in token.proofs]}],
        "unit": token.unit,
    }
    if token.memo:
        value["memo"] = token.memo
    return "cashuA" + base64.urlsafe_b64encode(msgspec.json.encode(value)).decode().rstrip("=")
