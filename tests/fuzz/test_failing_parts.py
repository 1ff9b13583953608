"""An exception in a part that everybody uses costs one entry, one line, one answer or one stream, and nothing else.

Thrown from the masker, from every view and every word of the operator's, and from the stream of who watches.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fuzz.all_edges import Town
from tests.fuzz.asgi import Request
from tests.fuzz.failing import Planted
from tests.fuzz.routes import Visitor, table
from trunkline.edges.exchange import Operator, Views
from trunkline.edges.http import stream
from trunkline.entries import CallSettled
from trunkline.ledger.masking import Masker
from trunkline.ledger.verify import verify
from trunkline.testing.memory import MemoryExchange

POISON = "ghp_" + "a1B2" * 9

# What some page shows, whatever is in the exchange.
ON_A_PAGE = ("agents", "calls", "tools", "questions", "tokens", "policy", "status")


def methods(*protocols: type) -> list[str]:
    return sorted({name for each in protocols for name in vars(each) if not name.startswith("_")})


@pytest.mark.parametrize("part", ["_seen", "_masked"])
def test_what_the_masker_raises_costs_what_an_entry_holds(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(Masker, part)

    def raises(self: Masker, data: bytes, *more: Any) -> Any:
        if POISON.encode() in data:
            raise Planted
        return right(self, data, *more)

    monkeypatch.setattr(Masker, part, raises)
    exchange = MemoryExchange()
    watched: list[bytes] = []
    exchange.operator.watch(watched.append)
    agent = exchange.attach("com.x", "change")
    for value in ("before", POISON, "after"):
        made = exchange.call("com.x/change", {"note": value})
        agent.finish({"said": value, "kept": "x" * 20})
        assert made.output["said"] == value, "payloads are never altered on their way"
    assert exchange.died is None
    assert exchange.operator.status()["defects"] == 0
    verify(exchange.disk.path("ledger.sqlite"), vfs=exchange.disk.vfs)
    outcomes = [exchange.views.entries(call_id=entry.call_id) for entry in exchange.recorded(CallSettled)]
    before, poisoned, after = (b"\n".join(lines) for lines in outcomes)
    assert b"before" in before
    assert b"after" in after
    assert POISON.encode() not in poisoned
    assert json.loads(poisoned.splitlines()[-1])["kind"] == "call.settled"
    assert b"masked_whole" in poisoned
    assert not [line for line in watched if POISON.encode() in line]


@pytest.mark.parametrize("name", methods(Views, Operator))
def test_what_a_view_raises_costs_the_answer_that_needs_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*_: object, **__: object) -> Any:
        raise Planted

    with Town(0) as town:
        visitor = Visitor(town)
        pages = [route.path for route in table(town) if route.method == "GET" and "{" not in route.path]
        pages = [path for path in pages if path.startswith("/v1") and path != "/v1/watch"]
        with monkeypatch.context() as broken:
            for owner in (town.exchange.views, town.exchange.operator):
                if hasattr(owner, name):
                    broken.setattr(owner, name, raises)
            for path in pages:
                request = town.ask(town.app, Request("GET", path, b"", town.headers("operator")))
                assert request.complete
                assert "error" in json.loads(request.content) or request.status == 200
            for _ in range(60):
                route = town.rng.choice(visitor.table)
                if route.path != "/v1/watch":
                    body = visitor.body(route) if route.method == "POST" else b""
                    town.ask(town.app, Request(route.method, visitor.target(route), body, town.headers("operator")))
                town.exchange.advance(1)
            assert town.exchange.died is None
        assert {type(error) for error in town.raised} <= {Planted}
        assert all(what.startswith("Planted at ") for what in town.exchange.feed._defects)
        assert town.exchange.feed._defects or name not in ON_A_PAGE
        town.raised.clear()
        for path in pages:
            assert town.send("operator", "GET", path, b"").status in {200, 400}, path
        assert not town.watching.complete


def test_a_space_that_is_made_while_the_disk_hangs_is_there_when_the_disk_is_back() -> None:
    with Town(0) as town:
        town.exchange.disk_rests = True
        refused = town.send("operator", "POST", "/v1/spaces", b'{"name": "demo"}', 60)
        assert refused.status == 503
        town.exchange.disk_rests = False
        town.exchange.store()
        message = {"protocolVersion": "1.0", "operations": [{"type": "createFile", "path": "a", "content": "x"}]}
        run = town.send("operator", "POST", "/v1/spaces/demo/runs", json.dumps(message).encode(), 5)
        assert json.loads(run.content)["events"][0]["success"] is True
        town.judge("the disk is back")


def test_what_is_raised_in_the_stream_of_one_who_watches_ends_that_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    right = stream.event
    with Town(0) as town:
        other = town.ask(town.app, Request("GET", "/v1/watch", b"", town.headers("operator")))
        left = 1

        def raises(name: str, data: bytes) -> bytes:
            nonlocal left
            if name == "entry" and left:
                left -= 1
                raise Planted
            return right(name, data)

        monkeypatch.setattr(stream, "event", raises)
        agent = town.exchange.attach("com.x", "change")
        made = town.exchange.call("com.x/change", {"note": "seen"})
        agent.finish({})
        town.exchange.advance(0)
        assert made.answer is not None
        assert town.exchange.died is None
        assert [type(error) for error in town.raised] == [Planted]
        assert town.exchange.operator.status()["defects"] == 1
        seen = [request for request in (town.watching, other) if b"seen" in request.content]
        assert len(seen) == 1
        assert len(town.exchange.feed._watchers) == 1


def test_who_watches_and_raises_is_told_nothing_more_and_others_are() -> None:
    with Town(0) as town:

        def raises(_: bytes) -> None:
            raise Planted

        town.exchange.operator.watch(raises)
        watching = len(town.exchange.feed._watchers)
        agent = town.exchange.attach("com.x", "change")
        made = town.exchange.call("com.x/change", {"note": "seen"})
        agent.finish({})
        town.exchange.advance(0)
        assert made.answer is not None
        assert town.exchange.died is None
        assert town.exchange.operator.status()["defects"] == 1
        assert len(town.exchange.feed._watchers) == watching - 1
        assert b"seen" in town.watching.content
