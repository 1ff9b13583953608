"""``edges.mounts.remote``: a server at a URL, on a real socket, whose every answer a test writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import pytest
from msgspec import Raw
from msgspec.structs import replace

from tests.unit.edges.mounts.http_server import CLOSE, HttpServer, answered
from tests.unit.edges.mounts.kit import ECHO, HasMounted
from trunkline.config import Config, McpServer
from trunkline.edges.mounts import mount, notices
from trunkline.edges.mounts import remote as module
from trunkline.edges.mounts.edge import MOUNTS
from trunkline.entries import CallSettled
from trunkline.model import Status
from trunkline.testing.memory import MemoryExchange

BAD = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"bad"}}'
HANDSHAKE = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}}, "serverInfo": {}}


class Request:
    """One request that the server got."""

    def __init__(self, method: str, headers: dict[str, str], body: bytes) -> None:
        self.method, self.headers = method, headers
        self.message: dict[str, Any] = json.loads(body) if body else {}


class Scripted(HttpServer):
    """Answers what ``on`` says: by the method of the protocol, or by GET and DELETE; bytes, as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.on: dict[str, Callable[[Request], bytes]] = {}
        self.got: list[Request] = []
        self.url = ""

    async def start(self) -> None:
        await self.listen()
        self.url = f"http://127.0.0.1:{self.port}/mcp"

    def respond(self, method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
        request = Request(method, headers, body)
        self.got.append(request)
        return self.on.get(request.message.get("method", method), lambda _: answered(405))(request)

    def methods(self) -> list[str]:
        return [request.message.get("method", request.method) for request in self.got]


def answer(result: object, **headers: str) -> Callable[[Request], bytes]:
    def say(request: Request) -> bytes:
        body = json.dumps({"jsonrpc": "2.0", "id": request.message["id"], "result": result}).encode()
        return answered(200, body, "application/json", **headers)

    return say


def stream(*events: str, is_open: bool = False) -> bytes:
    body = "".join(f"{event}\n\n" for event in events).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + body + (b"" if is_open else CLOSE)


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scripted]:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(module, "RESUME_WAIT_S", 0.01)
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    found = Scripted()
    await found.start()
    found.on["server/discover"] = answer({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}})
    found.on["tools/list"] = answer({"tools": [ECHO]})
    yield found
    await found.stop()


def with_handshake(server: Scripted) -> None:
    server.on["server/discover"] = lambda _: answered(400)
    server.on["initialize"] = answer(HANDSHAKE, Mcp_Session_Id="s-1")
    server.on["notifications/initialized"] = lambda _: answered(202)
    server.on["DELETE"] = lambda _: answered(204)


class Mounting(HasMounted):
    """An exchange that has mounted it."""

    def __init__(self, url: str, **table: Any) -> None:
        config = Config(mcp_servers=(McpServer(id="x", url=url, **table),))
        self.exchange = MemoryExchange(edges=(MOUNTS,), config=config, live=asyncio.get_running_loop())

    async def __aenter__(self) -> Self:
        await self.exchange.edges.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.exchange.edges.stop()

    async def ready(self) -> None:
        await self.until(lambda: self.exchange.views.tool("mcp.x/echo") is not None)

    async def called(self) -> CallSettled:
        before = len(self.exchange.recorded(CallSettled))
        self.exchange.call("mcp.x/echo", Raw(b"{}"))
        await self.until(lambda: len(self.exchange.recorded(CallSettled)) > before)
        settled: CallSettled = self.exchange.recorded(CallSettled)[-1]
        return settled


async def test_requests_without_a_handshake_say_version_method_and_name_in_headers(server: Scripted) -> None:
    server.on["tools/call"] = answer({"content": []})
    async with Mounting(server.url, headers={"X-Key": "literal:env:k"}) as mounting:
        await mounting.ready()
        assert (await mounting.called()).status is Status.SUCCEEDED
    call = server.got[-1].headers
    assert (call["mcp-protocol-version"], call["mcp-method"], call["mcp-name"]) == ("2026-07-28", "tools/call", "echo")
    assert (call["x-key"], call["accept"]) == ("env:k", "application/json, text/event-stream")
    assert "mcp-session-id" not in call


