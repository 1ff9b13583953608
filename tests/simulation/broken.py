"""The exchange with one rule broken each: what ``simulate`` has to find.

Each function breaks one rule with ``monkeypatch``, as a careless change of the code might, and says in its docstring
what nobody would be promised any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from trunkline import effects, entries, events
from trunkline.edges.chiffon.orchestrator_session import OrchestratorSession
from trunkline.edges.chiffon.tasks import Tasks
from trunkline.edges.console.feed import Recent
from trunkline.edges.console.live import LiveLine
from trunkline.edges.driver import Driver
from trunkline.edges.nostr.provider import ANSWERED, Job
from trunkline.edges.nostr.provider import Provider as JobProvider
from trunkline.edges.ossa.asking import Asker
from trunkline.edges.ossa.providing import Provider
from trunkline.edges.pylon.client import Client
from trunkline.edges.spaces import routes
from trunkline.edges.spaces.process import Runs
from trunkline.edges.spaces.reasons import Reasons
from trunkline.host.reading import Reading
from trunkline.hub import chains, interruptions, retry, views
from trunkline.hub.approvals import Approvals
from trunkline.hub.calls import Calls
from trunkline.hub.control import Control
from trunkline.hub.credentials import Credentials
from trunkline.hub.hub import Hub
from trunkline.hub.interruptions import Interruptions
from trunkline.hub.lanes import Lanes
from trunkline.hub.policy import Judge
from trunkline.hub.state import OpenQuestion, Route, State
from trunkline.hub.topics import Topics
from trunkline.ledger.masking import Masker
from trunkline.ledger.reader import Reader
from trunkline.ledger.writer import Writer
from trunkline.model import HubSettings, Limits, Now, Policy, Status
from trunkline.testing import chiffon, world
from trunkline.testing.agents import ScriptedAgent
from trunkline.testing.callers import HttpCallers
from trunkline.testing.choices import WORK_DEEDS
from trunkline.testing.simulation import Simulation
from trunkline.testing.world import World

Patch = pytest.MonkeyPatch


def a_call_is_sent_before_it_is_on_record(patch: Patch) -> None:
    """Nothing that changes the world leaves before its record is on disk."""
    deliver = Calls.deliver

    def hasty(self: Calls, call: Any, agent: Any, after: int, now: Now) -> None:
        deliver(self, call, agent, after, now)
        self._journal.effects[-1] = replace(self._journal.effects[-1], after=0)

    patch.setattr(Calls, "deliver", hasty)


def an_outcome_is_told_before_it_is_on_record(patch: Patch) -> None:
    """Nothing acknowledged is lost."""
    settle = Calls.settle

    def hasty(self: Calls, *args: Any, **terms: Any) -> None:
        before = len(self._journal.effects)
        settle(self, *args, **terms)
        for place, effect in enumerate(self._journal.effects[before:], start=before):
            if isinstance(effect, effects.Answer):
                self._journal.effects[place] = replace(effect, after=0)

    patch.setattr(Calls, "settle", hasty)


def an_outcome_is_shown_before_it_is_on_record(patch: Patch) -> None:
    """What is read of a call is acknowledged too."""
    shown = views.settled_call
    patch.setattr(views, "_recent_call", lambda _hub, recent, *_: shown(recent.accepted, recent.settled))


def a_question_is_shown_before_it_is_on_record(patch: Patch) -> None:
    """A yes is to the question that was shown: the name of one that a crash takes away is given to another."""
    patch.setattr(State, "is_shown", lambda *_: True)


def a_commit_is_not_synced(patch: Patch) -> None:
    """A commit that returned is on the disk."""
    begin = Writer._begin_where_it_ended

    def careless(self: Writer, path: Any) -> None:
        self._execute("PRAGMA synchronous = OFF")
        begin(self, path)

    patch.setattr(Writer, "_begin_where_it_ended", careless)


def a_call_is_settled_twice(patch: Patch) -> None:
    """A call has one outcome."""
    settle = Calls.settle

    def twice(self: Calls, call: Any, status: Status, now: Now, **terms: Any) -> None:
        settle(self, call, status, now, **terms)
        number, journal = call.entry.n, self._journal
        journal.write(
            entries.CallSettled(
                n=journal.next, at=now.ms, call=number, call_id=call.entry.call_id, status=Status.FAILED
            )
        )

    patch.setattr(Calls, "settle", twice)


def what_could_do_harm_is_sent_again(patch: Patch) -> None:
    """A call with side effects that was lost is never sent again."""
    for module in (retry, interruptions):
        patch.setattr(module, "may_resend", lambda _call: True)


def a_key_is_forgotten_at_a_restart(patch: Patch) -> None:
    """The first call with a key is the call, also after a restart."""
    fold = Hub.fold

    def forgetful(self: Hub, remembered: Any) -> None:
        fold(self, remembered)
        self.state.recent.clear()
        for call in self.state.calls.values():
            self.state.keys.pop(call.entry.key_id or "", None)

    patch.setattr(Hub, "fold", forgetful)
    patch.setattr(Reader, "by_key", lambda _self, _key_id: None)


def nothing_is_masked(patch: Patch) -> None:
    """A secret is readable nowhere on record."""
    patch.setattr(Masker, "is_clean", lambda _self, _data: True)


def originals_are_not_kept(patch: Patch) -> None:
    """What is masked on record is never masked on its way."""
    patch.setattr(Writer, "_hold", lambda *_args: None)


def one_answer_lets_all_through(patch: Patch) -> None:
    """A person's answer covers one call."""

    def closed(self: State, entry: entries.QuestionClosed) -> None:
        question = self.questions.pop(entry.approval_id, None)
        for number in question.calls if question is not None else ():
            call = self.by_number[number]
            call.approval_id = None
            if entry.how == "approved" and question is not None:
                call.status, call.is_answered = Status.QUEUED, True
                call.trail = (*call.trail, question.entry.n, *question.trail, entry.n)

    approved = Control._approved

    def generous(self: Control, question: OpenQuestion, now: Now) -> None:
        if question.entry.subject == "call":
            for number in question.calls:
                self._calls.send_or_wait(self._state.by_number[number], now)
        else:
            approved(self, question, now)

    patch.setattr(State, "_question_closed", closed)
    patch.setattr(Control, "_approved", generous)


