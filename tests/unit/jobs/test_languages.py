"""Which languages can be read, and by what they are known."""

from __future__ import annotations

import pytest

from trunkline.jobs import languages


@pytest.mark.parametrize("language", languages.LANGUAGES, ids=lambda language: language.name)
def test_each_grammar_is_there_and_reads_an_empty_file(language: languages.Language) -> None:
    root = languages.parse(language, b"")
    assert not root.has_error
    assert list(languages.walk(root)) == [root]
    assert languages.text_of(root) == ""


def test_a_name_counts_more_than_a_suffix_and_neither_is_guessed() -> None:
    by_suffix, by_name = languages.language_of(None, "a/b.RS"), languages.language_of(" Golang ", "a.rs")
    assert by_suffix is not None
    assert by_name is not None
    assert (by_suffix.name, by_name.name) == ("rust", "go")
    assert languages.language_of(None, "Makefile") is None
    assert languages.language_of("cobol", "a.py") is None
