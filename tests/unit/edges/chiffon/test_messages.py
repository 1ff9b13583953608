"""``edges.chiffon.messages``: what a peer reads when it is refused."""

from __future__ import annotations

from typing import Literal

import pytest

from trunkline.edges.chiffon import messages


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("missing", "no token was given; `trunkline token new chiffon` makes one"),
        ("invalid", "the token is not valid, or was revoked; `trunkline token new chiffon` makes another"),
        ("mismatch", "the token is valid, but for another agent_id, agent type or message type"),
    ],
)
def test_a_refused_token_is_told_why_and_what_helps(
    status: Literal["missing", "invalid", "mismatch"], says: str
) -> None:
    refused = messages.unauthorized(None, status)
    assert (refused.status, refused.error.error_code, refused.error.error_message) == (401, 5004, says)
