"""``edges.http.messages``: a body that does not fit is refused in words, never with a pattern or a type of ours."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
from msgspec import Meta

from trunkline.edges.bodies import BadRequest, decode
from trunkline.edges.http import messages

BODIES = [
    messages.CallBody,
    messages.CancelBody,
    messages.AnswerBody,
    messages.DirectiveBody,
    messages.TokenBody,
    messages.CheckBody,
]


def metas(hint: Any) -> list[Meta]:
    found = [hint] if isinstance(hint, Meta) else []
    return found + [meta for part in get_args(hint) for meta in metas(part)]


@pytest.mark.parametrize("body", BODIES)
def test_every_pattern_is_described_in_words(body: type) -> None:
    for name, hint in get_type_hints(body, include_extras=True).items():
        for meta in metas(hint):
            assert meta.pattern is None or meta.description, name


@pytest.mark.parametrize(
    ("body", "data", "says"),
    [
        (messages.AnswerBody, b'{"decision": "yes"}', "decision: expected approved or denied"),
        (
            messages.TokenBody,
            b'{"edge": "http", "agent": "x", "permissions": ["a", "b c"]}',
            "permissions[1]: expected no white space",
        ),
        (
            messages.CallBody,
            b'{"tool_id": "a/b", "input": {}, "idempotency_key": "\\u0007"}',
            "idempotency_key: expected no control characters",
        ),
        (messages.CallBody, b'{"tool_id": 1, "input": {}}', "tool_id: expected str, got int"),
    ],
)
def test_what_is_expected_is_said_with_the_field(body: Any, data: bytes, says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        decode(body, data)
    assert (refused.value.status, refused.value.text) == (400, says)
