"""``docs/performance.md`` has the figures of a run that is kept beside it, and nobody's memory of one."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from bench.contenders import CONTENDERS, HTTP_CONTENDERS
from bench.report import FIGURES, lines, page
from bench.results import Results
from tests.unit.bench.made import results

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


def test_the_figures_on_the_page_are_those_of_the_run_it_names() -> None:
    (name,) = re.findall(r"^From `(bench/results/\S+\.json)`:$", PAGE, re.MULTILINE)
    kept = msgspec.json.decode((ROOT / name).read_bytes(), type=Results)
    assert page(PAGE, kept, name) == PAGE


def test_the_page_says_what_stands_behind_each_row() -> None:
    titles = [one.title for one in (*CONTENDERS, *HTTP_CONTENDERS)]
    assert re.findall(r"^\| ([^|`]+?) \| [^|]*(?:→|the same)", PAGE, re.MULTILINE) == titles


def test_new_figures_replace_the_old_ones_and_nothing_else() -> None:
    text = f"# Title\n\nwords\n\n{FIGURES}\n\nold\n\n| old |\n\n## After\n\nmore\n"
    made = results(relay=(100.0,), nats=(20.0,))
    shown = page(text, made, "some.json")
    assert shown.startswith(f"# Title\n\nwords\n\n{FIGURES}\n\nFrom `some.json`:\n")
    assert shown.endswith("\n\n## After\n\nmore\n")
    assert "old" not in shown
    assert all(line in shown for line in lines(made))
    assert page(shown, made, "some.json") == shown


def test_a_page_without_a_place_for_figures_is_left_alone() -> None:
    with pytest.raises(ValueError, match="has no line '## Figures'"):
        page("# Title\n", results(), "some.json")
