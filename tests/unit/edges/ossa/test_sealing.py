"""Encrypted payloads of OSSA."""

from __future__ import annotations

import json
from typing import Any

import pytest
from joserfc import jwe
from joserfc.jwk import OctKey, OKPKey
from msgspec import Raw
from msgspec.structs import replace

from tests.unit.edges.ossa.examples import REQUEST
from trunkline.edges.ossa import messages, reading, sealing, signing
from trunkline.edges.ossa.messages import Message, Refused

PLAIN = Raw(b'{"canary":"Kx7"}')
MESSAGE = reading.read(json.dumps(REQUEST).encode())
OURS, THEIRS = (OKPKey.generate_key("X25519", {"kid": kid}) for kid in ("ours", "theirs"))


def sealed(*keys: OKPKey) -> Message:
    return replace(MESSAGE, payload=sealing.seal(PLAIN, MESSAGE.message_id, keys))


def refused(message: Message, key: OKPKey | OctKey = OURS) -> None:
    with pytest.raises(Refused) as found:
        sealing.open_sealed(message, key)
    assert found.value.error_code == messages.BAD_REQUEST


def test_a_sealed_payload_opens_with_its_key_and_shows_nothing() -> None:
    message = sealed(OURS)
    assert sealing.is_sealed(message.payload)
    assert b"Kx7" not in messages.encode(message)
    assert bytes(sealing.open_sealed(message, OURS)) == bytes(PLAIN)
    header = json.loads(signing.decoded(json.loads(bytes(message.payload))["$encrypted"].split(".")[0]))
    assert (header["enc"], header["alg"], header["messageId"]) == ("A256GCM", "ECDH-ES+A256KW", MESSAGE.message_id)


def test_for_several_recipients_each_opens_it_with_his_own_key() -> None:
    message = sealed(OURS, THEIRS)
    for key in (OURS, THEIRS):
        assert bytes(sealing.open_sealed(message, key)) == bytes(PLAIN)
    refused(message, OKPKey.generate_key("X25519"))


def test_what_was_encrypted_with_a_key_that_two_share_is_not_opened_here() -> None:
    protected = {"alg": "dir", "enc": "A256GCM", "messageId": MESSAGE.message_id}
    registry = jwe.JWERegistry(algorithms=["dir", "A256GCM"], strict_check_header=False)
    made = jwe.encrypt_compact(protected, bytes(PLAIN), OctKey.import_key(b"s" * 32), registry=registry)
    refused(replace(MESSAGE, payload=Raw(json.dumps({sealing.MEMBER: made}).encode())))


def test_a_key_of_another_does_not_open_it() -> None:
    refused(sealed(THEIRS))


def test_a_ciphertext_cannot_be_moved_to_another_message() -> None:
    refused(replace(sealed(OURS), message_id="650e8400-e29b-41d4-a716-446655440000"))


@pytest.mark.parametrize("part", range(5))
def test_one_changed_bit_anywhere_and_it_does_not_open(part: int) -> None:
    parts = json.loads(bytes(sealed(OURS).payload))["$encrypted"].split(".")
    data = bytearray(signing.decoded(parts[part]))
    data[len(data) // 2] ^= 1
    parts[part] = signing.encoded(bytes(data))
    refused(replace(MESSAGE, payload=Raw(json.dumps({"$encrypted": ".".join(parts)}).encode())))


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"$encrypted": "x"},
        {"$encrypted": {}},
        {"$encrypted": {"recipients": []}},
        {"$encrypted": 5},
        {"$encrypted": "a.b.c.d.e"},
    ],
)
def test_what_is_no_jwe_is_refused(payload: dict[str, Any]) -> None:
    refused(replace(MESSAGE, payload=Raw(json.dumps(payload).encode())))


@pytest.mark.parametrize(
    ("alg", "enc"), [("ECDH-ES", "A256GCM"), ("ECDH-ES+A256KW", "A128GCM"), ("ECDH-ES+A128KW", "A256GCM")]
)
def test_another_algorithm_is_refused(alg: str, enc: str) -> None:
    registry = jwe.JWERegistry(algorithms=[alg, enc], strict_check_header=False)
    made = jwe.encrypt_compact(
        {"alg": alg, "enc": enc, "messageId": MESSAGE.message_id}, bytes(PLAIN), OURS, registry=registry
    )
    refused(replace(MESSAGE, payload=Raw(json.dumps({"$encrypted": made}).encode())))


def test_a_payload_beside_which_something_stands_is_not_taken_for_a_sealed_one() -> None:
    assert not sealing.is_sealed(Raw(b'{"$encrypted":"x","more":1}'))
    assert not sealing.is_sealed(Raw(b'"$encrypted"'))
    assert not sealing.is_sealed(PLAIN)


def test_what_was_sealed_and_is_not_strict_json_is_refused() -> None:
    made = sealing.seal(Raw(b'{"a":1,"a":2}'), MESSAGE.message_id, [OURS])
    refused(replace(MESSAGE, payload=made))