@pytest.mark.parametrize("era", ["2026-07-28", "2025-11-25"])
async def test_arguments_that_a_schema_wants_in_headers_are_there_in_the_era_that_has_them(
    server: Scripted, era: str
) -> None:
    region = {"type": "string", "x-mcp-header": "Region"}
    wrong = {"type": "object", "properties": {"a": {"type": "array", "items": region}}}
    tools = [
        {**ECHO, "inputSchema": {"type": "object", "properties": {"region": region}}},
        {**ECHO, "name": "wrong", "inputSchema": wrong},
    ]
    if era == "2025-11-25":
        with_handshake(server)
    server.on["tools/list"] = answer({"tools": tools})
    server.on["tools/call"] = answer({"content": []})
    async with Mounting(server.url) as mounting:
        await mounting.ready()
        is_modern = era == "2026-07-28"
        assert (mounting.exchange.views.tool("mcp.x/wrong") is None) is is_modern
        made = mounting.exchange.call("mcp.x/echo", Raw('{"region":"Zürich"}'.encode()))
        await mounting.until(lambda: made.answer is not None)
        assert made.outcome.status is Status.SUCCEEDED
        call = next(request.headers for request in server.got if request.message.get("method") == "tools/call")
        assert call.get("mcp-param-region") == ("=?base64?WsO8cmljaA==?=" if is_modern else None)
        count = len(server.got)
        made = mounting.exchange.call("mcp.x/echo", Raw(b'{"region":"%b"}' % (b"x" * 5000)))
        await mounting.until(lambda: made.answer is not None)
        assert made.code == ("tool.invalid_input" if is_modern else None)
        assert (len(server.got) == count) is is_modern, "nothing was sent"


async def test_a_session_is_named_in_each_request_heard_by_itself_and_ended(server: Scripted) -> None:
    with_handshake(server)
    changed = 'data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
    server.on["GET"] = lambda _: stream(changed, is_open=True)
    async with Mounting(server.url) as mounting:
        await mounting.ready()
        await mounting.until(lambda: server.methods().count("tools/list") >= 2)
        mounting.exchange.edges.steer("mcp.x", "stop")
        assert mounting.view.state == "stopped"
    named = [request for request in server.got if request.headers.get("mcp-session-id") == "s-1"]
    assert {"notifications/initialized", "tools/list", "GET"} <= {
        request.message.get("method", request.method) for request in named
    }
    first = server.methods().index("tools/list")
    assert server.methods().index("notifications/initialized") < first, "nothing before the handshake is done"


async def test_a_proxy_of_the_environment_is_not_followed_and_that_is_said(
    server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with Mounting(server.url) as mounting:
        await mounting.ready()
        [warning] = mounting.exchange.edges.warnings()
        assert warning.startswith("HTTPS_PROXY is not followed: mcp.x")


async def test_a_session_that_the_server_forgot_is_begun_anew(server: Scripted) -> None:
    with_handshake(server)
    server.on["tools/call"] = lambda _: answered(404)
    async with Mounting(server.url) as mounting:
        await mounting.ready()
        assert (await mounting.called()).status is Status.UNKNOWN
        await mounting.until(lambda: server.methods().count("initialize") == 2)
        server.on["tools/call"] = answer({"content": []})
        await mounting.until(lambda: mounting.exchange.views.agent("mcp.x") is not None)
        assert (await mounting.called()).status is Status.SUCCEEDED
        assert mounting.view.restarts >= 1
    assert "DELETE" in server.methods()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (answered(500), Status.UNKNOWN),
        (answered(202), Status.UNKNOWN),
        (answered(200, b"hello"), Status.UNKNOWN),
        (b"nonsense\r\n\r\n<close>", Status.UNKNOWN),
        (CLOSE, Status.UNKNOWN),
        (stream("data: {}"), Status.UNKNOWN),
        (stream(": nothing"), Status.UNKNOWN),
        (answered(302, Location="https://elsewhere.example/"), Status.FAILED),
        (answered(403), Status.FAILED),
        (answered(400, BAD, "application/json"), Status.FAILED),
    ],
)
async def test_a_call_whose_answer_is_none_ends_alone_and_the_next_one_goes_on(
    server: Scripted, said: bytes, expected: Status
) -> None:
    server.on["tools/call"] = lambda _: said
    async with Mounting(server.url) as mounting:
        await mounting.ready()
        assert (await mounting.called()).status is expected
        server.on["tools/call"] = answer({"content": []})
        assert (await mounting.called()).status is Status.SUCCEEDED
        assert mounting.exchange.operator.status()["defects"] == 0


