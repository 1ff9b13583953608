"""On whose behalf work is asked for over Chiffon: neither a type nor a second token gets anybody what policy denies."""

from __future__ import annotations

import pytest

from tests.unit.edges.chiffon.kit import Kit, request, tool
from trunkline import entries
from trunkline.model import Decision, Policy, Principal, Rule

LOW = Principal("http:low")


def low_is_denied(*tools: str) -> Policy:
    denied = tuple(
        Rule(f"no-{caller}-{name}", caller, name, Decision.DENY)
        for caller in ("http:low", "chiffon:low")
        for name in tools
    )
    return Policy((*denied, Rule("all", "*", "*", Decision.ALLOW)), "low")


@pytest.mark.parametrize("pinned", ["infra-1", None])
async def test_a_type_is_no_way_to_an_instance_that_policy_denies(pinned: str | None) -> None:
    kit = Kit(low_is_denied("infra-1/*"))
    one = await kit.agent("infra-1")
    called = kit.call("chiffon.infra/run", {} if pinned is None else {"$agent_id": pinned}, by=LOW)
    assert (called.code, one.fetch()) == ("tool.unavailable", [])
    two = await kit.agent("infra-2")
    called = kit.call("chiffon.infra/run", {} if pinned is None else {"$agent_id": pinned}, by=LOW)
    assert one.fetch() == []
    assert len(two.fetch()) == (pinned is None)


@pytest.mark.parametrize("pinned", ["infra-1", None])
async def test_an_orchestrator_does_not_reach_through_a_type_an_instance_that_policy_denies_it(
    pinned: str | None,
) -> None:
    kit = Kit(low_is_denied("infra-1/*"))
    one = await kit.agent("infra-1")
    custom = {} if pinned is None else {"x_custom_fields": {"agent_id": pinned}}
    kit.orchestrator("low").say(request("run", {"$agent_id": "infra-1"}, **custom))
    (refused,) = kit.exchange.recorded(entries.CallRefused)
    assert (refused.caller, one.fetch()) == ("chiffon:low", [])


async def test_an_agent_with_an_orchestrators_token_asks_for_those_whom_it_works_for() -> None:
    kit = Kit(low_is_denied("com.secret/*"), read="com.secret/read")
    secret = kit.offer("com.secret", tool("com.secret/read", side_effects=False))
    worker, as_orchestrator = await kit.agent("infra-1"), kit.orchestrator("infra-1")
    kit.call("infra-1/run", by=LOW)
    work = worker.fetch_one()
    as_orchestrator.say(request("read"))
    (refused,) = kit.exchange.recorded(entries.CallRefused)
    assert (refused.code, refused.chain, secret.delivered) == ("policy.denied", ("http:low",), [])
    worker.result(work)
    as_orchestrator.say(request("read"))
    assert len(secret.delivered) == 1
