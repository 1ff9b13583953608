"""Spaces and their runs in an exchange: what is kept, what is looked up, and what a defect in one run does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from tests.requirement import requirement
from tests.unit.edges.spaces.conftest import Case, Commands
from trunkline.edges.answers import Refused
from trunkline.edges.spaces import serve
from trunkline.edges.spaces.agent import SpaceAgent
from trunkline.edges.spaces.process import PROCESS
from trunkline.edges.spaces.serve import KEPT_RUNS, NEWS, NotTaken
from trunkline.edges.waiting import CLOSING
from trunkline.entries import CallAccepted, CallSettled, Noticed, ProcessStep
from trunkline.errors import ConfigError
from trunkline.events import CancelRequested, DrainStarted, ProcessStepped, SettingsChanged
from trunkline.model import Decision, HubSettings, Limits, Policy, Principal, Rule, Status, fault
from trunkline.testing.memory import BOSS

MESSAGE = {"type": "message", "content": "x"}
WRITE = {"type": "createFile", "path": "a", "content": "x", "overwrite": True}
READ = {"type": "readFile", "path": "a"}
PROTECTED = {"type": "createFile", "path": ".git/hooks/pre-commit", "content": "x"}
RM = {"type": "shell", "command": "rm -r a"}


def kinds(run: Any) -> list[str]:
    return [event["type"] for event in run.events]


# --- spaces -----------------------------------------------------------------------------------------------------------


@requirement("SP-072")
async def test_without_a_sandbox_no_shell_is_offered_and_the_error_says_what_to_install(case: Case) -> None:
    assert case.exchange.views.tool("space.demo/shell") is None
    run = await case.run({"type": "shell", "command": "ls"}, MESSAGE)
    assert (run.events[0]["category"], "install bubblewrap" in run.events[0]["message"]) == ("execution", True)
    assert kinds(run) == ["error", "message"]
    assert case.edge.status() == {"spaces": 1, "open_runs": 0, "note": f"no shell: {case.spaces.reasons.no_shell}"}


async def test_a_space_is_guarded_by_its_own_rules_as_long_as_it_is_there(case: Case) -> None:
    run = await case.run(PROTECTED)
    assert (kinds(run), run.events[0]["details"]["policy"]) == (["policyDenied"], "filesystem.protected")
    await case.spaces.remove("demo")
    assert case.exchange.views.tools() == []
    with pytest.raises(Refused, match="not_found"):
        case.spaces.agent("demo")
    await case.spaces.create("demo", "standard", {"filesystem": {"protected": []}})
    assert kinds(await case.run(PROTECTED)) == ["createFile"]


async def test_a_list_of_denied_commands_without_those_of_the_preset_is_warned_of(case: Case) -> None:
    assert case.edge.warnings() == []
    file = case.spaces.agents["demo"].space.folder / "space.toml"
    before = file.read_text()
    file.write_text(before + '[policy.shell]\ndenied = ["curl", "su"]\n')
    case.edge.reload()
    [warning] = case.exchange.edges.warnings()
    assert warning.startswith("space demo: sudo, doas not denied any more: ")
    file.write_text(before + '[policy.shell]\ndenied = ["curl", "sudo", "su", "doas"]\n')
    case.edge.reload()
    assert case.edge.warnings() == []


async def test_a_reload_takes_what_the_files_of_spaces_say_by_now(case: Case) -> None:
    agent = case.spaces.agent("demo")
    file = agent.space.folder / "space.toml"
    assert kinds(await case.run(PROTECTED)) == ["policyDenied"]
    file.write_text("[policy.filesystem]\nprotected = []\n[policy.snapshots]\nkept = 3\n")
    assert kinds(await case.run(PROTECTED)) == ["policyDenied"]
    assert case.edge.reload() == ["space demo: its space.toml"]
    assert case.edge.reload() == []
    assert kinds(await case.run(PROTECTED)) == ["createFile"]
    assert agent.snapshots.limits.kept == 3
    file.write_text("[policy.filesystem]\nprotected = 7\n")
    with pytest.raises(ConfigError, match=r"space\.toml"):
        case.edge.reload()
    assert agent.space.policy.filesystem.protected == ()


async def test_a_space_with_open_runs_is_not_removed(shell: Case) -> None:
    run = shell.submit(RM)
    with pytest.raises(Refused, match=r"state\.conflict"):
        await shell.spaces.remove("demo")
    assert run.asked is not None
    shell.exchange.answer(run.asked.approval_id, approved=False)
    await shell.spaces.remove("demo")
    assert shell.spaces.agents == {}


async def test_the_operator_removes_a_space_whatever_is_done_and_asked_in_it(shell: Case) -> None:
    assert shell.commands is not None
    asking, working = shell.submit(RM), shell.submit({"type": "shell", "command": "long"}, MESSAGE)
    await shell.commands.wait_begun("long")
    waiting = shell.submit({"type": "shell", "command": "next"})
    async with asyncio.timeout(10):
        await shell.spaces.remove("demo", BOSS)
    for run in (asking, working, waiting):
        await shell.end_of(run)
        assert (run.status, run.events[-1]["category"]) == ("error", "system")
    assert (shell.commands.begun, shell.commands.ended) == (["long"], ["long"])
    assert shell.exchange.views.questions() == []
    assert shell.spaces.runs.open == {}
    await shell.spaces.create("demo", "standard", {})
    assert kinds(await shell.run(WRITE)) == ["createFile"]


async def test_a_run_that_is_ended_while_its_approved_command_waits_for_the_turn_never_starts_it(shell: Case) -> None:
    assert shell.commands is not None
    asked, busy = shell.submit(RM), shell.submit({"type": "shell", "command": "busy"})
    await shell.commands.wait_begun("busy")
    assert asked.asked is not None
    shell.exchange.answer(asked.asked.approval_id)
    shell.spaces.end(asked, BOSS)
    await shell.end_of(asked)
    shell.commands.end("busy")
    await shell.end_of(busy)
    assert shell.commands.begun == ["busy"]
    assert all(
        status is not Status.RUNNING for status in (view.status for view in shell.exchange.views.calls(9, None)[0])
    )


async def test_a_removed_space_takes_along_what_it_was_asked_and_a_new_one_does_none_of_it(shell: Case) -> None:
    asked = shell.exchange.call("space.demo/shell", {"command": "rm -rf data"})
    assert [wait.status for wait in asked.waits] == [Status.WAITING_APPROVAL]
    await shell.spaces.remove("demo")
    assert asked.outcome.fault == fault("tool.not_found", "the space demo was removed")
    assert shell.exchange.views.questions() == []
    await shell.spaces.create("demo", "permissive", {})
    assert shell.commands is not None
    assert shell.commands.begun == []


async def test_spaces_that_are_made_at_once_all_have_the_sandbox_that_is_still_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asyncio.Event()

    async def probe() -> Commands:
        await found.wait()
        return Commands()

    monkeypatch.setattr(serve, "probe", probe)
    case = Case(tmp_path, None)
    await case.start()
    making = [asyncio.ensure_future(case.spaces.create(name, "standard", {})) for name in ("one", "two", "one")]
    await asyncio.sleep(0)
    found.set()
    async with asyncio.timeout(10):
        one, two, again = await asyncio.gather(*making, return_exceptions=True)
    assert isinstance(one, SpaceAgent)
    assert isinstance(two, SpaceAgent)
    assert None not in (one.sandbox, two.sandbox)
    assert isinstance(again, Refused)
    assert again.fault.message == "there is a space one already"
    await case.stop()


async def test_a_space_that_is_removed_twice_at_once_is_removed_once_and_can_be_made_again(shell: Case) -> None:
    assert shell.commands is not None
    calling = asyncio.ensure_future(shell.call("shell", {"command": "long"}))
    await shell.commands.wait_begun("long")
    removing = [asyncio.ensure_future(shell.spaces.remove("demo")) for _ in range(2)]
    making = asyncio.ensure_future(shell.spaces.create("demo", "permissive", {}))
    async with asyncio.timeout(10):
        first, second, made = await asyncio.gather(*removing, making, return_exceptions=True)
    assert (first, isinstance(second, Refused)) == (None, True)
    assert isinstance(made, SpaceAgent)
    assert (await calling).status is Status.CANCELED
    assert kinds(await shell.run(PROTECTED, WRITE)) == ["policyDenied", "createFile"]


# --- runs -------------------------------------------------------------------------------------------------------------


async def test_each_run_is_a_conversation_of_its_own_that_ends_with_it(case: Case) -> None:
    before = case.exchange.feed.figures()["sessions"]
    await case.run(WRITE, READ)
    assert case.exchange.feed.figures()["sessions"] == before


async def test_a_file_that_looks_like_a_reference_is_none_and_a_large_one_is_told_whole(case: Case) -> None:
    for content in ('{"$ref": "sha256:00"}', "x" * 3_000_000):
        run = await case.run({**WRITE, "content": content}, READ)
        assert run.events[1]["content"] == content


@pytest.mark.slow
async def test_a_finished_run_is_forgotten_in_time_and_then_comes_from_the_record(case: Case) -> None:
    first = case.submit()
    assert case.spaces.find(first.run_id) is first
    for _ in range(KEPT_RUNS):
        case.submit()
    found = case.spaces.find(first.run_id)
    assert found is not None
    assert found is not first
    assert (found.state, found.status, found.events, found.caller) == ("done", "completed", [], "operator")
    assert case.spaces.find("run_unknown") is None


async def test_a_run_is_refused_as_a_whole_only_if_everything_in_it_is(case: Case) -> None:
    rules = (
        Rule("out", "http:x", "space.*", Decision.DENY, "not you"),
        Rule("half", "http:y", "space.demo/read_file", Decision.DENY, "not this"),
        Rule("all", "*", "*", Decision.ALLOW),
    )
    await case.restart(policy=Policy(rules, "other"))
    await case.start()
    with pytest.raises(NotTaken) as refused:
        case.submit(READ, MESSAGE, caller="http:x")
    assert refused.value.status == 403
    (event,) = refused.value.message["events"]
    assert (event["category"], "not you" in event["message"]) == ("policy", True)
    assert kinds(await case.run(READ, MESSAGE, caller="http:y")) == ["policyDenied", "message"]
    assert (await case.run(caller="http:x")).status == "completed"


async def test_what_is_asked_says_by_which_rule(shell: Case) -> None:
    ask = Policy(
        (Rule("ask-alice", "http:alice", "*", Decision.ASK, "the rules ask"), *shell.exchange.policy.rules), "2"
    )
    await shell.restart(policy=ask)
    await shell.start()
    own, exchanges = shell.submit(RM), shell.submit(READ, caller="http:alice")
    details = own.events[0]["details"]
    assert own.events[0]["reason"] == "Destructive command requires approval"
    assert (details["command"], details["policy"]) == ("rm -r a", "shell.approvalRequired")
    assert own.asked is not None
    question = shell.exchange.views.question(own.asked.approval_id)
    assert question is not None
    assert (details["approvalId"], own.events[0]["timestamp"]) == (question.approval_id, question.asked_at)
    assert details["expiresAt"] == "2027-01-15T09:00:00.000Z"
    assert exchanges.events[0]["reason"] == "the rules ask"
    assert exchanges.events[0]["details"]["policy"] == "ask-alice"


@requirement("SP-073")
async def test_a_run_whose_time_is_over_is_ended_by_the_alarm_and_its_command_with_it(shell: Case) -> None:
    assert shell.commands is not None
    run, following = shell.submit({"type": "shell", "command": "long", "timeout": 1000}), shell.submit(MESSAGE)
    await shell.commands.wait_begun("long")
    shell.exchange.advance(5.9)
    assert run.state == "active"
    shell.exchange.advance(0.2)
    await shell.end_of(run)
    assert (run.status, run.events[0]["category"]) == ("error", "timeout")
    await shell.end_of(following)
    assert shell.commands.ended == ["long"]
    settled = {entry.status for entry in shell.exchange.recorded(CallSettled)}
    assert settled == {Status.CANCELED, Status.SUCCEEDED}


async def test_what_is_canceled_before_the_turn_of_its_run_comes_never_starts(shell: Case) -> None:
    assert shell.commands is not None
    paused, busy = shell.submit(RM, MESSAGE), shell.submit({"type": "shell", "command": "busy"})
    await shell.commands.wait_begun("busy")
    assert paused.asked is not None
    shell.exchange.answer(paused.asked.approval_id)
    assert (paused.state, paused.held is not None) == ("queued", True)
    shell.exchange.feed.feed([CancelRequested(0, "cancel", BOSS, call_id=paused.call_id)])
    shell.commands.end("busy")
    await shell.end_of(busy)
    await shell.end_of(paused)
    assert kinds(paused) == ["approvalRequired", "error", "message"]
    assert shell.commands.begun == ["busy"]


# --- who follows ------------------------------------------------------------------------------------------------------


async def test_whoever_follows_is_told_when_the_exchange_stops(shell: Case) -> None:
    assert shell.commands is not None
    run = shell.submit({"type": "shell", "command": "long"}, MESSAGE)
    await shell.commands.wait_begun("long")
    shell.exchange.feed.feed([DrainStarted()])
    async with asyncio.timeout(10):
        with shell.spaces.following(run) as follower:
            await shell.spaces.stop()
            told = [await follower.next()]
            while told[-1] is NEWS:
                told.append(await follower.next())
        assert told[-1] is CLOSING
        assert run.state == "left"
        with shell.spaces.following(run) as late:
            assert await late.next() is CLOSING


async def test_stopping_does_not_mind_that_a_space_is_removed_meanwhile(shell: Case) -> None:
    assert shell.commands is not None
    shell.submit({"type": "shell", "command": "long"})
    await shell.commands.wait_begun("long")
    await shell.spaces.create("other", "standard", {})
    async with asyncio.timeout(10):
        stopping = asyncio.create_task(shell.spaces.stop())
        await asyncio.sleep(0)
        assert not stopping.done(), "the first space still ends its command"
        await shell.spaces.remove("other")
        await stopping
    assert shell.commands.ended == ["long"]
    assert all(not agent.number for agent in shell.spaces.agents.values())


async def test_nobody_is_kept_who_does_not_follow_any_more(case: Case) -> None:
    before = case.exchange.feed.figures()["sessions"]
    run = case.submit(READ)
    with case.spaces.following(run), case.spaces.following(run) as follower:
        async with asyncio.timeout(10):
            while run.state != "done":
                assert await follower.next() is NEWS
    assert case.exchange.feed.figures()["sessions"] == before
    assert case.spaces._followers == {}


# --- restarts ---------------------------------------------------------------------------------------------------------


async def test_open_runs_are_taken_up_and_know_what_was_refused(shell: Case) -> None:
    run = shell.submit(PROTECTED, RM, MESSAGE)
    assert kinds(run) == ["policyDenied", "approvalRequired"]
    accepted = len(shell.exchange.recorded(CallAccepted))
    await shell.restart()
    await shell.start()
    again = shell.spaces.runs.open[run.run_id]
    assert again is not run
    assert again.events[0]["details"] == run.events[0]["details"]
    assert again.events[1] == run.events[1]
    assert len(shell.exchange.recorded(CallAccepted)) == accepted
    assert again.asked is not None
    shell.exchange.answer(again.asked.approval_id, approved=False)
    await shell.end_of(again)
    assert kinds(again) == ["policyDenied", "approvalRequired", "policyDenied", "message"]


@pytest.mark.parametrize("how", ["by a person", "by other rules"])
async def test_a_question_answered_before_a_restart_is_among_the_events_after_it(shell: Case, how: str) -> None:
    """Found by the simulation: the events after it stood in other places than those that had been told."""
    other = Policy((Rule("all", "*", "*", Decision.ALLOW),), "other")
    ask = Policy((Rule("ask", "*", "*/message", Decision.ASK), Rule("all", "*", "*", Decision.ALLOW)), "ask")
    shell.exchange.feed.feed([SettingsChanged(HubSettings(ask, Limits()))])
    run = shell.submit(MESSAGE, RM)
    assert run.asked is not None
    if how == "by a person":
        shell.exchange.answer(run.asked.approval_id)
    else:
        shell.exchange.feed.feed([SettingsChanged(HubSettings(other, Limits()))])
    await shell.until(run, lambda: kinds(run) == ["approvalRequired", "message", "approvalRequired"])
    await shell.restart(policy=ask)
    await shell.start()
    again = shell.spaces.runs.open[run.run_id]
    assert [event["type"] for event in again.events[:2]] == ["approvalRequired", "message"]
    assert again.events[0]["details"]["approvalId"] == run.events[0]["details"]["approvalId"]


@pytest.mark.parametrize(("caller", "refused"), [("http:mallory", 0), ("operator", 2)])
async def test_calls_of_somebody_else_say_nothing_about_a_run(shell: Case, caller: str, refused: int) -> None:
    assert shell.commands is not None
    shell.submit({"type": "shell", "command": "busy"})
    await shell.commands.wait_begun("busy")
    run = shell.submit(MESSAGE, MESSAGE, MESSAGE)
    terms = {"key": f"{run.run_id}/2", "correlation_id": run.run_id}
    await shell.call("message", {"content": "x"}, by=Principal(caller), **terms)
    await shell.restart()
    await shell.start()
    again = shell.spaces.find(run.run_id)
    assert again is not None
    await shell.end_of(again)
    assert kinds(again) == ["policyDenied"] * refused + ["message"] * (3 - refused)


# --- defects ----------------------------------------------------------------------------------------------------------


async def test_a_run_in_which_a_defect_is_met_ends_alone_and_its_followers_are_told(shell: Case) -> None:
    assert shell.commands is not None
    before = shell.exchange.feed.figures()["sessions"]
    bystander = shell.submit({"type": "shell", "command": "busy"}, MESSAGE)
    await shell.commands.wait_begun("busy")
    broken, behind = shell.submit(MESSAGE, RM, MESSAGE), shell.submit(MESSAGE)
    with shell.spaces.following(broken) as follower:
        shell.views.broken.add("question")
        shell.commands.end("busy")
        async with asyncio.timeout(10):
            while broken.state != "done":
                assert await follower.next() is NEWS
    shell.views.broken.clear()
    assert (broken.status, kinds(broken)) == ("error", ["message", "error"])
    assert (broken.events[1]["category"], broken.events[1]["details"]) == ("system", {"index": 1})
    assert "operator's record" in broken.events[1]["message"]
    for run in (bystander, behind):
        await shell.end_of(run)
        assert run.status == "completed"
    assert shell.exchange.notices() == ["defect"]
    assert "ZeroDivisionError" in shell.exchange.recorded(Noticed)[0].detail
    # Its question is withdrawn with its call; nothing of it is open.
    assert shell.exchange.views.questions() == []
    settled = {entry.call for entry in shell.exchange.recorded(CallSettled)}
    assert {entry.n for entry in shell.exchange.recorded(CallAccepted)} == settled
    ended = [step.subject for step in shell.exchange.recorded(ProcessStep) if step.done]
    assert sorted(ended) == sorted(run.run_id for run in (bystander, broken, behind))
    assert shell.exchange.feed.figures()["sessions"] == before
    found = shell.spaces.find(broken.run_id)
    assert found is broken


async def test_a_defect_met_as_the_turn_comes_to_a_run_is_that_runs_own(shell: Case) -> None:
    broken = shell.submit(PROTECTED, RM)
    sound = shell.submit(MESSAGE, RM)
    await shell.restart()
    shell.views.broken.add("check")  # asked for the reason why an operation was refused before
    await shell.start()
    ended = shell.spaces.find(broken.run_id)
    assert ended is not None
    assert (ended.status, kinds(ended)) == ("error", ["error"])
    shell.views.broken.clear()
    again = shell.spaces.runs.open[sound.run_id]
    shell.exchange.advance(5)  # what was lost is sent again after a while
    await shell.until(again, lambda: kinds(again) == ["message", "approvalRequired"])
    assert shell.exchange.notices() == ["defect"]


async def test_a_defect_in_a_run_whose_command_runs_cancels_the_command(shell: Case) -> None:
    assert shell.commands is not None
    run = shell.submit({"type": "shell", "command": "long"}, MESSAGE)
    await shell.commands.wait_begun("long")
    shell.exchange.feed.failed(run.session, ZeroDivisionError())
    await shell.end_of(run)
    async with asyncio.timeout(10):
        await asyncio.gather(*(task for task, _ in shell.spaces.agents["demo"]._tasks.values()), return_exceptions=True)
    assert shell.commands.ended == ["long"]
    assert (run.status, kinds(run)) == ("error", ["error"])
    assert [entry.status for entry in shell.exchange.recorded(CallSettled)] == [Status.CANCELED]


async def test_what_is_on_record_of_a_run_and_cannot_be_read_stops_no_other(shell: Case) -> None:
    step = ProcessStepped(0, "started", PROCESS, "run_odd", "started", Raw(b'{"space": "demo"}'))
    shell.exchange.feed.feed([step])
    sound = shell.submit(RM)
    await shell.restart()
    await shell.start()
    assert list(shell.spaces.runs.open) == [sound.run_id]
    assert shell.exchange.notices() == ["defect"]


def test_the_process_has_its_own_name() -> None:
    assert PROCESS == "spaces.run"


# --- rules and tokens that change while a run is open -----------------------------------------------------------------

OUT = Policy((Rule("out", "http:low", "*", Decision.DENY), Rule("all", "*", "*", Decision.ALLOW)), "out")


def change_rules(case: Case, policy: Policy) -> None:
    case.exchange.feed.feed([SettingsChanged(HubSettings(policy))])


@pytest.mark.parametrize("way", ["rule", "token"])
async def test_the_next_operation_of_a_run_is_denied_to_whoever_is_out_by_then(shell: Case, way: str) -> None:
    shell.exchange.token("http", "low")
    run = shell.submit({"type": "shell", "command": "ls"}, WRITE, MESSAGE, caller="http:low")
    assert shell.commands is not None
    await shell.commands.wait_begun("ls")
    if way == "rule":
        change_rules(shell, OUT)
    else:
        shell.exchange.revoke("http", "low")
    shell.commands.end("ls")
    await shell.end_of(run)
    assert kinds(run) == ["shell", "policyDenied", "policyDenied"]
    assert not (shell.spaces.agent("demo").space.folder / "a").exists()


@pytest.mark.parametrize("way", ["rule", "token"])
async def test_an_approved_operation_is_not_carried_out_for_whoever_is_out_when_its_turn_comes(
    shell: Case, way: str
) -> None:
    shell.exchange.token("http", "low")
    asked = shell.submit(RM, WRITE, caller="http:low")
    assert asked.asked is not None
    assert shell.commands is not None
    other = shell.submit({"type": "shell", "command": "ls"})
    await shell.commands.wait_begun("ls")
    shell.exchange.answer(asked.asked.approval_id)
    assert asked.held is not None
    if way == "rule":
        change_rules(shell, OUT)
    else:
        shell.exchange.revoke("http", "low")
    shell.commands.end("ls")
    await shell.end_of(other)
    await shell.end_of(asked)
    assert kinds(asked) == ["approvalRequired", "policyDenied", "policyDenied"]
    assert shell.commands.begun == ["ls"]


async def test_a_run_of_a_revoked_token_that_waits_for_a_person_ends(shell: Case) -> None:
    shell.exchange.token("http", "low")
    asked = shell.submit(RM, WRITE, caller="http:low")
    shell.exchange.revoke("http", "low")
    await shell.end_of(asked)
    assert kinds(asked) == ["approvalRequired", "policyDenied", "policyDenied"]
    assert shell.exchange.views.questions() == []


async def test_after_a_restart_nobody_hears_what_he_may_not_ask_for_and_is_not_told_that_it_was_not_done(
    shell: Case,
) -> None:
    run = shell.submit(WRITE, RM, MESSAGE, caller="http:low")
    await shell.until(run, lambda: run.asked is not None)
    await shell.restart(policy=OUT)
    await shell.start()
    again = shell.spaces.find(run.run_id)
    assert again is not None
    await shell.end_of(again)
    assert kinds(again) == ["error", "approvalRequired", "error", "policyDenied"]
    assert "not told" in again.events[0]["message"]


# --- what is written on record ----------------------------------------------------------------------------------------


async def test_a_run_that_would_be_too_much_on_record_for_its_caller_is_none(case: Case) -> None:
    everything = Policy((Rule("all", "*", "*", Decision.ALLOW),), "all")
    case.exchange.feed.feed([SettingsChanged(HubSettings(everything, Limits(ledger_bytes_per_hour=100_000)))])
    large = {"type": "message", "content": "x" * 60_000}
    first = await case.run(large, caller="http:v")
    assert kinds(first) == ["message"]
    before, sessions = len(case.exchange.log), case.exchange.feed.figures()["sessions"]
    with pytest.raises(NotTaken) as caught:
        case.submit(large, caller="http:v")
    assert (caught.value.status, caught.value.message["events"][0]["category"]) == (429, "system")
    assert (len(case.exchange.log), case.spaces.runs.open) == (before, {})
    assert case.exchange.feed.figures()["sessions"] == sessions
    assert kinds(await case.run(large, caller="http:w")) == ["message"]


async def test_both_steps_of_a_run_count_for_its_caller(case: Case) -> None:
    await case.run(WRITE)
    await case.run({**READ}, caller="http:v")
    steps = [bytes(step.data) for step in case.exchange.recorded(ProcessStep) if b"http:v" in bytes(step.data)]
    assert len(steps) == 2
    assert case.exchange.hub.loads.written()["http:v"] >= sum(map(len, steps)) + 4 * 512
