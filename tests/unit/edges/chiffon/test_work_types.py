"""Which tool serves a work type, in the order of silent point 25."""

from __future__ import annotations

import pytest

from tests.unit.edges.chiffon.kit import Kit
from trunkline.edges.chiffon.work_types import MAX_SUPPORTED, WorkTypes


def tool_for(
    kit: Kit, work_type: str, agent_type: str = "infra", agent_id: str | None = None, **mapped: str
) -> str | None:
    found = WorkTypes(kit.exchange.views, mapped).tool_for(work_type, agent_type, agent_id)
    return None if found is None else found.tool_id


@pytest.fixture
async def kit() -> Kit:
    """An agent of Chiffon that runs playbooks, and others with tools of that name."""
    made = Kit()
    await made.agent("infra-1", "infra", ["run_playbook"])
    made.exchange.attach("com.other", "run_playbook", "only_here")
    return made


async def test_what_the_configuration_says_comes_first(kit: Kit) -> None:
    assert tool_for(kit, "run_playbook", run_playbook="com.other/only_here") == "com.other/only_here"
    assert tool_for(kit, "run_playbook", run_playbook="com.gone/x") is None


async def test_then_the_instance_that_is_addressed(kit: Kit) -> None:
    assert tool_for(kit, "run_playbook", agent_id="infra-1") == "infra-1/run_playbook"
    assert tool_for(kit, "run_playbook", agent_id="infra-2") is None


async def test_then_the_type_and_its_agents_do_not_make_a_name_ambiguous(kit: Kit) -> None:
    assert tool_for(kit, "run_playbook") == "chiffon.infra/run_playbook"
    assert tool_for(kit, "run_playbook", "code") == "com.other/run_playbook"


async def test_then_the_one_tool_of_that_name_if_it_is_the_only_one(kit: Kit) -> None:
    assert tool_for(kit, "only_here") == "com.other/only_here"
    kit.exchange.attach("com.third", "only_here")
    assert tool_for(kit, "only_here") is None


async def test_a_refusal_names_what_could_be_asked_for_and_not_more_than_helps(kit: Kit) -> None:
    names = WorkTypes(kit.exchange.views, {"mapped": "com.other/x"}).supported()
    assert names == ("mapped", "only_here", "run_playbook")
    kit.exchange.attach("com.many", *(f"t{number}" for number in range(MAX_SUPPORTED + 1)))
    assert len(WorkTypes(kit.exchange.views, {}).supported()) == MAX_SUPPORTED
