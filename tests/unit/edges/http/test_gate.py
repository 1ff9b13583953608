"""Host, Origin and Authorization, each as a table; failures slow only failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from tests.inhabited import Inhabited
from tests.unit.edges.http.conftest import Server, wait_until
from trunkline.edges import bearer, web_connection
from trunkline.edges.doors import Door
from trunkline.edges.hosts import is_our_host
from trunkline.edges.http import gate
from trunkline.edges.http.gate import Counted
from trunkline.edges.shares import FREE_BYTES, MAX_SHARE_BYTES, Share, Shares
from trunkline.entries import Noticed
from trunkline.testing.memory import OPERATOR_TOKEN


@pytest.mark.parametrize(
    ("host", "server", "ours"),
    [
        ("127.0.0.1:7411", ("127.0.0.1", 7411), True),
        ("localhost:7411", ("127.0.0.1", 7411), True),
        ("LOCALHOST:7411", ("127.0.0.1", 7411), True),
        ("[::1]:7411", ("::1", 7411), True),
        ("192.168.1.5:7411", ("192.168.1.5", 7411), True),
        ("localhost", ("127.0.0.1", 80), True),
        ("localhost", ("127.0.0.1", 7411), False),
        ("localhost:7412", ("127.0.0.1", 7411), False),
        ("evil.example:7411", ("127.0.0.1", 7411), False),
        ("127.0.0.1.evil.example:7411", ("127.0.0.1", 7411), False),
        ("localhost:7411@evil.example", ("127.0.0.1", 7411), False),
        ("localhost.:7411", ("127.0.0.1", 7411), False),
        ("0.0.0.0:7411", ("127.0.0.1", 7411), False),
        ("", ("127.0.0.1", 7411), False),
    ],
)
def test_only_loopback_names_with_our_port_are_ours(host: str, server: tuple[str, int], ours: bool) -> None:
    assert is_our_host(host, server) is ours


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:{port}"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "evil.example:{port}"}, 403),
        ({"host": "localhost:1"}, 403),
        ({"host": "127.0.0.1:{port}", "origin": "http://127.0.0.1:{port}"}, 200),
        ({"host": "localhost:{port}", "origin": "http://localhost:{port}"}, 200),
        ({"host": "127.0.0.1:{port}", "origin": "http://localhost:{port}"}, 403),
        ({"host": "127.0.0.1:{port}", "origin": "http://127.0.0.1:1"}, 403),
        ({"host": "127.0.0.1:{port}", "origin": "https://127.0.0.1:{port}"}, 403),
        ({"host": "127.0.0.1:{port}", "origin": "http://evil.example"}, 403),
        ({"host": "127.0.0.1:{port}", "origin": "null"}, 403),
        ({"host": "127.0.0.1:{port}", "origin": ""}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/v1/agents", "/healthz", "/"])
async def test_a_page_of_somebody_else_gets_nothing(
    server: Server, headers: dict[str, str], status: int, path: str
) -> None:
    placed = {name: value.format(port=server.port) for name, value in headers.items()}
    answer = await server.ask("GET", path, headers=placed)
    assert answer.status_code == status, answer.text
    if status == 403:
        assert answer.json()["error"]["code"] == "not_allowed"
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_request_without_a_host_is_refused(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"GET /v1/agents HTTP/1.0\r\nAuthorization: Bearer {OPERATOR_TOKEN}\r\n\r\n".encode())
    async with asyncio.timeout(5):
        assert (await reader.read()).startswith(b"HTTP/1.1 403 ")
    writer.close()


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer tlk_wrong", f"Basic {OPERATOR_TOKEN}", "Bearer " + "x" * 8000, "Bearer \xff"],
)
async def test_every_bad_credential_gets_equal_bytes(server: Server, authorization: str | None) -> None:
    headers = {} if authorization is None else {"authorization": authorization.encode("latin-1")}
    answer = await server.client.get("/v1/agents", headers=headers)
    assert answer.status_code == 401
    assert answer.content == gate.UNAUTHORIZED.body
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_valid_token_is_never_slowed_down_by_refusals(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    real_sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await real_sleep(0)

    monkeypatch.setattr(bearer.asyncio, "sleep", note)
    for _ in range(12):
        assert (await server.ask("GET", "/v1/agents", token="tlk_wrong")).status_code == 401
    assert waits[:3] == [0.1, 0.2, 0.4]
    assert waits[-1] == bearer.MAX_DELAY_S
    waited = len(waits)
    assert (await server.ask("GET", "/v1/agents", token=server.exchange.alice)).status_code == 200
    assert len(waits) == waited


async def test_the_record_says_which_address_failed(server: Server) -> None:
    await server.ask("GET", "/v1/agents", token="tlk_wrong")
    [notice] = server.exchange.news
    assert isinstance(notice, Noticed)
    assert (notice.code, notice.place, notice.who) == ("auth.failed", "http", "127.0.0.1")
    assert notice.detail == "1 in a row"


async def door(scope: Scope, _receive: Receive, send: Send) -> None:
    """An application of another edge: says who asks."""
    principal = scope.get("principal")
    body = b"nobody" if principal is None else principal.identity.encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize(
    ("path", "token", "status", "says"),
    [
        ("/v1/spaces", OPERATOR_TOKEN, 200, "operator"),
        ("/v1/spaces/demo/runs", OPERATOR_TOKEN, 200, "operator"),
        ("/v1/spaces", None, 401, ""),
        ("/v1/spacesuit", OPERATOR_TOKEN, 404, ""),
        ("/api/agent/message", None, 200, "nobody"),
        ("/api/agentx", None, 401, ""),
    ],
)
async def test_behind_a_door_another_edge_answers(path: str, token: str | None, status: int, says: str) -> None:
    doors = [Door(("/v1/spaces",), door), Door(("/api/agent",), door, gate_of="chiffon")]
    async with Server(Inhabited(), doors) as server:
        found = await server.ask("GET", path, token)
        assert found.status_code == status
        if says:
            assert found.text == says
        rebound = await server.ask("GET", path, token, headers={"host": "evil.example"})
        assert rebound.status_code == 403


class Held:
    """An application that answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.goes_on = asyncio.Event()

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        self.asked += 1
        await self.goes_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"held"})


