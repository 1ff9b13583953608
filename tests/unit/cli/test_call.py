"""``trunkline call``: output, faults, exit codes, questions, progress, Ctrl-C, and how soon it asks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from tests.inhabited import ANY_OBJECT, CALL_ID, accepted, answered, asks, progressed, refused, view
from tests.unit.cli.conftest import Running
from trunkline.cli import call as call_module
from trunkline.cli.client import ExchangeClient
from trunkline.entries import CallSettled
from trunkline.errors import ExchangeUnreachable
from trunkline.events import CallRequested, CancelRequested
from trunkline.model import FAULTS, Status, ToolDefinition, fault
from trunkline.shown import AgentView, Question, TokenView

TOOL = "com.example.echo/say"
STAMP = "2026-11-15T10:00:00.000Z"
BOUND_S = 10


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_module, "POLL_FIRST_S", 0.01)


def settle(running: Running, status: Status, **more: Any) -> None:
    running.script[CallRequested] = lambda event: [accepted(event), answered(event, status, **more)]


def test_the_output_is_printed_as_it_came(running: Running) -> None:
    said = running.run("call", TOOL, '{"n": 12345678901234567890, "x" : 1.10}')
    assert (said.code, said.out, said.err) == (0, '{"n": 12345678901234567890, "x" : 1.10}\n', "")


def test_no_json_is_an_empty_object(running: Running) -> None:
    assert running.run("call", TOOL).out == "{}\n"


def test_json_comes_from_stdin_or_a_file_too(running: Running, tmp_path: Path) -> None:
    assert running.run("call", TOOL, "-", stdin=b'{"from":"stdin"}').out == '{"from":"stdin"}\n'
    file = tmp_path / "input.json"
    file.write_bytes(b'{"from":\n "file"}')
    assert json.loads(running.run("call", TOOL, f"@{file}").out) == {"from": "file"}
    missing = running.run("call", TOOL, "@/nowhere.json")
    assert missing.code == 2
    assert "No such file" in missing.err


@pytest.mark.parametrize(
    ("text", "says", "mark"),
    [
        ('{"a": x}', "line 1, column 7", '  {"a": x}\n        ^'),
        ('{"a": 1,\n "b": }', "line 2, column 7", '   "b": }\n        ^'),
        ('{"a": 1, "a": 2}', "a key appears twice in one object, line 1, column 10", "^"),
        ("{'a': 1}", "line 1, column 2", "^"),
        ('{"a": NaN}', "line 1, column 7", "^"),
        ("", "empty", ""),
        ('{"a": "\x1b[31m"}', "line 1", "\\u001b[31m"),
        ('{"' + "k" * 300 + '": x}', "column", "^"),
    ],
)
def test_bad_json_is_shown_where_it_is_bad(running: Running, text: str, says: str, mark: str) -> None:
    said = running.run("call", TOOL, text)
    assert said.code == 2
    assert said.err.startswith("message.malformed: the input is not JSON: ")
    assert says in said.err
    assert mark in said.err
    assert max(map(len, said.err.splitlines())) < 120
    assert not running.fed


def test_who_writes_an_input_as_name_and_value_is_shown_it_as_json(running: Running) -> None:
    said = running.run("call", TOOL, 'text=it\'s "me"')
    assert (said.code, running.fed) == (2, [])
    [first, *below] = said.err.splitlines()
    assert first.startswith("message.malformed: the input is not JSON: ")
    assert below[-1] == """  write '{"text": "it'"'"'s \\"me\\""}'"""
    assert "write" not in running.run("call", TOOL, "text hello").err
    assert "write" not in running.run("call", TOOL, '{"a=b": x}').err


def test_all_options_reach_the_exchange(running: Running) -> None:
    options = ("--timeout", "1.5", "--key", "k", "--correlation", "c", "--directive", "d-1")
    running.exchange.attach("com.a", ToolDefinition("com.a/go", "", ANY_OBJECT, requires_directive=True))
    settle(running, Status.SUCCEEDED)
    assert running.run("call", "com.a/go", "{}", *options).code == 0
    [asked] = running.fed
    assert isinstance(asked, CallRequested)
    assert (asked.timeout_ms, asked.key, asked.correlation_id, asked.causation_id) == (1500, "k", "c", "d-1")


def test_a_directive_for_a_tool_that_needs_none_is_refused(running: Running) -> None:
    said = running.run("call", TOOL, "{}", "--directive", "zz")
    assert (said.code, running.fed) == (2, [])
    assert said.err == f"state.conflict: {TOOL} needs no directive; call it without --directive\n"


def test_a_result_that_does_not_fit_is_named_by_its_file(running: Running) -> None:
    kept = {"$file": "/home/x/\x1b.json", "bytes": 5_000_000, "sha256": "0" * 64}
    settle(running, Status.FAILED, fault=fault("tool.output_too_large", "it does not fit", details=kept))
    said = running.run("call", TOOL)
    assert said.code == 1
    assert said.err == "tool.output_too_large: it does not fit\nall of it: /home/x/\\u001b.json\n"
    settle(running, Status.FAILED, fault=fault("tool.output_too_large", details={"$file": 1}))
    assert "all of it" not in running.run("call", TOOL).err


def test_a_tool_that_failed_says_where_its_agent_printed_why_if_that_is_here(running: Running) -> None:
    settle(running, Status.FAILED, fault=fault("tool.failed"))
    assert running.run("call", TOOL).err == "tool.failed: the tool failed\n"
    (running.home / "logs" / "com.example.echo").mkdir(parents=True)
    assert running.run("call", TOOL).err.endswith("\nwhat it printed: trunkline logs com.example.echo\n")


@pytest.mark.parametrize("option", [("--timeout", "0"), ("--timeout", "x"), ("--bogus",)], ids=" ".join)
def test_bad_usage_ends_with_2(running: Running, option: tuple[str, ...]) -> None:
    assert running.run("call", TOOL, *option).code == 2
    assert running.run("call").code == 2


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (Status.FAILED, "tool.failed", 1),
        (Status.FAILED, "tool.timeout", 1),
        (Status.FAILED, "com.example.own_code", 1),
        (Status.FAILED, "policy.denied", 2),
        (Status.FAILED, "approval.expired", 2),
        (Status.CANCELED, "tool.canceled", 3),
        (Status.UNKNOWN, "agent.lost", 3),
        (Status.UNKNOWN, "tool.timeout", 3),
    ],
)
def test_the_exit_code_says_how_the_call_ended(running: Running, status: Status, code: str, exit_code: int) -> None:
    problem = fault(code) if code in FAULTS else fault("tool.failed").__class__(code, "mine")
    settle(running, status, fault=problem)
    said = running.run("call", TOOL)
    assert (said.code, said.out) == (exit_code, "")
    assert said.err == f"{code}: {problem.message}\n"


@pytest.mark.parametrize("code", [code for code, row in FAULTS.items() if row.http != 200])
def test_a_refusal_ends_with_the_code_of_the_table(running: Running, code: str) -> None:
    running.script[CallRequested] = lambda event: [refused(event, code)]
    said = running.run("call", TOOL)
    assert said.code == FAULTS[code].exit_code
    # A missing tool is named, with what was perhaps meant.
    assert said.err.startswith(f"{code}: {'no tool ' if code == 'tool.not_found' else FAULTS[code].text}")
    below = {
        "tool.invalid_input": [f"its input: trunkline tools {TOOL}"],
        "tool.suspended": [
            "com.example.echo comes in by itself over opensentience: each change of its tools is asked about"
        ],
    }
    assert said.err.splitlines()[1:] == below.get(code, [])


def test_an_unknown_tool_gets_suggestions(running: Running) -> None:
    running.script[CallRequested] = lambda event: [refused(event, "tool.not_found")]
    for name in ("com.example.echo/sya", "say", "other/say"):
        said = running.run("call", name)
        assert said.code == 2
        assert said.err == f"tool.not_found: no tool {name!r}; did you mean com.example.echo/say?\n"
    assert running.run("call", "quite/different").err.endswith(
        "no tool 'quite/different'; `trunkline tools` lists them\n"
    )


def test_the_id_of_an_agent_is_said_to_be_one_with_its_tools(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    # As those that the exchange launches.
    agents = [replace(agent, steerable=True) for agent in running.exchange.views.agents()]
    monkeypatch.setattr(running.exchange.views, "agents", lambda: agents)
    said = running.run("call", "com.example.mail")
    text = "com.example.mail is an agent, not one of its tools; did you mean com.example.mail/send?"
    assert (said.code, said.err) == (2, f"tool.not_found: {text}\n")
    assert text in running.run("policy", "check", "operator", "com.example.mail").out
    said = running.run("call", "com.example.echo")
    assert "did you mean com.example.echo/say or com.example.echo/big?" in said.err


def test_the_tool_of_an_agent_that_is_not_configured_any_more_is_told_of_with_what_brings_it_back(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.later(running.exchange.echo.leave)
    said = running.run("call", TOOL)
    assert said.code == 1
    nobody = "tool.unavailable: no agent com.example.echo is configured or connected now"
    assert said.err.startswith(f"{nobody}; it is one of the examples: trunkline down, then trunkline up --demo")
    logs = running.home / "logs" / "com.example.echo"
    logs.mkdir(parents=True)
    (logs / "a.log").touch()
    assert running.run("call", TOOL).err.startswith(f"{nobody}; its last log ends at ")
    monkeypatch.setattr("trunkline.host.begin.EXAMPLES", ())
    assert "; add its [[agent]] to trunkline.toml and trunkline reload, or " in running.run("call", TOOL).err


def test_where_a_changed_definition_need_not_be_asked_about_is_said_of_agents_of_the_configuration_only(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.script[CallRequested] = lambda event: [refused(event, "tool.suspended")]
    assert "pin_definitions" not in running.run("call", TOOL).err
    assert running.run("call", "com.example.gone/say").err.count("\n") == 1
    agents = [replace(agent, steerable=True) for agent in running.exchange.views.agents()]
    monkeypatch.setattr(running.exchange.views, "agents", lambda: agents)
    told = "while you develop it: pin_definitions = false in its [[agent]], and trunkline reload\n"
    assert running.run("call", TOOL).err.endswith(told)


def test_an_agent_with_a_credential_that_is_away_is_not_to_be_added_to_the_configuration(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.host.begin.EXAMPLES", ())
    running.later(running.exchange.echo.leave)
    made = TokenView("t9", "pigeon", "com.example.echo", "2026-01-01T00:00:00.000Z", type="grey")
    monkeypatch.setattr(running.exchange.operator, "tokens", lambda: [made])
    said = running.run("call", TOOL).err
    assert said.endswith("; it comes in by itself over pigeon, with t9: start its program\n")
    monkeypatch.setattr(running.exchange.operator, "tokens", lambda: [replace(made, revoked=True)])
    again = "trunkline token new pigeon --agent com.example.echo --type grey makes another credential\n"
    assert running.run("call", TOOL).err.endswith(f"; it came in over pigeon, and t9 was revoked: {again}")


def test_a_near_miss_at_an_agent_that_is_away_names_the_tools_of_that_agent(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As after a restart: they are on record, and nobody has offered them since.
    monkeypatch.setattr(running.exchange.operator, "known_tools", lambda _: ["com.example.away/say"])
    for said in (
        running.run("call", "com.example.away/sya").err,
        running.run("policy", "check", "operator", "com.example.away/sya").out,
    ):
        assert "no tool 'com.example.away/sya'; did you mean com.example.away/say?" in said


def test_json_gives_the_whole_answer(running: Running) -> None:
    shape = running.run("call", TOOL, "--json").json
    [settled] = [entry for entry in running.exchange.news if isinstance(entry, CallSettled)]
    assert (shape["call_id"], shape["status"], shape["output"]) == (settled.call_id, "succeeded", {})
    assert shape["finished_at"] == "2027-01-15T08:00:00.000Z"
    settle(running, Status.FAILED, fault=fault("tool.failed"))
    said = running.run("call", TOOL, "--json")
    assert said.code == 1
    assert said.json["error"]["code"] == "tool.failed"
    assert said.err.startswith("tool.failed: ")


def test_an_output_cannot_move_the_cursor(running: Running) -> None:
    nasty = json.dumps({"a": "\x1b[2J\u202e\u200b"}, ensure_ascii=False).encode()
    settle(running, Status.SUCCEEDED, output=Raw(nasty))
    said = running.run("call", TOOL)
    assert said.out.rstrip("\n").isprintable()
    assert json.loads(said.out) == json.loads(nasty)


# --- progress ---------------------------------------------------------------------------------------------------------


def test_progress_goes_to_stderr_as_it_comes_and_only_when_asked_for(running: Running) -> None:
    def script(event: CallRequested) -> list[Any]:
        return [
            accepted(event),
            progressed(event, 1, b'{"text":"one\\n"}'),
            progressed(event, 2, b'{"text":"half "}', "stderr"),
            progressed(event, 3, b'{"text":"line\\u001b[31m"}'),
            progressed(event, 4, b'{"text":"fetching","percent":50}', "status"),
            progressed(event, 5, b'{"text":"75 %","percent":75}', "status"),
            progressed(event, 6, b'{"json":{"part":1}}', "partial_result"),
            answered(event, output=Raw(b"{}")),
        ]

    running.script[CallRequested] = script
    said = running.run("call", TOOL, "--follow")
    assert said.out == "{}\n"
    assert said.err == 'one\nhalf line\\u001b[31m\n50 % fetching\n75 %\n{"json":{"part":1}}\n'
    assert running.run("call", TOOL).err == ""


def test_who_waits_for_a_call_is_told_once_of_a_question_inside_it(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_module, "LOOK_EVERY_S", 0.01)
    exchange, asked, notes, looks = running.exchange, [], [], []
    question = Question("a42", "call", "opensentience:b", STAMP, STAMP, "a rule asks", tool_id="c/write\x1b")
    held_up = view(CALL_ID, "operator", Status.RUNNING, approval_id="a42")

    def script(event: CallRequested) -> list[Any]:
        asked.append(event)
        return [accepted(event)]

    def look(_: str) -> Any:
        looks.append(len(notes))
        if looks.count(1) == 2:
            running.later(exchange.answering.say, answered(asked[0], output=Raw(b"{}")))
        return held_up

    running.script[CallRequested] = script
    exchange.pretend(questions=[question])
    monkeypatch.setattr(exchange.views, "call", look)
    monkeypatch.setattr(call_module, "note", notes.append)
    said = running.run("call", TOOL)
    assert (said.code, said.out) == (0, "{}\n")
    assert notes == [
        "waiting for approval a42 of c/write\\u001b, called inside: trunkline approve a42  or  trunkline deny a42"
    ]


def test_who_waits_for_an_answer_is_told_that_it_is_asked_again_by_another_name(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_module, "LOOK_EVERY_S", 0.01)
    running.script[CallRequested] = lambda event: [asks(event)]
    notes: list[str] = []
    again = view(CALL_ID, "operator", Status.WAITING_APPROVAL, approval_id="a43")
    over = view(CALL_ID, "operator", output=Raw(b"{}"))
    monkeypatch.setattr(call_module, "note", notes.append)
    monkeypatch.setattr(running.exchange.views, "call", lambda _: over if "asked again" in str(notes) else again)
    said = running.run("call", TOOL)
    assert (said.code, said.out) == (0, "{}\n")
    assert notes[1:] == ["asked again as a43: trunkline approve a43  or  trunkline deny a43"]


def held_up_inside(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that runs, and that a question of a call inside holds up."""
    monkeypatch.setattr(call_module, "LOOK_EVERY_S", 0.01)
    question = Question("a42", "call", "opensentience:b", STAMP, STAMP, "a rule asks", tool_id="c/write")
    running.script[CallRequested] = lambda event: [accepted(event)]
    running.exchange.pretend(questions=[question])
    held_up = view(CALL_ID, "operator", Status.RUNNING, approval_id="a42")
    monkeypatch.setattr(running.exchange.views, "call", lambda _: held_up)


