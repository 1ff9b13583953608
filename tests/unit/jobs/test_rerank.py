"""Candidates in the order in which they serve a task."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.jobs import consistency
from trunkline.jobs.rerank import rerank, words_of
from trunkline.jobs.schemas import RERANK, job_types

JOB = job_types()[RERANK]


def ranked(task: str, *contents: str, **more: Any) -> list[dict[str, Any]]:
    candidates = [{"id": str(index), "content": content} for index, content in enumerate(contents)]
    topk: list[dict[str, Any]] = rerank(JOB.filled({"user_task": task, "candidates": candidates, **more}))["topk"]
    return topk


def test_the_candidate_that_the_task_is_about_comes_first_with_the_words_that_say_so() -> None:
    first, *_ = ranked("parse an HTTP date", "def cook(meal)", "def parseHTTPDate(text)", "the date of a meal")
    assert first["id"] == "1"
    assert first["why"] == "shares date, http, parse"


def test_what_means_the_same_in_other_words_comes_before_what_does_not() -> None:
    assert ranked("kitten", "stock market report", "a small cat")[0]["id"] == "1"


def test_a_rubric_and_a_path_count_too() -> None:
    assert ranked("find it", "x", "y", ranking_rubric="prefer y")[0]["id"] == "1"
    named = [{"id": "a", "content": "x"}, {"id": "b", "content": "x", "path": "src/invoices.py"}]
    topk = rerank(JOB.filled({"user_task": "invoices", "candidates": named}))["topk"]
    assert topk[0]["id"] == "b"


def test_no_more_than_k_are_given_and_equals_keep_their_order() -> None:
    assert [one["id"] for one in ranked("zzz", "same", "same", "same", k=2)] == ["0", "1"]


def test_identifiers_are_taken_apart_as_people_read_them() -> None:
    assert words_of("parseHTTPDate2 of snake_case") == ["parse", "http", "date", "2", "snake", "case"]


@settings(max_examples=25, deadline=None)
@given(st.text(min_size=1, max_size=40), st.lists(st.text(max_size=40), min_size=1, max_size=5), st.integers(1, 6))
def test_whatever_the_texts_are_the_outputs_are_an_answer(task: str, contents: list[str], k: int) -> None:
    candidates = [{"id": str(index), "content": content} for index, content in enumerate(contents)]
    inputs = JOB.filled({"user_task": task, "candidates": candidates, "k": k})
    outputs = rerank(inputs)
    assert JOB.output_problem(outputs) == ""
    assert consistency.output_problem(RERANK, inputs, outputs) == ""
    assert len(outputs["topk"]) == min(k, len(contents))
