"""The session of docs/mcp.md, run as it is printed, and its table of files against the code."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.docs.pages import play
from tests.running import EXAMPLES, ROOT, Running, running, wait_until
from trunkline.cli.mcp_clients import CLIENTS

PAGE = (ROOT / "docs" / "mcp.md").read_text()


@pytest.fixture
def exchange(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("HOME", str(short_path))
    config = f'[[agent]]\nid = "com.example.echo"\ncommand = ["{sys.executable}", "{EXAMPLES / "echo.py"}"]\n'
    with running(short_path / "home", config) as found:
        found.wait_tool("com.example.echo/echo")
        yield found


def test_the_session_goes_as_it_is_printed(exchange: Running) -> None:
    def before(command: str) -> None:
        if command.startswith("trunkline calls"):
            wait_until(lambda: len(exchange.entries(kind="call.settled")) >= 2, "both calls are on disk")

    assert play(PAGE, exchange, exchange.home.parent, before) >= 6


def test_the_page_has_the_files_of_all_clients() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| `([^`]*)`[^|]*\| `([^`]*)` \| `([^`]*)` \|$", PAGE, re.MULTILINE)
    environ = {"HOME": "~", "APPDATA": "%APPDATA%", "USERPROFILE": "%USERPROFILE%"}
    assert [row[0] for row in rows] == list(CLIENTS)
    for name, linux, macos, windows in rows:
        known = CLIENTS[name]
        found = tuple(str(known.file(environ, platform)) for platform in ("linux", "darwin", "win32"))
        assert found == (linux, macos, windows.replace("\\", "/"))