def test_no_wait_leaves_also_when_a_question_inside_holds_the_call_up(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_up_inside(running, monkeypatch)
    said = running.run("call", TOOL, "--no-wait")
    assert (said.code, said.out) == (3, "")
    assert "waiting for approval a42 of c/write, called inside: trunkline approve a42" in said.err
    assert "left; a42 stays open, and the call goes on" in said.err


def test_ctrl_c_leaves_and_cancels_nothing_while_a_question_inside_is_open(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_up_inside(running, monkeypatch)
    told = call_module.QuestionInside.found

    def press(inside: call_module.QuestionInside, approval_id: str) -> None:
        told(inside, approval_id)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    monkeypatch.setattr(call_module.QuestionInside, "found", press)
    said = running.run("call", TOOL)
    assert said.code == 3
    assert "left; a42 stays open, and the call goes on" in said.err
    assert not any(isinstance(event, CancelRequested) for event in running.fed)


# --- questions --------------------------------------------------------------------------------------------------------


def test_no_wait_ends_at_the_question_with_3(running: Running) -> None:
    running.script[CallRequested] = lambda event: [asks(event)]
    said = running.run("call", TOOL, "--no-wait")
    assert (said.code, said.out) == (3, "")
    assert "trunkline approve a42  or  trunkline deny a42\n" in said.err
    assert f"left; a42 stays open. When it was answered, trunkline ledger show --call {CALL_ID} has" in said.err
    assert running.run("call", TOOL, "--no-wait", "--json").json["approval_id"] == "a42"


@pytest.mark.parametrize("follow", [(), ("--follow",)], ids=["poll", "follow"])
def test_a_question_is_waited_for_and_its_answer_brings_the_outcome(running: Running, follow: tuple[str, ...]) -> None:
    exchange = running.exchange
    running.script[CallRequested] = lambda event: [asks(event)]
    running.exchange.pretend(calls=[view(CALL_ID, "operator", Status.WAITING_APPROVAL, approval_id="a42")])
    waits, done = exchange.views.call(CALL_ID), view(CALL_ID, "operator", output=Raw(b'{"done":true}'))
    looks = []
    is_done = threading.Event()

    def look(call_id: str) -> Any:
        looks.append(call_id)
        if len(looks) == 2 and not follow:
            is_done.set()
        elif len(looks) == 1 and follow:
            running.later(finish)
        return done if is_done.is_set() else waits

    def finish() -> None:
        is_done.set()
        for line in (
            {"kind": "progress", "call_id": "another", "data": {"text": "not mine\n"}},
            {"kind": "progress", "call_id": CALL_ID, "data": {"text": "mine\n"}},
            {"kind": "call.settled", "n": 1, "at": 1, "call_id": CALL_ID, "status": "succeeded"},
        ):
            running.watchers[0](json.dumps(line).encode())

    exchange.views.call = look  # type: ignore[method-assign]
    said = running.run("call", TOOL, *follow)
    assert (said.code, said.out) == (0, '{"done":true}\n')
    assert said.err.startswith("waiting for approval a42 (until ")
    assert ("mine\n" in said.err) is bool(follow)
    assert "not mine" not in said.err


def test_a_denied_call_ends_with_2(running: Running) -> None:
    running.script[CallRequested] = lambda event: [asks(event)]
    denied = fault("policy.denied", "not today")
    running.exchange.pretend(calls=[view(CALL_ID, "operator", Status.FAILED, error=denied)])
    said = running.run("call", TOOL)
    assert said.code == 2
    assert said.err.splitlines()[-1] == "policy.denied: not today"


def test_waiting_outlives_a_restart_of_the_exchange(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    running.script[CallRequested] = lambda event: [asks(event)]
    running.exchange.pretend(calls=[view(CALL_ID, "operator", output=Raw(b"1"))])
    ready = running.home / "ready.json"
    text = ready.read_text()
    look, connections = call_module._look, []

    def gone_twice(exchange: ExchangeClient, call_id: str) -> Any:
        connections.append(exchange)
        if len(connections) == 3:
            return look(exchange, call_id)
        # First with its file, then back under the same name.
        ready.unlink() if len(connections) == 1 else ready.write_text(text)
        raise ExchangeUnreachable("gone")

    monkeypatch.setattr(call_module, "_look", gone_twice)
    said = running.run("call", TOOL)
    assert (said.code, said.out) == (0, "1\n")
    assert connections[2] is not connections[0], "the exchange may have come back on another port"


def test_an_exchange_that_stays_away_leaves_the_question_open(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_module, "RESTART_S", 0.05)
    ready = running.home / "ready.json"

    def script(event: CallRequested) -> list[Any]:
        ready.unlink()
        running.later(lambda: running.loop.create_task(running.edge.stop()))
        return [asks(event)]

    running.script[CallRequested] = script
    said = running.run("call", TOOL)
    assert said.code == 3
    assert "trunkline up" in said.err


# The listener stops under its own connections: on a busy machine their sockets are collected before they are closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_stream_that_breaks_off_is_not_a_success(running: Running) -> None:
    def script(event: CallRequested) -> list[Any]:
        running.later(lambda: running.loop.create_task(running.edge.stop()))
        return [accepted(event)]

    running.script[CallRequested] = script
    said = running.run("call", TOOL)
    assert said.code == 3
    [asked] = running.fed
    assert said.err.startswith("hub.unavailable: ")
    assert f"`trunkline ledger show --call {accepted(asked).call_id}` shows how it ended" in said.err


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


def started(running: Running, *arguments: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-c",
        "from trunkline.cli.main import main; main()",
        "--home",
        str(running.home),
        *arguments,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_line(process: subprocess.Popen[str], word: str) -> str:
    """The first line on stderr with this word; the test's own timeout bounds it."""
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return line
    raise AssertionError(f"{word!r} never came")


@pytest.mark.slow
def test_the_first_interrupt_cancels_and_the_outcome_is_still_told(running: Running) -> None:
    asked: list[CallRequested] = []

    def script(event: CallRequested) -> list[Any]:
        asked.append(event)
        return [accepted(event), progressed(event, 1, b'{"text":"started\\n"}')]

    running.script[CallRequested] = script
    running.exchange.pretend(calls=[view(CALL_ID, "operator", Status.RUNNING)])
    running.exchange.answering.on_fed = lambda event: (
        running.exchange.answering.say(answered(asked[0], Status.CANCELED, fault=fault("tool.canceled")))
        if isinstance(event, CancelRequested)
        else None
    )
    process = started(running, "call", TOOL, "--follow")
    wait_line(process, "started")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 3
    assert out == ""
    assert "canceling; Ctrl-C again to leave" in err
    assert err.splitlines()[-1].startswith("tool.canceled: ")


@pytest.mark.slow
def test_the_second_interrupt_leaves(running: Running) -> None:
    def script(event: CallRequested) -> list[Any]:
        return [accepted(event), progressed(event, 1, b'{"text":"started\\n"}')]

    running.script[CallRequested] = script
    running.exchange.pretend(calls=[view(CALL_ID, "operator", Status.RUNNING)])
    process = started(running, "call", TOOL, "--follow")
    wait_line(process, "started")
    process.send_signal(signal.SIGINT)
    wait_line(process, "canceling")
    # The cancellation is asked for inside the first signal's handler; the second one counts after it.
    deadline = time.monotonic() + BOUND_S
    while not any(isinstance(event, CancelRequested) for event in running.fed) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 3
    assert CALL_ID in err


@pytest.mark.slow
def test_an_interrupt_while_a_person_is_asked_leaves_the_question_open(running: Running) -> None:
    running.script[CallRequested] = lambda event: [asks(event)]
    running.exchange.pretend(calls=[view(CALL_ID, "operator", Status.WAITING_APPROVAL, approval_id="a42")])
    process = started(running, "call", TOOL)
    wait_line(process, "waiting for approval a42")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 3
    assert "a42 stays open" in err
    assert not [event for event in running.fed if isinstance(event, CancelRequested)]


# --- speed ------------------------------------------------------------------------------------------------------------


def test_a_call_loads_little_before_it_asks(running: Running) -> None:
    """The budget is 0.3 s; what takes the time is imports, so they are what is held down here."""
    script = (
        "import sys, trunkline.cli.main as m\ntry: m.main()\nexcept SystemExit: print(*sorted(sys.modules), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "--home", str(running.home), "call", TOOL, '{"a":1}'],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ},
    )
    loaded = set(done.stdout.splitlines())
    heavy = {"asyncio", "rich", "httpx", "starlette", "uvicorn", "apsw", "jsonschema_rs", "cryptography", "hyperscan"}
    assert not heavy & loaded
    assert "trunkline.cli.watch" not in loaded


def test_a_tool_whose_agent_does_not_run_is_told_of_with_what_keeps_it_away(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    (running.home / "logs" / "com.example.weather").mkdir(parents=True)
    away = AgentView("com.example.weather", "opensentience", "backoff", note="exit code 2")
    monkeypatch.setattr(running.exchange.views, "agents", lambda: [away])
    said = running.run("call", "com.example.weather/forecast", "{}")
    assert said.code == 2
    assert said.err == (
        "tool.not_found: com.example.weather is backoff (exit code 2): "
        "trunkline agents, trunkline logs com.example.weather\n"
    )
    shutil.rmtree(running.home / "logs")
    without = running.run("call", "com.example.weather/forecast", "{}").err
    assert without.endswith("(exit code 2): trunkline agents\n"), "a log that there is not is not named"
    assert "away          1 of those to launch: com.example.weather: trunkline agents" in running.run("status").out


@pytest.mark.parametrize(
    ("state", "said"),
    [("stopping", "com.example.echo is restarting: trunkline agents"), ("ready", "is there now: call it again")],
)
def test_a_call_that_meets_a_restart_says_so(
    running: Running, monkeypatch: pytest.MonkeyPatch, state: str, said: str
) -> None:
    running.script[CallRequested] = lambda event: [refused(event, "tool.unavailable")]
    restarted = AgentView("com.example.echo", "opensentience", state, steerable=True)
    monkeypatch.setattr(running.exchange.views, "agents", lambda: [restarted])
    assert said in running.run("call", TOOL).err
