from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.requirements import main

PAGE = """\
# A protocol

| id | level | section | requirement | how it is shown |
|---|---|---|---|---|
| XX-001 | MUST | §1 | The first. | a test |
| XX-002 | SHOULD | §1 | The second, `a \\| b`. | a test |
| XX-003 | MAY | §2 | The third. | a test |

## Not covered, and why

| id | reason |
|---|---|
| XX-003 | nobody needs it |

## Afterwards
"""
FIRST = (
    'from tests.requirement import requirement\n\n\n@requirement("XX-001")\ndef test_the_first():\n    assert True\n'
)
PARAMETRIZED = """
@pytest.mark.parametrize("a", [pytest.param(1, marks=requirement("XX-002"))])
@requirement("XX-001")
def test_it(a): ...
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "protocols").mkdir(parents=True)
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    return tmp_path


def run(
    root: Path, capsys: pytest.CaptureFixture[str], *, page: str = PAGE, test: str = FIRST
) -> tuple[int, list[str]]:
    (root / "docs" / "protocols" / "a.md").write_text(page, encoding="utf-8")
    (root / "tests" / "unit" / "test_a.py").write_text(test, encoding="utf-8")
    code = main(root)
    return code, capsys.readouterr().out.splitlines()


def test_covered_and_total_are_shown_by_level_and_in_the_last_line(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = run(root, capsys)
    assert code == 0
    assert lines == [
        "A protocol",
        "  MUST      1 of 1",
        "  SHOULD    0 of 1",
        "  MAY       0 of 1",
        "  without a test:",
        "    XX-002  SHOULD The second, `a \\| b`.",
        "  not covered, and why:",
        "    XX-003  MAY    nobody needs it",
        "",
        "requirements: 1 of 3 covered",
    ]


def test_a_must_without_a_test_fails(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = run(root, capsys, test="def test_nothing(): ...\n")
    assert code == 1
    assert "error: XX-001 is a MUST and has no test" in lines
    assert lines[-1] == "requirements: 0 of 3 covered"


def test_a_reason_does_not_excuse_a_must(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.replace("| XX-003 | nobody needs it |", "| XX-001 | we would rather not |")
    code, lines = run(root, capsys, page=page, test="")
    assert code == 1
    assert "error: XX-001 is a MUST and has no test" in lines


def test_a_marker_that_names_no_row_fails_with_the_tests_name(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = run(root, capsys, test=FIRST.replace('"XX-001"', '"XX-001", "XX-999"'))
    assert code == 1
    assert "error: tests/unit/test_a.py::test_the_first: XX-999 is no row of docs/protocols/*.md" in lines


@pytest.mark.parametrize(
    "test",
    [
        "@requirement('XX-001', 'XX-002')\nasync def test_it(): ...\n",
        "@requirement('XX-001')\n@requirement('XX-002')\ndef test_it(): ...\n",
        "@requirement('XX-001', 'XX-002')\nclass TestIt: ...\n",
        "class TestIt:\n    @requirement('XX-001', 'XX-002')\n    def test_it(self): ...\n",
        "pytestmark = requirement('XX-001', 'XX-002')\n",
        "pytestmark = [requirement('XX-001'), requirement('XX-002')]\n",
        PARAMETRIZED,
        "@pytest.mark.skipif(ON_A_TUESDAY, reason='')\n@requirement('XX-001', 'XX-002')\ndef test_it(): ...\n",
    ],
)
def test_a_marker_counts_wherever_pytest_takes_one(root: Path, capsys: pytest.CaptureFixture[str], test: str) -> None:
    code, lines = run(root, capsys, test=test)
    assert (code, lines[-1]) == (0, "requirements: 2 of 3 covered")


@pytest.mark.parametrize(
    "mark", ["pytest.mark.skip", "pytest.mark.skip(reason='later')", "pytest.mark.xfail", "mark.xfail()"]
)
def test_a_test_that_never_runs_or_may_fail_proves_nothing(
    root: Path, capsys: pytest.CaptureFixture[str], mark: str
) -> None:
    code, lines = run(root, capsys, test=FIRST.replace("@requirement", f"@{mark}\n@requirement"))
    assert (code, lines[-1]) == (1, "requirements: 0 of 3 covered")


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        (FIRST.replace("def test_the", "def helper_the"), "tests/unit/test_a.py:4: this marker is on no test"),
        (FIRST.replace('"XX-001"', "NAME"), "tests/unit/test_a.py:4: write the row's id as a plain string"),
    ],
)
def test_a_marker_that_cannot_be_counted_fails_with_its_line(
    root: Path, capsys: pytest.CaptureFixture[str], test: str, problem: str
) -> None:
    code, lines = run(root, capsys, test=test)
    assert code == 1
    assert f"error: {problem}" in lines


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("| XX-002 |", "| XX-001 |", "docs/protocols/a.md:6: XX-001 stands here twice"),
        ("SHOULD", "OUGHT", "docs/protocols/a.md:6: expected | XX-002 | MUST or SHOULD or MAY | section |"),
        ("| XX-003 | no", "| XX-004 | no", "docs/protocols/a.md: XX-004 under 'not covered, and why' is no row"),
        ("nobody needs it", " ", "docs/protocols/a.md: XX-003 under 'not covered, and why' is no row"),
        ("| XX-003 | no", "| XX-001 | no", "XX-001 has a test, and a reason for having none"),
    ],
)
def test_a_page_that_contradicts_itself_fails(
    root: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, problem: str
) -> None:
    code, lines = run(root, capsys, page=PAGE.replace(before, after))
    assert code == 1
    assert any(line.startswith(f"error: {problem}") for line in lines)


def test_a_page_without_rows_fails(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "docs" / "protocols" / "b.md").write_text("# Another protocol\n\nIts rows come later.\n")
    code, lines = run(root, capsys)
    assert (code, [line for line in lines if line.startswith("error: ")]) == (
        1,
        ["error: docs/protocols/b.md: this page has no rows"],
    )


def test_what_is_quoted_on_a_page_is_no_title_and_no_row(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quoted = "\n```python\n# peer.py\n| XX-004 | MUST | §3 | An example of a row. | a test |\n```\n"
    code, lines = run(root, capsys, page=PAGE + quoted)
    assert (code, lines[0]) == (0, "A protocol")
    assert lines[-1] == "requirements: 1 of 3 covered"


def test_the_first_title_of_a_page_counts(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, capsys, page=PAGE + "\n# An appendix\n")[1][0] == "A protocol"


@pytest.mark.slow
def test_the_command_ends_with_the_count(root: Path) -> None:
    command = [sys.executable, "-m", "tools.requirements"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert ended.stdout.splitlines()[-1].startswith("requirements: ")