async def test_a_stream_that_broke_off_is_asked_for_the_rest(server: Scripted) -> None:
    with_handshake(server)
    asked: list[Request] = []

    def begin(request: Request) -> bytes:
        asked.append(request)
        return stream("id: e-1\ndata:")

    def go_on(request: Request) -> bytes:
        if request.headers.get("last-event-id") != "e-1":
            return answered(405)
        body = json.dumps({"jsonrpc": "2.0", "id": asked[0].message["id"], "result": {"content": []}})
        return stream(f"id: e-2\ndata: {body}")

    server.on["tools/call"], server.on["GET"] = begin, go_on
    async with Mounting(server.url) as mounting:
        await mounting.ready()
        assert (await mounting.called()).status is Status.SUCCEEDED
    assert len(asked) == 1, "it was not sent again"


async def test_a_server_that_went_away_fails_what_was_not_sent_and_is_connected_to_again(
    server: Scripted,
) -> None:
    async with Mounting(server.url) as mounting:
        await mounting.ready()
        await server.stop()
        settled = await mounting.called()
        assert settled.fault is not None
        assert (settled.status, settled.fault.code) == (Status.FAILED, "tool.unavailable")
        await mounting.until(lambda: mounting.view.state == "backoff")
        assert "cannot be reached" in mounting.view.note


async def test_a_server_that_wants_another_token_than_the_configured_one_says_so(server: Scripted) -> None:
    server.on["server/discover"] = lambda _: answered(401)
    async with Mounting(server.url, headers={"authorization": "Bearer wrong"}) as mounting:
        await mounting.until(lambda: "HTTP 401" in mounting.view.note)
        assert mounting.view.state != "signed-out", "nobody can sign in there"


async def test_a_secret_is_in_the_header_and_a_missing_one_keeps_it_off(
    server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "Bearer correct-horse")
    async with Mounting(server.url, headers={"Authorization": "env:A_TOKEN"}) as mounting:
        await mounting.ready()
    assert server.got[0].headers["authorization"] == "Bearer correct-horse"
    count = len(server.got)
    monkeypatch.setenv("A_TOKEN", "two\nlines of it")
    for reference in ("env:NOBODY_SET_THIS", "env:A_TOKEN"):
        async with Mounting(server.url, headers={"Authorization": reference}) as mounting:
            await mounting.until(lambda mounting=mounting: mounting.view.state == "crashed")
            assert "a secret is missing" in mounting.view.note
    assert len(server.got) == count


