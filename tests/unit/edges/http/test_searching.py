"""Searching calls, as a person does: by the command line and over HTTP, in an exchange that runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.running import EXAMPLES, Running, running
from tests.unit.cli.conftest import trunkline

ECHO = f"""
[[agent]]
id = "com.example.echo"
command = ["python", "{EXAMPLES}/echo.py"]
"""


@pytest.fixture(scope="module")
def exchange(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("s") / "home", ECHO) as found:
        found.wait_tool("com.example.echo/echo")
        for city in ("Vienna", "Graz", "Linz"):
            assert found.call("com.example.echo/echo", {"text": f"{city} in spring"})["status"] == "succeeded"
        assert found.call("com.example.echo/echo", {"text": 7})["http"] == 400
        yield found


def texts(exchange: Running, query: str, **options: Any) -> list[str]:
    status, answer = exchange.request("GET", f"/v1/calls?{query}", **options)
    assert status == 200, answer
    return [call["output"]["text"] for call in answer["calls"]]


@pytest.mark.slow
def test_calls_are_found_over_http(exchange: Running) -> None:
    assert texts(exchange, "search=vienna") == ["Vienna in spring"]
    assert texts(exchange, "search=spring&limit=2") == ["Linz in spring", "Graz in spring"]
    assert texts(exchange, "tool=echo&status=succeeded&search=graz") == ["Graz in spring"]
    assert texts(exchange, "caller=nobody") == []
    assert texts(exchange, "from=2020-01-01T00:00:00Z&to=2021-01-01") == []
    assert len(texts(exchange, "from=2020-01-01T00:00:00%2B01:00")) == 3


def test_a_call_that_was_just_made_is_found(exchange: Running) -> None:
    for n in range(5):
        made = exchange.call("com.example.echo/echo", {"text": f"fresh{n}"})
        found = exchange.request("GET", f"/v1/calls?search=fresh{n}")[1]["calls"]
        assert [call["call_id"] for call in found] == [made["call_id"]]


def test_a_page_leads_to_the_next(exchange: Running) -> None:
    first = exchange.request("GET", "/v1/calls?search=spring&limit=2")[1]
    second = exchange.request("GET", f"/v1/calls?search=spring&limit=2&before={first['next']}")[1]
    assert [len(first["calls"]), len(second["calls"]), second["next"]] == [2, 1, None]


def test_others_find_their_own_calls_only(exchange: Running) -> None:
    token = exchange.new_token("me", "http")
    assert texts(exchange, "search=spring", token=token) == []
    assert texts(exchange, "caller=operator", token=token) == []


@pytest.mark.parametrize(
    "query",
    [
        "status=done",
        "from=yesterday",
        "to=99999999999999999",
        "search=" + "x" * 257,
        "search=a&correlation_id=b",
        "q=a",
    ],
)
def test_what_cannot_be_looked_for_is_refused(exchange: Running, query: str) -> None:
    assert exchange.request("GET", f"/v1/calls?{query}")[0] == 400


def test_the_command_line_searches(exchange: Running) -> None:
    said = trunkline("calls", "--search", "vienna spring", "--json", "--home", str(exchange.home))
    assert [call["output"]["text"] for call in said.json["calls"]] == ["Vienna in spring"]
    assert "Graz" not in trunkline("calls", "--search", "vienna", "--home", str(exchange.home)).out
    assert "No call matches" in trunkline("calls", "--search", "nowhere", "--home", str(exchange.home)).out


def test_the_index_can_be_deleted_at_any_time(exchange: Running) -> None:
    assert texts(exchange, "search=linz") == ["Linz in spring"]
    (exchange.home / "ledger.search.sqlite").unlink()
    assert texts(exchange, "search=linz") == ["Linz in spring"]


def test_an_agents_log_can_be_read(exchange: Running) -> None:
    status, answer = exchange.request("GET", "/v1/agents/com.example.echo/logs?lines=5")
    assert status == 200
    assert isinstance(answer["lines"], list)
    assert exchange.request("GET", "/v1/agents/com.example.none/logs")[0] == 404
    assert exchange.request("GET", "/v1/agents/..%2f..%2fkeys/logs")[0] == 404
    assert exchange.request("GET", "/v1/agents/com.example.echo/logs", token=exchange.new_token("x", "http"))[0] == 403