def a_directive_is_used_twice(patch: Patch) -> None:
    """An intent is good for one call."""
    accepted = State._call_accepted

    def keeping(self: State, entry: entries.CallAccepted) -> None:
        kept = self.directives.get(entry.directive_id or "")
        accepted(self, entry)
        if kept is not None:
            self.directives[kept.directive_id] = kept

    patch.setattr(State, "_call_accepted", keeping)


def only_the_last_caller_is_judged(patch: Patch) -> None:
    """Nobody gets through another what they may not do themselves."""
    verdict = Judge.verdict
    patch.setattr(Judge, "verdict", lambda self, tool, callers, *rest: verdict(self, tool, callers[-1:], *rest))


def a_chain_forgets_who_began_it(patch: Patch) -> None:
    """Whoever calls for somebody acts for all who stand behind that somebody."""
    chain_of = chains.chain_of
    patch.setattr(chains, "chain_of", lambda *given: replace(chain_of(*given), callers=()))


def anybody_may_end_a_call(patch: Patch) -> None:
    """What an agent says of a call that it was not given goes nowhere."""
    patch.setattr(Hub, "_own_call", lambda self, _session, call_id, _what, _now: self.state.calls.get(call_id))


def a_question_does_not_expire(patch: Patch) -> None:
    """Everything that is open ends."""
    patch.setattr(Approvals, "is_due", lambda *_args: None)


def a_lost_agent_is_not_noticed(patch: Patch) -> None:
    """A call does not run nowhere."""
    patch.setattr(Interruptions, "lost", lambda *_args: None)


def a_token_is_good_for_any_process(patch: Patch) -> None:
    """A launch token belongs to the process it was given to."""
    patch.setattr(Credentials, "_admit_launched", lambda _self, launch, *_args, **_terms: (f"run:{launch.run_id}", ""))


