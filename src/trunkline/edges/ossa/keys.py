"""Key pairs of OSSA: those that agents are given, and the exchange's own.

Each is two pairs: Ed25519 to sign with, X25519 to be encrypted to. An agent's is
made when the operator asks for one, shown once as two JWKs, and its public half goes on record; ours is made at the
first start and stays in ``keys/``. Does not own what is signed (``signing``) or encrypted (``sealing``), nor which
credentials are good (the exchange).

Invariant: a private half of an agent's key exists only in the answer that shows it.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from msgspec import Raw, Struct
from nacl.signing import VerifyKey

from trunkline import key_files
from trunkline.edges.edge import KeyPair, KeyTerms, TokenKind
from trunkline.edges.ossa import signing
from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from joserfc.jwk import OKPKey

SEED_BYTES: Final = 32
OWN_FILE: Final = "ossa.key"
# Keys of agents that are remembered as objects: to read one anew takes some 50 µs.
READ_KEYS: Final = 1024


def sealing_jwk(private: X25519PrivateKey) -> dict[str, str]:
    """The public half of a pair to be encrypted to, as a JWK with its name."""
    jwk = {"kty": "OKP", "crv": "X25519", "x": signing.encoded(private.public_key().public_bytes_raw())}
    return {**jwk, "kid": signing.thumbprint(jwk)}


class SealingKey:
    """A key to seal or open with. joserfc is imported when somebody does: it takes 70 ms, and few messages need it."""

    def __init__(self, jwk: dict[str, str]) -> None:
        self._jwk = jwk

    @functools.cached_property
    def key(self) -> OKPKey:
        """The key as joserfc has it."""
        from joserfc.jwk import OKPKey

        return OKPKey.import_key({**self._jwk})


# --- keys of agents ---------------------------------------------------------------------------------------------------


class AgentKeys(Struct, frozen=True):
    """What we know of an agent's credential, as objects to work with (``TokenView.public``)."""

    kid: str
    # Its signatures are checked with the first, what is for it is sealed with the second (``seals``).
    checks: VerifyKey
    sealing: SealingKey
    # Where it takes messages, and whose public key answers there; empty if the operator did not say.
    url: str = ""
    pin: str = ""

    @property
    def seals(self) -> OKPKey:
        """What is for the agent is sealed with this."""
        return self.sealing.key


class _Public(Struct, frozen=True, omit_defaults=True):
    """What is on record of a pair."""

    kid: str
    jwk: dict[str, str]
    enc_jwk: dict[str, str]
    url: str = ""
    pin: str = ""


_public: Final = msgspec.json.Decoder(_Public)


def agent_keys(public: Raw) -> AgentKeys:
    """The keys of a credential, from its public part."""
    return _agent_keys(bytes(public))


@functools.lru_cache(maxsize=READ_KEYS)
def _agent_keys(public: bytes) -> AgentKeys:
    found = _public.decode(public)
    sealing = SealingKey(found.enc_jwk)
    return AgentKeys(found.kid, signing.read_public(found.jwk), sealing, found.url, found.pin)


def new_pair(terms: KeyTerms) -> KeyPair:
    """Two pairs for an agent, and what is to be shown and kept of them."""
    return pair_of(terms, secrets.token_bytes(SEED_BYTES), secrets.token_bytes(SEED_BYTES))


def pair_of(terms: KeyTerms, sign_seed: bytes, seal_seed: bytes) -> KeyPair:
    """The pairs that follow from so many secret bytes."""
    key = signing.key_of(sign_seed)
    jwk = {**signing.public_jwk(key.public), "kid": key.kid}
    enc_jwk = sealing_jwk(X25519PrivateKey.from_private_bytes(seal_seed))
    shown = {
        "jwk": {**jwk, "d": signing.encoded(sign_seed)},
        "enc_jwk": {**enc_jwk, "d": signing.encoded(seal_seed)},
    }
    public = _Public(key.kid, jwk, enc_jwk, terms.url, terms.pin)
    return KeyPair(key.kid, shown, Raw(msgspec.json.encode(public)))


OSSA_KEYS: Final = TokenKind(
    # An agent's class (`worker`, `governor`, …), by which its rate is counted and rules may name it.
    type_form="[a-z][a-z0-9_-]{0,63}",
    own_ids=frozenset({"trunkline"}),
    options=frozenset({"url", "pin"}),
    pair=new_pair,
)


# --- our own ----------------------------------------------------------------------------------------------------------


class OwnKeys(Struct, frozen=True):
    """The exchange's two pairs."""

    signs: signing.Key
    # What is for us is opened with it (``opens``).
    opening: SealingKey
    # Both public halves, as ``GET /ossa/v1/keys`` shows them.
    jwks: Raw

    @property
    def opens(self) -> OKPKey:
        """What is for us is opened with this."""
        return self.opening.key


def own_keys(folder: Path, entropy: Callable[[int], bytes] = secrets.token_bytes) -> OwnKeys:
    """Our keys, made in ``folder`` when there are none yet. ``ConfigError`` names a file that cannot be used."""
    path = folder / OWN_FILE
    seeds = key_files.kept(path, lambda: entropy(2 * SEED_BYTES))
    if len(seeds) != 2 * SEED_BYTES:
        raise ConfigError(f"is damaged: it should have {2 * SEED_BYTES} bytes", str(path))
    return keys_of(seeds)


def keys_of(seeds: bytes) -> OwnKeys:
    """The pairs that follow from so many secret bytes."""
    signs = signing.key_of(seeds[:SEED_BYTES])
    seal_seed = seeds[SEED_BYTES:]
    enc_jwk = sealing_jwk(X25519PrivateKey.from_private_bytes(seal_seed))
    opens = SealingKey({**enc_jwk, "d": signing.encoded(seal_seed)})
    keys = [
        {**signing.public_jwk(signs.public), "kid": signs.kid, "use": "sig", "alg": "EdDSA"},
        {**enc_jwk, "use": "enc"},
    ]
    return OwnKeys(signs, opens, Raw(msgspec.json.encode({"keys": keys})))
