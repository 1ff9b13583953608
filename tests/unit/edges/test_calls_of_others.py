"""A call is shown to who made it and to the operator: every edge over which somebody can name one by its id.

``Views.call`` shows any call to any edge; each compares the caller itself. ``test_everywhere`` holds which edges do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.unit.edges.mcp.conftest import SHELL, SHELL_NAME, Served, memory_exchange
from trunkline.model import Status


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with Served(memory_exchange()) as found:
        yield found


async def test_over_http_a_call_of_somebody_else_is_not_there(served: Served) -> None:
    call_id = served.exchange.call(SHELL, {"command": "ls"}).call_id
    token = served.exchange.token("http", "stranger")
    headers = {"authorization": f"Bearer {token}"}
    for method, path in (("GET", ""), ("POST", "/cancel")):
        named, unknown = [
            await served.http.request(method, f"/v1/calls/{name}{path}", headers=headers)
            for name in (call_id, f"{call_id[:-1]}f")
        ]
        assert (named.status_code, named.json()) == (unknown.status_code, unknown.json())
        assert named.status_code == 404
    view = served.exchange.views.call(call_id)
    assert view is not None
    assert view.status is Status.RUNNING, "nor did he cancel it"


async def test_over_mcp_a_state_that_names_a_call_of_somebody_else_is_none(served: Served) -> None:
    made = served.exchange.call(SHELL, {"command": "ls"})
    stranger = served.client("stranger", opens_urls=True)

    async def go_on(state: str, action: str) -> object:
        given = {"requestState": state, "inputResponses": {"approval": {"action": action}}}
        asked = {"name": SHELL_NAME, "arguments": {"command": "ls"}, **given}
        answer = await asyncio.wait_for(stranger.ask("tools/call", asked), 10)
        return answer["error"]

    for action in ("accept", "decline"):
        assert await go_on(made.call_id, action) == await go_on(f"{made.call_id[:-1]}f", action)
    view = served.exchange.views.call(made.call_id)
    assert view is not None
    assert view.status is Status.RUNNING
