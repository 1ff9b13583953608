"""The bridge as its clients meet it: a real socket, the real hub, and an app-server that the test plays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pylon import CODEX, SYSTEM
from tests.unit.edges.pylon.kit import OPEN, started
from trunkline.entries import CallAccepted, CallSettled
from trunkline.model import Decision, Policy, Rule

COMMAND = "item/commandExecution/requestApproval"


async def test_a_client_is_told_what_the_exchange_can_do_and_again_when_that_changes(tmp_path: Path) -> None:
    async with started(tmp_path) as kit, kit.client(SYSTEM) as client:
        first = await client.next("pylon.capabilities")
        assert first["codex"] == {"enabled": True, "available": True}
        assert {tool["tool_id"] for tool in first["tools"]} == {
            f"pylon.codex/{name}" for name in ("approve", "connect", "request", "respond")
        }
        kit.exchange.attach("com.example.echo", "say")
        second = await client.next("pylon.capabilities")
        assert "com.example.echo/say" in [tool["tool_id"] for tool in second["tools"]]


async def test_without_codex_status_and_the_list_of_agents_say_the_same(tmp_path: Path) -> None:
    async with started(tmp_path, codex=("no-such-program",)) as kit:
        [agent] = kit.exchange.views.agents()
        assert (agent.agent_id, agent.state, agent.health, agent.steerable) == (
            "pylon.codex",
            "ready",
            "degraded",
            False,
        )
        assert agent.note.startswith("codex is not installed: ")
        status = kit.edge.status()
        assert (status["codex"], status["not_installed"]) == ("unavailable", agent.note)
    async with started(tmp_path) as kit:
        assert [(one.health, one.note) for one in kit.exchange.views.agents()] == [("ok", "")]
        assert "not_installed" not in kit.edge.status()


async def test_discover_and_ping_are_answered_with_or_without_data(tmp_path: Path) -> None:
    async with started(tmp_path) as kit, kit.client(SYSTEM) as client:
        await client.next("pylon.capabilities")
        for data in (None, "", {}, "{}", [], 7, "no JSON"):
            await client.send("client-pylon.ping", data, SYSTEM)
            assert set(await client.next("pylon.system.pong")) == {"timestamp"}
        await client.send("client-pylon.discover", {}, SYSTEM)
        assert "tools" in await client.next("pylon.capabilities")


async def test_connecting_a_workspace_asks_a_person_and_starts_codex_when_he_agrees(tmp_path: Path) -> None:
    async with started(tmp_path) as kit, kit.client(CODEX) as client:
        await client.codex("connect", workspaceId="ws_1", cwd="/w")
        question = await kit.question("pylon.codex/connect")
        assert json.loads(bytes(question.input or b"")) == {
            "workspace_id": "ws_1",
            "cwd": "/w",
            "client": client.socket_id,
        }
        assert question.asked_by == "pylon:local-key"
        waiting = await client.next("pylon.codex.status")
        assert (waiting["status"], question.approval_id in waiting["detail"]) == ("disconnected", True)
        assert kit.programs == []
        kit.exchange.answer(question.approval_id)
        assert await client.next("pylon.codex.status") == {"workspace_id": "ws_1", "status": "connected", "detail": ""}
        assert kit.programs[0].spec.cwd == "/w"


async def test_a_person_who_says_no_is_obeyed(tmp_path: Path) -> None:
    async with started(tmp_path) as kit, kit.client(CODEX) as client:
        await client.codex("connect", workspaceId="ws_1", cwd="/w")
        question = await kit.question("pylon.codex/connect")
        await client.next("pylon.codex.status")
        kit.exchange.answer(question.approval_id, approved=False)
        assert (await client.next("pylon.codex.status"))["status"] == "disconnected"
        assert kit.programs == []


async def test_requests_and_notifications_pass(tmp_path: Path) -> None:
    async with started(tmp_path, OPEN) as kit, kit.connected() as (client, program):
        await client.codex("request", workspaceId="ws_1", requestId="r1", method="thread/start", params={"cwd": "/w"})
        asked = await program.next()
        assert (asked["method"], asked["params"]) == ("thread/start", {"cwd": "/w"})
        program.say({"method": "turn/started", "params": {"n": 1}}, {"id": asked["id"], "result": {"ok": "é"}})
        event = await client.next("pylon.codex.event")
        assert event == {"workspace_id": "ws_1", "message": {"method": "turn/started", "params": {"n": 1}}}
        assert await client.next("pylon.codex.response") == {
            "workspace_id": "ws_1",
            "request_id": "r1",
            "ok": True,
            "result": {"ok": "é"},
        }
        accepted = [entry.tool_id for entry in kit.exchange.recorded(CallAccepted)]
        assert accepted == ["pylon.codex/connect", "pylon.codex/request"]


async def test_an_error_of_codex_reaches_the_client_as_it_is(tmp_path: Path) -> None:
    async with started(tmp_path, OPEN) as kit, kit.connected() as (client, program):
        await client.codex("request", workspace_id="ws_1", request_id=7, method="nonsense")
        asked = await program.next()
        program.say({"id": asked["id"], "error": {"code": -32600, "message": "no"}})
        said = await client.next("pylon.codex.response")
        assert (said["request_id"], said["ok"], said["error"]) == (7, False, {"code": -32600, "message": "no"})


async def test_initialize_is_answered_with_what_codex_said_when_it_started(tmp_path: Path) -> None:
    async with started(tmp_path, OPEN) as kit, kit.connected() as (client, program):
        await client.codex("request", workspaceId="ws_1", requestId=1, method="initialize", params={})
        assert (await client.next("pylon.codex.response"))["result"] == {"userAgent": "played"}
        assert program.heard == []


@pytest.mark.parametrize(("approved", "decision"), [(True, "accept"), (False, "decline")])
async def test_what_codex_asks_is_a_question_that_a_person_answers(
    tmp_path: Path, approved: bool, decision: str
) -> None:
    async with started(tmp_path, OPEN) as kit, kit.connected() as (client, program):
        program.say({"id": 0, "method": COMMAND, "params": {"command": "rm -rf /w"}})
        event = await client.next("pylon.codex.event")
        assert (event["message"]["id"], event["message"]["method"]) == (0, COMMAND)
        question = await kit.question("pylon.codex/approve")
        assert json.loads(bytes(question.input or b""))["params"] == {"command": "rm -rf /w"}
        kit.exchange.answer(question.approval_id, approved=approved)
        assert await program.next() == {"id": 0, "result": {"decision": decision}}


async def test_the_first_answer_counts_when_it_is_the_clients(tmp_path: Path) -> None:
    async with started(tmp_path, OPEN) as kit, kit.connected() as (client, program):
        program.say({"id": 5, "method": COMMAND, "params": {}})
        question = await kit.question("pylon.codex/approve")
        await client.codex("respond", workspaceId="ws_1", requestId="5", result={"decision": "acceptForSession"})
        assert await program.next() == {"id": 5, "result": {"decision": "acceptForSession"}}
        await kit.until(lambda: not kit.exchange.views.questions())
        kit.exchange.answer(question.approval_id)
        await client.codex("respond", workspaceId="ws_1", requestId=5, result={"decision": "decline"})
        assert "any more" in (await client.next("pylon.codex.error"))["message"]
        assert program.heard == []
        assert "pylon.codex/respond" in [entry.tool_id for entry in kit.exchange.recorded(CallAccepted)]


async def test_the_first_answer_counts_when_it_is_a_persons(tmp_path: Path) -> None:
    async with started(tmp_path, OPEN) as kit, kit.connected() as (client, program):
        program.say({"id": 5, "method": COMMAND, "params": {}})
        question = await kit.question("pylon.codex/approve")
        kit.exchange.answer(question.approval_id)
        assert (await program.next())["result"] == {"decision": "accept"}
        await client.codex("respond", workspaceId="ws_1", requestId=5, result={"decision": "decline"})
        assert "any more" in (await client.next("pylon.codex.error"))["message"]
        assert program.heard == []


async def test_a_rule_can_leave_the_answers_to_a_person(tmp_path: Path) -> None:
    only_persons = Rule("persons", "pylon:*", "pylon.codex/respond", Decision.ASK)
    policy = Policy((only_persons, *OPEN.rules), "persons")
    async with started(tmp_path, policy) as kit, kit.connected() as (client, program):
        program.say({"id": 5, "method": COMMAND, "params": {}})
        question = await kit.question("pylon.codex/approve")
        await client.codex("respond", workspaceId="ws_1", requestId=5, result={"decision": "accept"})
        assert "only a person" in (await client.next("pylon.codex.error"))["message"]
        assert program.heard == []
        kit.exchange.answer(question.approval_id, approved=False)
        assert (await program.next())["result"] == {"decision": "decline"}


async def test_what_is_no_yes_or_no_is_answered_by_the_client_alone(tmp_path: Path) -> None:
    async with started(tmp_path, OPEN) as kit, kit.connected() as (client, program):
        program.say({"id": "q", "method": "item/tool/requestUserInput", "params": {}})
        await client.next("pylon.codex.event")
        assert kit.exchange.views.questions() == []
        await client.codex("respond", workspaceId="ws_1", requestId="q", result={"answers": ["x"]})
        assert await program.next() == {"id": "q", "result": {"answers": ["x"]}}


async def test_a_client_neither_sees_nor_reaches_the_workspaces_of_another(tmp_path: Path) -> None:
    async with started(tmp_path, OPEN) as kit, kit.connected() as (client, program), kit.client(CODEX) as other:
        program.say({"id": 5, "method": COMMAND, "params": {}})
        await client.next("pylon.codex.event")
        await other.codex("request", workspaceId="ws_1", requestId="r", method="thread/start")
        refused = await other.next("pylon.codex.response")
        assert (refused["ok"], refused["error"]["code"]) == (False, "not_found")
        await other.codex("respond", workspaceId="ws_1", requestId=5, result={"decision": "accept"})
        assert "not connected" in (await other.next("pylon.codex.error"))["message"]
        await other.codex("disconnect", workspaceId="ws_1")
        await other.next("pylon.codex.status", status="disconnected")
        assert not program.is_stopped
        assert program.heard == []
        assert [frame for frame in other.seen if frame["event"] == "pylon.codex.event"] == []


async def test_two_clients_of_one_folder_share_its_app_server_until_the_last_leaves(tmp_path: Path) -> None:
    async with started(tmp_path, OPEN) as kit, kit.connected() as (client, program):
        async with kit.connected() as (other, same):
            assert same is program
            program.say({"method": "turn/started", "params": {}})
            await client.next("pylon.codex.event")
            await other.next("pylon.codex.event")
        await kit.until(lambda: len(kit.edge.server.clients) == 1)
        assert not program.is_stopped
        await client.codex("disconnect", workspaceId="ws_1")
        await client.next("pylon.codex.status", status="disconnected")
        assert program.is_stopped
        await client.codex("request", workspaceId="ws_1", requestId="r", method="echo")
        assert (await client.next("pylon.codex.response"))["ok"] is False


async def test_a_connection_that_is_lost_takes_its_app_server_and_its_questions_along(tmp_path: Path) -> None:
    async with started(tmp_path, OPEN) as kit:
        async with kit.connected() as (_, program):
            program.say({"id": 5, "method": COMMAND, "params": {}})
            await kit.question("pylon.codex/approve")
        await program.until(lambda: program.is_stopped)
        await kit.until(lambda: not kit.exchange.views.questions())


async def test_nobody_is_asked_any_more_for_a_client_that_left(tmp_path: Path) -> None:
    async with started(tmp_path) as kit:
        async with kit.client(CODEX) as client:
            await client.codex("connect", workspaceId="ws_1", cwd="/w")
            question = await kit.question("pylon.codex/connect")
        await kit.until(lambda: not kit.exchange.views.questions())
        kit.exchange.answer(question.approval_id)
        assert kit.programs == []


async def test_a_question_of_an_earlier_run_starts_nothing(tmp_path: Path) -> None:
    async with started(tmp_path) as kit, kit.client(CODEX) as client:
        await client.codex("connect", workspaceId="ws_1", cwd="/w")
        question = await kit.question("pylon.codex/connect")
        again = kit.exchange.restarted()
        await again.edges.start()
        again.answer(question.approval_id)
        await kit.until(lambda: again.recorded(CallSettled))
        assert again.recorded(CallSettled)[-1].fault.code == "state.conflict"
        assert kit.programs == []
        await again.edges.stop()
        again.close()
        kit.exchange.died = None


async def test_when_codex_crashes_its_requests_are_answered_and_it_can_be_connected_again(tmp_path: Path) -> None:
    async with started(tmp_path, OPEN) as kit, kit.connected() as (client, program):
        await client.codex("request", workspaceId="ws_1", requestId="r1", method="turn/start")
        await program.next()
        program.end("exit code 3")
        said = await client.next("pylon.codex.response")
        assert (said["request_id"], said["ok"], said["error"]["code"]) == ("r1", False, "agent.lost")
        assert await client.next("pylon.codex.status") == {
            "workspace_id": "ws_1",
            "status": "failed",
            "detail": "exit code 3",
        }
        assert (await client.next("pylon.codex.error"))["workspace_id"] == "ws_1"
        assert kit.exchange.recorded(CallSettled)[-1].status == "unknown"
        await client.codex("connect", workspaceId="ws_1", cwd="/w")
        await client.next("pylon.codex.status", status="connected")
        assert len(kit.programs) == 2


async def test_codex_that_ends_before_it_is_ready_is_a_failed_connect(tmp_path: Path) -> None:
    async with started(tmp_path, OPEN) as kit, kit.client(CODEX) as client:
        kit.mute = True
        await client.codex("connect", workspaceId="ws_1", cwd="/w")
        await kit.until(lambda: kit.programs)
        kit.programs[0].end("its folder /w does not exist")
        said = await client.next("pylon.codex.status")
        assert (said["status"], "its folder /w does not exist" in said["detail"]) == ("failed", True)


async def test_codex_that_is_not_installed_or_turned_off_is_told_before_anybody_is_asked(tmp_path: Path) -> None:
    for codex, status, word in (
        (("no-such-codex", "app-server"), "unavailable", "npm install -g @openai/codex"),
        ((), "disabled", "[pylon] codex"),
    ):
        async with started(tmp_path, codex=codex) as kit, kit.client(CODEX) as client:
            await client.codex("connect", workspaceId="ws_1", cwd="/w")
            said = await client.next("pylon.codex.status")
            assert (said["status"], word in said["detail"]) == (status, True)
            assert kit.exchange.views.questions() == []


@pytest.mark.parametrize(
    ("payload", "word"),
    [
        ({}, "workspaceId"),
        ({"workspaceId": "ws_1"}, "cwd"),
        ({"cwd": "/w"}, "workspaceId"),
        ({"workspaceId": 7, "cwd": "/w"}, "workspaceId"),
        ({"workspaceId": "ws_1", "cwd": "here"}, "cwd"),
        ({"workspaceId": "ws_1", "cwd": "/w\0"}, "cwd"),
        ({"workspaceId": "x" * 129, "cwd": "/w"}, "workspaceId"),
    ],
)
async def test_a_connect_that_cannot_be_used_is_an_error_that_names_the_field(
    tmp_path: Path, payload: dict[str, object], word: str
) -> None:
    async with started(tmp_path, OPEN) as kit, kit.client(CODEX) as client:
        await client.codex("connect", **payload)
        assert word in (await client.next("pylon.codex.error"))["message"]
        assert kit.programs == []


async def test_the_tools_are_for_clients_of_the_bridge_only(tmp_path: Path) -> None:
    async with started(tmp_path, OPEN) as kit, kit.connected() as (client, program):
        program.say({"id": 5, "method": COMMAND, "params": {}})
        question = await kit.question("pylon.codex/approve")
        asked = json.loads(bytes(question.input or b""))
        for tool, body in (
            ("connect", {"workspace_id": "ws_2", "cwd": "/", "client": client.socket_id}),
            ("request", {"workspace_id": "ws_1", "client": client.socket_id, "method": "x", "params": {}}),
            ("approve", asked),
        ):
            made = kit.exchange.call(f"pylon.codex/{tool}", body)
            assert made.answer is not None
            assert made.answer.fault is not None
            assert made.answer.fault.code == "not_allowed"
        assert program.heard == []
        assert len(kit.programs) == 1