def reading_never_goes_on(patch: Patch) -> None:
    """When the disk has caught up, everybody is heard again."""
    patch.setattr(Driver, "resume_reading", lambda _self: None)


# --- the short way of ordinary calls ----------------------------------------------------------------------------------


def ordinary(patch: Patch) -> Counter[str]:
    """Nobody reads untrusted text and nobody has a rate, and who calls calls again: lanes are open. How many were used.

    To be applied after what breaks something.
    """
    patch.setattr(world, "TOPICS_SHARE", 0.0)
    settings, ask, call = World.settings, ScriptedAgent.ask, HttpCallers.call
    try_accept, try_settle = Lanes.try_accept, Lanes.try_settle
    person_calls, agent_calls = Simulation._person_calls, Simulation._agent_calls
    taken: Counter[str] = Counter()

    def without_doubts(self: World, policy: Policy) -> HubSettings:
        return replace(settings(self, policy), limits=Limits(), untrusted_agents=frozenset())

    def agent_again(self: ScriptedAgent, tool_id: str, body: bytes, **terms: Any) -> Any:
        first = ask(self, tool_id, body, **terms)
        for number in range(3):
            ask(self, tool_id, b'{"n":%d}' % number)
        return first

    def person_again(self: HttpCallers, who: Any, tool_id: str, body: bytes, **terms: Any) -> Any:
        first = call(self, who, tool_id, body, **terms)
        for number in range(3):
            call(self, who, tool_id, b'{"n":%d}' % number)
        return first

    # Only in these steps: what an agent asks for while it works, and the calls of the end, stay as they are.
    def agent_step(self: Simulation) -> None:
        with pytest.MonkeyPatch.context() as here:
            here.setattr(ScriptedAgent, "ask", agent_again)
            agent_calls(self)

    def person_step(self: Simulation) -> None:
        with pytest.MonkeyPatch.context() as here:
            here.setattr(HttpCallers, "call", person_again)
            person_calls(self)

    def accepting(self: Lanes, event: Any, now: Now) -> Any:
        said = try_accept(self, event, now)
        taken["accepted"] += said is not None
        return said

    def settling(self: Lanes, event: Any, now: Now) -> Any:
        said = try_settle(self, event, now)
        taken["settled"] += said is not None
        return said

    patch.setattr(World, "settings", without_doubts)
    patch.setattr(Simulation, "_agent_calls", agent_step)
    patch.setattr(Simulation, "_person_calls", person_step)
    patch.setattr(Lanes, "try_accept", accepting)
    patch.setattr(Lanes, "try_settle", settling)
    return taken


def an_ordinary_call_is_sent_before_it_is_on_record(patch: Patch) -> None:
    """Nothing that changes the world leaves before its record is on disk."""
    try_accept = Lanes.try_accept

    def hasty(self: Lanes, event: Any, now: Now) -> Any:
        said = try_accept(self, event, now)
        return None if said is None else (said[0], replace(said[1], after=0))

    patch.setattr(Lanes, "try_accept", hasty)


def its_outcome_is_told_before_it_is_on_record(patch: Patch) -> None:
    """Nothing acknowledged is lost."""
    try_settle = Lanes.try_settle

    def hasty(self: Lanes, event: Any, now: Now) -> Any:
        said = try_settle(self, event, now)
        return None if said is None else (said[0], replace(said[1], after=0))

    patch.setattr(Lanes, "try_settle", hasty)


# --- Chiffon ----------------------------------------------------------------------------------------------------------


def everybody_speaks_chiffon(patch: Patch) -> None:
    """In every simulation, so that few are needed."""
    patch.setattr(world, "CHIFFON_SHARE", 1.0)


def typed_work_moves_whatever_became_of_it(patch: Patch) -> None:
    """Work goes to another instance only if the one before took nothing on."""
    everybody_speaks_chiffon(patch)
    patch.setitem(WORK_DEEDS, chiffon.Deed.SILENT, 50)
    for module in (retry, interruptions):
        patch.setattr(module, "may_move", lambda _problem: True)


