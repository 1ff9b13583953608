from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from joserfc.jwk import OKPKey
from msgspec import Raw
from msgspec.structs import replace

from tests.unit.edges.ossa import examples
from trunkline.edges.edge import KeyTerms
from trunkline.edges.ossa import keys, reading, sealing, signing
from trunkline.errors import ConfigError

URL = "https://worker.example/ossa"
PIN = "A" * 43 + "="


def opened(payload: Raw, seals: OKPKey, opens: OKPKey) -> bytes:
    """A payload that was sealed with one key and opened with another."""
    message = reading.read(json.dumps(examples.REQUEST).encode())
    sealed = sealing.seal(payload, message.message_id, [seals])
    return bytes(sealing.open_sealed(replace(message, payload=sealed), opens))


def test_a_new_pair_signs_and_opens_and_its_public_part_checks_and_seals() -> None:
    pair = keys.new_pair(KeyTerms("worker-7", "worker", URL, PIN))
    known = keys.agent_keys(pair.public)
    jwk, enc_jwk = pair.shown["jwk"], pair.shown["enc_jwk"]
    assert isinstance(jwk, dict)
    assert isinstance(enc_jwk, dict)
    assert (known.kid, known.url, known.pin) == (pair.kid, URL, PIN) == (jwk["kid"], URL, PIN)
    message = reading.read(json.dumps(examples.REQUEST).encode())
    own = signing.key_of(signing.decoded(jwk["d"]))
    signed = signing.sign(message, own)
    claim = signing.read_claim(json.loads(signed)["signature"])
    assert claim.kid == pair.kid
    signing.check(signed, claim, known.checks)
    assert known.seals.kid == enc_jwk["kid"]
    assert opened(Raw(b'{"a":1}'), known.seals, OKPKey.import_key(enc_jwk)) == b'{"a":1}'


def test_what_is_kept_of_a_pair_has_no_private_part() -> None:
    pair = keys.new_pair(KeyTerms("worker-7"))
    private = [pair.shown[name]["d"] for name in ("jwk", "enc_jwk")]  # type: ignore[index]
    assert len(set(private)) == 2
    for secret in private:
        assert secret not in bytes(pair.public).decode()
    kept = json.loads(bytes(pair.public))
    assert kept.keys() == {"kid", "jwk", "enc_jwk"}
    assert [one.keys() for one in (kept["jwk"], kept["enc_jwk"])] == [{"kty", "crv", "x", "kid"}] * 2


def test_no_two_pairs_are_the_same() -> None:
    assert len({keys.new_pair(KeyTerms("worker-7")).kid for _ in range(10)}) == 10


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        (KeyTerms("a", "worker"), ""),
        (KeyTerms("a"), ""),
        (KeyTerms("a", "w" + "-" * 63, URL, PIN), ""),
        (KeyTerms("a", "w" * 65), "type: expected [a-z][a-z0-9_-]{0,63}"),
        (KeyTerms("a", "Worker"), "type: expected [a-z][a-z0-9_-]{0,63}"),
        (KeyTerms("a", "worker\n"), "type: expected [a-z][a-z0-9_-]{0,63}"),
        (KeyTerms("a", pin=PIN), "pin: it says which server answers at url, and url is missing"),
        (KeyTerms("Trunkline"), "agent: Trunkline is the exchange itself"),
    ],
)
def test_what_may_be_said_of_an_agent_with_keys(terms: KeyTerms, says: str) -> None:
    assert keys.OSSA_KEYS.refusal(terms) == says


def test_our_own_keys_are_made_once_and_are_the_same_after_a_restart(tmp_path: Path) -> None:
    first = keys.own_keys(tmp_path / "keys", os.urandom)
    again = keys.own_keys(tmp_path / "keys", os.urandom)
    assert (first.signs.kid, first.opens.kid, first.jwks) == (again.signs.kid, again.opens.kid, again.jwks)
    assert (tmp_path / "keys" / "ossa.key").stat().st_mode & 0o777 == 0o600
    assert keys.own_keys(tmp_path / "others", os.urandom).signs.kid != first.signs.kid


def test_the_key_set_has_both_public_halves_and_nothing_private(tmp_path: Path) -> None:
    own = keys.own_keys(tmp_path, os.urandom)
    signs, opens = json.loads(bytes(own.jwks))["keys"]
    assert (signs["use"], signs["crv"], signs["kid"]) == ("sig", "Ed25519", own.signs.kid)
    assert (opens["use"], opens["crv"], opens["kid"]) == ("enc", "X25519", own.opens.kid)
    assert not {"d"} & {*signs, *opens}
    assert opened(Raw(b"[1]"), OKPKey.import_key(opens), own.opens) == b"[1]"


def test_a_damaged_key_of_ours_is_not_replaced(tmp_path: Path) -> None:
    keys.own_keys(tmp_path, os.urandom)
    (tmp_path / "ossa.key").write_bytes(b"short")
    with pytest.raises(ConfigError, match="damaged"):
        keys.own_keys(tmp_path, os.urandom)
    assert (tmp_path / "ossa.key").read_bytes() == b"short"
