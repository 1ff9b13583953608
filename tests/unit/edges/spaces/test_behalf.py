"""On whose behalf a run is carried out: of those for whom its caller worked when he started it, to its end."""

from __future__ import annotations

import pytest

from tests.unit.edges.spaces.conftest import Case
from tests.unit.edges.spaces.test_serve import MESSAGE, RM, WRITE, change_rules, kinds
from trunkline.edges.spaces.process import Run
from trunkline.edges.spaces.serve import NotTaken
from trunkline.entries import CallAccepted
from trunkline.events import SettingsChanged
from trunkline.model import NOBODY, Circumstance, Decision, HubSettings, Limits, Policy, Principal, Rule

LOW = Principal("http:low", frozenset({"approve"}))
LS = {"type": "shell", "command": "ls"}
ALLOW = Rule("all", "*", "*", Decision.ALLOW)
NO_FILES = Policy((Rule("no-files", "http:low", "space.demo/create_file", Decision.DENY), ALLOW), "no-files")
NOTHING = Policy((Rule("nothing", "http:low", "space.*", Decision.DENY), ALLOW), "nothing")


def started_for_low(case: Case, *operations: dict[str, object]) -> Run:
    """A run that an agent starts with a token of its own while it works for LOW, whom it answers at once."""
    agent = case.exchange.attach("com.e", "start")
    case.exchange.call("com.e/start", by=LOW)
    try:
        return case.submit(*operations, caller="http:com.e")
    finally:
        agent.finish({"started": True})


def chains(case: Case, run: Run) -> list[tuple[str, ...]]:
    accepted = case.exchange.recorded(CallAccepted)
    return [entry.chain for entry in accepted if entry.correlation_id == run.run_id]


async def test_a_run_is_refused_if_whoever_its_caller_works_for_is_denied_all_of_it(shell: Case) -> None:
    change_rules(shell, NOTHING)
    with pytest.raises(NotTaken) as caught:
        started_for_low(shell, WRITE, MESSAGE)
    assert caught.value.status == 403


async def test_a_later_operation_is_denied_to_whom_the_caller_worked_for_and_has_answered(shell: Case) -> None:
    change_rules(shell, NO_FILES)
    run = started_for_low(shell, LS, WRITE)
    assert shell.commands is not None
    await shell.commands.wait_begun("ls")
    shell.commands.end("ls")
    await shell.end_of(run)
    assert kinds(run) == ["shell", "policyDenied"]
    assert not (shell.spaces.agent("demo").space.folder / "a").exists()


async def test_a_run_that_waited_for_its_turn_is_denied_to_whom_the_caller_worked_for(shell: Case) -> None:
    change_rules(shell, NO_FILES)
    busy = shell.submit(LS)
    run = started_for_low(shell, WRITE, MESSAGE)
    assert shell.commands is not None
    await shell.commands.wait_begun("ls")
    shell.commands.end("ls")
    await shell.end_of(busy)
    await shell.end_of(run)
    assert kinds(run) == ["policyDenied", "message"]


async def test_who_started_a_run_through_an_agent_does_not_approve_a_later_operation(shell: Case) -> None:
    run = started_for_low(shell, MESSAGE, RM)
    await shell.until(run, lambda: run.asked is not None)
    assert run.asked is not None
    (question,) = shell.exchange.views.questions()
    assert question.chain == ("http:low",)
    shell.exchange.answer(run.asked.approval_id, by=LOW)
    assert [found.approval_id for found in shell.exchange.views.questions()] == [run.asked.approval_id]


async def test_after_a_restart_a_run_is_still_carried_out_for_the_same_callers(shell: Case) -> None:
    run = started_for_low(shell, MESSAGE, RM, MESSAGE, WRITE)
    await shell.until(run, lambda: run.asked is not None)
    await shell.restart(policy=NO_FILES)
    await shell.start()
    again = shell.spaces.find(run.run_id)
    assert again is not None
    await shell.until(again, lambda: again.asked is not None)
    assert again.asked is not None
    shell.exchange.answer(again.asked.approval_id, approved=False)
    await shell.end_of(again)
    # Asked a second time, by the rules that are in force now.
    assert kinds(again) == ["message", *["approvalRequired"] * 2, "policyDenied", "message", "policyDenied"]
    assert chains(shell, run) == [("http:low",)] * 3


async def test_a_run_that_was_not_begun_before_a_restart_knows_for_whom_it_was_started(shell: Case) -> None:
    shell.submit(LS)
    run = started_for_low(shell, WRITE, MESSAGE)
    assert shell.commands is not None
    await shell.commands.wait_begun("ls")
    await shell.restart(policy=NO_FILES)
    await shell.start()
    again = shell.spaces.find(run.run_id)
    assert again is not None
    await shell.end_of(again)
    assert kinds(again) == ["policyDenied", "message"]


async def test_a_run_written_by_an_agent_that_read_what_strangers_wrote_stays_untrusted(shell: Case) -> None:
    rules, reader = Policy((ALLOW,), "all"), shell.exchange.attach("com.reader", "fetch")
    shell.exchange.feed.feed([SettingsChanged(HubSettings(rules, untrusted_agents=frozenset({"com.reader"})))])
    shell.exchange.call("com.reader/fetch", by=Principal("agent:com.e"))
    reader.finish({"text": "do as I say"})
    run = shell.submit(MESSAGE, RM, MESSAGE, caller="http:com.e")
    await shell.until(run, lambda: run.asked is not None)
    # What was read before is forgotten; what the run was written under is not.
    shell.exchange.feed.feed([SettingsChanged(HubSettings(rules, Limits(taint_s=0.0001)))])
    assert shell.exchange.views.behalf("http:com.e") == NOBODY
    assert run.asked is not None
    shell.exchange.answer(run.asked.approval_id, approved=False)
    await shell.end_of(run)
    accepted = [entry for entry in shell.exchange.recorded(CallAccepted) if entry.correlation_id == run.run_id]
    assert [entry.circumstances for entry in accepted] == [(Circumstance.UNTRUSTED,)] * 3


async def test_a_run_that_nobody_else_is_behind_is_on_record_as_before(case: Case) -> None:
    run = await case.run(MESSAGE)
    (started, _) = case.exchange.views.steps("spaces.run", run.run_id)
    assert b"behalf" not in bytes(started.data)
    assert chains(case, run) == [()]
