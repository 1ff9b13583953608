"""``tests/unit`` mirrors ``src``: each module has a test file of its own, or docs/testing.md says where else."""

from __future__ import annotations

import re
from pathlib import Path

from tools import soak

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trunkline"
SECTION = (ROOT / "docs" / "testing.md").read_text().partition("## Where a module is tested\n")[2].partition("\n## ")[0]
ROWS = [line.split("|")[1:3] for line in SECTION.splitlines() if line.startswith("| `")]


def without_a_file() -> set[str]:
    modules = {path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.py") if "__" not in path.name}
    return {
        module.as_posix()
        for module in modules
        if not (ROOT / "tests" / "unit" / module.parent / f"test_{module.name}.py").exists()
    }


def test_the_table_names_exactly_the_modules_without_a_test_file_of_their_own() -> None:
    named = [name for modules, _ in ROWS for name in re.findall(r"`([^`]+)`", modules)]
    assert sorted(named) == sorted(without_a_file())


def test_each_test_file_that_the_table_names_exists() -> None:
    named = [name for _, tests in ROWS for name in re.findall(r"`(tests/[^`]+)`", tests)]
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert len(named) > len(ROWS)


def test_the_page_names_each_module_that_fuzzes_and_jobs_of_the_soak_that_there_are() -> None:
    section = (ROOT / "docs" / "testing.md").read_text().partition("## Fuzzing\n")[2].partition("\n## ")[0]
    modules = {
        path.stem for path in (ROOT / "tests" / "fuzz").glob("*.py") if not path.stem.startswith(("test_", "__"))
    }
    assert {name for name in modules if not re.search(rf"`{name}[`.]", section)} == set()
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row[3])} <= {job.name for job in soak.JOBS}
