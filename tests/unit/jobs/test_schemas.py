"""What a job type is, which inputs and outputs it takes, and the hashes that name a job and its result."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tests.requirement import requirement
from trunkline.jobs.schemas import (
    ANALYSIS,
    CURRENT,
    EMBEDDING,
    RERANK,
    SANDBOX,
    BadJobSchema,
    count_tokens,
    job_types,
    read_schema,
)

# The structure that the specification prints, with its placeholders filled.
EXAMPLE: dict[str, Any] = {
    "schema_id": "oa.code.review.v2",
    "inputs": {"diff": {"type": "string", "required": True, "description": "..."}},
    "outputs": {"findings": {"type": "array", "description": "..."}},
    "verification_mode": "subjective",
    "hash_rules": {"algorithm": "sha256", "canonicalization": "json_canonical", "scope": "full_output"},
    "provenance": {
        "model": "required",
        "provider_id": "required",
        "token_counts": "recommended",
        "sampling_params": "optional",
    },
}
VALID: dict[str, dict[str, Any]] = {
    EMBEDDING: {"texts": ["a"], "model": "m"},
    RERANK: {"user_task": "t", "candidates": [{"id": "a", "content": "c"}]},
    SANDBOX: {"commands": [{"cmd": "true"}]},
    ANALYSIS: {"task": "t", "chunk": {"path": "a.py", "start_line": 1, "end_line": 1, "content": "x"}},
}


def changed(**parts: Any) -> bytes:
    return json.dumps({**EXAMPLE, **parts}).encode()


@requirement("OA-051", "OA-038", "OA-041")
def test_the_structure_of_the_specification_parses_and_is_written_back_as_it_was() -> None:
    import msgspec

    assert json.loads(msgspec.json.encode(read_schema(changed()))) == EXAMPLE


@requirement("OA-037")
@pytest.mark.parametrize("schema_id", [*CURRENT, "oa.code.review.v12", "oa.trunkline.a_sb.v1"])
def test_ids_of_three_and_of_four_parts_are_ids(schema_id: str) -> None:
    assert read_schema(changed(schema_id=schema_id)).schema_id == schema_id


@requirement("OA-037")
@pytest.mark.parametrize(
    "schema_id", ["oa.v1", "oa.a.b.c.v1", "oa.A.v1", "oa.a.v0", "oa.a.v01", "oa.a", "xx.a.v1", "oa.a.v1\n", "oa.9.v1"]
)
def test_other_ids_are_refused(schema_id: str) -> None:
    with pytest.raises(BadJobSchema, match="schema_id"):
        read_schema(changed(schema_id=schema_id))


@requirement("OA-043", "OA-044", "OA-045", "OA-046", "OA-038")
@pytest.mark.parametrize(
    ("parts", "place"),
    [
        ({"verification_mode": "Objective"}, "verification_mode"),
        ({"hash_rules": {"algorithm": "sha512"}}, "algorithm"),
        ({"hash_rules": {"canonicalization": "jcs"}}, "canonicalization"),
        ({"hash_rules": {"scope": "first_kilobyte"}}, "scope"),
        ({"inputs": {"a": {"type": "text", "required": True, "description": ""}}}, "inputs"),
        ({"inputs": {"a": {"type": "string", "description": ""}}}, "required"),
        ({"inputs": {"a": {"type": "string", "required": True}}}, "description"),
        ({"outputs": {"a": {"type": "string"}}}, "description"),
        ({"provenance": {"model": "wanted"}}, "provenance"),
    ],
)
def test_a_schema_that_says_something_else_is_refused_by_the_name_of_the_place(parts: Any, place: str) -> None:
    with pytest.raises(BadJobSchema, match=place):
        read_schema(changed(**parts))


@requirement("OA-036", "OA-052", "OA-053", "OA-054", "OA-055")
@pytest.mark.parametrize(
    ("schema_id", "mode"),
    [(ANALYSIS, "subjective"), (RERANK, "subjective"), (SANDBOX, "objective"), (EMBEDDING, "objective")],
)
def test_the_four_current_types_are_registered_with_their_verification(schema_id: str, mode: str) -> None:
    job = job_types()[schema_id]
    assert job.schema.verification_mode == mode
    assert job.schema.inputs
    assert job.schema.outputs
    assert job.input_problem(VALID[schema_id]) == ""


@pytest.mark.parametrize("schema_id", CURRENT)
def test_structure_and_details_of_a_type_name_the_same_fields(schema_id: str) -> None:
    job = job_types()[schema_id]
    assert list(job.schema.inputs) == list(job.detail.inputs["properties"])
    assert list(job.schema.outputs) == list(job.detail.outputs["properties"])
    required = {name for name, field in job.schema.inputs.items() if field.required}
    assert required == set(job.detail.inputs["required"])


@requirement("OA-039")
@pytest.mark.parametrize("schema_id", CURRENT)
def test_a_job_without_one_of_its_required_inputs_is_refused_by_name(schema_id: str) -> None:
    job = job_types()[schema_id]
    for name, field in job.schema.inputs.items():
        if field.required:
            given = {key: value for key, value in VALID[schema_id].items() if key != name}
            assert job.input_problem(given) == f"inputs.{name}: is missing"


@requirement("OA-040")
@pytest.mark.parametrize("schema_id", CURRENT)
def test_an_input_of_another_type_is_refused_by_name(schema_id: str) -> None:
    job = job_types()[schema_id]
    wrong = {"string": 1, "integer": 1.5, "array": {}, "object": [], "boolean": "true", "number": "1"}
    for name, field in job.schema.inputs.items():
        assert (
            job.input_problem({**VALID[schema_id], name: wrong[field.type]}) == f"inputs.{name}: expected {field.type}"
        )


@pytest.mark.parametrize(
    ("schema_id", "inputs", "place"),
    [
        (EMBEDDING, {"texts": [], "model": "m"}, "inputs.texts"),
        (EMBEDDING, {"texts": ["a"] * 257, "model": "m"}, "inputs.texts"),
        (EMBEDDING, {"texts": ["a", 1], "model": "m"}, r"inputs.texts\[1\]"),
        (EMBEDDING, {"texts": ["a"], "model": "m", "dimension": 3}, "dimension"),
        (SANDBOX, {"commands": [{"cmd": "x", "workdir": 3}]}, r"inputs.commands\[0\].workdir"),
        (SANDBOX, {"commands": [{"cmd": "x"}], "sandbox": {"network_policy": "some"}}, "inputs.sandbox.network_policy"),
        (RERANK, {"user_task": "t", "candidates": [{"id": "a"}]}, r"inputs.candidates\[0\]"),
        (RERANK, {"user_task": "t", "candidates": [{"id": "a", "metadata": {"n": 2**64}}]}, "more than 64 bits"),
        (RERANK, {"user_task": "t", "candidates": [{"id": "a", "metadata": {"n": float("inf")}}]}, "not finite"),
        (ANALYSIS, {"task": "t", "chunk": {"path": "a"}}, "inputs.chunk"),
    ],
)
def test_what_is_wrong_further_inside_is_named_by_its_place(schema_id: str, inputs: Any, place: str) -> None:
    import re

    assert re.search(place, job_types()[schema_id].input_problem(inputs))


@requirement("OA-042")
@pytest.mark.parametrize(
    ("schema_id", "outputs", "place"),
    [
        (EMBEDDING, {"embeddings": "x", "model": "m", "dimensions": 1}, "outputs.embeddings: expected array"),
        (EMBEDDING, {"embeddings": [], "dimensions": 1}, "outputs.model: is missing"),
        (RERANK, {"topk": [{"rank": 0, "id": "a", "score": 0}]}, "outputs.topk[0].rank"),
        (SANDBOX, {"env_info": {}, "runs": [], "artifacts": [], "status": "fine"}, "outputs.status"),
    ],
)
def test_outputs_that_do_not_match_are_refused_by_name(schema_id: str, outputs: Any, place: str) -> None:
    assert job_types()[schema_id].output_problem(outputs).startswith(place)


def test_defaults_are_filled_in_at_every_depth_and_what_was_said_stays() -> None:
    job = job_types()[SANDBOX]
    given = {"commands": [{"cmd": "a"}, {"cmd": "b", "continue_on_fail": True}], "sandbox": {"network_policy": "full"}}
    assert job.filled(given) == {
        "commands": [{"cmd": "a", "continue_on_fail": False}, {"cmd": "b", "continue_on_fail": True}],
        "sandbox": {"network_policy": "full", "resources": {"memory_mb": 512, "cpus": 1.0, "timeout_secs": 60}},
    }
    assert "sandbox" not in VALID[SANDBOX]
    assert job_types()[RERANK].filled(VALID[RERANK])["k"] == 10
    assert job_types()[EMBEDDING].filled(VALID[EMBEDDING]) == {"texts": ["a"], "model": "m", "normalize": True}


def test_a_whole_number_with_a_point_is_the_integer_and_names_the_same_job() -> None:
    job = job_types()[RERANK]
    pointed = {**VALID[RERANK], "k": 3.0}
    assert job.input_problem(pointed) == ""
    assert repr(job.filled(pointed)["k"]) == "3"
    assert job.job_hash(pointed) == job.job_hash({**pointed, "k": 3})
    assert repr(job_types()[SANDBOX].filled(VALID[SANDBOX])["sandbox"]["resources"]["cpus"]) == "1.0"


def test_a_job_hash_covers_schema_and_inputs_with_defaults() -> None:
    job = job_types()[EMBEDDING]
    text = '{"inputs":{"model":"m","normalize":true,"texts":["a"]},"schema_id":"oa.embedding.v1"}'
    expected = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    assert job.job_hash({"texts": ["a"], "model": "m"}) == expected
    assert job.job_hash({"normalize": True, "model": "m", "texts": ["a"]}) == expected
    assert job.job_hash({"texts": ["a"], "model": "m", "normalize": False}) != expected


def test_a_hash_of_inputs_as_they_were_sent_names_the_same_job_and_that_of_others_does_not() -> None:
    job = job_types()[SANDBOX]
    sent = {"commands": [{"cmd": "a"}]}
    text = json.dumps({"schema_id": SANDBOX, "inputs": sent}, sort_keys=True, separators=(",", ":"))
    assert job.is_job_hash("sha256:" + hashlib.sha256(text.encode()).hexdigest(), sent)
    assert job.is_job_hash(job.job_hash(sent), sent)
    assert not job.is_job_hash(job.job_hash({"commands": [{"cmd": "b"}]}), sent)


def test_durations_and_what_it_ran_on_are_left_out_of_the_hash_of_a_sandbox_job_and_nothing_else_is() -> None:
    job = job_types()[SANDBOX]
    run = {"cmd": "a", "exit_code": 0, "duration_ms": 1, "stdout_sha256": "0" * 64, "stderr_sha256": "0" * 64}
    outputs = {"env_info": {"a": 1}, "runs": [run], "artifacts": [], "status": "success"}
    other = {**outputs, "env_info": {}, "runs": [{**run, "duration_ms": 2}]}
    assert job.output_hash(outputs) == job.output_hash(other)
    assert job.output_hash(outputs) != job.output_hash({**outputs, "runs": [{**run, "exit_code": 1}]})
    assert job.output_hash(outputs) != job.output_hash({**outputs, "status": "failed"})


@requirement("OA-047", "OA-048", "OA-049", "OA-050")
def test_provenance_needs_model_and_provider_misses_token_counts_and_does_not_mind_sampling() -> None:
    job = job_types()[EMBEDDING]
    whole = {"model": "m", "provider_id": "npub1", "token_counts": {"input": 1}}
    assert job.check_provenance(whole).problems == ()
    assert job.check_provenance(whole).warnings == ()
    assert job.check_provenance({**whole, "model": ""}).problems == ("provenance.model: is missing",)
    assert job.check_provenance({**whole, "provider_id": None}).problems == ("provenance.provider_id: is missing",)
    assert job.check_provenance({**whole, "model": 3}).problems == ("provenance.model: expected string",)
    without = job.check_provenance({"model": "m", "provider_id": "npub1"})
    assert without.problems == ()
    assert without.warnings == ("provenance.token_counts: is missing",)
    assert len(job.check_provenance(None).problems) == 2


def test_tokens_are_words_and_single_signs_of_all_texts() -> None:
    assert count_tokens({"a": ["one two, three!", 3], "b": {"c": "x_y"}}) == 6
