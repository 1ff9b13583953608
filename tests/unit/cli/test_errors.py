"""With ``--json`` an error is JSON too: on stdout, in one shape, with the exit code and the line on stderr as ever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from tests.inhabited import accepted, refused
from tests.unit.cli.conftest import Running, Said, trunkline
from tests.unit.ledger.made import in_process
from trunkline.cli.terminal import HOME_OPTION, CommandFailed
from trunkline.events import CallRequested

TOOL = "com.example.echo/say"


def error_of(said: Said) -> dict[str, Any]:
    """The one JSON value on stdout, which is an error of the API's shape."""
    shape = json.loads(said.out)
    assert list(shape) == ["error"]
    error: dict[str, Any] = shape["error"]
    assert list(error) == ["code", "message", "retryable", "details"]
    return error


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (("agents",), "exchange.unreachable", 2),
        (("aprove",), "usage.invalid", 2),
        (("call",), "usage.invalid", 2),
        (("calls", "--last", "0"), "usage.invalid", 2),
        (("agents", "--bogus"), "usage.invalid", 2),
        (("call", TOOL, "{"), "message.malformed", 2),
        (("ledger", "show"), "ledger.unreadable", 1),
        (("logs", "nobody"), "not_found", 2),
        (("receipts", "verify", "nofile.json"), "file.unusable", 2),
        (("call", TOOL, "@/nowhere.json"), "file.unusable", 2),
        (("check", "ossa", "https://127.0.0.1:1", *("--identity", "/nowhere.json") * 2), "file.unusable", 2),
        (("up", "--config", "/nowhere.toml"), "config.invalid", 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
@pytest.mark.parametrize("where", ["before", "after"])
def test_what_goes_wrong_without_an_exchange_is_json(
    short_path: Path, arguments: tuple[str, ...], code: str, exit_code: int, where: str
) -> None:
    home = ("--home", str(short_path))
    words = (*home, "--json", *arguments) if where == "before" else (*arguments, "--json", *home)
    said, plain = trunkline(*words), trunkline(*home, *arguments)
    assert said.code == plain.code == exit_code
    assert error_of(said)["code"] == code
    assert said.err == plain.err, "people are told the same"
    assert plain.out == ""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("agents", "--bogus"), "usage.invalid"),
        (("calls", "--from", "yesterday"), "usage.invalid"),
        (("approve", "{question}", "--always"), "confirmation.required"),
        (("call", TOOL, "@/nowhere.json"), "file.unusable"),
        (("approve", "a999"), "not_found"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_only_who_wrote_the_command_line_wrong_is_shown_how_it_is_written(
    running: Running, arguments: tuple[str, ...], code: str
) -> None:
    words = [word.format(question=running.exchange.approval_id) for word in arguments]
    said = running.run(*words)
    assert said.code == 2
    assert ("Usage: " in said.err) == (code == "usage.invalid")
    assert error_of(running.run(*words, "--json"))["code"] == code


def test_a_refusal_is_json_with_all_that_the_exchange_said(running: Running) -> None:
    details = {"retry_after_ms": 5}
    running.script[CallRequested] = lambda event: [refused(event, "limit.rate", details=details)]
    said = running.run("call", TOOL, "--json")
    assert said.code == 2
    error = error_of(said)
    assert (error["code"], error["retryable"], error["details"]) == ("limit.rate", True, details)
    assert said.err == f"limit.rate: {error['message']}\n"


@pytest.mark.parametrize("questions", [("a1",), ("a1", "a2")])
def test_a_hint_in_the_json_of_an_error_names_the_home_once(running: Running, questions: tuple[str, ...]) -> None:
    said = trunkline("--json", "--home", str(running.home), "approve", *questions)
    errors = [said.json["error"]] if len(questions) == 1 else [one["error"] for one in said.json["answers"]]
    for error in errors:
        assert error["message"].endswith(f"`trunkline approvals --home {running.home}` lists what is open")
        assert error["message"].count("--home") == 1


def test_what_a_tool_says_to_type_is_not_completed_in_json_either() -> None:
    with click.Context(click.Command("x")) as context:
        context.meta[HOME_OPTION] = "/x"
        assert CommandFailed("tool.failed", "type `trunkline up`").error["message"] == "type `trunkline up`"
        assert CommandFailed("not_found", "type `trunkline up`").error["message"] == "type `trunkline up --home /x`"


def test_where_json_is_bad_is_in_the_details(running: Running) -> None:
    error = error_of(running.run("call", TOOL, '{"a": x}', "--json"))
    assert error["details"] == {"line": 1, "column": 7}


def test_nothing_invisible_is_in_the_json_of_an_error(running: Running) -> None:
    said = running.run("tools", "\x1b[31mevil", "--json")
    assert said.out.rstrip("\n").isprintable()
    assert "\x1b[31mevil" in error_of(said)["message"] or "\\x1b[31mevil" in error_of(said)["message"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_stream_that_breaks_off_is_json_and_ends_with_3(running: Running) -> None:
    def script(event: CallRequested) -> list[Any]:
        running.later(lambda: running.loop.create_task(running.edge.stop()))
        return [accepted(event)]

    running.script[CallRequested] = script
    said = running.run("call", TOOL, "--json")
    assert (said.code, error_of(said)["code"]) == (3, "hub.unavailable")


def test_an_empty_record_is_an_empty_list(short_path: Path) -> None:
    with in_process(short_path):
        pass
    home = ("--home", str(short_path))
    assert trunkline("ledger", "show", "--json", *home).json == {"entries": []}
    assert trunkline("ledger", "show", *home).out == "Nothing is on record yet.\n"