def an_instance_is_chosen_anew_after_a_restart(patch: Patch) -> None:
    """Work that was sent stays with the instance that has it."""
    everybody_speaks_chiffon(patch)
    fold = Hub.fold

    def forgetful(self: Hub, remembered: Any) -> None:
        fold(self, remembered)
        for call in self.state.calls.values():
            if call.route is not None and call.attempt:
                call.route, call.attempt, call.status = Route(tried=(call.served_by,)), 0, Status.QUEUED

    patch.setattr(Hub, "fold", forgetful)


def work_that_is_done_is_not_forgotten(patch: Patch) -> None:
    """An instance is not given what it has given a result of."""
    everybody_speaks_chiffon(patch)
    patch.setitem(WORK_DEEDS, chiffon.Deed.DIE, 50)
    result = Tasks.result

    def kept(self: Tasks, task: Any, *args: Any) -> Any:
        happened = result(self, task, *args)
        self._tasks[task.call_id] = task
        return happened

    patch.setattr(Tasks, "result", kept)


def a_result_is_told_twice(patch: Patch) -> None:
    """A request ends in one result."""
    everybody_speaks_chiffon(patch)
    answer = OrchestratorSession._answer

    def twice(self: OrchestratorSession, *args: Any) -> None:
        answer(self, *args)
        answer(self, *args)

    patch.setattr(OrchestratorSession, "_answer", twice)


def a_repeated_request_is_another_call(patch: Patch) -> None:
    """A repeat is told the same as the first."""
    everybody_speaks_chiffon(patch)
    start = OrchestratorSession._start

    def unkeyed(self: OrchestratorSession, *args: Any) -> Any:
        return replace(start(self, *args), key=None)

    patch.setattr(OrchestratorSession, "_start", unkeyed)


def a_repeat_needs_somebody_who_does_such_work(patch: Patch) -> None:
    """A repeat is told the same as the first, also while nobody offers the work."""
    everybody_speaks_chiffon(patch)
    # Those who work come back late.
    patch.setattr(chiffon, "AGAIN_S", (0.05, 10.0))
    patch.setattr(Reading, "keyed", lambda *_args: None)


# --- spaces -----------------------------------------------------------------------------------------------------------


def everybody_has_spaces(patch: Patch) -> None:
    """In every simulation, so that few are needed."""
    patch.setattr(world, "SPACES_SHARE", 1.0)


def a_run_forgets_what_was_done(patch: Patch) -> None:
    """An operation has its effect once, also across a crash."""
    everybody_has_spaces(patch)
    take = Runs._take

    def forgetful(self: Runs) -> Any:
        # The number of a conversation is another one after a restart.
        return [
            replace(each, key=f"{each.correlation_id}.{each.session}/{each.ref}")
            if isinstance(each, events.CallRequested)
            else each
            for each in take(self)
        ]

    patch.setattr(Runs, "_take", forgetful)


def a_run_is_told_of_before_it_is_on_record(patch: Patch) -> None:
    """Nothing acknowledged is lost."""
    everybody_has_spaces(patch)

    async def at_once(_feed: Any) -> None:
        return

    patch.setattr(routes, "stored", at_once)


def the_questions_of_a_run_are_forgotten_at_a_restart(patch: Patch) -> None:
    """Events stay in the places in which they were told."""
    everybody_has_spaces(patch)
    found = Reasons.on_record

    def forgetful(self: Reasons, run: Any) -> Any:
        return {index: [] for index in found(self, run)}

    patch.setattr(Reasons, "on_record", forgetful)


def the_end_of_a_run_is_not_remembered(patch: Patch) -> None:
    """A run ends once."""
    everybody_has_spaces(patch)
    take = Runs._take

    def endless(self: Runs) -> Any:
        return [replace(each, done=False) if isinstance(each, events.ProcessStepped) else each for each in take(self)]

    patch.setattr(Runs, "_take", endless)


