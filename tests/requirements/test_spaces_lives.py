"""Agent Spaces over time: runs that pause, outlive connections and restarts, and spaces that come and go."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import uuid
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import websockets.exceptions
from websockets.sync.client import connect

from tests.requirement import requirement
from tests.running import Running, running, wait_until
from tests.spaces import SpaceOf, checked, look, resume

AGENT = """
from trunkline import Agent, ToolFailed

agent = Agent("com.test.builder", version="1.0.0")


@agent.tool(side_effects=True)
async def build(command: str) -> dict:
    '''Run a command in a space.'''
    try:
        return await agent.call("space.demo/shell", {"command": command})
    except ToolFailed as failed:
        return {"code": failed.fault.code, "message": failed.fault.message, "details": failed.fault.details or {}}


agent.run()
"""


@pytest.fixture
def exchange(short_path: Path) -> Any:
    with running(short_path / "home") as found:
        yield found


def trunkline(exchange: Running, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """One command line."""
    return subprocess.run(
        [sys.executable, "-m", "trunkline", *words, "--home", str(exchange.home)],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def later(what: Any) -> Future[Any]:
    """Something that goes on while the test does."""
    found: Future[Any] = Future()

    def work() -> None:
        try:
            found.set_result(what())
        except BaseException as error:  # noqa: BLE001  (whoever waits is told)
            found.set_exception(error)

    Thread(target=work, daemon=True).start()
    return found


# --- restarts ---------------------------------------------------------------------------------------------------------


@requirement("SP-061", "SP-064")
def test_a_paused_run_survives_a_restart_is_approved_from_the_command_line_and_completes(exchange: Running) -> None:
    space = SpaceOf(exchange)
    _, paused = space.ask(
        {"type": "createFile", "path": "data/x", "content": "x"},
        {"type": "shell", "command": "sudo true"},
        {"type": "shell", "id": "rm", "command": "rm -r data"},
        {"type": "createFile", "path": "after", "content": "x"},
    )
    assert paused["status"] == "awaiting_approval"
    assert exchange.stop() == 0
    exchange.start()
    again = look(exchange, paused["runId"])
    assert again["status"] == "awaiting_approval"
    first, denied, asked = again["events"]
    assert [first, asked] == [paused["events"][0], paused["events"][2]]
    assert denied["reason"] == "Command 'sudo' is blocked"
    assert space.files() == ["data", "data/x"]

    approved = trunkline(exchange, "approve", asked["details"]["approvalId"])
    assert approved.returncode == 0, approved.stderr
    done = look(exchange, paused["runId"])
    assert (done["status"], [event["type"] for event in done["events"][3:]]) == ("completed", ["shell", "createFile"])
    assert space.files() == ["after"]
    exchange.stop()
    exchange.start()
    assert look(exchange, paused["runId"]) == done
    # Who waits for the end is told how it ended, as by `space run`: an operation was denied.
    for code, flags in ((0, ()), (1, ("--wait",))):
        shown = trunkline(exchange, "space", "show", paused["runId"], *flags)
        assert (shown.returncode, json.loads(shown.stdout)) == (code, done)
    assert trunkline(exchange, "space", "show", "run_none").returncode == 2


def test_a_run_that_is_killed_in_the_middle_goes_on_and_does_nothing_twice(exchange: Running) -> None:
    space = SpaceOf(exchange)
    log = space.root / "log"
    _, begun = space.ask(
        {"type": "shell", "command": "echo one >> log"},
        {"type": "shell", "command": "echo two >> log; sleep 600", "timeout": 600_000},
        {"type": "shell", "command": "echo three >> log"},
        {"type": "readFile", "path": "log"},
        query="?wait=0",
    )
    wait_until(lambda: log.exists() and "two" in log.read_text(), "the second command has begun")
    exchange.kill()
    exchange.start()
    done = look(exchange, begun["runId"])
    assert done["status"] == "completed"
    one, two, three, read = done["events"]
    assert (one["success"], one["exitCode"]) == (True, 0)
    assert (two["type"], two["category"]) == ("error", "execution")
    assert "not known" in two["message"]
    assert three["success"] is True
    assert read["content"] == log.read_text() == "one\ntwo\nthree\n"


def test_runs_that_waited_for_their_turn_are_taken_up_in_their_order(exchange: Running) -> None:
    space = SpaceOf(exchange)
    sleeping = space.ask({"type": "shell", "command": "touch begun; sleep 600"}, query="?wait=0")[1]["runId"]
    queued = [
        space.ask({"type": "shell", "command": f"echo {number} >> log"}, query="?wait=0")[1]["runId"]
        for number in range(3)
    ]
    wait_until((space.root / "begun").exists, "the first run has begun")
    exchange.kill()
    exchange.start()
    assert [look(exchange, run_id)["status"] for run_id in [sleeping, *queued]] == ["completed"] * 4
    assert (space.root / "log").read_text() == "0\n1\n2\n"


def test_a_clean_stop_leaves_a_run_for_the_next_start(exchange: Running) -> None:
    space = SpaceOf(exchange)
    waiting = later(
        lambda: space.ask(
            {"type": "shell", "command": "touch begun; sleep 1"},
            {"type": "createFile", "path": "after", "content": "x"},
        )
    )
    wait_until((space.root / "begun").exists, "the run has begun")
    assert exchange.stop() == 0
    status, left = waiting.result(20)
    assert (status, left["more"]) == (202, True)
    assert not (space.root / "after").exists()
    exchange.start()
    done = look(exchange, left["runId"])
    assert [event["success"] for event in done["events"]] == [True, True]


def test_spaces_and_their_policies_are_there_after_a_restart(exchange: Running) -> None:
    space = SpaceOf(exchange, "permissive", {"shell": {"denied": ["touch"]}, "network": {"allowed": True}})
    space.write("kept", "x")
    exchange.stop()
    exchange.start()
    assert space.one("readFile", path="kept")["content"] == "x"
    assert space.shell("touch a")["type"] == "policyDenied"
    assert space.shell("mkdir d && rm -r d")["success"]
    shown = exchange.request("GET", f"/v1/spaces/{space.name}")[1]
    assert (shown["preset"], shown["network"], shown["policy"]["shell"]["denied"]) == ("permissive", True, ["touch"])


def test_an_exchange_with_a_damaged_space_names_the_file_and_line(exchange: Running) -> None:
    space = SpaceOf(exchange)
    exchange.stop()
    settings = exchange.home / "spaces" / space.name / "space.toml"
    settings.write_text('preset = "standard"\n[policy.shell]\ndenyed = ["x"]\n')
    started = trunkline(exchange, "up")
    assert started.returncode == 2
    assert str(settings) in started.stderr
    assert "shell.denyed" in started.stderr
    settings.write_text('preset = "standard"\n')
    exchange.start()


# --- others -----------------------------------------------------------------------------------------------------------


def test_other_runs_go_on_while_one_waits_for_a_person(exchange: Running) -> None:
    space = SpaceOf(exchange)
    space.write("data/x", "x")
    _, paused = space.ask({"type": "shell", "id": "rm", "command": "rm -r data"})
    assert space.shell("ls")["stdout"] == "data\n"
    slow = later(lambda: space.shell("touch begun; sleep 1; ls"))
    wait_until((space.root / "begun").exists, "another run has the turn")
    status, rest = resume(exchange, paused["runId"], "rm")
    assert (status, rest["status"]) == (200, "completed")
    # What was approved waited for the turn: nothing happens in the middle of somebody else's run.
    assert slow.result(20)["stdout"] == "begun\ndata\n"
    assert rest["events"][0]["timestamp"] > slow.result()["timestamp"]
    assert space.files() == ["begun"]


def test_a_run_survives_its_callers_disconnect(exchange: Running) -> None:
    space = SpaceOf(exchange)
    connection = http.client.HTTPConnection(exchange.ready["http"].removeprefix("http://"), timeout=20)
    operations = [
        {"type": "shell", "command": "touch begun; sleep 1"},
        {"type": "createFile", "path": "after", "content": ""},
    ]
    connection.request(
        "POST",
        f"/v1/spaces/{space.name}/runs",
        json.dumps({"protocolVersion": "1.0", "operations": operations}),
        {"Authorization": f"Bearer {exchange.token}", "Content-Type": "application/json"},
    )
    wait_until((space.root / "begun").exists, "the run has begun")
    connection.close()
    wait_until((space.root / "after").exists, "the run went on")
    step = exchange.wait_entry("process.step", step="ended")
    assert [event["success"] for event in look(exchange, step["subject"])["events"]] == [True, True]


def test_the_one_who_asked_does_not_approve_and_strangers_see_nothing(exchange: Running) -> None:
    space = SpaceOf(exchange)
    asker = exchange.new_token("asker", "http", ("approve",))
    stranger = exchange.new_token("stranger", "http")
    approver = exchange.new_token("approver", "http", ("approve",))
    _, paused = space.ask({"type": "createFile", "id": "c", "path": "a", "content": "x"}, token=asker)
    assert paused["status"] == "awaiting_approval"
    assert paused["events"][0]["details"]["policy"] == "builtin-side-effects"
    run_id = paused["runId"]
    assert exchange.request("GET", f"/v1/runs/{run_id}", token=stranger)[0] == 404
    assert resume(exchange, run_id, "c", token=stranger)[0] == 404
    status, refused = resume(exchange, run_id, "c", token=asker)
    assert (status, refused["error"]["code"]) == (403, "not_allowed")
    assert space.files() == []
    status, answer = resume(exchange, run_id, "other", token=approver)
    assert (status, answer["error"]["code"]) == (404, "not_found")
    status, answer = resume(exchange, run_id, "c", token=approver)
    assert (status, checked(answer)["status"]) == (200, "completed")
    status, answer = resume(exchange, run_id, "c", token=approver)
    assert (status, answer["error"]["code"]) == (409, "state.conflict")
    assert look(exchange, run_id, token=asker)["status"] == "completed"
    assert exchange.request("POST", "/v1/spaces", {"name": "x"}, token=asker)[0] == 403
    assert exchange.request("DELETE", f"/v1/spaces/{space.name}", token=asker)[0] == 403


def test_a_question_that_nobody_answers_denies_and_the_run_goes_on(short_path: Path) -> None:
    with running(short_path / "home", "[approvals]\nexpire_s = 1\n") as exchange:
        space = SpaceOf(exchange)
        space.write("data/x", "x")
        _, paused = space.ask({"type": "shell", "command": "rm -r data"}, {"type": "readFile", "path": "data/x"})
        done = wait_until(
            lambda: (found := look(exchange, paused["runId"]))["status"] == "completed" and found, "it expired"
        )
        denied, read = done["events"][1:]
        assert (denied["type"], denied["details"]["policy"]) == ("policyDenied", "approval.expired")
        assert read["content"] == "x"


def test_an_agent_calls_the_shell_of_a_space(short_path: Path) -> None:
    (short_path / "builder.py").write_text(AGENT)
    config = f"""
