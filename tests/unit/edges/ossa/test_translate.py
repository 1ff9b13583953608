"""Between OSSA's words and ours."""

from __future__ import annotations

import uuid

import msgspec
import pytest
from msgspec import Raw

from tests.unit.edges.ossa.kit import refusal
from trunkline.edges.ossa import messages, translate
from trunkline.edges.ossa.messages import CODES, ErrorInfo, Identity, Message
from trunkline.edges.ossa.translate import Extras, derived_id, error_info, extras_of, fault_of, identity_of, tool_of
from trunkline.model import FAULTS, fault

ALICE = Identity("alice", "worker", "one", "2", {"mine": True})


def test_every_fault_of_ours_has_one_of_the_ten_codes() -> None:
    assert translate.CODE_OF.keys() <= FAULTS.keys()
    for code in FAULTS:
        assert error_info(fault(code), 0, None).code in CODES


def test_too_much_says_when_to_come_again_and_an_outcome_that_is_not_known_says_so() -> None:
    limited = error_info(fault("limit.rate", details={"retry_after_ms": 250}), 0, "call-1")
    assert msgspec.json.decode(limited.details) == {"retryAfterMs": 250, "fault": "limit.rate"}  # type: ignore[arg-type]
    assert limited.trace_id == "call-1"
    lost = error_info(fault("agent.lost"), 0, None)
    assert msgspec.json.decode(lost.details)["outcome"] == "unknown"  # type: ignore[arg-type]


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_provider_is_tried_again_after_408_429_and_503_only(code: int) -> None:
    found = fault_of(ErrorInfo(code, "no", "2026-01-16T12:00:00Z", Raw(b'{"a":[1]}')))
    assert found.retryable == (code in {408, 429, 503})
    assert found.details == {"ossa_code": code, "details": {"a": [1]}}


@pytest.mark.parametrize(
    ("recipient", "action", "expected"),
    [("bob", "echo", "bob/echo"), ("trunkline", "mail", "com.mail/send"), ("trunkline", "com.x/do", "com.x/do"),
     ("trunkline", "subscribe", "trunkline/subscribe")],
)  # fmt: skip
def test_a_message_names_a_tool(recipient: str, action: str, expected: str) -> None:
    assert tool_of(recipient, action, {"mail": "com.mail/send"}) == expected


@pytest.mark.parametrize(
    ("recipient", "action"),
    [("trunkline", "nothing"), ("trunkline", "/"), ("trunkline", "a/b/c"), ("bob", "a/b"), ("b/c", "a"), ("é", "a"),
     ("bob", ""), ("", "a"), ("../x", "a"), ("trunkline", "register")],
)  # fmt: skip
def test_what_cannot_be_a_tool_is_404(recipient: str, action: str) -> None:
    assert refusal(tool_of, recipient, action, {}).error_code == 404


def test_what_a_sender_says_beside_his_payload_is_handed_on() -> None:
    message = Message(
        "m", "request", ALICE, (ALICE,), "2026-01-16T12:00:00Z", "echo", priority=2, others={"trace": Raw(b'{"a":1.0}')}
    )
    extras = extras_of(translate.context_of(message, "", is_sealed=True))
    assert (extras.priority, extras.action, extras.is_sealed, bytes(extras.header["trace"])) == (
        2, "echo", True, b'{"a":1.0}',
    )  # fmt: skip
    assert identity_of("ossa:alice", extras) == ALICE
    assert identity_of("http:bob", extras) == Identity("bob", "integrator")


@pytest.mark.parametrize("name", sorted(messages.KNOWN))
def test_a_context_of_another_protocol_cannot_write_what_the_exchange_says(name: str) -> None:
    extras = extras_of(Raw(msgspec.json.encode({"ossa": {"header": {name: "forged", "mine": 1}}})))
    assert extras.header.keys() == {"mine"}


@pytest.mark.parametrize(
    "given",
    [{"priority": 99}, {"priority": -1}, {"priority": "a"}, {"sender": {"agentId": "a"}}, {"sender": {"agentType": 5}},
     {"sender": []}, {"header": []}, {"action": "x" * 5000}, {"action": "a\nb"}, {"is_sealed": 5}, 5],
)  # fmt: skip
def test_a_context_that_only_looks_like_ours_says_nothing(given: object) -> None:
    assert extras_of(Raw(msgspec.json.encode({"ossa": given}))) == Extras()


@pytest.mark.parametrize("context", [None, b"[]", b"5", b'{"project_root":"/x"}', b'{"ossa":null}'])
def test_other_contexts_say_nothing(context: bytes | None) -> None:
    assert extras_of(None if context is None else Raw(context)) == Extras()


def test_ids_that_are_derived_are_the_same_each_time_and_of_version_4() -> None:
    assert derived_id(b"k", "a", "b") == derived_id(b"k", "a", "b")
    assert len({derived_id(b"k", "a", "b"), derived_id(b"l", "a", "b"), derived_id(b"k", "b", "a")}) == 3
    assert uuid.UUID(derived_id(b"k", "a")).version == 4