def a_run_does_not_wait_for_its_operation(patch: Patch) -> None:
    """Operations of a run are carried out in their order."""
    everybody_has_spaces(patch)
    ask = Runs._ask

    def hasty(self: Runs, run: Any, now: Now) -> None:
        index = run.index
        if index + 1 < len(run.operations):
            run.index += 1
            ask(self, run, now)
            run.index = index
        ask(self, run, now)

    patch.setattr(Runs, "_ask", hasty)


LANE_VARIANTS: dict[Callable[[Patch], None], str] = {
    an_ordinary_call_is_sent_before_it_is_on_record: "not on record",
    its_outcome_is_told_before_it_is_on_record: "on record",
}


def everybody_tells(patch: Patch) -> None:
    """There are topics in every simulation, so that few are needed."""
    patch.setattr(world, "TOPICS_SHARE", 1.0)


def an_event_is_told_before_it_is_on_record(patch: Patch) -> None:
    """Who was told of an event for sure finds it on record."""
    everybody_tells(patch)
    notify = Topics._notify

    def hasty(self: Topics, found: Any, entry: Any, label: int) -> None:
        notify(self, found, entry, label)
        self._journal.effects[-1] = replace(self._journal.effects[-1], after=0)

    patch.setattr(Topics, "_notify", hasty)


def who_published_is_answered_before_it_is_on_record(patch: Patch) -> None:
    """An event of quality 1 or 2 that is acknowledged is not lost."""
    everybody_tells(patch)
    published = Topics.published

    def hasty(self: Topics, event: Any, now: Now) -> None:
        published(self, event, now)
        self._journal.effects[-1] = replace(self._journal.effects[-1], after=0)

    patch.setattr(Topics, "published", hasty)


def what_is_owed_is_not_told_again(patch: Patch) -> None:
    """What is owed to a durable subscription is told until it was taken."""
    everybody_tells(patch)
    patch.setattr(Topics, "_tell_owed", lambda *_: None)


def everybody_speaks_ossa(patch: Patch) -> None:
    """There are agents of OSSA in every simulation, so that few are needed."""
    patch.setattr(world, "OSSA_SHARE", 1.0)


def a_repeated_message_is_another_call(patch: Patch) -> None:
    """One message of OSSA is one call, however often it is said."""
    everybody_speaks_ossa(patch)
    call = Asker._call

    def forgetful(self: Asker, asking: Any) -> Any:
        return replace(call(self, asking), key=f"{asking.ref} {asking.arrived_ms}")

    patch.setattr(Asker, "_call", forgetful)


def a_request_that_is_sent_again_has_another_id(patch: Patch) -> None:
    """An agent of OSSA knows a request by its id, also after a restart of the exchange."""
    everybody_speaks_ossa(patch)
    attach = Provider.attach

    def unlike(self: Provider) -> Any:
        self._key += str(self.number).encode()  # another conversation, another key
        return attach(self)

    patch.setattr(Provider, "attach", unlike)


def everybody_sells_jobs(patch: Patch) -> None:
    """Strangers ask over Nostr in every simulation, so that few are needed."""
    patch.setattr(world, "NOSTR_SHARE", 1.0)


def a_job_that_ended_is_not_known_again(patch: Patch) -> None:
    """A relay repeats a request: its job was done, or was told that it is not."""
    everybody_sells_jobs(patch)
    forget = JobProvider.forget

    def forgetful(self: JobProvider, job: Job) -> None:
        forget(self, job)
        self._over.clear()

    patch.setattr(JobProvider, "forget", forgetful)
    patch.setattr(Reading, "steps", lambda *_: [])


def a_result_is_told_before_it_is_on_record(patch: Patch) -> None:
    """The last event of a job is on disk before a relay hears of it, so that a repeat is the same event."""
    everybody_sells_jobs(patch)
    step = JobProvider._step

    def hasty(self: JobProvider, job: Job, name: str, data: Any, *, done: bool = False) -> None:
        if name == ANSWERED:
            self.publish_last(job)
        step(self, job, name, data, done=done)

    patch.setattr(JobProvider, "_step", hasty)


def everybody_looks_on(patch: Patch) -> None:
    """There are pages of the console in every simulation, so that few are needed."""
    patch.setattr(world, "CONSOLE_SHARE", 1.0)


