"""The suite's own reading of the wire: what it makes can be verified and opened, and what it receives is judged."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc.jwk import OKPKey

from trunkline.check.ossa import wire

# RFC 8037, appendix A: an Ed25519 key and its thumbprint.
JWK = {
    "kty": "OKP",
    "crv": "Ed25519",
    "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A",
    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
}
THUMBPRINT = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
PUBLIC = {name: value for name, value in JWK.items() if name != "d"}


def identity(**more: Any) -> wire.Identity:
    return wire.read_identity({"agent": "agent-1", "jwk": JWK, "type": "governor", "id": "tok_1", **more})


def message(**header: object) -> wire.Message:
    return wire.sign(
        wire.message("request", identity().named, wire.EXCHANGE, "echo", {"b": 1, "a": [2]}, header), identity()
    )


def test_an_identity_is_what_the_command_line_prints() -> None:
    sealing = OKPKey.generate_key("X25519").as_dict(private=True)
    read = identity(enc_jwk=sealing)
    assert (read.agent_id, read.agent_type, read.token_id) == ("agent-1", "governor", "tok_1")
    assert read.kid == THUMBPRINT
    assert read.sealing is not None


@pytest.mark.parametrize(
    "value",
    [[], {}, {"agent": "a"}, {"agent": "a", "jwk": PUBLIC}, {"agent": "a", "jwk": {**JWK, "d": "AAAA"}}, {"jwk": JWK}],
)
def test_what_is_not_an_identity_says_so(value: object) -> None:
    with pytest.raises(ValueError, match=r"expected|key"):
        wire.read_identity(value)


def test_a_signature_fits_the_message_and_nothing_else() -> None:
    keys = wire.read_keys({"keys": [PUBLIC]})
    signed = message()
    assert keys.fault_of(signed) == ""
    changed = copy.deepcopy(signed)
    changed["body"]["payload"]["b"] = 2
    assert "does not fit" in keys.fault_of(changed)
    del changed["signature"]
    assert keys.fault_of(changed) == "it has no signature"
    assert "not a detached JWS" in keys.fault_of({**signed, "signature": "x"})
    stranger = wire.Identity("agent-1", "worker", "other", Ed25519PrivateKey.generate(), None, "")
    assert "not among the keys" in keys.fault_of(wire.sign(signed, stranger))
    assert "alg 'none'" in keys.fault_of(wire.sign(signed, identity(), alg="none"))


def test_keys_that_cannot_be_used_are_left_out() -> None:
    keys = wire.read_keys({"keys": [{"kty": "RSA"}, {**PUBLIC, "x": "AAAA"}, "key", {"kty": "OKP", "crv": "X25519"}]})
    assert not keys.signing
    assert keys.sealing is None
    assert not wire.read_keys(None).signing


def test_a_sealed_payload_opens_with_its_key_as_part_of_its_message() -> None:
    key, other = OKPKey.generate_key("X25519"), OKPKey.generate_key("X25519")
    sealed = message()
    sealed["body"]["payload"] = wire.seal({"secret": 1}, sealed["header"]["messageId"], key)
    assert wire.open_sealed(sealed, key) == {"secret": 1}
    with pytest.raises(ValueError, match="cannot be decrypted"):
        wire.open_sealed(sealed, other)
    moved = {**message(), "body": sealed["body"]}
    with pytest.raises(ValueError, match="does not name its message"):
        wire.open_sealed(moved, key)
    weak = message()
    weak["body"]["payload"] = wire.seal({}, weak["header"]["messageId"], key, enc="A128GCM")
    with pytest.raises(ValueError, match="A128GCM"):
        wire.open_sealed(weak, key)


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        ({}, ""),
        ({"recipient": [wire.EXCHANGE]}, ""),
        ({"messageId": "00000000-0000-1000-8000-000000000000"}, "messageId"),
        ({"type": "ack"}, "type"),
        ({"version": "2.0.0"}, "version"),
        ({"timestamp": "2026-13-01T00:00:00Z"}, "timestamp"),
        ({"timestamp": "today"}, "timestamp"),
        ({"sender": {"agentId": "a"}}, "sender"),
        ({"recipient": []}, "recipient"),
        ({"recipient": ...}, "recipient"),
        ({"correlationId": 5}, "correlationId"),
        ({"priority": 10}, "priority"),
    ],
)
def test_a_message_of_the_wrong_shape_is_told_by_its_field(header: dict[str, object], fault: str) -> None:
    assert wire.shape_fault(message(**header)).partition(" ")[0] == fault


@pytest.mark.parametrize("value", [None, [], {}, {"header": {}, "body": []}])
def test_what_is_no_message_at_all_is_told_too(value: object) -> None:
    assert wire.shape_fault(value)


ERROR = {"code": 404, "message": "Resource not found", "timestamp": "2024-09-26T10:30:01Z"}


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({}, ""),
        ({"action": "echo"}, "body.action"),
        ({"payload": {"a": 1}}, "body.payload"),
        ({"error": None}, "an error message without"),
        ({"error": {**ERROR, "code": "404"}}, "error.code"),
        ({"error": {**ERROR, "code": 418}}, "error.code 418"),
        ({"error": {**ERROR, "message": None}}, "error.message"),
        ({"error": {**ERROR, "timestamp": "now"}}, "error.timestamp"),
        ({"error": {**ERROR, "traceId": 5}}, "error.traceId"),
    ],
)
def test_an_error_of_the_wrong_form_is_told_by_its_field(body: dict[str, object], fault: str) -> None:
    found = wire.error_fault({"body": {"action": "error", "payload": {}, "error": ERROR, **body}})
    assert found.startswith(fault)
    assert bool(found) == bool(fault)
