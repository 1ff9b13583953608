"""Spaces over HTTP and WebSocket, on a real loopback socket: who waits, who leaves, and what a defect does."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets.exceptions
from websockets.asyncio.client import ClientConnection, connect

from tests.unit.edges.spaces.conftest import Case, Commands
from trunkline.config import Config, Http
from trunkline.edges import turns
from trunkline.edges.http.edge import HTTP
from trunkline.edges.spaces import routes, translate
from trunkline.edges.spaces.process import Run
from trunkline.edges.spaces.routes import SpacesApi
from trunkline.entries import Noticed
from trunkline.events import DrainStarted, SettingsChanged
from trunkline.model import Decision, HubSettings, Policy, Rule
from trunkline.testing.memory import OPERATOR_TOKEN
from trunkline.workspace import commands

MESSAGE = {"type": "message", "content": "x"}
RM = {"type": "shell", "id": "rm", "command": "rm -r a"}
LONG = {"type": "shell", "command": "long"}


class Served(Case):
    """Spaces behind the listener."""

    commands: Commands

    async def start(self) -> None:
        await super().start()
        url = self.exchange.edges.ready()["http"]
        assert url is not None
        self.url = url
        # No TLS here; an empty context spares each test the 30 ms of loading certificates.
        plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        headers = {"authorization": f"Bearer {OPERATOR_TOKEN}"}
        self.client = httpx.AsyncClient(base_url=url, timeout=10, verify=plain, headers=headers)

    async def post(self, path: str, body: Any) -> httpx.Response:
        return await self.client.post(path, json=body)

    async def ask(self, *operations: dict[str, Any], query: str = "") -> httpx.Response:
        message = {"protocolVersion": "1.0", "operations": list(operations)}
        return await self.post(f"/v1/spaces/demo/runs{query}", message)

    def socket(self, token: str = OPERATOR_TOKEN) -> connect:
        address = self.url.replace("http://", "ws://")
        headers = {"authorization": f"Bearer {token}"}
        return connect(f"{address}/v1/spaces/demo/ws", additional_headers=headers)

    async def only_run(self) -> Run:
        """The one that is open, once there is one."""
        async with asyncio.timeout(10):
            while not self.spaces.runs.open:  # noqa: ASYNC110  there is no event to wait for
                await asyncio.sleep(0.001)
        (run,) = self.spaces.runs.open.values()
        return run

    async def wait_sessions(self, count: object) -> None:
        async with asyncio.timeout(10):
            while self.exchange.feed.figures()["sessions"] != count:  # noqa: ASYNC110  there is no event to wait for
                await asyncio.sleep(0.001)


@pytest.fixture
async def served(tmp_path: Path, machine: list[Commands]) -> AsyncIterator[Served]:
    running = Commands()
    machine.append(running)
    config = Config(http=Http(listen="127.0.0.1:0"))
    found = Served(tmp_path, running, (HTTP,), config=config)
    await found.start()
    await found.spaces.create("demo", "standard", {})
    yield found
    await found.client.aclose()
    await found.stop()
    assert found.exchange.died is None


async def said(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(10):
        found: dict[str, Any] = json.loads(await socket.recv())
    return found


def operations(*given: dict[str, Any]) -> str:
    return json.dumps({"protocolVersion": "1.0", "operations": list(given)})


# --- waiting ----------------------------------------------------------------------------------------------------------


async def test_a_request_waits_for_the_end_of_its_run(served: Served) -> None:
    asking = asyncio.ensure_future(served.ask(LONG, MESSAGE))
    await served.commands.wait_begun("long")
    served.commands.end("long")
    answer = await asking
    assert (answer.status_code, [event["type"] for event in answer.json()["events"]]) == (200, ["shell", "message"])


async def test_a_request_that_does_not_wait_is_told_what_there_is(served: Served) -> None:
    answer = await served.ask(LONG, query="?wait=0")
    assert (answer.status_code, answer.json()["more"], answer.json()["events"]) == (202, True, [])
    run = await served.only_run()
    looked = await served.client.get(f"/v1/runs/{run.run_id}?wait=0")
    assert (looked.status_code, looked.json()["runId"]) == (202, run.run_id)
    await served.commands.wait_begun("long")
    served.commands.end("long")
    assert (await served.client.get(f"/v1/runs/{run.run_id}?wait=10")).json()["status"] == "completed"


async def test_nobody_is_told_of_a_run_before_it_is_on_record(served: Served) -> None:
    """Found by the simulation: a run that somebody was told of was gone after a crash."""
    served.exchange.disk_rests = True
    asking = asyncio.ensure_future(served.ask(LONG, query="?wait=0"))
    run = await served.only_run()
    for _ in range(20):
        await asyncio.sleep(0)
    assert (run.state, asking.done()) == ("recording", False)
    served.exchange.disk_rests = False
    served.exchange.store()
    assert (await asking).json()["runId"] == run.run_id
    await served.commands.wait_begun("long")
    served.commands.end("long")
    await served.end_of(run)


async def test_whoever_leaves_is_forgotten_and_the_run_goes_on(served: Served) -> None:
    asking = asyncio.ensure_future(served.ask(LONG))
    await served.commands.wait_begun("long")
    run = await served.only_run()
    sessions = served.exchange.feed.figures()["sessions"]
    assert isinstance(sessions, int)
    asking.cancel()
    await served.wait_sessions(sessions - 1)
    assert (run.state, served.spaces._followers) == ("active", {})
    served.commands.end("long")
    await served.end_of(run)


async def test_a_request_that_waits_is_answered_when_the_exchange_stops(served: Served) -> None:
    asking = asyncio.ensure_future(served.ask(LONG, MESSAGE))
    await served.commands.wait_begun("long")
    served.exchange.feed.feed([DrainStarted()])
    await served.exchange.edges.stop()
    answer = await asking
    assert (answer.status_code, answer.json()["more"]) == (202, True)


async def test_whoever_has_seen_the_question_waits_for_what_comes_of_it(served: Served) -> None:
    first = (await served.ask(RM, MESSAGE)).json()
    assert (first["status"], len(first["events"])) == ("awaiting_approval", 1)
    looking = asyncio.ensure_future(served.client.get(f"/v1/runs/{first['runId']}?wait=10&after=1"))
    body = {"approval": {"operationId": "rm", "decision": "denied", "reason": "we need it"}}
    resumed = await served.post(f"/v1/runs/{first['runId']}/resume", body)
    expected = ["policyDenied", "message"]
    assert [event["type"] for event in resumed.json()["events"]] == expected
    looked = await looking
    assert (looked.status_code, [event["type"] for event in looked.json()["events"]]) == (200, expected)


async def test_a_yes_to_what_a_run_asked_first_is_none_to_what_it_asks_for_another_reason(served: Served) -> None:
    first = (await served.ask(RM)).json()
    old = first["events"][0]["details"]["approvalId"]
    rules = Policy((Rule("r", "*", "*", Decision.ASK, reason="production since today"),), "v2")
    served.exchange.feed.feed([SettingsChanged(HubSettings(rules))])
    [question] = served.exchange.views.questions()
    assert "production since today" in question.reason
    path, answer = f"/v1/runs/{first['runId']}/resume", {"operationId": "rm", "decision": "approved"}
    for given in ({}, {"approvalId": old}):
        refused = await served.post(path, {"approval": {**answer, **given}})
        assert (refused.status_code, refused.json()["error"]["details"]) == (409, {"approval_id": question.approval_id})
    other = await served.post(path, {"approval": {**answer, "approvalId": "a1"}})
    assert other.status_code == 404
    body = {"approval": {**answer, "approvalId": question.approval_id}}
    resuming = asyncio.ensure_future(served.post(path, body))
    await served.commands.wait_begun("rm -r a")
    served.commands.end("rm -r a")
    assert (await resuming).status_code == 200


async def test_an_approval_is_carried_out_and_followed_by_whoever_gave_it(served: Served) -> None:
    run_id = (await served.ask(RM)).json()["runId"]
    body = {"approval": {"operationId": "rm", "decision": "approved"}}
    resuming = asyncio.ensure_future(served.post(f"/v1/runs/{run_id}/resume", body))
    await served.commands.wait_begun("rm -r a")
    served.commands.end("rm -r a")
    answer = await resuming
    assert (answer.status_code, answer.json()["status"], len(answer.json()["events"])) == (200, "completed", 1)


async def test_a_run_is_ended_by_its_caller_or_the_operator_and_is_not_there_for_anybody_else(served: Served) -> None:
    tokens = {who: served.exchange.token("http", who) for who in ("alice", "bob")} | {"operator": OPERATOR_TOKEN}
    headers = {who: {"authorization": f"Bearer {token}"} for who, token in tokens.items()}
    for who in ("alice", "operator"):
        message = {"protocolVersion": "1.0", "operations": [RM, MESSAGE]}
        asked = await served.client.post("/v1/spaces/demo/runs", json=message, headers=headers["alice"])
        path = f"/v1/runs/{asked.json()['runId']}/cancel"
        assert (await served.client.post(path, headers=headers["bob"])).status_code == 404
        for _ in range(2):  # one that is done stays as it is
            answer = await served.client.post(path, headers=headers[who])
            told = answer.json()
            assert (answer.status_code, told["status"]) == (200, "error")
            assert [event["type"] for event in told["events"]] == ["approvalRequired", "error"]
            assert told["events"][1]["details"]["endedBy"] == ("operator" if who == "operator" else "http:alice")
    assert served.exchange.views.questions() == []


async def test_a_space_with_open_runs_is_removed_only_by_force(served: Served) -> None:
    run_id = (await served.ask(RM)).json()["runId"]
    refused = await served.client.delete("/v1/spaces/demo")
    assert (refused.status_code, "--force" in refused.json()["error"]["message"]) == (409, True)
    assert (await served.client.delete("/v1/spaces/demo?force=2")).status_code == 400
    assert (await served.client.delete("/v1/spaces/demo?force=1")).status_code == 200
    assert (await served.client.get(f"/v1/runs/{run_id}?wait=10")).json()["status"] == "error"


@pytest.mark.slow
async def test_one_caller_who_holds_all_he_can_get_leaves_places_for_others_and_the_operator(served: Served) -> None:
    headers = {"authorization": f"Bearer {served.exchange.token('http', 'evil')}"}
    message = {"protocolVersion": "1.0", "operations": [RM]}
    statuses = [(await served.client.post("/v1/spaces/demo/runs", json=message, headers=headers)).status_code]
    while statuses[-1] == 200:
        answer = await served.client.post("/v1/spaces/demo/runs", json=message, headers=headers)
        statuses.append(answer.status_code)
    assert (len(statuses), statuses[-1]) == (121, 503)
    other = {"authorization": f"Bearer {served.exchange.token('http', 'good')}"}
    assert (await served.client.post("/v1/spaces/demo/runs", json=message, headers=other)).status_code == 200
    assert (await served.ask(MESSAGE)).json()["status"] == "completed"


# --- what cannot be taken ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/spaces", {}, "missing required field name"),
        ("/v1/spaces", {"name": "Upper"}, "name: a space's name is up to 63 of a-z"),
        ("/v1/spaces", {"name": "x", "preset": 1}, "preset: expected str, got int"),
        ("/v1/spaces", {"name": "x", "preset": "y"}, "unknown preset 'y'"),
        ("/v1/spaces", {"name": "x", "policy": {"shell": {"denyed": []}}}, "shell.denyed"),
        ("/v1/spaces", {"name": "x", "files": 1}, "unknown field 'files'; known are name, preset, policy"),
        ("/v1/runs/{run}/resume", {"approval": {}}, "approval: missing required field operationId"),
        (
            "/v1/runs/{run}/resume",
            {"approval": {"operationId": "rm", "decision": "yes"}},
            "approval.decision: expected approved or denied",
        ),
        ("/v1/runs/{run}/resume?wait=601", {"approval": {"operationId": "rm", "decision": "denied"}}, "from 0 to 600"),
    ],
)
async def test_a_body_that_does_not_fit_is_refused_with_its_place(
    served: Served, path: str, body: dict[str, Any], says: str
) -> None:
    run_id = (await served.ask(RM)).json()["runId"]
    answer = await served.post(path.replace("{run}", run_id), body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "message.malformed")
    assert says in answer.json()["error"]["message"]


async def test_a_command_of_one_who_is_denied_the_shell_is_not_read(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    parse = commands.parse
    monkeypatch.setattr(commands, "parse", lambda text: read.append(text) or parse(text))
    message = {"protocolVersion": "1.0", "operations": [RM]}
    token = served.exchange.token("http", "stranger")
    headers = {"authorization": f"Bearer {token}"}
    asked = await served.client.post("/v1/spaces/demo/check", json=message, headers=headers)
    assert asked.json()["operations"][0]["decision"] == "ask"
    assert read
    read.clear()
    rules = Policy((Rule("r", "http:*", "*", Decision.DENY),), "v2")
    served.exchange.feed.feed([SettingsChanged(HubSettings(rules))])
    for path in ("check", "runs"):
        denied = await served.client.post(f"/v1/spaces/demo/{path}", json=message, headers=headers)
        assert "deny" in denied.text or denied.status_code == 403
    assert not read


async def test_a_check_whose_sender_left_is_not_gone_on_with(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []
    began, judge = asyncio.Event(), SpacesApi._judged

    def noted(api: SpacesApi, *given: Any) -> dict[str, Any]:
        judged.append(1)
        began.set()
        return judge(api, *given)

    monkeypatch.setattr(SpacesApi, "_judged", noted)
    # Every operation takes long: the time of others after it is real.
    monkeypatch.setattr(turns, "SHORT_S", 0.0)
    body = operations(*[{**RM, "id": str(n)} for n in range(1000)]).encode()
    host, _, port = served.url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/spaces/demo/check HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {OPERATOR_TOKEN}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    async with asyncio.timeout(10):
        await began.wait()
        writer.transport.abort()
        tasks: set[asyncio.Task[None]] = served.exchange.edges._running["http"]._listener._connections.tasks  # type: ignore[attr-defined]
        while tasks:  # noqa: ASYNC110  there is no event to wait for
            await asyncio.sleep(0.001)
    assert len(judged) < 500


async def test_a_check_that_takes_too_long_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_JUDGING_S", 0.0)
    refused = await served.post("/v1/spaces/demo/check", json.loads(operations(RM)))
    assert refused.status_code == 413
    assert "check fewer at a time" in refused.text


async def test_while_the_exchange_stops_no_space_is_made_and_no_run_is_taken_on(served: Served) -> None:
    served.exchange.feed.feed([DrainStarted()])
    refused = await served.post("/v1/spaces", {"name": "late"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "hub.unavailable")
    assert "late" not in served.spaces.agents
    not_taken = await served.ask(MESSAGE)
    assert (not_taken.status_code, not_taken.json()["status"]) == (503, "error")
    assert not_taken.json()["events"][0]["message"] == "the exchange is stopping"
    assert not served.spaces.runs.open


async def test_a_message_of_which_nothing_is_done_is_answered_in_an_events_message(served: Served) -> None:
    bad = await served.ask({"type": "nothing"})
    assert (bad.status_code, bad.json()["status"]) == (400, "error")
    kind = {"content-type": "text/plain"}
    other = await served.client.post("/v1/spaces/demo/runs", content="x", headers=kind)
    (event,) = other.json()["events"]
    assert (other.status_code, event["category"], event["details"]) == (
        415,
        "validation",
        {"code": "message.malformed"},
    )
    checked = await served.post("/v1/spaces/demo/check", {"protocolVersion": "1.0", "operations": 1})
    assert (checked.status_code, checked.json()["events"][0]["details"]) == (400, {"path": "operations"})


# --- defects ----------------------------------------------------------------------------------------------------------


async def test_whoever_follows_a_run_in_which_a_defect_is_met_is_told_its_end(served: Served) -> None:
    served.views.broken.add("question")
    answer = await served.ask(MESSAGE, RM)
    served.views.broken.clear()
    message = answer.json()
    assert (answer.status_code, message["status"]) == (200, "error")
    assert [event["type"] for event in message["events"]] == ["message", "error"]
    assert "secret" not in answer.text
    assert (await served.ask(MESSAGE)).json()["status"] == "completed"
    assert served.exchange.notices() == ["defect"]


async def test_a_defect_in_a_route_is_an_error_of_that_request_and_on_record(served: Served) -> None:
    served.views.broken.add("check")
    answer = await served.ask(MESSAGE)
    served.views.broken.clear()
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "hub.unavailable")
    assert "secret" not in answer.text
    (noticed,) = served.exchange.recorded(Noticed)
    assert (noticed.code, "ZeroDivisionError" in noticed.detail) == ("defect", True)
    assert (await served.ask(MESSAGE)).status_code == 200


async def test_a_defect_on_a_socket_closes_it_and_no_other(served: Served) -> None:
    async with served.socket() as broken, served.socket() as sound:
        served.views.broken.add("check")
        await broken.send(operations(MESSAGE))
        with pytest.raises(websockets.exceptions.ConnectionClosed) as closed:
            await said(broken)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1011
        served.views.broken.clear()
        await sound.send(operations(MESSAGE))
        assert [(await said(sound))["status"] for _ in range(2)] == ["completed", "completed"]
    assert served.exchange.notices() == ["defect"]


async def test_a_defect_while_a_run_is_told_closes_its_socket_and_the_run_goes_on(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served.socket() as socket:
        await socket.send(operations(LONG, MESSAGE))
        await served.commands.wait_begun("long")
        run = await served.only_run()
        with monkeypatch.context() as broken:
            broken.setattr(translate, "events_message", None)  # made for each event that is told
            served.commands.end("long")
            with pytest.raises(websockets.exceptions.ConnectionClosed) as closed:
                await said(socket)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1011
    await served.end_of(run)
    assert run.status == "completed"
    assert served.exchange.notices() == ["defect"]


# --- sockets ----------------------------------------------------------------------------------------------------------


async def test_several_runs_are_told_on_one_socket(served: Served) -> None:
    async with served.socket() as socket:
        await socket.send(operations(RM))
        asked = await said(socket)
        assert (asked["status"], "more" in asked) == ("awaiting_approval", False)
        await socket.send("{")
        assert (await said(socket))["events"][0]["category"] == "validation"
        await socket.send(operations(MESSAGE).encode())
        told = [await said(socket) for _ in range(2)]
        assert [(len(one["events"]), one.get("more", False)) for one in told] == [(1, True), (0, False)]
        served.exchange.answer(asked["events"][0]["details"]["approvalId"], approved=False)
        rest = [await said(socket) for _ in range(2)]
        assert {one["runId"] for one in rest} == {asked["runId"]}
        assert [[event["type"] for event in one["events"]] for one in rest] == [["policyDenied"], []]


async def test_a_run_of_a_lost_socket_goes_on_and_nobody_follows_it(served: Served) -> None:
    async with served.socket() as socket:
        await socket.send(operations(LONG))
        await served.commands.wait_begun("long")
        run = await served.only_run()
        sessions = served.exchange.feed.figures()["sessions"]
    assert isinstance(sessions, int)
    await served.wait_sessions(sessions - 1)
    served.commands.end("long")
    await served.end_of(run)
    assert served.exchange.notices() == []


async def test_a_socket_whose_token_was_revoked_hears_nothing_more_of_its_run(served: Served) -> None:
    token = served.exchange.token("http", "leaver")
    async with served.socket(token) as socket:
        await socket.send(operations(LONG))
        await served.commands.wait_begun("long")
        served.exchange.revoke("http", "leaver")
        served.commands.end("long")
        with pytest.raises(websockets.exceptions.ConnectionClosed) as closed:
            await said(socket)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
