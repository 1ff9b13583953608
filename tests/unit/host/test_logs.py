"""What the exchange prints: text for people, JSON lines for programs, from a level on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import running, wait_until
from trunkline.config import Log
from trunkline.host.logs import OwnHandler, notice, set_up


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    for handler in [one for one in root.handlers if isinstance(one, OwnHandler)]:
        root.removeHandler(handler)


def test_a_json_line_has_time_level_and_message_and_an_exception_is_a_field(capsys: pytest.CaptureFixture[str]) -> None:
    set_up(Log(format="json"))
    logging.getLogger("trunkline").warning("the disk is\n%s", "full")
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("other").exception("it failed")
    notice("  up")
    first, second, third = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["level"], first["message"]) == ("warning", "the disk is\nfull")
    assert first["time"].endswith("Z")
    assert "ValueError: no" in second["exception"]
    assert (third["level"], third["message"]) == ("info", "up")


def test_below_the_level_nothing_is_printed_and_another_one_replaces_it(capsys: pytest.CaptureFixture[str]) -> None:
    set_up(Log(level="error"))
    logging.getLogger("trunkline").warning("hidden")
    set_up(Log(level="warning"))
    logging.getLogger("trunkline").warning("shown once")
    said = capsys.readouterr().err
    assert "hidden" not in said
    assert said.count("shown once") == 1


@pytest.mark.slow
def test_every_line_of_an_exchange_that_prints_json_is_json_and_a_reload_changes_the_level(short_path: Path) -> None:
    config = '[log]\nformat = "json"\n'
    with running(short_path / "home", config) as exchange:
        text = exchange.config_file.read_text()
        exchange.config_file.write_text(text.replace("[log]\n", '[log]\nlevel = "error"\n'))
        assert exchange.request("POST", "/v1/reload")[0] == 200
        wait_until(lambda: "is up in" in exchange.said(), "the first lines")
        exchange.stop()
        messages = [json.loads(line)["message"] for line in exchange.said().splitlines()]
    assert any("is up in" in message for message in messages)
    assert "stopped" not in messages, "it is no error"
