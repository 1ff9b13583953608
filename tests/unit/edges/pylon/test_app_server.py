from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.edges.pylon import app_server
from trunkline.edges.pylon.app_server import Answered, AppServer, Asked, Broken, Notified, Started, is_approval, verdict


def written(server: AppServer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.take_output().splitlines()]


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def ready() -> AppServer:
    server = AppServer("1.0")
    assert server.receive(line({"id": 0, "result": {"userAgent": "x"}})) == [Started()]
    server.take_output()
    return server


def test_it_is_initialized_before_anything_else_and_once() -> None:
    server = AppServer("1.0")
    client = {"name": "trunkline", "title": "Trunkline", "version": "1.0"}
    assert written(server) == [{"id": 0, "method": "initialize", "params": {"clientInfo": client}}]
    assert server.receive(line({"id": 0, "result": {"userAgent": "x"}})) == [Started()]
    assert written(server) == [{"method": "initialized"}]
    assert server.receive(line({"id": 0, "result": {}})) == []
    assert server.introduction is not None
    assert (bytes(server.introduction), server.skipped) == (b'{"userAgent":"x"}', 1)


def test_one_that_refuses_to_be_initialized_is_of_no_use() -> None:
    server = AppServer("1.0")
    assert server.receive(line({"id": 0, "error": {"code": 1, "message": "no"}})) == [
        Broken("it refused to be initialized")
    ]
    assert server.receive(line({"method": "x"})) == []


def test_answers_find_their_requests_in_any_order() -> None:
    server = ready()
    server.request("a", "thread/start", {"cwd": "/"})
    server.request("b", "model/list", {})
    first, second = written(server)
    assert (first["method"], first["params"], "jsonrpc" in first) == ("thread/start", {"cwd": "/"}, False)
    said = server.receive(line({"id": second["id"], "error": {"code": -1}}) + line({"id": first["id"], "result": None}))
    assert [(one.ref, one.error, one.result and bytes(one.result)) for one in said if isinstance(one, Answered)] == [
        ("b", {"code": -1}, None),
        ("a", None, b"null"),
    ]
    assert server.receive(line({"id": first["id"], "result": 1})) == []
    assert server.end() == []
    server.request("c", "x", {})
    assert server.end() == ["c"]


def test_what_it_tells_and_what_it_asks_are_told_apart_by_an_id() -> None:
    server = ready()
    told, asked = {"method": "turn/started", "params": {}}, {"id": "q", "method": "ask", "params": {"a": 1}}
    assert server.receive(line(told) + line(asked)) == [Notified(told), Asked("q", "ask", {"a": 1}, asked)]
    server.respond("q", {"decision": "accept"})
    assert written(server) == [{"id": "q", "result": {"decision": "accept"}}]


@given(st.data())
def test_it_hears_the_same_however_the_bytes_are_cut(data: st.DataObject) -> None:
    whole = b"".join(line({"method": f"m{n}", "params": {"text": "é\n" * n}}) for n in range(5)) + b"\nnoise\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    server, said = ready(), []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        said += server.receive(whole[start:end])
    assert said == ready().receive(whole)
    assert server.skipped == 1


@given(st.lists(st.binary(max_size=80), max_size=20))
def test_nothing_that_it_prints_raises(pieces: list[bytes]) -> None:
    server = ready()
    for piece in pieces:
        server.receive(piece)


@pytest.mark.parametrize(
    "message",
    [
        [],
        7,
        {},
        {"id": True, "method": "m"},
        {"id": 1.5, "method": "m"},
        {"id": [], "method": "m"},
        {"id": 99, "result": 1},
        {"id": "x", "result": 1},
        {"method": 7},
        {"result": 1},
    ],
)
def test_what_is_no_message_is_counted_and_skipped(message: object) -> None:
    server = ready()
    assert server.receive(line(message)) == []
    assert server.skipped == 1


def test_a_line_without_an_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_server, "MAX_LINE_BYTES", 1000)
    server = ready()
    assert server.receive(b"x" * 600) == []
    assert server.receive(b"x" * 600) == [Broken("a line has more than 1000 bytes")]
    assert server.receive(b"\n") == []
    other = ready()
    assert other.receive(line({"method": "m"}) + b"y" * 2000 + b"\n")[0] == Notified({"method": "m"})


@pytest.mark.parametrize(
    ("method", "yes", "no"),
    [
        ("item/commandExecution/requestApproval", {"decision": "accept"}, {"decision": "decline"}),
        ("item/fileChange/requestApproval", {"decision": "accept"}, {"decision": "decline"}),
        ("execCommandApproval", {"decision": "approved"}, {"decision": "abort"}),
        ("applyPatchApproval", {"decision": "approved"}, {"decision": "abort"}),
        (
            "item/permissions/requestApproval",
            {"permissions": {"network": {}}, "scope": "turn"},
            {"permissions": {}, "scope": "turn"},
        ),
    ],
)
def test_yes_and_no_are_said_as_each_question_wants_it(method: str, yes: object, no: object) -> None:
    params = {"permissions": {"network": {}}}
    assert is_approval(method)
    assert verdict(method, params, approved=True) == yes
    assert verdict(method, params, approved=False) == no


def test_what_yes_and_no_do_not_answer_is_no_approval() -> None:
    assert not is_approval("item/tool/requestUserInput")
    assert verdict("item/permissions/requestApproval", None, approved=True) == {"permissions": {}, "scope": "turn"}
