"""On whose behalf somebody calls over HTTP: a token of an agent asks for those whom the agent works for."""

from __future__ import annotations

import pytest

from tests.inhabited import BOB, ECHO
from tests.unit.edges.http.conftest import Server
from trunkline import entries, events
from trunkline.model import Decision, HubSettings, Policy, Rule

BOB_IS_DENIED = Policy(
    (Rule("no-bob", BOB.identity, ECHO, Decision.DENY), Rule("all", "*", "*", Decision.ALLOW)), "bob"
)


@pytest.mark.parametrize("is_named", [True, False])
async def test_an_agent_that_calls_over_http_calls_for_those_whom_it_works_for(server: Server, is_named: bool) -> None:
    exchange = server.exchange
    exchange.feed.feed([events.SettingsChanged(HubSettings(BOB_IS_DENIED))])
    # It is at work on a call of Bob's.
    token = exchange.token("http", "com.example.slow")
    body = {"tool_id": ECHO, "input": {}, **({"causation_id": exchange.running_id} if is_named else {})}
    answer = await server.ask("POST", "/v1/calls", token=token, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "policy.denied")
    assert exchange.recorded(entries.CallRefused)[-1].chain == ("http:bob",)
    exchange.slow.finish({})
    assert (await server.ask("POST", "/v1/calls", token=token, json=body)).status_code == 200
