"""Whether a result is right: by arithmetic, or because enough providers agree."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

import pytest

from tests.requirement import requirement
from trunkline.jobs.embedding import HASHING, embed
from trunkline.jobs.schemas import ANALYSIS, EMBEDDING, RERANK, SANDBOX, job_types
from trunkline.jobs.verification import Result, cosine, objective, quorum_of, subjective

PROVENANCE = {"model": "m", "provider_id": "npub1"}
RUN = {"cmd": "make", "exit_code": 0, "duration_ms": 3, "stdout_sha256": "0" * 64, "stderr_sha256": "0" * 64}
FILE = b"built"
ARTIFACT = {"path": "out", "sha256": hashlib.sha256(FILE).hexdigest(), "size_bytes": len(FILE)}
COMMANDS = {"commands": [{"cmd": "make"}]}


def built(**parts: Any) -> dict[str, Any]:
    return {"env_info": {}, "runs": [RUN], "artifacts": [ARTIFACT], "status": "success", **parts}


def result(outputs: dict[str, Any], provider: str = "p", **more: Any) -> Result:
    return Result(provider, outputs, {**PROVENANCE, **more})


# --- objective


@requirement("OA-056")
def test_a_command_that_ended_with_another_code_than_0_fails_verification() -> None:
    job = job_types()[SANDBOX]
    assert objective(job, COMMANDS, result(built())).state == "verified"
    failed = objective(job, COMMANDS, result(built(runs=[{**RUN, "exit_code": 2}], status="failed")))
    assert failed.state == "failed"
    assert failed.reasons[0] == "outputs.runs[0].exit_code: is 2"
    assert failed.to_be_paid == ()
    lied = objective(job, COMMANDS, result(built(runs=[{**RUN, "exit_code": 2}])))
    assert lied.state == "failed"
    assert lied.rejected == ("p",)


@requirement("OA-057")
def test_an_artifact_whose_hash_is_not_that_of_the_file_fails_verification() -> None:
    job = job_types()[SANDBOX]
    assert objective(job, COMMANDS, result(built()), files={"out": FILE}).state == "verified"
    altered = objective(job, COMMANDS, result(built()), files={"out": b"other"})
    assert altered.reasons == ("outputs.artifacts[0].sha256: is not the hash of the file",)
    assert objective(job, COMMANDS, result(built()), files={}).reasons == ("outputs.artifacts[0]: is not there",)


@requirement("OA-057")
def test_artifacts_and_exit_codes_that_differ_from_a_second_run_fail_verification() -> None:
    job = job_types()[SANDBOX]
    slower = built(runs=[{**RUN, "duration_ms": 99}], env_info={"machine": "other"})
    assert objective(job, COMMANDS, result(built()), rerun=slower).state == "verified"
    other = built(artifacts=[{**ARTIFACT, "sha256": "1" * 64}])
    assert objective(job, COMMANDS, result(built()), rerun=other).reasons == (
        "outputs.artifacts: differ from those of a second run",
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"embeddings": [[1.0, 0.0]]}, "outputs.embeddings: 1 for 2 texts"),
        ({"embeddings": [[1.0], [1.0, 0.0]]}, "outputs.embeddings[0]: has 1 numbers and not 2"),
        ({"embeddings": [[1.0, 0.0], [0.5, 0.5]]}, "outputs.embeddings[1]: its length is not 1"),
        ({"model": "other"}, "outputs.model: is not the one that was asked for"),
        ({"dimensions": 3}, "outputs.dimensions: 3 where 2 were asked for"),
    ],
)
def test_embeddings_of_another_count_dimension_length_or_model_fail_verification(change: Any, reason: str) -> None:
    job = job_types()[EMBEDDING]
    inputs = {"texts": ["a", "b"], "model": "m", "dimensions": 2}
    outputs = {"embeddings": [[1.0, 0.0], [0.0, 1.0]], "model": "m", "dimensions": 2}
    assert objective(job, inputs, result(outputs)).state == "verified"
    assert objective(job, inputs, result({**outputs, **change})).reasons == (reason,)


def test_a_deterministic_model_is_compared_to_the_last_digit_and_another_by_direction() -> None:
    job = job_types()[EMBEDDING]
    inputs = {"texts": ["hello world"], "model": HASHING, "dimensions": 8}
    ours = embed(["hello world"], HASHING, dimensions=8)
    theirs = copy.deepcopy(ours)
    theirs["embeddings"][0][0] += 1e-8
    assert objective(job, inputs, result(theirs), rerun=ours).state == "verified"
    assert objective(job, inputs, result(theirs), rerun=ours, is_deterministic=True).state == "failed"
    elsewhere = embed(["something else"], HASHING, dimensions=8)
    assert objective(job, inputs, result(elsewhere), rerun=ours).reasons == (
        "outputs.embeddings[0]: points elsewhere than that of a second run",
    )


def test_a_result_is_rejected_if_its_hash_does_not_compute_or_it_does_not_say_who_made_it() -> None:
    job = job_types()[SANDBOX]
    good = result(built())
    claimed = Result("p", built(), PROVENANCE, job.output_hash(built()))
    assert objective(job, COMMANDS, claimed).state == "verified"
    wrong = objective(job, COMMANDS, Result("p", built(), PROVENANCE, "sha256:" + "0" * 64))
    assert (wrong.reasons, wrong.rejected) == (("output_hash: does not compute",), ("p",))
    nameless = objective(job, COMMANDS, Result("p", good.outputs, {"provider_id": "npub1"}))
    assert nameless.reasons == ("provenance.model: is missing",)


@requirement("OA-059")
def test_the_same_result_has_the_same_verdict_each_time_whatever_the_order_of_keys() -> None:
    job = job_types()[SANDBOX]
    again = json.loads(json.dumps(built(), sort_keys=True))
    verdicts = {objective(job, COMMANDS, result(outputs)).output_hash for outputs in (built(), built(), again)}
    assert len(verdicts) == 1
    assert objective(job, COMMANDS, result(built())) == objective(job, COMMANDS, result(built()))


# --- subjective

RANKING = {"user_task": "t", "candidates": [{"id": name, "content": name} for name in "abc"]}


def ranked(order: str, provider: str, score: float = 0.5) -> Result:
    topk = [{"rank": rank, "id": name, "score": score} for rank, name in enumerate(order, start=1)]
    return result({"topk": topk}, provider)


@requirement("OA-060")
def test_a_job_runs_on_as_many_providers_as_its_type_says_and_they_have_to_agree() -> None:
    job = job_types()[RERANK]
    first = subjective(job, RANKING, [ranked("abc", "p1")])
    assert (first.state, first.reasons) == ("more", ("1 of 2 providers answered",))
    both = subjective(job, RANKING, [ranked("abc", "p1"), ranked("abc", "p2", score=0.9)])
    assert (both.state, both.agreed, both.to_be_paid) == ("verified", ("p1", "p2"), ("p1", "p2"))
    assert both.outputs["topk"][0]["score"] == 0.5


@requirement("OA-061")
def test_the_majority_decides_among_differing_results_and_the_verdict_names_who_differed() -> None:
    job = job_types()[RERANK]
    two = [ranked("abc", "p1"), ranked("bac", "p2")]
    assert subjective(job, RANKING, two).state == "more"
    three = subjective(job, RANKING, [*two, ranked("bac", "p3")])
    assert (three.state, three.agreed, three.dissented) == ("verified", ("p2", "p3"), ("p1",))
    assert three.to_be_paid == ("p2", "p3")


def test_without_a_majority_two_more_are_asked_and_then_the_job_has_failed_and_nobody_is_paid() -> None:
    job = job_types()[RERANK]
    orders = ["abc", "acb", "bac", "bca"]
    results = [ranked(order, f"p{number}") for number, order in enumerate(orders)]
    assert [subjective(job, RANKING, results[:count]).state for count in (2, 3, 4)] == ["more", "more", "failed"]
    ended = subjective(job, RANKING, results)
    assert ended.to_be_paid == ()
    assert ended.dissented == ("p0", "p1", "p2", "p3")
    # Two against two is no majority either.
    tied = [ranked("abc", "p1"), ranked("abc", "p2"), ranked("bca", "p3"), ranked("bca", "p4")]
    assert subjective(job, RANKING, tied).state == "failed"


def test_a_provider_that_answers_twice_counts_once() -> None:
    job = job_types()[RERANK]
    verdict = subjective(job, RANKING, [ranked("abc", "p1"), ranked("abc", "p1"), ranked("abc", "p1")])
    assert (verdict.state, verdict.reasons) == ("more", ("1 of 2 providers answered",))


def test_a_result_that_is_not_what_it_claims_is_rejected_by_name_and_does_not_count() -> None:
    job = job_types()[RERANK]
    stranger = result({"topk": [{"rank": 1, "id": "z", "score": 1}]}, "liar")
    verdict = subjective(job, RANKING, [stranger, ranked("abc", "p1"), ranked("abc", "p2")])
    assert (verdict.agreed, verdict.rejected) == (("p1", "p2"), ("liar",))
    assert verdict.reasons == ("liar: outputs.topk[0].id: is none of the candidates",)


@requirement("OA-062")
def test_a_judge_decides_which_results_mean_the_same() -> None:
    job = job_types()[RERANK]
    results = [ranked("abc", "p1"), ranked("acb", "p2"), ranked("cab", "p3")]

    def same_winner(_: Any, __: Any, given: Any) -> list[int]:
        return [ord(outputs["topk"][0]["id"]) for outputs in given]

    verdict = subjective(job, RANKING, results, wanted=3, judge=same_winner)
    assert (verdict.state, verdict.agreed, verdict.dissented) == ("verified", ("p1", "p2"), ("p3",))
    none = subjective(job, RANKING, results, wanted=3, judge=lambda *_: [None, None, None])
    assert none.state == "more"
    with pytest.raises(ValueError, match="judge"):
        subjective(job, RANKING, results, wanted=3, judge=lambda *_: [1])


@requirement("OA-062")
def test_the_built_in_judge_of_analyses_looks_at_symbols_and_faults_and_not_at_words() -> None:
    job = job_types()[ANALYSIS]
    inputs = {"task": "t", "chunk": {"path": "a.py", "start_line": 1, "end_line": 9, "content": "x"}}

    def analysed(summary: str, line: int, provider: str) -> Result:
        fault = {"line": line, "severity": "low", "description": summary}
        outputs = {"symbols": [], "suspected_faults": [fault], "recommended_next_probes": [], "confidence": 0.5}
        return result({"summary": summary, **outputs}, provider)

    assert subjective(job, inputs, [analysed("a", 1, "p1"), analysed("b", 1, "p2")]).state == "verified"
    assert subjective(job, inputs, [analysed("a", 1, "p1"), analysed("a", 2, "p2")]).state == "more"


def test_a_quorum_is_more_than_half() -> None:
    assert [quorum_of(count) for count in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


def test_the_cosine_of_vectors_without_length_or_of_other_sizes_is_0() -> None:
    assert cosine([1.0, 0.0], [2.0, 0.0]) == 1.0
    assert cosine([0.0], [1.0]) == 0.0
    assert cosine([1.0], [1.0, 0.0]) == 0.0