async def test_one_caller_has_half_of_the_connections_and_others_and_the_operator_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "MAX_REQUESTS", 2)
    held = Held()
    async with Server(Inhabited(), [Door(("/v1/held",), held)]) as server:
        alice, carol = server.exchange.alice, server.exchange.approver
        asking = [asyncio.create_task(server.ask("GET", "/v1/held", alice)) for _ in range(2)]
        await wait_until(lambda: held.asked == 2)
        refused = await server.ask("GET", "/v1/tools", alice)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "limit.inflight")
        assert refused.headers["retry-after"] == "1"
        assert (await server.ask("GET", "/v1/tools", carol)).status_code == 200
        asking += [asyncio.create_task(server.ask("GET", "/v1/held")) for _ in range(5)]
        await wait_until(lambda: held.asked == 7)
        held.goes_on.set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
        assert (await server.ask("GET", "/v1/tools", alice)).status_code == 200


async def test_behind_a_door_with_its_own_gate_each_token_has_its_share_and_strangers_have_one_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "MAX_REQUESTS", 2)
    held = Held()
    async with Server(Inhabited(), [Door(("/api/agent",), held, gate_of="chiffon")]) as server:
        greedy, other = (server.exchange.token("chiffon", name, "infra") for name in ("greedy", "other"))
        # A token of another edge is a stranger's here.
        asking = [
            asyncio.create_task(server.ask("GET", "/api/agent/x", token))
            for token in (greedy, greedy, "tlk_wrong", server.exchange.alice)
        ]
        await wait_until(lambda: held.asked == 4)
        for token in (greedy, None, OPERATOR_TOKEN):
            assert (await server.ask("GET", "/api/agent/x", token)).status_code == 429
        asking += [asyncio.create_task(server.ask("GET", "/api/agent/x", other)) for _ in range(2)]
        await wait_until(lambda: held.asked == 6)
        held.goes_on.set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}


@pytest.mark.parametrize("path", ["/v1/tools", "/healthz", "/api/agent/x"])
async def test_the_last_connections_are_the_operators(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_connection, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(web_connection, "RESERVED_CONNECTIONS", 2)
    held = Held()
    async with Server(
        Inhabited(), [Door(("/v1/held",), held), Door(("/api/agent",), door, gate_of="chiffon")]
    ) as server:
        asking = [asyncio.create_task(server.ask("GET", "/v1/held", server.exchange.alice)) for _ in range(3)]
        await wait_until(lambda: held.asked == 3)
        for token in (server.exchange.approver, "tl_nobodys", None):
            refused = await server.ask("GET", path, token)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "limit.resource")
        assert (await server.ask("GET", "/v1/status")).status_code == 200
        asking += [asyncio.create_task(server.ask("GET", "/v1/held")) for _ in range(2)]
        await wait_until(lambda: held.asked == 5)
        held.goes_on.set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
        assert (await server.ask("GET", "/v1/tools", server.exchange.approver)).status_code == 200


async def test_answers_that_one_caller_does_not_read_are_counted_and_more_are_refused_until_they_are() -> None:
    unread, may_read = Shares(), asyncio.Event()
    size = 10_000_000
    fitting = MAX_SHARE_BYTES // size

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"%d" % size)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(size)})

    async def answered(who: str, method: str) -> tuple[int, int]:
        told: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            told.append(message)
            if len(message.get("body", b"")) > 1000:
                await may_read.wait()

        share = Share(unread, who)
        await app({"type": "http"}, _nothing, Counted(share, send, may_refuse=method == "GET").send)
        share.end()
        assert max(len(message.get("body", b"")) for message in told) <= FREE_BYTES
        return told[0]["status"], sum(len(message.get("body", b"")) for message in told)

    waiting = [asyncio.ensure_future(answered("a", "GET")) for _ in range(fitting)]
    await asyncio.sleep(0)
    assert (await answered("a", "GET"))[0] == 429
    # What was done is told, and somebody else has a share of his own.
    waiting += [asyncio.ensure_future(answered("a", "POST")), asyncio.ensure_future(answered("b", "GET"))]
    await asyncio.sleep(0)
    may_read.set()
    assert await asyncio.gather(*waiting) == [(200, size)] * (fitting + 2)
    assert (unread.held("a"), unread.held("b")) == (0, 0)


async def _nothing() -> Any:
    raise AssertionError