[[agent]]
id = "com.test.builder"
command = ["python", {json.dumps(str(short_path / "builder.py"))}]

[[policy.rule]]
caller = "agent:com.test.builder"
tool = "space.demo/shell"
decision = "allow"
"""
    with running(short_path / "home", config) as exchange:
        exchange.request("POST", "/v1/spaces", {"name": "demo"})
        exchange.wait_tool("com.test.builder/build")
        answer = exchange.call("com.test.builder/build", {"command": "echo built > out; cat out"})
        assert answer["status"] == "succeeded"
        assert (answer["output"]["exitCode"], answer["output"]["stdout"]) == (0, "built\n")
        refused = exchange.call("com.test.builder/build", {"command": "sudo make"})["output"]
        assert (refused["code"], refused["message"]) == ("policy.denied", "Command 'sudo' is blocked")
        streamed = exchange.request(
            "POST",
            "/v1/calls",
            {"tool_id": "space.demo/shell", "input": {"command": "echo one; echo two"}},
            headers={"Accept": "text/event-stream"},
        )[1]
        assert '"channel":"stdout"' in streamed
        # Not everybody comes with a message that was validated: the tools judge for themselves.
        bad = exchange.call("space.demo/read_file", {"path": "../x"})
        assert (bad["http"], bad["error"]["code"]) == (400, "tool.invalid_input")
        asked = exchange.call("space.demo/shell", {"command": "rm -r out"}, wait=False)
        assert (asked["http"], asked["status"]) == (202, "waiting_approval")


# --- WebSocket --------------------------------------------------------------------------------------------------------


def socket_of(space: SpaceOf, token: str | None = None, **options: Any) -> Any:
    address = space.exchange.ready["http"].replace("http://", "ws://")
    headers = {"Authorization": f"Bearer {space.exchange.token if token is None else token}"}
    return connect(f"{address}/v1/spaces/{space.name}/ws", additional_headers=headers, max_size=None, **options)


def said(socket: Any) -> dict[str, Any]:
    found: dict[str, Any] = checked(json.loads(socket.recv(20)))
    return found


def test_events_are_pushed_as_they_happen_and_the_last_message_ends_the_run(exchange: Running) -> None:
    space = SpaceOf(exchange)
    space.write("data/x", "x")
    with socket_of(space) as socket:
        operations = [
            {"type": "message", "content": "x"},
            {"type": "shell", "id": "rm", "command": "rm -r data"},
            {"type": "readFile", "path": "data/x"},
        ]
        socket.send(json.dumps({"protocolVersion": "1.0", "operations": operations}))
        first, asked = said(socket), said(socket)
        assert (first["more"], [event["type"] for event in first["events"]]) == (True, ["message"])
        assert (asked["status"], "more" in asked) == ("awaiting_approval", False)
        assert trunkline(exchange, "approve", asked["events"][0]["details"]["approvalId"]).returncode == 0
        rest = [said(socket) for _ in range(3)]
        assert [[event["type"] for event in one["events"]] for one in rest] == [["shell"], ["readFile"], []]
        assert [one.get("more", False) for one in rest] == [True, True, False]
        assert {one["runId"] for one in (first, asked, *rest)} == {first["runId"]}
        socket.send("{")
        assert said(socket)["events"][0]["category"] == "validation"
        socket.send(json.dumps({"protocolVersion": "1.0", "operations": []}).encode())
        assert said(socket)["status"] == "completed"


def test_a_socket_is_refused_like_any_request(exchange: Running) -> None:
    space = SpaceOf(exchange)
    with pytest.raises(websockets.exceptions.InvalidStatus) as refused, socket_of(space, "wrong"):
        pass
    assert refused.value.response.status_code == 401
    assert b"auth.failed" in refused.value.response.body
    with pytest.raises(websockets.exceptions.InvalidStatus) as refused, socket_of(space, origin="http://evil.example"):
        pass
    assert refused.value.response.status_code == 403
    space.name = "nowhere"
    with pytest.raises(websockets.exceptions.InvalidStatus) as refused, socket_of(space):
        pass
    assert refused.value.response.status_code == 404
    assert "error" not in exchange.said().lower()


def test_a_socket_whose_token_was_revoked_can_do_nothing_more(exchange: Running) -> None:
    space = SpaceOf(exchange)
    token = exchange.new_token("leaver", "http")
    message = json.dumps({"protocolVersion": "1.0", "operations": []})
    with socket_of(space, token) as socket:
        socket.send(message)
        said(socket)
        known = exchange.request("GET", "/v1/tokens")[1]["tokens"]
        (token_id,) = [one["id"] for one in known if one["agent"] == "leaver"]
        assert exchange.request("DELETE", f"/v1/tokens/{token_id}")[0] == 200
        socket.send(message)
        with pytest.raises(websockets.exceptions.ConnectionClosed) as closed:
            socket.recv(20)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


def test_no_command_line_can_stop_the_exchange(exchange: Running) -> None:
    space = SpaceOf(exchange)
    for line in ("a()" * 10_000 + "b", "echo " + "${a-" * 10_000, "if a;then b;" + "elif a;then b;" * 4_000 + "fi"):
        _, answer = space.ask({"type": "shell", "command": line})
        assert answer["status"] == "awaiting_approval"
    assert exchange.request("GET", "/healthz")[0] == 200


def test_an_exchange_stops_with_open_sockets(exchange: Running) -> None:
    space = SpaceOf(exchange)
    with socket_of(space) as socket:
        assert exchange.stop() == 0
        with pytest.raises(websockets.exceptions.ConnectionClosed):
            socket.recv(20)
    exchange.start()


# --- spaces and the command line --------------------------------------------------------------------------------------


def test_a_space_is_made_listed_used_and_removed(exchange: Running) -> None:
    name = f"s-{uuid.uuid4().hex[:8]}"
    made = trunkline(exchange, "space", "new", name, "--preset", "permissive")
    assert (made.returncode, made.stderr) == (0, "")
    assert f"space {name} (permissive)" in made.stdout
    again = trunkline(exchange, "space", "new", name)
    assert (again.returncode, again.stderr) == (2, f"state.conflict: there is a space {name} already\n")
    assert trunkline(exchange, "space", "new", "Upper").returncode == 2
    chosen = trunkline(exchange, "space", "new", "x", "--domain", "example.org")
    assert (chosen.returncode, "single domains cannot be allowed" in chosen.stderr) == (2, True)
    assert "space.x/shell" not in exchange.tools()
    assert "restrictive, standard, permissive" in trunkline(exchange, "space", "new", "x", "--preset", "y").stderr
    listed = trunkline(exchange, "space", "list")
    assert name in listed.stdout
    found = json.loads(trunkline(exchange, "space", "list", "--json").stdout)["spaces"]
    assert [(one["name"], one["preset"], one["shell"]) for one in found] == [(name, "permissive", True)]
    folder = Path(found[0]["folder"])
    message = json.dumps({"protocolVersion": "1.0", "operations": [{"type": "shell", "command": "echo hi > a; cat a"}]})
    ran = trunkline(exchange, "space", "run", name, text=f"{message}\n\n{message}\n")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [json.loads(line)["events"][0]["stdout"] for line in ran.stdout.splitlines()] == ["hi\n", "hi\n"]
    kept = exchange.home / "operations.json"
    kept.write_text(f"{message}\n{message}\n")
    of_file = trunkline(exchange, "space", "run", name, str(kept))
    assert [json.loads(line)["events"][0]["stdout"] for line in of_file.stdout.splitlines()] == ["hi\n", "hi\n"]
    failing = json.dumps({"protocolVersion": "1.0", "operations": [{"type": "shell", "command": "exit 7"}]})
    assert trunkline(exchange, "space", "run", name, text=f"{failing}\n{message}\n").returncode == 1
    bad = trunkline(exchange, "space", "run", name, text='{"operations": 1}\n')
    assert (bad.returncode, json.loads(bad.stdout)["status"]) == (1, "error")
    assert (folder / "a").exists()
    unsure = trunkline(exchange, "space", "rm", name)
    assert (unsure.returncode, folder.exists()) == (2, True)
    assert "with all its files; say --yes" in unsure.stderr
    none = trunkline(exchange, "space", "rm", "nosuch")
    text = f"not_found: there is no such space; `trunkline space list --home {exchange.home}` shows them\n"
    assert (none.returncode, none.stderr) == (2, text)
    removed = trunkline(exchange, "space", "rm", name, "--yes")
    assert (removed.returncode, removed.stdout) == (0, f"removed {name}\n")
    assert not folder.parent.exists()
    exchange.wait_no_tool(f"space.{name}/shell")
    assert trunkline(exchange, "space", "run", name, text=message).returncode == 2
    assert trunkline(exchange, "space", "new", name).returncode == 0


def test_what_a_script_removed_unasked_is_brought_back_on_the_command_line(exchange: Running) -> None:
    space = SpaceOf(exchange)
    space.write("data/precious.txt", "work of a day")
    space.write("clean.py", "import shutil; shutil.rmtree('data'); open('left', 'w')")
    assert space.shell("python3 clean.py")["success"]
    assert space.files() == ["clean.py", "left"]
    said = trunkline(exchange, "space", "undo", space.name)
    assert (said.returncode, space.files()) == (2, ["clean.py", "left"])
    would = "confirmation.required: this would bring back 2, change back 0 and remove 1 names, as it was at "
    assert said.stderr.startswith(would)
    details = json.loads(trunkline(exchange, "space", "undo", space.name, "--json").stdout)["error"]["details"]
    assert (details["done"], space.files()) == (False, ["clean.py", "left"])
    done = trunkline(exchange, "space", "undo", space.name, "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("undone: run_")
    assert "\nback to " in done.stdout
    assert "brought back: 2 (data/, data/precious.txt)" in done.stdout
    assert "removed: 1 (left)" in done.stdout
    assert (space.root / "data" / "precious.txt").read_text() == "work of a day"
    # The space's own user has it again.
    assert space.shell("echo more >> data/precious.txt && cat data/precious.txt")["stdout"] == "work of a daymore\n"
    listed = json.loads(trunkline(exchange, "space", "snapshots", space.name, "--json").stdout)["snapshots"]
    undone = next(one["run"] for one in listed if one["run"].startswith("undo_"))
    again = json.loads(trunkline(exchange, "space", "undo", space.name, undone, "--yes", "--json").stdout)
    assert (again["done"], space.files()) == (True, ["clean.py", "left"])
    assert undone in trunkline(exchange, "space", "snapshots", space.name).stdout
    missing = trunkline(exchange, "space", "undo", space.name, "run_x", "--yes")
    assert (missing.returncode, missing.stderr) == (2, "not_found: There is no snapshot from before run_x\n")


def test_a_run_on_the_command_line_waits_for_the_answer(exchange: Running) -> None:
    space = SpaceOf(exchange)
    message = json.dumps({"protocolVersion": "1.0", "operations": [{"type": "shell", "command": "rm -rf data"}]})
    left = trunkline(exchange, "space", "run", space.name, "--no-wait", text=message)
    assert (left.returncode, json.loads(left.stdout)["status"]) == (3, "awaiting_approval")
    first = json.loads(left.stdout)["events"][0]["details"]["approvalId"]
    assert f"trunkline approve {first}" in left.stderr
    waiting = later(lambda: trunkline(exchange, "space", "run", space.name, text=message))
    exchange.wait_entry("question.joined", approval_id=first)
    assert trunkline(exchange, "deny", first, "--reason", "no").returncode == 0
    ran = waiting.result(40)
    assert ran.returncode == 1, "an operation that a person denied did not succeed"
    asked, denied = map(json.loads, ran.stdout.splitlines())
    assert (asked["status"], denied["status"]) == ("awaiting_approval", "completed")
    assert denied["events"][-1]["reason"] == "no"


def test_a_check_tells_what_would_be_decided_and_does_nothing(exchange: Running, short_path: Path) -> None:
    space = SpaceOf(exchange)
    file = short_path / "message.json"
    operations = [
        {"type": "createFile", "id": "new", "path": "a", "content": "x"},
        {"type": "shell", "command": "rm -r a"},
        {"type": "shell", "command": "sudo ls"},
    ]
    file.write_text(json.dumps({"protocolVersion": "1.0", "operations": operations}))
    shown = trunkline(exchange, "space", "check", space.name, str(file), "--json")
    assert [(one["operationId"], one["decision"], one["policy"]) for one in json.loads(shown.stdout)["operations"]] == [
        ("new", "allow", "builtin-operator"),
        ("op-1", "ask", "shell.approvalRequired"),
        ("op-2", "deny", "shell.denied"),
    ]
    table = trunkline(exchange, "space", "check", space.name, str(file)).stdout
    assert "Command 'sudo' is blocked" in table
    assert space.files() == []
    assert not exchange.entries(kind="process.step")
    file.write_text('{"protocolVersion": "1.0", "operations": [{"type": "x"}]}')
    bad = trunkline(exchange, "space", "check", space.name, str(file))
    assert (bad.returncode, "operations[0].type" in bad.stderr) == (2, True)


def test_a_space_with_open_runs_is_not_removed(exchange: Running) -> None:
    space = SpaceOf(exchange)
    _, paused = space.ask({"type": "shell", "id": "rm", "command": "rm -r x"})
    status, answer = exchange.request("DELETE", f"/v1/spaces/{space.name}")
    assert (status, answer["error"]["code"]) == (409, "state.conflict")
    assert "not done" in answer["error"]["message"]
    assert resume(exchange, paused["runId"], "rm", "denied")[0] == 200
    assert exchange.request("DELETE", f"/v1/spaces/{space.name}") == (200, {"name": space.name, "removed": True})


def test_a_run_that_asks_is_ended_and_its_space_removed_by_force(exchange: Running) -> None:
    assert trunkline(exchange, "space", "new", "ending", "--preset", "restrictive").returncode == 0
    message = json.dumps(
        {"protocolVersion": "1.0", "operations": [{"type": "createFile", "path": "a", "content": "x"}]}
    )
    asking = [trunkline(exchange, "space", "run", "ending", "--no-wait", text=f"{message}\n") for _ in range(2)]
    assert [ran.returncode for ran in asking] == [3, 3]
    ended = trunkline(exchange, "space", "cancel", json.loads(asking[0].stdout)["runId"])
    assert (ended.returncode, json.loads(ended.stdout)["status"]) == (0, "error")
    assert trunkline(exchange, "space", "cancel", "run_none").returncode == 2
    refused = trunkline(exchange, "space", "rm", "ending", "--yes")
    assert (refused.returncode, "--force" in refused.stderr) == (2, True)
    assert trunkline(exchange, "space", "rm", "ending", "--yes", "--force").returncode == 0
