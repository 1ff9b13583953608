"""Strangers at the address that browsers come back to, and callers who want the operator's sign-ins: a real exchange.

What a hostile server or authorization server says is tried in ``tests/unit/edges/mounts/test_signing_in.py``.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from tests.running import WAIT_S, Running, running, wait_until
from tests.unit.edges.mounts.oauth_kit import ProtectedServer, sites

CALLBACK = "/oauth/callback"
SIGN_IN = "/v1/agents/mcp.issues/sign-in"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, ProtectedServer]]:
    """An exchange whose mounted server waits for the operator to sign in."""
    home = tmp_path_factory.mktemp("mounts") / "home"
    with sites() as server, running(home, f'[[mcp]]\nid = "issues"\nurl = "{server.url}"\n') as exchange:
        wait_until(lambda: states(exchange) == ["signed-out"], "that it wants a sign-in")
        yield exchange, server


def states(exchange: Running) -> list[str]:
    agents = exchange.request("GET", "/v1/agents")[1]["agents"]
    return [one["state"] for one in agents if one["agent_id"] == "mcp.issues"]


def asked(exchange: Running, method: str, target: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(exchange.ready["http"].removeprefix("http://"), timeout=WAIT_S)
    try:
        connection.request(method, target, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def begun(exchange: Running, server: ProtectedServer) -> dict[str, str]:
    """What a browser would come back with, had the operator said yes."""
    status, made = exchange.request("POST", SIGN_IN)
    assert status == 200, made
    return server.signs_in.opened(made["url"])


@pytest.mark.parametrize(
    ("method", "query", "headers", "status"),
    [
        ("GET", "", {}, 400),
        ("GET", "?code=CODE", {}, 400),
        ("GET", "?code=CODE&state=", {}, 400),
        ("GET", "?code=CODE&state=WRONG", {}, 400),
        ("GET", "?code=CODE&state=STATE&state=STATE", {}, 400),
        ("GET", "?code=CODE&state=STATE&filler=" + "x" * 9000, {}, 400),
        ("GET", "/more?code=CODE&state=STATE", {}, 404),
        ("POST", "?code=CODE&state=STATE", {}, 405),
        ("GET", "?code=CODE&state=STATE", {"host": "evil.example"}, 403),
        ("GET", "?code=CODE&state=STATE", {"origin": "https://evil.example"}, 403),
    ],
)
def test_a_stranger_who_comes_back_in_another_way_changes_nothing(
    scene: tuple[Running, ProtectedServer], method: str, query: str, headers: dict[str, str], status: int
) -> None:
    exchange, server = scene
    given = begun(exchange, server)
    count = len(server.signs_in.got)
    target = query.replace("CODE", given["code"]).replace("STATE", given["state"]).replace("WRONG", "w" * 43)
    found, body = asked(exchange, method, f"{CALLBACK}{target}", **headers)
    assert found == status
    assert given["code"].encode() not in body
    assert len(server.signs_in.got) == count, "the code was shown to nobody"
    assert states(exchange) == ["signed-out"]
    assert exchange.request("GET", SIGN_IN)[1] == {"state": "waiting"}, "the operator can still come back"


def test_nobody_but_the_operator_begins_looks_or_ends(scene: tuple[Running, ProtectedServer]) -> None:
    exchange, server = scene
    count = len(server.signs_in.got)
    tokens = [exchange.new_token("stranger", "http"), exchange.new_token("client", "mcp"), "wrong"]
    for token in tokens:
        for method in ("POST", "GET", "DELETE"):
            status, _ = asked(exchange, method, SIGN_IN, authorization=f"Bearer {token}")
            assert status in {401, 403}
    assert len(server.signs_in.got) == count


def test_an_address_holds_nothing_that_opens_something_by_itself(scene: tuple[Running, ProtectedServer]) -> None:
    exchange, server = scene
    status, made = exchange.request("POST", SIGN_IN)
    assert status == 200
    shown = {name: values[0] for name, values in parse_qs(urlsplit(made["url"]).query).items()}
    # Whoever saw it has state and challenge, and no code that was begun with our verifier.
    forged = urlencode({"state": shown["state"], "code": "made-up"})
    found, body = asked(exchange, "GET", f"{CALLBACK}?{forged}")
    assert (found, b"invalid_grant" in body) == (400, True)
    assert states(exchange) == ["signed-out"]
    assert server.signs_in.issued == []
