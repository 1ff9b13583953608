"""``edges.tool_results``: a server's schema inside that of the whole result, and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline import schemas
from trunkline.edges.tool_results import enveloped, structured

OWN = {
    "type": "object",
    "properties": {"head": {"$ref": "#/$defs/node"}, "$ref": {"const": {"$ref": "#/x"}}},
    "required": ["head"],
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "all": {"$ref": "#"}}}},
}
_names = st.sampled_from(["$ref", "type", "properties", "const", "enum", "a"])
_values = st.recursive(
    st.sampled_from(["#", "#/a", "#a", "https://x", 1, None, True]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3),
)


@given(st.dictionaries(_names, _values, max_size=4))
def test_what_goes_in_comes_out(schema: dict[str, Any]) -> None:
    assert structured(enveloped(schema)) == schema


def test_references_still_lead_where_they_led() -> None:
    whole = enveloped(OWN)
    inside = whole["properties"]["structuredContent"]
    assert inside["properties"]["head"] == {"$ref": "#/properties/structuredContent/$defs/node"}
    assert inside["properties"]["$ref"] == {"const": {"$ref": "#/x"}}, "data is no schema"
    assert structured(whole) == OWN


def test_the_whole_can_be_used_as_a_schema() -> None:
    import json

    assert schemas.judge(json.dumps(enveloped(OWN)).encode()) is None


@pytest.mark.parametrize("schema", [None, True, [], {}, {"properties": []}, {"properties": {"content": {}}}])
def test_any_other_schema_has_no_structured_content(schema: object) -> None:
    assert structured(schema) is None
