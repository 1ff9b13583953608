"""Agent Spaces, as an agent meets it: operations in a real space of a real exchange."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.requirement import requirement
from tests.running import Running, calling, running, wait_until
from tests.spaces import SpaceOf, checked, look, resume

CONFIG = """
[[policy.rule]]
caller = "http:stranger"
tool = "space.*"
decision = "deny"
reason = "not here"

[[policy.rule]]
caller = "http:helper"
tool = "space.*"
decision = "allow"
"""


@pytest.fixture(scope="module")
def exchange() -> Iterator[Running]:
    """An exchange whose rules keep one caller out of all spaces."""
    folder = Path(tempfile.mkdtemp(prefix="tl-"))
    with running(folder / "home", CONFIG) as found:
        yield found
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def space(exchange: Running) -> SpaceOf:
    return SpaceOf(exchange)


# --- messages ---------------------------------------------------------------------------------------------------------


@requirement("SP-005", "SP-039", "SP-040")
def test_every_events_message_has_a_version_a_run_and_a_status(space: SpaceOf) -> None:
    answers = [
        space.ask({"type": "message", "content": "x"}),
        space.ask({"type": "message", "content": "x"}),
        space.ask({"type": "shell", "id": "rm", "command": "rm -rf data/"}),
        space.ask({"type": "nothing"}),
        space.ask(query="?wait=0"),
        space.exchange.request("POST", f"/v1/spaces/{space.name}/runs", [1]),
        space.exchange.request("POST", f"/v1/spaces/{space.name}/runs", {}, headers={"Content-Type": "text/plain"}),
    ]
    assert all(answer["protocolVersion"] == "1.0" for _, answer in answers)
    assert len({answer["runId"] for _, answer in answers}) == len(answers)
    said = [(status, answer["status"]) for status, answer in answers]
    assert said[:4] == [(200, "completed"), (200, "completed"), (200, "awaiting_approval"), (400, "error")]
    assert said[5:] == [(400, "error"), (415, "error")]


@requirement("SP-008", "SP-041")
def test_operations_run_one_after_another_in_their_order(space: SpaceOf) -> None:
    events = space.run(
        {"type": "createFile", "id": "1", "path": "a.txt", "content": "first"},
        {"type": "readFile", "id": "2", "path": "a.txt"},
        {"type": "shell", "id": "3", "command": "printf second > a.txt"},
        {"type": "readFile", "id": "4", "path": "a.txt"},
        {"type": "deleteFile", "id": "5", "path": "a.txt"},
        {"type": "readFile", "id": "6", "path": "a.txt"},
    )
    assert [event["operationId"] for event in events] == ["1", "2", "3", "4", "5", "6"]
    assert [events[1]["content"], events[3]["content"], events[5]["success"]] == ["first", "second", False]


@requirement("SP-043", "SP-044")
def test_every_event_has_its_type_a_time_and_the_id_of_its_operation(space: SpaceOf) -> None:
    operations: list[dict[str, Any]] = [
        {"type": "message", "content": "x"},
        {"type": "createFile", "path": "a", "content": "x"},
        {"type": "createFile", "path": "a", "content": "x"},
        {"type": "readFile", "path": "a"},
        {"type": "editFile", "path": "a", "edits": [{"oldContent": "x", "newContent": "y"}]},
        {"type": "deleteFile", "path": "a"},
        {"type": "shell", "command": "true"},
        {"type": "shell", "command": "sleep 5", "timeout": 50},
        {"type": "shell", "command": "sudo true"},
        {"type": "shell", "command": "true", "cwd": "missing"},
        {"type": "shell", "command": "rm -r x"},
    ]
    for named in (True, False):
        given = [{**operation, "id": f"n{i}"} if named else operation for i, operation in enumerate(operations)]
        before = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)
        status, answer = space.ask(*given)
        assert status == 200
        for i, event in enumerate(answer["events"]):
            moment = dt.datetime.fromisoformat(event["timestamp"])
            assert before < moment < dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
            if named:
                assert event["operationId"] == f"n{i}"
            elif event["type"] == "approvalRequired":
                assert event["operationId"] == "op-10"
            else:
                assert "operationId" not in event
        kinds = [event["type"] for event in answer["events"]]
        assert kinds[-3:] == ["policyDenied", "error", "approvalRequired"]


@requirement("SP-001", "SP-070")
def test_one_bad_operation_and_nothing_of_the_message_is_done(space: SpaceOf) -> None:
    status, answer = space.ask(
        {"type": "createFile", "path": "a", "content": "x"},
        {"type": "call", "tool": "x"},
        {"type": "readFile", "path": "../etc"},
    )
    assert (status, answer["status"]) == (400, "error")
    assert [(e["type"], e["category"], e["details"]["index"]) for e in answer["events"]] == [
        ("error", "validation", 1),
        ("error", "validation", 2),
    ]
    assert answer["events"][1]["details"]["path"] == "operations[2].path"
    assert space.files() == []
    assert space.exchange.request("GET", f"/v1/runs/{answer['runId']}")[0] == 404


@requirement("SP-002")
def test_an_agent_that_sends_events_is_told_so(space: SpaceOf) -> None:
    message = {"protocolVersion": "1.0", "runId": "run_abc123", "status": "completed", "events": []}
    status, answer = space.exchange.request("POST", f"/v1/spaces/{space.name}/runs", message)
    assert status == 400
    assert "from the runtime to the agent" in checked(answer)["events"][0]["message"]


# --- files ------------------------------------------------------------------------------------------------------------


@requirement("SP-013", "SP-045")
def test_a_message_does_nothing(space: SpaceOf) -> None:
    event = space.one("message", content="rm -rf / && touch x")
    assert {key: event[key] for key in ("type", "success")} == {"type": "message", "success": True}
    assert space.files() == []


@requirement("SP-016", "SP-046")
def test_bytes_are_counted_not_characters(space: SpaceOf) -> None:
    assert space.one("createFile", path="e", content="")["bytesWritten"] == 0
    assert (space.root / "e").read_bytes() == b""
    helper = "export const helper = () => {};"
    assert space.one("createFile", path="src/utils.ts", content=helper)["bytesWritten"] == 31
    event = space.one("createFile", path="deep/er/ü.txt", content="Grüße 🎈")
    assert event["success"] is True
    assert event["path"] == "deep/er/ü.txt"
    assert event["bytesWritten"] == len("Grüße 🎈".encode())
    assert (space.root / "deep" / "er" / "ü.txt").read_text() == "Grüße 🎈"


@requirement("SP-018")
def test_base64_is_written_as_the_bytes_it_stands_for(space: SpaceOf) -> None:
    data = bytes(range(256))
    content = base64.b64encode(data).decode()
    assert space.one("createFile", path="b.bin", content=content, encoding="base64")["bytesWritten"] == 256
    assert (space.root / "b.bin").read_bytes() == data


@requirement("SP-020", "SP-047", "SP-048")
def test_a_file_that_is_there_stays_as_it_is(space: SpaceOf) -> None:
    space.write("a.txt", "old")
    event = space.one("createFile", path="a.txt", content="new")
    assert (event["path"], event["success"], event["error"]) == ("a.txt", False, "File already exists")
    assert (space.root / "a.txt").read_text() == "old"


@requirement("SP-021")
def test_with_overwrite_it_is_replaced(space: SpaceOf) -> None:
    space.write("a.txt", "old and longer")
    assert space.one("createFile", path="a.txt", content="new", overwrite=True)["bytesWritten"] == 3
    assert (space.root / "a.txt").read_text() == "new"


@requirement("SP-024", "SP-050")
def test_a_file_is_read_in_the_encoding_that_was_asked_for(space: SpaceOf) -> None:
    space.write("config.json", '{"key": "value"}')
    event = space.one("readFile", path="config.json")
    wanted = {"path": "config.json", "success": True, "content": '{"key": "value"}', "encoding": "utf-8", "size": 16}
    assert {key: event[key] for key in wanted} == wanted
    event = space.one("readFile", path="config.json", encoding="base64")
    assert (event["encoding"], event["size"]) == ("base64", 16)
    assert base64.b64decode(event["content"]) == b'{"key": "value"}'


@requirement("SP-025")
def test_reading_a_missing_file_fails(space: SpaceOf) -> None:
    event = space.one("readFile", path="nowhere.txt")
    assert (event["path"], event["success"], event["error"]) == ("nowhere.txt", False, "File not found")


def test_what_is_not_text_is_read_as_base64_only(space: SpaceOf) -> None:
    space.one("createFile", path="b", content="/w==", encoding="base64")
    event = space.one("readFile", path="b")
    assert not event["success"]
    assert "base64" in event["error"]
    assert space.one("readFile", path="b", encoding="base64")["content"] == "/w=="
    assert (
        space.one("editFile", path="b", edits=[{"oldContent": "a", "newContent": "b"}])["error"]
        == "File is not valid UTF-8"
    )


@requirement("SP-027")
def test_editing_a_missing_file_fails(space: SpaceOf) -> None:
    event = space.one("editFile", path="a.txt", edits=[{"oldContent": "a", "newContent": "b"}])
    assert (event["success"], event["editsApplied"], event["error"]) == (False, 0, "File not found")


@requirement("SP-030", "SP-052")
def test_each_edit_works_on_the_result_of_the_one_before(space: SpaceOf) -> None:
    space.write("a.ts", "const x = 1;\n")
    edits = [{"oldContent": "x = 1", "newContent": "y = 2"}, {"oldContent": "y = 2", "newContent": "z = 3"}]
    event = space.one("editFile", path="a.ts", edits=edits)
    assert (event["path"], event["success"], event["editsApplied"]) == ("a.ts", True, 2)
    assert (space.root / "a.ts").read_text() == "const z = 3;\n"


def test_an_edit_that_does_not_fit_changes_nothing(space: SpaceOf) -> None:
    space.write("a.txt", "one two two")
    first = {"oldContent": "one", "newContent": "1"}
    for second, error in (
        ({"oldContent": "three", "newContent": "3"}, "Edit 2: oldContent not found"),
        ({"oldContent": "two", "newContent": "2"}, "Edit 2: oldContent occurs 2 times"),
    ):
        event = space.one("editFile", path="a.txt", edits=[first, second])
        assert (event["success"], event["editsApplied"], event["error"]) == (False, 0, error)
        assert (space.root / "a.txt").read_text() == "one two two"
    everywhere = {"oldContent": "two", "newContent": "2", "replaceAll": True}
    assert space.one("editFile", path="a.txt", edits=[first, everywhere])["editsApplied"] == 2
    assert (space.root / "a.txt").read_text() == "1 2 2"


@requirement("SP-032", "SP-054")
def test_a_deleted_file_is_gone_and_its_folder_stays(space: SpaceOf) -> None:
    space.write("tmp/temp.txt", "x")
    event = space.one("deleteFile", path="tmp/temp.txt")
    assert (event["path"], event["success"]) == ("tmp/temp.txt", True)
    assert space.files() == ["tmp"]
    assert space.one("deleteFile", path="tmp/temp.txt")["error"] == "File not found"
    assert space.one("deleteFile", path="tmp")["category"] == "validation"


@requirement("SP-071")
def test_a_link_out_of_the_space_is_a_violation(space: SpaceOf) -> None:
    assert space.shell("ln -s /etc/hostname inside; ln -s /etc folder")["success"]
    for operation in (
        {"type": "readFile", "path": "inside"},
        {"type": "readFile", "path": "folder/hostname"},
        {"type": "createFile", "path": "folder/new", "content": "x"},
        {"type": "createFile", "path": "inside", "content": "x", "overwrite": True},
        {"type": "editFile", "path": "inside", "edits": [{"oldContent": "a", "newContent": "b"}]},
    ):
        (event,) = space.run(operation)
        assert (event["type"], event["category"]) == ("error", "policy"), operation
    assert space.one("deleteFile", path="inside")["success"]
    assert Path("/etc/hostname").exists()


# --- shell ------------------------------------------------------------------------------------------------------------


@requirement("SP-055", "SP-056")
def test_a_command_tells_how_it_ended_and_what_it_printed(space: SpaceOf) -> None:
    event = space.shell("echo out; echo err >&2")
    told = {key: event[key] for key in ("command", "success", "exitCode", "stdout", "stderr")}
    assert told == {
        "command": "echo out; echo err >&2",
        "success": True,
        "exitCode": 0,
        "stdout": "out\n",
        "stderr": "err\n",
    }
    assert 0 <= event["durationMs"] < 20_000
    event = space.shell("echo no; exit 3")
    assert (event["success"], event["exitCode"], event["stdout"]) == (False, 3, "no\n")
    assert space.shell("kill -9 $$")["exitCode"] == 137
    assert space.shell("no-such-command")["exitCode"] == 127
    event = space.shell("exit 124")
    assert (event["exitCode"], "timedOut" in event) == (124, False)


@requirement("SP-035")
def test_a_command_starts_in_the_root_or_where_it_is_told(space: SpaceOf) -> None:
    space.write("src/a.txt", "x")
    assert space.shell("ls")["stdout"] == "src\n"
    assert space.shell("ls", cwd="src")["stdout"] == "a.txt\n"
    assert space.shell("ls", cwd=".")["stdout"] == "src\n"
    assert space.shell('test "$(pwd)" = "$HOME"')["success"]


@requirement("SP-037")
def test_extra_variables_are_added_to_a_bare_environment(space: SpaceOf) -> None:
    printed = space.shell("env", env={"DEBUG": "true"})["stdout"]
    names = {line.partition("=")[0] for line in printed.splitlines()}
    assert "DEBUG=true" in printed.splitlines()
    assert {"PATH", "HOME", "LANG", "TMPDIR"} <= names
    assert names <= {
        "PATH",
        "HOME",
        "LANG",
        "TMPDIR",
        "DEBUG",
        "PWD",
        "_",
        "SHLVL",
        "OLDPWD",
        "PYTHONDONTWRITEBYTECODE",
    }
    (event,) = space.run({"type": "shell", "command": "true", "env": {"LD_PRELOAD": "x.so"}})
    assert (event["type"], event["suggestion"]) == ("policyDenied", "Remove LD_PRELOAD from env")


@requirement("SP-058", "SP-059")
def test_a_command_that_takes_too_long_is_ended_with_all_it_started(space: SpaceOf) -> None:
    event = space.shell("echo begun; sleep 4711 & sleep 4712", timeout=400)
    assert (event["success"], event["timedOut"], event["exitCode"]) == (False, True, 124)
    assert 400 <= event["durationMs"] < 20_000
    assert event["stdout"] == "begun\n"
    alive = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"]]
    assert not [words for words in alive if words[0] == "sleep" and words[-1] in ("4711", "4712")]


def test_a_timeout_beyond_the_longest_is_cut_and_told(exchange: Running) -> None:
    space = SpaceOf(exchange, policy={"shell": {"max_timeout_ms": 300}})
    event = space.shell("sleep 60", timeout=60_000)
    assert (event["timedOut"], event["timeoutCappedTo"]) == (True, 300)


def test_of_a_long_output_the_beginning_is_told_and_the_whole_is_on_record(space: SpaceOf) -> None:
    event = space.shell("head -c 3000000 /dev/zero | tr '\\0' x; printf '\\377' >&2")
    assert (len(event["stdout"]), event["stdoutTruncated"]) == (1_048_576, True)
    assert (event["stderr"], "stderrTruncated" in event) == ("\ufffd", False)
    entry = space.exchange.wait_entry("call.settled", status="succeeded")
    whole = hashlib.sha256(b"x" * 3_000_000).hexdigest()
    assert entry["metrics"]["stdout"] == {"bytes": 3_000_000, "sha256": whole}


def test_a_file_of_the_largest_size_is_written_and_read_back(space: SpaceOf) -> None:
    data = bytes(range(256)) * 40_960
    content = base64.b64encode(data).decode()
    made, read = space.run(
        {"type": "createFile", "path": "big", "content": content, "encoding": "base64"},
        {"type": "readFile", "path": "big", "encoding": "base64"},
    )
    assert made["bytesWritten"] == read["size"] == 10_485_760
    assert read["content"] == content
    more = base64.b64encode(data + b"x").decode()
    event = space.one("createFile", path="bigger", content=more, encoding="base64")
    assert (event["success"], "10485760" in event["error"]) == (False, True)


def test_what_does_not_fit_into_one_events_message_is_told_so(space: SpaceOf) -> None:
    space.shell("head -c 10000000 /dev/zero | tr '\\0' x > big")
    first, second = space.run({"type": "readFile", "path": "big"}, {"type": "readFile", "path": "big"})
    assert (first["success"], len(first["content"])) == (True, 10_000_000)
    assert (second["success"], "16777216" in second["error"]) == (False, True)


# --- approvals and policy ---------------------------------------------------------------------------------------------


@requirement("SP-061", "SP-062", "SP-063", "SP-064")
def test_an_operation_that_needs_approval_pauses_the_run(space: SpaceOf) -> None:
    space.write("data/x", "x")
    status, answer = space.ask(
        {"type": "message", "content": "cleaning up"},
        {"type": "shell", "id": "shell-1", "command": "rm -rf data/"},
        {"type": "createFile", "path": "after", "content": "x"},
    )
    assert (status, answer["status"]) == (200, "awaiting_approval")
    assert [event["type"] for event in answer["events"]] == ["message", "approvalRequired"]
    event = answer["events"][1]
    assert (event["operationId"], event["operationType"]) == ("shell-1", "shell")
    assert event["reason"] == "Destructive command requires approval"
    assert event["details"]["command"] == "rm -rf data/"
    assert event["details"]["policy"] == "shell.approvalRequired"
    assert space.files() == ["data", "data/x"]

    status, rest = resume(space.exchange, answer["runId"], "shell-1")
    assert (status, checked(rest)["status"], rest["runId"]) == (200, "completed", answer["runId"])
    assert [(event["type"], event["success"]) for event in rest["events"]] == [("shell", True), ("createFile", True)]
    assert space.files() == ["after"]
    assert look(space.exchange, answer["runId"])["events"] == answer["events"] + rest["events"]


@requirement("SP-066", "SP-067")
def test_what_policy_blocks_is_not_done_and_the_run_goes_on(space: SpaceOf) -> None:
    denied, after = space.run(
        {"type": "shell", "id": "s", "command": "touch before; sudo touch x"},
        {"type": "createFile", "path": ".git/hooks/pre-commit", "content": "x"},
    )
    assert (denied["type"], denied["operationType"], denied["operationId"]) == ("policyDenied", "shell", "s")
    assert (denied["reason"], denied["suggestion"]) == ("Command 'sudo' is blocked", "Remove sudo from command")
    assert (after["type"], after["operationType"]) == ("policyDenied", "createFile")
    assert after["details"]["policy"] == "filesystem.protected"
    assert space.files() == []


def test_a_denied_approval_is_a_policy_denial_and_the_run_goes_on(space: SpaceOf) -> None:
    space.write("data/x", "x")
    _, answer = space.ask({"type": "shell", "command": "rm -r data"}, {"type": "readFile", "path": "data/x"})
    status, rest = resume(space.exchange, answer["runId"], "op-0", "denied", reason="we need it")
    assert (status, checked(rest)["status"]) == (200, "completed")
    denied, read = rest["events"]
    assert (denied["type"], denied["reason"], denied["operationType"]) == ("policyDenied", "we need it", "shell")
    assert read["content"] == "x"


def test_a_restrictive_space_asks_before_it_writes(exchange: Running) -> None:
    space = SpaceOf(exchange, "restrictive")
    assert space.shell("ls | wc -l")["stdout"] == "0\n"
    for operation in (
        {"type": "createFile", "id": "x", "path": "a", "content": "x"},
        {"type": "shell", "id": "x", "command": "echo x > a"},
    ):
        status, answer = space.ask(operation)
        assert (status, answer["status"]) == (200, "awaiting_approval")
        assert resume(exchange, answer["runId"], "x", "denied")[0] == 200
    assert space.files() == []


# --- errors -----------------------------------------------------------------------------------------------------------


@requirement("SP-071")
def test_a_caller_whom_the_rules_keep_out_is_refused_as_a_whole(space: SpaceOf) -> None:
    token = space.exchange.new_token("stranger", "http")
    status, answer = space.ask({"type": "message", "content": "x"}, {"type": "readFile", "path": "x"}, token=token)
    assert (status, answer["status"]) == (403, "error")
    (event,) = answer["events"]
    assert (event["type"], event["category"]) == ("error", "policy")
    assert "not here" in event["message"]


@requirement("SP-069", "SP-072")
def test_a_command_that_cannot_be_started_is_an_execution_error(space: SpaceOf) -> None:
    (event,) = space.run({"type": "shell", "command": "ls", "cwd": "nowhere"})
    assert (event["type"], event["category"]) == ("error", "execution")
    assert event["message"]
    assert isinstance(event["details"], dict)


@requirement("SP-073")
def test_a_run_that_outlives_the_time_of_its_operations_ends_with_a_timeout(space: SpaceOf) -> None:
    busy = calling(space.exchange, f"space.{space.name}/shell", {"command": "sleep 30"}, correlation_id=space.name)
    running_call = wait_until(
        lambda: [
            call
            for call in space.exchange.request("GET", f"/v1/calls?correlation_id={space.name}")[1]["calls"]
            if call["status"] == "running"
        ],
        "the other command runs",
    )[0]
    status, answer = space.ask(
        {"type": "shell", "command": "true", "timeout": 100}, {"type": "message", "content": "x"}
    )
    assert (status, answer["status"]) == (200, "error")
    (event,) = answer["events"]
    assert (event["type"], event["category"]) == ("error", "timeout")
    space.exchange.request("POST", f"/v1/calls/{running_call['call_id']}/cancel")
    assert busy.result(20)["status"] == "canceled"
    assert space.shell("echo again")["stdout"] == "again\n"


@requirement("SP-074")
def test_a_space_with_too_many_waiting_runs_says_so(space: SpaceOf) -> None:
    busy = {"type": "shell", "command": "mkfifo go && cat go", "timeout": 60_000}
    first = space.ask(busy, query="?wait=0")
    assert (first[0], first[1]["more"]) == (202, True)
    waiting = [space.ask({"type": "message", "content": "x"}, query="?wait=0") for _ in range(16)]
    assert [status for status, _ in waiting] == [202] * 16
    status, answer = space.ask({"type": "message", "content": "x"})
    assert (status, answer["status"]) == (503, "error")
    (event,) = answer["events"]
    assert (event["type"], event["category"]) == ("error", "system")
    (space.root / "go").write_text("go")
    for _, queued in [first, *waiting]:
        assert look(space.exchange, queued["runId"])["status"] == "completed"


def test_a_run_may_stop_at_its_first_failure(space: SpaceOf) -> None:
    operations = ({"type": "readFile", "path": "no"}, {"type": "createFile", "path": "after", "content": "x"})
    status, answer = space.ask(*operations, stopOnError=True)
    assert (status, answer["status"], len(answer["events"])) == (200, "error", 1)
    assert space.files() == []
    assert [event["success"] for event in space.run(*operations)] == [False, True]


def test_what_happened_is_on_record_under_the_run(space: SpaceOf) -> None:
    _, answer = space.ask({"type": "createFile", "path": "a", "content": "x"}, {"type": "shell", "command": "cat a"})
    run_id = answer["runId"]
    kinds = [entry["step"] for entry in space.exchange.entries(kind="process.step") if entry["subject"] == run_id]
    assert kinds == ["started", "ended"]
    calls = space.exchange.request("GET", f"/v1/calls?correlation_id={run_id}")[1]["calls"]
    assert {call["tool_id"] for call in calls} == {f"space.{space.name}/create_file", f"space.{space.name}/shell"}
    assert {call["caller"] for call in calls} == {"operator"}
    entries = space.exchange.request("GET", f"/v1/ledger?correlation_id={run_id}")[1]["entries"]
    assert [entry["kind"] for entry in entries].count("call.settled") == 2