async def test_a_reload_says_that_a_secret_is_missing_until_it_is_there_and_connects_then(
    server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("A_TOKEN", raising=False)
    async with Mounting(server.url) as mounting:
        config = mounting.exchange.config
        other = McpServer(id="y", url=server.url, headers={"Authorization": "env:A_TOKEN"})
        config = replace(config, mcp_servers=(*config.mcp_servers, other))

        def reload() -> dict[str, list[str]]:
            done: dict[str, list[str]] = {}
            mounting.exchange.edges.reload(config, "")
            mounting.exchange.edges.configured(done)
            return done

        def state() -> str:
            return next(view.state for view in mounting.exchange.views.agents() if view.agent_id == "mcp.y")

        missing = (
            "mcp.y: a secret is missing: Authorization: the variable A_TOKEN is not set where the exchange was started"
        )
        for _ in range(2):
            done = reload()
            assert (done["started"], done["cannot_start"]) == ([], [missing])
            await mounting.until(lambda: state() == "crashed")
        monkeypatch.setenv("A_TOKEN", "Bearer correct-horse")
        done = reload()
        assert (done["started"], "cannot_start" in done) == (["mcp.y"], False)
        await mounting.until(lambda: state() == "ready")
        assert reload()["started"] == []


async def test_a_canceled_request_is_closed_without_a_handshake_and_told_of_with_one(server: Scripted) -> None:
    server.on["tools/call"] = lambda _: stream(": wait", is_open=True)
    server.on["notifications/cancelled"] = lambda _: answered(202)
    for era in ("2026-07-28", "2025-11-25"):
        if era == "2025-11-25":
            with_handshake(server)
        server.got.clear()
        async with Mounting(server.url, timeout_s=0.2) as mounting:
            await mounting.ready()
            mounting.exchange.call("mcp.x/echo", Raw(b"{}"))
            await mounting.until(lambda: "tools/call" in server.methods())
            pinged = "ping" if era == "2025-11-25" else "server/discover"
            count = 1 if era == "2025-11-25" else 2
            await mounting.until(lambda pinged=pinged, count=count: server.methods().count(pinged) >= count)
        assert ("notifications/cancelled" in server.methods()) is (era == "2025-11-25")


SAMPLING = 'data: {"jsonrpc":"2.0","id":1,"method":"sampling/createMessage"}'
TELLS_CHANGES = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": True}}}


def asks_for_samples(server: Scripted, count: int) -> None:
    """It asks so often, and takes no refusal."""
    server.on["server/discover"] = answer(TELLS_CHANGES)
    server.on["subscriptions/listen"] = lambda _: stream(*[SAMPLING] * count, is_open=True)
    server.on["POST"] = lambda _: b""


async def test_a_server_that_asks_without_end_opens_few_connections_and_is_dropped(server: Scripted) -> None:
    asks_for_samples(server, 2 * notices.MAX_WAITING)
    async with Mounting(server.url) as mounting:
        await mounting.until(lambda: mounting.view.state == "backoff")
        assert mounting.view.note == "it asks for more than it takes answers to"
        # Those of the refusals, of its two answers, and of the stream.
        assert server.connections <= notices.AT_ONCE + 3


async def test_refusals_that_a_server_does_not_take_are_given_up_one_after_the_other(
    server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "DEADLINE_S", 0.05)
    asks_for_samples(server, 3 * notices.AT_ONCE)
    async with Mounting(server.url) as mounting:
        await mounting.until(lambda: server.methods().count("POST") == 3 * notices.AT_ONCE)
        await mounting.ready()
        assert mounting.view.restarts == 0


async def test_a_request_that_nobody_waits_for_keeps_no_connection(
    server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mount, "LATE_ANSWER_S", 0.05)
    with_handshake(server)
    server.on["ping"] = answer({})
    server.on["notifications/cancelled"] = lambda _: answered(202)
    server.on["tools/call"] = lambda _: b""
    async with Mounting(server.url, timeout_s=0.2) as mounting:
        await mounting.ready()
        for _ in range(20):
            mounting.exchange.call("mcp.x/echo", Raw(b"{}"))
        await mounting.until(lambda: server.methods().count("tools/call") == 20)
        assert server.open >= 20
        await mounting.until(lambda: server.open <= notices.AT_ONCE + 2)
        assert mounting.view.restarts == 0, "it was not dropped"
