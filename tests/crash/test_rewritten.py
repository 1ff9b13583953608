"""The record of a real exchange, made anew, put back or cut by somebody who can write to its files and has no key."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.running import Running
from tests.unit.ledger.made import change
from tests.unit.ledger.test_heads import cut_off, remake_chain
from trunkline.ledger.heads import last_head

FILES = ("ledger.sqlite", "ledger.head", "ledger.heads")


def verify(home: Path, *options: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "trunkline", "ledger", "verify", "--json", "--home", str(home), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


def refusal(exchange: Running) -> str:
    """What a start says that is refused."""
    with pytest.raises(AssertionError, match="the exchange ended with 1"):
        exchange.start()
    return exchange.said()


@pytest.fixture
def exchange(short_path: Path) -> Running:
    """An exchange that ran twice and publishes its heads outside its home; `older` is its home after the first run."""
    made = Running(short_path / "home", f'[ledger]\nanchor = {{file = "{short_path / "share"}"}}\n')
    made.start()
    assert made.stop() == 0
    shutil.copytree(made.home, short_path / "older")
    made.start()
    assert made.stop() == 0
    return made


def newest(home: Path) -> int:
    head = last_head(home / "ledger.sqlite")
    assert head is not None
    return head.number


def test_a_clean_stop_signs_and_publishes_the_end(exchange: Running) -> None:
    code, found = verify(exchange.home)
    assert code == 0
    assert found["last"] == found["signed"] == found["anchored"] == newest(exchange.home)
    assert "entries, signed up to" in exchange.said()


def test_a_record_made_anew_is_found_and_refused(exchange: Running) -> None:
    path = exchange.home / "ledger.sqlite"
    change(path, "UPDATE entries SET data = CAST(replace(data, '\"at\":1', '\"at\":2') AS BLOB) WHERE n = 2")
    remake_chain(path)
    code, found = verify(exchange.home)
    assert (code, found["error"]["code"]) == (1, "ledger.corrupt")
    assert "is not the entry that was signed" in refusal(exchange)


def test_an_older_record_is_found_and_refused(exchange: Running) -> None:
    for name in FILES[:2]:
        shutil.copy(exchange.home.parent / "older" / name, exchange.home / name)
    code, found = verify(exchange.home)
    assert code == 1
    assert "were signed" in found["error"]["message"]
    assert "Put back the newest copy" in refusal(exchange)


def test_an_older_record_with_its_heads_is_found_by_what_was_published(exchange: Running) -> None:
    for name in FILES:
        shutil.copy(exchange.home.parent / "older" / name, exchange.home / name)
    code, found = verify(exchange.home)
    assert code == 1
    assert "were there before" in found["error"]["message"]
    (exchange.home.parent / "share").rename(exchange.home.parent / "elsewhere")
    assert verify(exchange.home)[0] == 0, "nothing in the home shows it"
    assert verify(exchange.home, "--anchor", str(exchange.home.parent / "elsewhere"))[0] == 1


def test_a_cut_record_is_found_and_refused(exchange: Running) -> None:
    cut_off(exchange.home / "ledger.sqlite", newest(exchange.home) - 1)
    assert verify(exchange.home)[0] == 1
    assert "missing; " in refusal(exchange)
