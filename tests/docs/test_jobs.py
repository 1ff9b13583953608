"""docs/jobs.md: its session goes as it is printed."""

from __future__ import annotations

from pathlib import Path

from tests.docs.pages import play
from tests.running import ROOT, running
from trunkline.jobs.tool_schemas import schema_id_of

PAGE = (ROOT / "docs/jobs.md").read_text()


def test_the_session_on_the_page_goes_as_it_is_printed(short_path: Path) -> None:
    with running(short_path / "home") as exchange:
        assert play(PAGE, exchange, short_path) == 4


def test_the_schema_id_on_the_page_is_that_of_the_tool() -> None:
    assert f"`com.example.echo/echo` is `{schema_id_of('com.example.echo/echo')}`" in PAGE
