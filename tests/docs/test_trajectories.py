"""The commands of docs/trajectories.md, run as they are printed there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import play
from tests.docs.test_readme import demo
from tests.running import EXAMPLES, ROOT, Running, running, wait_until
from trunkline.canonical import canonical, openagents

PAGE = (ROOT / "docs" / "trajectories.md").read_text().replace("EXAMPLES/", f"{EXAMPLES}/")


@pytest.fixture
def exchange(short_path: Path) -> object:
    with running(short_path / "home", demo(short_path)) as found:
        for tool in ("echo/echo", "clock/now"):
            found.wait_tool(f"com.example.{tool}")
        yield found


def test_the_commands_on_the_page_print_what_it_says(exchange: Running, short_path: Path) -> None:
    calls = 0

    def before(command: str) -> None:
        nonlocal calls
        if command.startswith("trunkline call"):
            calls += 1
        elif command.startswith("trunkline ledger export"):
            wait_until(lambda: len(exchange.entries(kind="call.settled")) >= calls, "the calls are on disk")

    assert play(PAGE, exchange, short_path, before) == 10


@pytest.mark.parametrize(
    "row",
    [
        ("1.0", "1.0", "1"),
        ("1e2", "100.0", "100"),
        ("-0", "-0.0", "0"),
        ("-0.0", "-0.0", "0"),
        ("1e16", "1e16", "10000000000000000"),
        ("1.5e300", "1.5e300", "1.5e+300"),
        ("0.000001", "1e-6", "0.000001"),
        ("0.00000015", "1.5e-7", "1.5e-7"),
    ],
)
def test_the_table_of_differences_says_what_the_code_does(row: tuple[str, str, str]) -> None:
    value, ours, other = row
    assert openagents(value.encode()).decode() == ours
    assert canonical(value.encode()).decode() == other
    table = PAGE.partition("| value | openagents | rfc8785 |")[2].partition("\n\n")[0]
    assert f"`{ours}`" in table
    assert f"`{other}`" in table