def a_page_is_told_of_an_entry_before_it_is_on_disk(patch: Patch) -> None:
    """After a crash the numbers that a page was told of mean the same entries."""
    everybody_looks_on(patch)
    patch.setattr(LiveLine, "_next_batches", lambda self: self._tell_batches(self._views.last_entry()))


def a_page_does_not_notice_a_gap(patch: Patch) -> None:
    """A page has every entry, also one that was recorded while nobody watched."""
    everybody_looks_on(patch)

    take = Recent.take

    def careless(self: Recent, line: bytes) -> None:
        before = list(self._lines)
        take(self, line)
        if len(self._lines) < len(before):
            self._lines.extendleft(reversed(before))

    patch.setattr(Recent, "take", careless)


def everybody_asks_codex(patch: Patch) -> None:
    """There are pages of Pylon in every simulation, so that few are needed."""
    patch.setattr(world, "PYLON_SHARE", 1.0)


def a_page_is_not_told_that_codex_is_gone(patch: Patch) -> None:
    """Each request of a page at Pylon is answered, also when codex dies."""
    everybody_asks_codex(patch)
    answered = Client._answered

    def silent(self: Client, payload: Any, answer: effects.Answer) -> None:
        if answer.status is not Status.UNKNOWN:
            answered(self, payload, answer)

    patch.setattr(Client, "_answered", silent)


# Each with what the story of a failing seed says of it.
VARIANTS: dict[Callable[[Patch], None], str] = {
    a_call_is_sent_before_it_is_on_record: "not on record",
    an_outcome_is_told_before_it_is_on_record: "on record",
    an_outcome_is_shown_before_it_is_on_record: "somebody was told",
    a_question_is_shown_before_it_is_on_record: "somebody was shown",
    a_commit_is_not_synced: "on record",
    a_job_that_ended_is_not_known_again: "are on record",
    a_result_is_told_before_it_is_on_record: "are on record",
    a_call_is_settled_twice: "UNIQUE constraint failed: settled.call",
    what_could_do_harm_is_sent_again: "ran twice for one call",
    a_key_is_forgotten_at_a_restart: "the key k",
    nothing_is_masked: "a secret can be read in the files",
    originals_are_not_kept: "another input than was asked for",
    one_answer_lets_all_through: "an answer that was used before",
    a_directive_is_used_twice: "with a used one",
    only_the_last_caller_is_judged: "policy says",
    a_chain_forgets_who_began_it: "a call hides",
    anybody_may_end_a_call: "a forged result is on record",
    a_question_does_not_expire: "stays open for ever",
    a_lost_agent_is_not_noticed: "runs nowhere",
    a_token_is_good_for_any_process: "somebody came in with the token",
    reading_never_goes_on: "still waits",
    typed_work_moves_whatever_became_of_it: "ran twice for one call",
    an_instance_is_chosen_anew_after_a_restart: "ran twice for one call",
    work_that_is_done_is_not_forgotten: "whose result had been taken",
    a_result_is_told_twice: "times for",
    a_repeated_request_is_another_call: "and the call is not on record",
    a_repeat_needs_somebody_who_does_such_work: "and then 5006",
    a_run_forgets_what_was_done: "had the effect of",
    a_run_is_told_of_before_it_is_on_record: "was taken on, and is not on record",
    the_questions_of_a_run_are_forgotten_at_a_restart: "was told of with",
    the_end_of_a_run_is_not_remembered: "has the steps started, ended, ended",
    a_run_does_not_wait_for_its_operation: "had its effects in the order",
    an_event_is_told_before_it_is_on_record: "which is not on record",
    who_published_is_answered_before_it_is_on_record: "and it is not on record",
    what_is_owed_is_not_told_again: "was taken or dropped 0 times",
    a_repeated_message_is_another_call: "is 2 calls",
    a_request_that_is_sent_again_has_another_id: "ran twice for one call",
    a_page_is_told_of_an_entry_before_it_is_on_disk: "and was told",
    a_page_does_not_notice_a_gap: "and was told",
    a_page_is_not_told_that_codex_is_gone: " waits for ",
}
