"""``trunkline console`` and the address that ``up`` prints: both sign a browser in, and leave no code behind."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import NO_DEFAULT_PORTS, Running, contents, running
from tests.unit.cli.conftest import trunkline

ADDRESS = re.compile(r"http://127\.0\.0\.1:([0-9]+)(/\?code=([A-Za-z0-9_-]{43}))")


@pytest.fixture(scope="module")
def exchange(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("c") / "home") as found:
        yield found


def opened(text: str) -> int:
    """The status of opening the address in what was printed."""
    found = ADDRESS.search(text)
    assert found is not None, text
    connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=20)
    try:
        connection.request("GET", found[2])
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.slow
def test_the_address_that_up_prints_signs_in_once(exchange: Running) -> None:
    assert opened(exchange.said()) == 303
    assert opened(exchange.said()) == 403


def test_a_new_address_signs_in_once(exchange: Running) -> None:
    said = trunkline("console", "--home", str(exchange.home))
    assert said.code == 0
    assert ADDRESS.fullmatch(said.out.strip())
    assert opened(said.out) == 303
    assert opened(said.out) == 403


def test_a_program_gets_the_address_as_json(exchange: Running) -> None:
    said = trunkline("console", "--json", "--home", str(exchange.home))
    assert set(said.json) == {"url", "expires_at", "opened"}
    assert said.json["opened"] is False
    assert opened(said.json["url"]) == 303


@pytest.mark.slow
def test_a_browser_is_shown_a_file_so_that_no_process_has_the_code_among_its_arguments(
    exchange: Running, tmp_path: Path
) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {seen}\n')
    browser.chmod(0o755)
    code = (
        "import sys; sys.stdout.isatty = lambda: True\n"
        "from trunkline.cli.main import main; main(['console', '--home', sys.argv[1]])"
    )
    env = {**os.environ, "DISPLAY": ":0", "BROWSER": f"{browser} %s"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(exchange.home)],
        env=env,
        capture_output=True,
        text=True,
        timeout=40,
        check=True,
    )
    printed = ADDRESS.search(done.stdout)
    assert printed is not None
    assert "opened" in done.stderr
    file = exchange.home / "console.html"
    assert seen.read_text().strip() == file.as_uri()
    assert file.stat().st_mode & 0o777 == 0o600
    assert printed[3] in file.read_text()


def test_without_an_exchange_it_says_how_to_start_one(tmp_path: Path) -> None:
    said = trunkline("console", "--home", str(tmp_path))
    assert said.code != 0
    assert "trunkline up" in said.err or "up" in said.err


@pytest.mark.slow
def test_in_the_background_the_code_is_said_to_who_started_it_and_kept_in_no_file(short_path: Path) -> None:
    env = {**os.environ, **NO_DEFAULT_PORTS}
    command = [sys.executable, "-m", "trunkline", "up", "--detach", "--home", str(short_path)]
    started = subprocess.run(command, env=env, capture_output=True, text=True, timeout=40, check=True)
    try:
        found = ADDRESS.search(started.stdout)
        assert found is not None, started.stdout
        assert [path for path, data in contents(short_path).items() if found[3].encode() in data] == []
        assert "trunkline console" in (short_path / "exchange.log").read_text()
        assert ADDRESS.search((short_path / "exchange.log").read_text()) is None
        assert opened(started.stdout) == 303
    finally:
        trunkline("down", "--home", str(short_path))
