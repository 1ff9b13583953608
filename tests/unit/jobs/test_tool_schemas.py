"""Any tool as a job type, and back."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from trunkline.jobs.schemas import SCHEMA_ID
from trunkline.jobs.tool_schemas import job_type_of, schema_id_of, tool_of

TOOL_IDS = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,30}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}\Z")


@given(TOOL_IDS)
def test_a_tool_is_found_again_by_its_schema_id_which_is_one(tool_id: str) -> None:
    schema_id = schema_id_of(tool_id)
    assert SCHEMA_ID.fullmatch(schema_id)
    assert tool_of(schema_id) == tool_id


@given(st.text(alphabet="abcpshuxz_019", max_size=12))
def test_at_most_one_spelling_stands_for_a_tool(middle: str) -> None:
    schema_id = f"oa.trunkline.{middle}.v1"
    tool_id = tool_of(schema_id)
    assert tool_id is None or schema_id_of(tool_id) == schema_id


def test_the_mapping_is_the_documented_one() -> None:
    assert schema_id_of("com.example.Echo/say_it-2") == "oa.trunkline.com_pexample_p_cecho_ssay_uit_h2.v1"
    assert schema_id_of("9a/x") == "oa.trunkline.x__9a_sx.v1"


@pytest.mark.parametrize(
    "schema_id", ["oa.embedding.v1", "oa.trunkline.a.v1", "oa.trunkline.a_sb.v2", "oa.trunkline..v1"]
)
def test_other_ids_stand_for_no_tool(schema_id: str) -> None:
    assert tool_of(schema_id) is None


@pytest.mark.parametrize("tool_id", ["", "a", "a/", "/b", "a b/c", "a/b/c", "ä/b"])
def test_what_is_no_tool_has_no_schema_id(tool_id: str) -> None:
    with pytest.raises(ValueError, match="tool"):
        schema_id_of(tool_id)


def test_a_tools_own_schemas_judge_the_inputs_and_outputs_of_the_job() -> None:
    inputs = {"type": "object", "properties": {"text": {"type": "string"}, "x": {}}, "required": ["text"]}
    outputs = {"type": "object", "properties": {"n": {"type": "integer", "description": "how many"}}}
    job = job_type_of("a/b", "Counts.", Raw(msgspec.json.encode(inputs)), Raw(msgspec.json.encode(outputs)))
    assert job.schema.verification_mode == "subjective"
    assert {name: field.type for name, field in job.schema.inputs.items()} == {"text": "string", "x": "any"}
    assert job.schema.outputs["n"].description == "how many"
    assert job.input_problem({}) == "inputs.text: is missing"
    assert job.input_problem({"text": "a", "x": [1]}) == ""
    assert job.output_problem({}) == ""
    assert job.output_problem({"n": "1"}) == "outputs.n: expected integer"
    assert job.job_hash({"text": "a"}).startswith("sha256:")
