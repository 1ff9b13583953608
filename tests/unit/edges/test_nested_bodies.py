"""A body that does not fit is refused in words, wherever in it the fault is."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from trunkline.edges.bodies import BadRequest, decode


class Inner(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    given_name: Annotated[str, Meta(pattern="^[a-z]*$", description="small letters")]
    answer: Literal["yes", "no"] = "no"


class Outer(Struct, frozen=True, forbid_unknown_fields=True):
    inner: Inner
    words: tuple[Annotated[str, Meta(pattern="^[^ ]*$", description="no white space")], ...] | None = None
    table: dict[str, dict[str, Any]] = {}
    others: list[Inner] = []
    count: Annotated[int, Meta(ge=1)] = 1


INNER = '"inner": {"givenName": "x"}'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1]", "the body: expected object, got array"),
        ("{}", "missing required field inner"),
        (f'{{{INNER}, "x`y": 1}}', "unknown field 'x`y'; known are inner, words, table, others, count"),
        (f'{{{INNER}, "count": 0}}', "count: expected int >= 1"),
        (f'{{{INNER}, "count": "1"}}', "count: expected int, got str"),
        (f'{{{INNER}, "words": ["a", "b c"]}}', "words[1]: expected no white space"),
        (f'{{{INNER}, "table": {{"a": 1}}}}', "table[...]: expected object, got int"),
        ('{"inner": {}}', "inner: missing required field givenName"),
        ('{"inner": {"givenName": "X"}}', "inner.givenName: expected small letters"),
        ('{"inner": {"givenName": "x", "answer": "perhaps"}}', "inner.answer: expected yes or no"),
        ('{"inner": {"given_name": "x"}}', "inner: unknown field 'given_name'; known are givenName, answer"),
        (f'{{{INNER}, "others": [{{"givenName": "X"}}]}}', "others[0].givenName: expected small letters"),
        (f'{{{INNER}, "others": [{{"x": 1}}]}}', "others[0]: unknown field 'x'; known are givenName, answer"),
        ("{", "the body is not strict JSON"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        decode(Outer, text.encode())
    assert refused.value.status == 400
    assert refused.value.text.startswith(says)
    assert refused.value.text == says or says.endswith("JSON")


@pytest.mark.parametrize("name", ["a` - at `$.nowhere", "a` - at `$.count.x", "` - at `$[0]", "a\n` - at `$.", "`"])
def test_a_name_that_looks_like_a_place_is_only_a_name(name: str) -> None:
    with pytest.raises(BadRequest, match="unknown field"):
        decode(Outer, json.dumps({"inner": {"givenName": "x"}, name: 1}).encode())
