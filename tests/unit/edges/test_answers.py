"""``edges.answers``: faults over HTTP in our own form, and applications whose every refusal has it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from trunkline.edges.answers import (
    Refused,
    application,
    error_body,
    error_shape,
    json_answer,
    principal_of,
    refusal,
    retry_after_s,
    status_of,
)
from trunkline.edges.bodies import BadRequest
from trunkline.entries import Noticed
from trunkline.model import FAULTS, Fault, Principal, fault
from trunkline.testing.memory import MemoryExchange


@pytest.mark.parametrize("code", FAULTS)
def test_a_refused_request_has_the_status_of_the_table_and_never_success(code: str) -> None:
    assert status_of(fault(code)) == (500 if FAULTS[code].http == 200 else FAULTS[code].http)


def test_a_fault_that_is_not_in_the_table_is_500() -> None:
    assert status_of(Fault("com.example.own", "mine")) == 500


def test_an_error_has_all_its_fields_in_order() -> None:
    found = fault("limit.rate", "slowly", details={"retry_after_ms": 5})
    shape = {"code": "limit.rate", "message": "slowly", "retryable": True, "details": {"retry_after_ms": 5}}
    assert json.loads(error_body(found)) == {"error": shape}
    assert list(json.loads(error_body(fault("not_found")))["error"]) == ["code", "message", "retryable", "details"]
    assert error_shape(None) is None


@pytest.mark.parametrize(
    ("details", "seconds"),
    [
        (None, 1),
        ({}, 1),
        ({"retry_after_ms": 0}, 1),
        ({"retry_after_ms": 1}, 1),
        ({"retry_after_ms": 1000}, 1),
        ({"retry_after_ms": 1001}, 2),
        ({"retry_after_ms": 2500.5}, 3),
        ({"retry_after_ms": "soon"}, 1),
    ],
)
def test_when_to_come_again_is_rounded_up_to_seconds(details: dict[str, object] | None, seconds: int) -> None:
    found = Fault("limit.rate", "slowly", details=details)
    assert retry_after_s(found) == seconds
    assert refusal(found).headers["retry-after"] == str(seconds)


def test_only_who_may_come_again_is_told_when() -> None:
    assert "retry-after" not in refusal(fault("not_found")).headers
    assert "retry-after" not in json_answer({}).headers
    assert json_answer({}, 503).headers["retry-after"] == "1"
    assert refusal(fault("hub.unavailable")).headers["retry-after"] == "1"


def test_a_status_of_ones_own_comes_before_the_tables() -> None:
    assert refusal(fault("hub.unavailable"), 500).status_code == 500
    assert Refused(fault("not_found")).status == 404
    assert Refused(fault("not_found"), 410).status == 410


def test_who_asks_was_put_there_by_the_gate() -> None:
    boss = Principal("operator")
    assert principal_of(Request({"type": "http", "headers": [], "principal": boss})) is boss


# --- applications -----------------------------------------------------------------------------------------------------


class Handlers:
    """An edge that refuses in every way."""

    async def fine(self, request: Request) -> Response:
        return json_answer({"method": request.method})

    async def refused(self, _: Request) -> Response:
        raise Refused(fault("policy.denied", "not you"))

    async def gone(self, _: Request) -> Response:
        raise Refused(fault("not_found"), 410)

    async def bad(self, _: Request) -> Response:
        raise BadRequest(413, "too much")

    async def broken(self, _: Request) -> Response:
        raise RuntimeError("canary-in-the-exception")


@pytest.fixture
def exchange() -> MemoryExchange:
    return MemoryExchange()


async def ask(exchange: MemoryExchange, method: str, path: str) -> httpx.Response:
    handlers = Handlers()
    table: dict[str, dict[str, Any]] = {
        "/fine": {"GET": handlers.fine, "POST": handlers.fine},
        "/refused": {"GET": handlers.refused},
        "/gone": {"GET": handlers.gone},
        "/bad": {"GET": handlers.bad},
        "/broken": {"GET": handlers.broken},
    }
    transport = httpx.ASGITransport(application(exchange.feed, table), raise_app_exceptions=False)
    async with asyncio.timeout(5), httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        return await client.request(method, path)


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "message"),
    [
        ("GET", "/refused", 403, "policy.denied", "not you"),
        ("GET", "/gone", 410, "not_found", FAULTS["not_found"].text),
        ("GET", "/bad", 413, "message.malformed", "too much"),
        ("GET", "/nowhere", 404, "not_found", "no such route"),
        ("GET", "/fine/", 404, "not_found", "no such route"),
        ("PUT", "/refused", 405, "message.malformed", "this route takes GET, HEAD"),
        ("GET", "/broken", 500, "hub.unavailable", FAULTS["hub.unavailable"].text),
    ],
)
async def test_every_refusal_has_our_form(
    exchange: MemoryExchange, method: str, path: str, status: int, code: str, message: str
) -> None:
    answer = await ask(exchange, method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    words = " ".join(sorted(error["message"].replace(",", "").split()))
    assert (error["code"], words) == (code, " ".join(sorted(message.replace(",", "").split())))


async def test_another_method_is_told_which_there_are(exchange: MemoryExchange) -> None:
    assert set((await ask(exchange, "DELETE", "/fine")).headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
async def test_each_method_has_its_handler_and_head_is_get(exchange: MemoryExchange, method: str) -> None:
    answer = await ask(exchange, method, "/fine")
    assert answer.status_code == 200
    assert method == "HEAD" or answer.json() == {"method": method}


async def test_a_defect_is_on_record_with_its_place_and_its_text_is_nowhere(exchange: MemoryExchange) -> None:
    answer = await ask(exchange, "GET", "/broken")
    assert answer.json()["error"]["retryable"] is False
    assert "canary" not in answer.text
    [noticed] = exchange.recorded(Noticed)
    assert (noticed.code, noticed.detail) == ("defect", "RuntimeError, 1 so far")
    assert noticed.place.startswith("test_answers.py:")
    assert exchange.died is None
