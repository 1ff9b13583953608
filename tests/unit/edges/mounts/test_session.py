"""``edges.mounts.session``: the conversation with one server, message by message."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from tests.unit.edges.mounts.kit import ECHO, Talk, line, ready
from trunkline.edges.mounts import session
from trunkline.edges.mounts.session import Answered, Broken, Pong, Progressed, Ready, ToolsChanged, ToolsListed


def test_a_server_that_knows_the_era_without_a_handshake_is_asked_for_its_tools_at_once() -> None:
    talk = Talk()
    first = talk.one()
    assert first["method"] == "server/discover"
    assert first["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    info = {"io.modelcontextprotocol/serverInfo": {"name": "sample", "version": "1"}}
    assert not talk.answers(
        first, {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}, "prompts": {}}, "_meta": info}
    )
    listing = talk.one()
    assert listing["method"] == "tools/list"
    assert listing["params"]["_meta"]["io.modelcontextprotocol/clientInfo"]["name"] == "trunkline"
    [said] = talk.answers(listing, {"tools": [ECHO]})
    assert said == Ready((Raw(line(ECHO)),), has_resources=False, has_prompts=True)
    assert talk.session.is_stateless
    assert talk.session.server_version == "1"


@pytest.mark.parametrize("code", [-32601, -32602, -32600, 0, -32000])
def test_any_other_server_is_asked_to_shake_hands(code: int) -> None:
    talk = Talk()
    talk.refuses(talk.one(), code)
    hello = talk.one()
    assert (hello["method"], hello["params"]["protocolVersion"]) == ("initialize", "2025-11-25")
    talk.answers(
        hello, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"version": "2.1"}}
    )
    assert talk.session.server_version == "2.1"
    greeting, listing = talk.sent()
    assert greeting == {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (listing["method"], listing["params"]) == ("tools/list", {})
    assert talk.session.version == "2025-06-18"


@pytest.mark.parametrize("info", [None, 7, {}, {"version": 3}, {"version": "a\n"}])
def test_a_server_that_says_nothing_of_its_version_has_none(info: object) -> None:
    talk = Talk()
    talk.refuses(talk.one(), -32601)
    talk.answers(talk.one(), {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info})
    assert (talk.session.version, talk.session.server_version) == ("2025-06-18", "")


def test_a_server_that_discovers_only_older_versions_is_asked_to_shake_hands() -> None:
    talk = Talk()
    talk.answers(talk.one(), {"supportedVersions": ["2025-11-25"], "capabilities": {}})
    assert talk.one()["method"] == "initialize"


def test_a_server_of_versions_that_nobody_knows_cannot_be_spoken_with() -> None:
    talk = Talk()
    [said] = talk.refuses(talk.one(), -32022, data={"supported": ["2031-01-01"]})
    assert said == Broken("it speaks 2031-01-01, and no version that we know")
    other = Talk()
    other.refuses(other.one(), -32601)
    [said] = other.answers(other.one(), {"protocolVersion": "1999-01-01", "capabilities": {}, "serverInfo": {}})
    assert said == Broken("it speaks 1999-01-01, which we do not")


def test_a_list_is_read_page_by_page() -> None:
    talk = ready()
    assert not talk.answers(talk.one(), {"tools": [ECHO], "nextCursor": "more"})
    second = talk.one()
    assert second["params"]["cursor"] == "more"
    [said] = talk.answers(second, {"tools": [{**ECHO, "name": "other"}]})
    assert isinstance(said, Ready)
    assert len(said.tools) == 2


def test_a_list_without_an_end_is_not_read_to_it() -> None:
    talk = ready()
    for _ in range(session.MAX_PAGES - 1):
        assert not talk.answers(talk.one(), {"tools": [], "nextCursor": "again"})
    [said] = talk.answers(talk.one(), {"tools": [], "nextCursor": "again"})
    assert isinstance(said, Broken)
    assert "100 pages" in said.reason


def test_a_list_of_too_many_tools_is_not_kept() -> None:
    talk = ready()
    page = {"tools": [ECHO] * 600, "nextCursor": "more"}
    assert not talk.answers(talk.one(), page)
    [said] = talk.answers(talk.one(), page)
    assert isinstance(said, Broken)


def test_tools_that_changed_are_read_again_and_a_list_that_fails_leaves_the_old_one() -> None:
    talk = ready(capabilities={"tools": {"listChanged": True}})
    listen, listing = talk.sent()
    assert (listen["method"], listen["params"]["notifications"]) == ("subscriptions/listen", {"toolsListChanged": True})
    talk.answers(listing, {"tools": [ECHO]})
    assert talk.says({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}) == [ToolsChanged()]
    talk.session.relist()
    talk.session.relist()
    again = talk.one()
    [said] = talk.answers(again, {"tools": []})
    assert said == ToolsListed(())
    talk.session.relist()
    assert talk.refuses(talk.one(), -32603) == []
    assert not talk.session.is_broken


def test_tools_that_change_while_they_are_read_are_read_once_more() -> None:
    talk = ready()
    assert talk.says({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}) == []
    said = talk.answers(talk.one(), {"tools": []})
    assert [type(one) for one in said] == [Ready, ToolsChanged]


def test_requests_are_answered_in_any_order_and_once() -> None:
    talk = ready()
    talk.answers(talk.one(), {"tools": []})
    talk.session.request("a", "tools/call", b'"name":"echo","arguments":{"x":1}')
    talk.session.request("b", "tools/call", b'"name":"echo","arguments":{}')
    first, second = talk.sent()
    assert first["params"]["arguments"] == {"x": 1}
    assert first["params"]["_meta"]["progressToken"] == first["id"]
    assert "io.modelcontextprotocol/protocolVersion" in first["params"]["_meta"]
    assert talk.answers(second, {"content": []}) == [Answered("b", Raw(b'{"content": []}'))]
    assert talk.answers(second, {"content": []}) == [], "it was answered"
    [said] = talk.refuses(first, -32602)
    assert isinstance(said, Answered)
    assert said.error is not None
    assert said.error.code == -32602
    assert talk.session.end() == []


def test_progress_belongs_to_the_request_that_it_names() -> None:
    talk = ready()
    talk.answers(talk.one(), {"tools": []})
    talk.session.request("a", "tools/call", b'"name":"echo"')
    number = talk.one()["id"]
    progress = {"jsonrpc": "2.0", "method": "notifications/progress"}
    [said] = talk.says({**progress, "params": {"progressToken": number, "progress": 1, "total": 2, "message": "m"}})
    assert isinstance(said, Progressed)
    assert (said.ref, json.loads(bytes(said.data))) == ("a", {"text": "m", "percent": 50.0})
    for shown, data in (
        ({"progress": 3}, {"text": "3"}),
        ({"progress": 1.5, "total": 4}, {"text": "1.5 of 4", "percent": 37.5}),
        ({"progress": 5, "total": 4, "message": "m"}, {"text": "m"}),
        ({"progress": 0, "total": 0}, {"text": "0 of 0"}),
        ({"message": "m"}, {"text": "m"}),
        ({}, {"text": ""}),
    ):
        [said] = talk.says({**progress, "params": {"progressToken": number, **shown}})
        assert isinstance(said, Progressed)
        assert json.loads(bytes(said.data)) == data
    for token in (number + 1, str(number), None, 1.5, {}):
        assert talk.says({**progress, "params": {"progressToken": token, "progress": 1}}) == []


def test_a_cancel_names_the_request_and_what_nobody_wants_is_forgotten() -> None:
    talk = ready()
    talk.answers(talk.one(), {"tools": []})
    talk.session.request("a", "tools/call", b"")
    number = talk.one()["id"]
    talk.session.cancel("a", "canceled")
    said = talk.one()
    assert (said["method"], said["params"]) == (
        "notifications/cancelled",
        {"requestId": number, "reason": "canceled"},
    )
    talk.session.forget("a")
    assert talk.session.cancel("a", "canceled") is None
    assert talk.session.end() == []


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list", "tasks/get"])
def test_what_a_server_asks_of_us_is_refused_with_a_reason(method: str) -> None:
    talk = ready()
    talk.sent()
    talk.says({"jsonrpc": "2.0", "id": "s1", "method": method, "params": {}})
    answer = talk.one()
    assert (answer["id"], answer["error"]["code"]) == ("s1", -32601)
    assert answer["error"]["message"]


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
def test_pings_are_answered_and_sent(era: str) -> None:
    talk = ready(era=era)
    talk.sent()
    talk.says({"jsonrpc": "2.0", "id": 7, "method": "ping"})
    assert talk.one() == {"jsonrpc": "2.0", "id": 7, "result": {}}
    talk.session.ping()
    talk.session.ping()
    ping = talk.one()
    assert ping["method"] == ("ping" if era == "2025-11-25" else "server/discover")
    assert talk.answers(ping, {}) == [Pong()]


@pytest.mark.parametrize(
    "data",
    [b"", b"  ", b"hello", b"[]", b"null", b"7", b"{", b'{"a":1,"a":2}', b"\xff\xfe", b"[" * 5000, b'{"id":1.5}'],
)
def test_what_is_no_message_is_skipped(data: bytes) -> None:
    talk = ready()
    talk.sent()
    assert talk.session.hear(data) == []
    assert not talk.session.is_broken


def test_those_who_wait_are_named_when_it_ends() -> None:
    talk = ready()
    talk.answers(talk.one(), {"tools": []})
    talk.session.request("a", "tools/call", b"")
    assert talk.session.lost(talk.one()["id"]) == [Answered("a")]
    talk.session.request("b", "tools/call", b"")
    assert talk.session.end() == ["b"]
    assert talk.says({"jsonrpc": "2.0", "id": 1, "result": {}}) == []
