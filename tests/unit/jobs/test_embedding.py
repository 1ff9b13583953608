"""Texts as vectors."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.errors import JobRefused
from trunkline.jobs import embedding
from trunkline.jobs.embedding import HASHING, WORDLLAMA, embed
from trunkline.jobs.verification import cosine


@given(st.lists(st.text(max_size=60), min_size=1, max_size=4), st.integers(1, 64))
def test_each_text_has_a_vector_of_length_1_and_the_wanted_size(texts: list[str], size: int) -> None:
    made = embed(texts, HASHING, dimensions=size)
    assert [len(vector) for vector in made["embeddings"]] == [size] * len(texts)
    for vector in made["embeddings"]:
        assert math.isclose(math.sqrt(sum(number * number for number in vector)), 1, abs_tol=1e-6)


def test_the_hashing_model_gives_these_numbers_on_every_machine() -> None:
    assert embed(["hello"], HASHING, dimensions=4)["embeddings"] == [[0.0, 0.301511345, 0.301511345, -0.904534034]]
    assert embed(["a", "b"], HASHING)["dimensions"] == 256


@pytest.mark.slow
@pytest.mark.parametrize("model", [HASHING, WORDLLAMA])
def test_texts_that_are_alike_are_nearer_than_others_and_company_changes_nothing(model: str) -> None:
    texts = ["the cat sat on the mat", "a cat is sitting on a mat", "quarterly revenue of the bank"]
    cat, other_cat, bank = embed(texts, model)["embeddings"]
    assert cosine(cat, other_cat) > cosine(cat, bank)
    assert embed(texts[:1], model)["embeddings"] == [cat]


def test_without_normalizing_a_longer_text_has_a_longer_vector() -> None:
    short, long = embed(["one", "one two three"], HASHING, normalize=False)["embeddings"]
    assert sum(x * x for x in long) > sum(x * x for x in short) > 1


def test_a_model_that_is_not_here_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobRefused, match=f"inputs.model: .*{HASHING}"):
        embed(["a"], "gpt-9")
    monkeypatch.setattr(embedding.importlib.util, "find_spec", lambda _: None)
    assert embedding.local_models() == (HASHING,)
    with pytest.raises(JobRefused, match=f"there are {HASHING}$"):
        embed(["a"], WORDLLAMA)


def test_more_dimensions_than_the_model_has_are_refused() -> None:
    assert len(embed(["a"], WORDLLAMA, dimensions=64)["embeddings"][0]) == 64
    with pytest.raises(JobRefused, match=r"inputs\.dimensions"):
        embed(["a"], WORDLLAMA, dimensions=257)
