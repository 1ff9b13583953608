"""``edges.chiffon.messages``: what a peer reads when it is refused."""

from __future__ import annotations

from typing import Literal

import pytest

from trunkline.edges.chiffon import messages

TASK = "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d"


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("missing", "no token was given; `trunkline token new chiffon --agent ID` makes one"),
        ("invalid", "the token is not valid, or was revoked; `trunkline token new chiffon --agent ID` makes another"),
        ("mismatch", "the token is valid, but for another agent_id, agent type or message type"),
    ],
)
def test_a_refused_token_is_told_why_and_what_helps(
    status: Literal["missing", "invalid", "mismatch"], says: str
) -> None:
    refused = messages.unauthorized(None, status)
    assert (refused.status, refused.error.error_code, refused.error.error_message) == (401, 5004, says)


@pytest.mark.parametrize(("length", "is_taken"), [(128, True), (129, False)])
def test_the_name_of_a_step_has_at_most_128_characters(length: int, *, is_taken: bool) -> None:
    payload = messages.raw(
        {"task_id": TASK, "status": "running", "progress_percent": 1, "step": {"number": 1, "name": "n" * length}}
    )
    envelope = messages.Envelope("1.0", TASK, "infra", "orchestrator", "", TASK, TASK, "work_status", payload)
    if is_taken:
        read = messages.read_payload(envelope)
        assert isinstance(read, messages.WorkStatus)
        assert read.step.name == "n" * length
        return
    with pytest.raises(messages.Refused) as found:
        messages.read_payload(envelope)
    assert found.value.error.error_code == messages.INVALID
    assert found.value.error.error_context["field_name"] == "payload.step.name"
