"""A hub with a clock that stands still until told, a ledger that is a list, and a runner that checks everything.

After each event the kit asserts what holds for every run: entries are numbered without gaps, no effect waits for an
entry that was not written, nothing at stake leaves before its record, each call has at most one outcome, nobody gets
two answers, what could do harm twice is sent once, a key names one call, an answer of a person lets one call through,
and the hub's own invariants (``hub.invariants.check``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from trunkline import effects, entries, events
from trunkline.canonical import canonical
from trunkline.hub import invariants, views
from trunkline.hub.hub import Hub
from trunkline.hub.idempotency import KEY_LIFE_MS
from trunkline.hub.state import State
from trunkline.model import (
    OPERATOR,
    Decision,
    Fault,
    Guard,
    Health,
    HubSettings,
    Limits,
    Manifest,
    Now,
    Peer,
    Policy,
    Principal,
    ProcessIdentity,
    RetryPolicy,
    Router,
    Rule,
    Status,
    ToolDefinition,
)
from trunkline.testing.ending import labels

E = TypeVar("E", bound=entries.Entry)

ANYTHING = Raw(b'{"type":"object"}')
# The session that all calls of people and programs without a session of their own go through, as in the HTTP edge.
DESK = 1
BOSS = Principal(OPERATOR)


def rules(*lines: Rule | tuple[str, str, str], version: str = "v1") -> Policy:
    """A policy of rules, or of (caller, tool, decision)."""
    made = (
        line if isinstance(line, Rule) else Rule(f"rule-{number}", line[0], line[1], Decision(line[2]))
        for number, line in enumerate(lines, start=1)
    )
    return Policy(tuple(made), version)


ALL = rules(("*", "*", "allow"))
# Nothing that fails is tried again.
NO_RETRY = RetryPolicy((0.0,))
ASK = rules(("operator", "*", "allow"), ("*", "*", "ask"), version="ask")


def tool(tool_id: str, **terms: Any) -> ToolDefinition:
    """A tool that takes any object and has side effects, unless told otherwise."""
    return ToolDefinition(tool_id, terms.pop("description", "a tool"), terms.pop("input_schema", ANYTHING), **terms)


def body(value: object) -> Raw:
    """A JSON body."""
    return value if isinstance(value, Raw) else Raw(msgspec.json.encode(value))


class Asked:
    """One request for a call, and what came of it so far."""

    def __init__(self, kit: Kit, session: int, ref: str, said: list[effects.Effect], call_id: str) -> None:
        self._kit = kit
        self.session = session
        self.ref = ref
        self.said = said
        self.call_id = call_id

    @property
    def answer(self) -> effects.Answer | None:
        """The answer, if there is one."""
        return self._kit.answers.get((self.session, self.ref))

    @property
    def outcome(self) -> effects.Answer:
        """The answer; there must be one."""
        found = self.answer
        assert found is not None, f"{self.ref} has no answer"
        return found

    @property
    def status(self) -> Status | None:
        """What the answer says."""
        return None if self.answer is None else self.answer.status

    @property
    def code(self) -> str | None:
        """The code of the answer's fault."""
        return None if self.answer is None or self.answer.fault is None else self.answer.fault.code

    @property
    def refused(self) -> bool:
        """Whether it was refused before it was taken on."""
        return self.outcome.refused

    @property
    def waits(self) -> list[effects.Wait]:
        """What was said about waiting."""
        return [w for w in self._kit.waits if (w.session, w.ref) == (self.session, self.ref)]

    @property
    def approval_id(self) -> str:
        """The question it was last said to wait for."""
        found = self.waits[-1].approval_id
        assert found is not None
        return found

    @property
    def deliveries(self) -> list[effects.Deliver]:
        """Each time it was sent."""
        return [d for d in self._kit.deliveries if d.call_id == self.call_id]

    @property
    def accepted(self) -> entries.CallAccepted:
        """Its first entry."""
        return next(e for e in self._kit.log_of(entries.CallAccepted) if e.call_id == self.call_id)


class Kit:
    """One exchange's middle, from the outside."""

    def __init__(self, policy: Policy = ALL, *, start: bool = True) -> None:
        self.mono, self.wall = 1000.0, 1_800_000_000.0
        self.log: list[entries.Entry] = []
        self.snapshots: list[tuple[int, list[int], Now]] = []
        self.settings = HubSettings(policy)
        self.deliveries: list[effects.Deliver] = []
        self.cancels: list[effects.Cancel] = []
        self.waits: list[effects.Wait] = []
        self.progress: list[effects.Progress] = []
        self.closes: list[effects.Close] = []
        self.answers: dict[tuple[int, str], effects.Answer] = {}
        self.replies: dict[tuple[int, str], list[effects.Reply]] = {}
        self.outcomes: dict[int, entries.CallSettled] = {}
        self._sendings: dict[int, int] = {}
        # Calls whose provider promised to recognise a repeat, and the providers that took a call not on.
        self._recognised: set[int] = set()
        self._returned: dict[int, set[str]] = {}
        self._keyed: dict[str, int] = {}
        self._asked_about: dict[int, list[str]] = {}
        self._approved: set[str] = set()
        self.step = (0, 0)
        self._is_checking = True
        # Whether each event is on disk before the next one happens.
        self.has_disk = True
        self.sessions: dict[str, int] = {}
        self._numbers = itertools.count(10)
        self._refs = itertools.count(1)
        self._runs = itertools.count(1)
        self._guards: dict[str, Guard] = {}
        self._routers: dict[str, Router] = {}
        self.hub, self._careful = self._new_hub(), self._new_careful_hub()
        if start:
            self.feed(events.ExchangeStarted("1.0", "here"))

    def _new_hub(self) -> Hub:
        # No two runs give the same.
        ids = itertools.count(len(self.log) * 1000 + 1)
        hub = Hub(
            mac_key=b"k" * 32,
            call_prefix="00000000-0000-8000-8000-",
            new_id=lambda: f"id-{next(ids)}",
            operator_sha256="operator-token",
            launch_edge="opensentience",
            operator_edge="http",
            settings=self.settings,
        )
        for agent_id, guard in self._guards.items():
            hub.guard(agent_id, guard)
        for agent_id, router in self._routers.items():
            hub.route(agent_id, router)
        return hub

    def _new_careful_hub(self) -> Hub:
        """One that opens no lanes: whatever happens, both must say the same."""
        hub = self._new_hub()
        hub.lanes.open = lambda *_: None  # type: ignore[method-assign]
        return hub

    @property
    def hubs(self) -> tuple[Hub, Hub]:
        """The hub, and the one it is compared with."""
        return self.hub, self._careful

    def guard(self, agent_id: str, guard: Guard | None) -> None:
        """Set or take away an agent's guard."""
        self._guards.pop(agent_id, None)
        if guard is not None:
            self._guards[agent_id] = guard
        for hub in self.hubs:
            hub.guard(agent_id, guard)

    def route(self, agent_id: str, router: Router | None) -> None:
        """Let other tools serve calls of an agent's tools, or no longer."""
        self._routers.pop(agent_id, None)
        if router is not None:
            self._routers[agent_id] = router
        for hub in self.hubs:
            hub.route(agent_id, router)

    # -- the runner's part ---------------------------------------------------------------------------------------------

    @property
    def now(self) -> Now:
        return Now(self.mono, self.wall)

    @property
    def state(self) -> State:
        return self.hub.state

    def feed(self, event: events.Event) -> list[effects.Effect]:
        """Hand an event in; what the hub says besides records."""
        if isinstance(event, events.CallRequested):
            event = self._with_earlier(event)
        said: list[effects.Effect] = []
        before = len(self.log)
        made = self.hub.handle(event, self.now)
        careful = self._careful.handle(event, self.now)
        assert list(made) == careful, f"a lane leads elsewhere than the careful way: {made}, not {careful}"
        for effect in made:
            if isinstance(effect, entries.Entry):
                self._record(effect)
            else:
                self._say(effect)
                said.append(effect)
        self.step = (before, len(self.log))
        if self.has_disk:
            self.store()
        if self._is_checking:
            invariants.check(self.hub)
            assert counted(self.hub) == counted(self._careful), "a lane counts otherwise than the careful way"
            assert self.hub.lanes.under_way.keys() <= self.state.calls.keys(), "a call that ended is still on a lane"
        return said

    def store(self) -> None:
        """All that was written is on disk."""
        for hub in self.hubs:
            hub.stored(len(self.log))

    @contextmanager
    def in_bulk(self) -> Iterator[None]:
        """Check the hub's invariants after all of this, not after each event: they look at every open call."""
        self._is_checking = False
        yield
        self._is_checking = True
        invariants.check(self.hub)
        assert counted(self.hub) == counted(self._careful), "a lane counts otherwise than the careful way"

    def _with_earlier(self, event: events.CallRequested) -> events.CallRequested:
        key_id = self.hub.key_to_look_up(event)
        if key_id is None:
            return event
        for entry in reversed(self.log_of(entries.CallAccepted)):
            if entry.key_id == key_id and entry.n in self.outcomes:
                return replace(event, earlier=events.Earlier(entry, self.outcomes[entry.n]))
        return event

    def _record(self, entry: entries.Entry) -> None:
        assert entry.n == len(self.log) + 1, "an entry is numbered out of turn"
        self.log.append(entry)
        match entry:
            case entries.CallSettled():
                assert entry.call not in self.outcomes, f"call {entry.call} has two outcomes"
                self.outcomes[entry.call] = entry
            case entries.CallSent():
                self._sendings[entry.call] = entry.n
                if entry.provider is not None:
                    self._recognised.discard(entry.call)
                if entry.dedupes:
                    self._recognised.add(entry.call)
            case entries.CallReturned():
                self._returned.setdefault(entry.call, set()).add(entry.provider)
            case entries.CallAccepted():
                self._taken_on(entry)
            case entries.QuestionOpened(call=int() as number):
                self._asked_about.setdefault(number, []).append(entry.approval_id)
            case entries.QuestionJoined():
                self._asked_about.setdefault(entry.call, []).append(entry.approval_id)
            case entries.QuestionClosed(how="approved"):
                self._approved.add(entry.approval_id)

    def _taken_on(self, entry: entries.CallAccepted) -> None:
        if entry.dedupes:
            self._recognised.add(entry.n)
        if entry.key_id is not None:
            earlier = self._keyed.get(entry.key_id)
            if earlier is not None and earlier in self.outcomes:
                assert self.outcomes[earlier].at + KEY_LIFE_MS <= entry.at, "a key names two calls"
            else:
                assert earlier is None, "a key names two open calls"
            self._keyed[entry.key_id] = entry.n

    def _say(self, effect: effects.Effect) -> None:
        assert isinstance(effect, effects.ToSession)
        assert 0 <= effect.after <= len(self.log), f"{effect} waits for an entry that is not written"
        match effect:
            case effects.Deliver():
                sent = self._sending_of(effect.call_id)
                only_records = self.hub.registry.by_session[effect.session].only_records
                is_at_stake = self._at_stake(effect.call_id) and not only_records
                assert effect.after >= sent or not is_at_stake, "delivered before its record"
                self._check_delivery(effect, self._accepted(effect.call_id))
                self.deliveries.append(effect)
            case effects.Answer():
                name = (effect.session, effect.ref)
                assert name not in self.answers, f"{name} is answered twice"
                if not effect.refused:
                    settled = self.outcomes[self._accepted(effect.call_id).n]
                    assert effect.after >= settled.n or not self._at_stake(effect.call_id), "answered before its record"
                self.answers[name] = effect
            case effects.Reply():
                self.replies.setdefault((effect.session, effect.ref), []).append(effect)
            case effects.Cancel():
                self.cancels.append(effect)
            case effects.Wait():
                self.waits.append(effect)
            case effects.Progress():
                self.progress.append(effect)
            case effects.Close():
                self.closes.append(effect)

    def _check_delivery(self, effect: effects.Deliver, accepted: entries.CallAccepted) -> None:
        """Once, if twice could do harm; to one provider; and after an answer that let no other call through."""
        sent_to = {d.tool_id for d in self.deliveries if d.call_id == accepted.call_id}
        returned_by = self._returned.get(accepted.n, set())
        # What only reads is sent without waiting for its record, and a crash may forget that it had moved on.
        is_alone = sent_to - returned_by <= {effect.tool_id}
        assert is_alone or not self._at_stake(accepted.call_id), "sent to two providers"
        assert effect.tool_id not in returned_by, "sent to one who did not take it on"
        assert effect.chain == accepted.chain
        is_once = not sent_to - returned_by
        assert is_once or not accepted.side_effects or accepted.n in self._recognised, "sent twice"
        is_first = not sent_to
        if accepted.decision is Decision.ASK and is_first:
            answers = self._approved.intersection(self._asked_about.get(accepted.n, ()))
            assert answers, "sent without an answer"
            self._approved -= answers

    def _sending_of(self, call_id: str) -> int:
        number = self._accepted(call_id).n
        return self._sendings.get(number, number)

    def _at_stake(self, call_id: str) -> bool:
        accepted = self._accepted(call_id)
        return accepted.side_effects or accepted.decision is Decision.ASK or accepted.directive_id is not None

    def _accepted(self, call_id: str) -> entries.CallAccepted:
        found = self.log[int(call_id[-12:], 16) - 1]
        assert isinstance(found, entries.CallAccepted)
        return found

    def log_of(self, kind: type[E]) -> list[E]:
        """All entries of a kind."""
        return [entry for entry in self.log if isinstance(entry, kind)]

    # -- time ----------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass; the hub is woken when it asked to be."""
        until = self.mono + seconds
        while (at := self._wake_at()) is not None and at <= until:
            self._move_to(max(self.mono, at))
            self.feed(events.Woke())
        self._move_to(until)

    def _wake_at(self) -> float | None:
        wishes = (self.hub.wake_at(), self._careful.wake_at())
        return min((at for at in wishes if at is not None), default=None)

    def _move_to(self, mono: float) -> None:
        self.wall += mono - self.mono
        self.mono = mono

    def snapshot(self) -> None:
        """Remember what a snapshot taken now would name; its entry follows."""
        through = len(self.log)
        self.snapshots.append((through, self.state.open_entries(self.now.ms), self.now))
        self.feed(events.SnapshotTaken(through, "0" * 64))

    def crash(self, keep: int | None = None) -> None:
        """Lose everything but the first ``keep`` entries (all of them without a number), and start again.

        The new state must be the same from all entries and from each snapshot; if nothing was lost, it is the old one.
        """
        before = dump(self.state, self.now)
        if keep is not None:
            self._lose(keep)
        stored = [entries.decode(entries.encode(entry)) for entry in self.log]
        hub = self._new_hub()
        hub.fold(stored)
        if keep is None:
            assert dump(hub.state, self.now) == before
        for through, numbers, taken in self.snapshots:
            other = self._new_hub()
            other.fold([stored[number - 1] for number in numbers] + stored[through:])
            # What had expired when the snapshot was taken is not in it, even if the wall clock was set back since.
            later = max(taken, self.now, key=lambda moment: moment.wall)
            assert dump(other.state, later) == dump(hub.state, later)
        self.hub, self._careful = hub, self._new_careful_hub()
        self._careful.fold(stored)
        # Another process, another monotonic clock; nobody is connected.
        self.mono = 20.0
        self.sessions.clear()
        self.feed(events.ExchangeStarted("1.0", "here"))

    def _lose(self, keep: int) -> None:
        """Forget the entries after ``keep``, and what was said after them: it never left."""
        kept, self.log = self.log[:keep], []
        self.snapshots = [snapshot for snapshot in self.snapshots if snapshot[0] < keep]
        self.deliveries = [d for d in self.deliveries if d.after <= keep]
        self.answers = {name: answer for name, answer in self.answers.items() if answer.after <= keep}
        for known in (self.outcomes, self._sendings, self._keyed, self._asked_about, self._approved):
            known.clear()
        self._recognised.clear()
        self._returned.clear()
        for entry in kept:
            self._record(entry)
        for delivered in self.deliveries:
            number = int(delivered.call_id[-12:], 16)
            self._approved.difference_update(self._asked_about.get(number, ()))

    # -- agents --------------------------------------------------------------------------------------------------------

    def new_session(self) -> int:
        return next(self._numbers)

    def launch(
        self, agent_id: str, *, token: str | None = None, pid: int = 100, manifest: Manifest | None = None
    ) -> str:
        """A run of an agent; the name of the run."""
        run_id = f"run-{next(self._runs)}"
        process = ProcessIdentity(pid, 1)
        self.feed(events.AgentLaunched(agent_id, run_id, process, token or f"launch-{agent_id}", manifest))
        return run_id

    def arrive(
        self,
        agent_id: str,
        *,
        run_id: str | None = None,
        token: str | None = None,
        pid: int = 100,
        start_time: int = 1,
        origin: str | None = None,
        edge: str = "opensentience",
        session: int | None = None,
        **terms: Any,
    ) -> effects.Admit | effects.Refuse:
        """Somebody says who they are."""
        session = session or self.new_session()
        peer = Peer(origin or f"pid:{pid}", ProcessIdentity(pid, start_time), run_id)
        said = self.feed(
            events.AgentArrived(
                session, f"hello-{session}", edge, agent_id, "1.0.0", token or f"launch-{agent_id}", peer, **terms
            )
        )
        answer = next(e for e in said if isinstance(e, effects.Admit | effects.Refuse))
        if isinstance(answer, effects.Admit):
            self.sessions[agent_id] = session
        return answer

    def attach(
        self,
        agent_id: str,
        *tools: ToolDefinition | str,
        manifest: Manifest | None = None,
        **terms: Any,
    ) -> int:
        """Launch an agent, let it in and take its tools; its session."""
        run_id = self.launch(agent_id, manifest=manifest)
        answer = self.arrive(agent_id, run_id=run_id, **terms)
        assert isinstance(answer, effects.Admit), "the agent was refused"
        if tools:
            confirmed = self.offer(agent_id, *tools)
            assert not confirmed.rejected, confirmed.rejected
        return self.sessions[agent_id]

    def offer(self, agent_id: str, *tools: ToolDefinition | str, replace: bool = False) -> effects.ConfirmTools:
        """Announce tools; a bare name is a tool with side effects."""
        session = self.sessions[agent_id]
        made = tuple(tool(f"{agent_id}/{t}") if isinstance(t, str) else t for t in tools)
        said = self.feed(events.ToolsOffered(session, f"offer-{next(self._refs)}", made, replace=replace))
        return next(e for e in said if isinstance(e, effects.ConfirmTools))

    def withdraw(self, agent_id: str, *tool_ids: str) -> effects.ConfirmWithdrawal:
        session = self.sessions[agent_id]
        said = self.feed(events.ToolsWithdrawn(session, f"withdraw-{next(self._refs)}", tool_ids))
        return next(e for e in said if isinstance(e, effects.ConfirmWithdrawal))

    def leave(self, agent_id: str, reason: str = "closed") -> None:
        self.feed(events.AgentLeft(self.sessions.pop(agent_id), reason))

    def health(self, agent_id: str, health: Health) -> None:
        self.feed(events.HealthReported(self.sessions[agent_id], health))

    # -- calls ---------------------------------------------------------------------------------------------------------

    def call(
        self,
        tool_id: str,
        value: object = None,
        *,
        by: str | Principal = BOSS,
        ref: str | None = None,
        **terms: Any,
    ) -> Asked:
        """Ask for a call. ``by`` is a principal, or the id of an attached agent, which calls through its session."""
        session = DESK
        if isinstance(by, str):
            session = self.sessions[by]
            by = Principal(f"opensentience:{by}")
        session = terms.pop("session", session)
        ref = ref or f"r{next(self._refs)}"
        before = len(self.log)
        said = self.feed(events.CallRequested(session, ref, by, tool_id, body({} if value is None else value), **terms))
        named = [e.call_id for e in said if isinstance(e, effects.Wait | effects.Answer) and e.ref == ref]
        named += [e.call_id for e in self.log[before:] if isinstance(e, entries.CallAccepted)]
        call_id = named[0] if named else self._joined_call(session, ref)
        asked = Asked(self, session, ref, said, call_id)
        if asked.answer is None or not asked.refused:
            # Whatever it was joined to, it is the call that was asked for.
            accepted = self._accepted(call_id)
            assert (accepted.caller, accepted.tool_id) == (by.identity, tool_id)
            assert canonical(accepted.input) == canonical(body({} if value is None else value))
        return asked

    def _joined_call(self, session: int, ref: str) -> str:
        return next(c.entry.call_id for c in self.state.calls.values() if (session, ref) in c.waiters)

    def finish(
        self,
        asked: Asked | str,
        value: object = None,
        *,
        status: Status = Status.SUCCEEDED,
        fault: Fault | None = None,
        session: int | None = None,
    ) -> list[effects.Effect]:
        """The agent's result; from the session it was last sent to."""
        call_id = asked if isinstance(asked, str) else asked.call_id
        if session is None:
            session = next(d.session for d in reversed(self.deliveries) if d.call_id == call_id)
        output = None if value is None else body(value)
        return self.feed(events.CallFinished(session, call_id, status, output, fault))

    def show(self, asked: Asked, seq: int, text: str) -> None:
        """The agent shows something of a running call."""
        session = asked.deliveries[-1].session
        self.feed(events.CallProgressed(session, asked.call_id, seq, "stdout", body({"text": text})))

    def cancel(self, asked: Asked, *, by: Principal = BOSS, reason: str = "") -> effects.Reply:
        """Ask for a call to be stopped, by its id."""
        ref = f"c{next(self._refs)}"
        self.feed(events.CancelRequested(DESK, ref, by, call_id=asked.call_id, reason=reason))
        return self.replies[DESK, ref][0]

    # -- people --------------------------------------------------------------------------------------------------------

    def answer(
        self, approval_id: str, *, approved: bool = True, by: Principal = BOSS, reason: str = ""
    ) -> effects.Reply:
        ref = f"a{next(self._refs)}"
        self.feed(events.ApprovalAnswered(DESK, ref, by, approval_id, approved, reason))
        return self.replies[DESK, ref][0]

    def questions(self, subject: str) -> list[str]:
        """The ids of the open questions about a subject."""
        return [q.approval_id for q in self.hub.approvals.views() if q.subject == subject]

    def directive(self, tool_id: str, value: object = None, *, by: Principal = BOSS) -> effects.Reply:
        ref = f"d{next(self._refs)}"
        stated = None if value is None else body(value)
        self.feed(events.DirectiveStated(DESK, ref, by, tool_id, stated, "because"))
        return self.replies[DESK, ref][0]

    def token(
        self, edge: str, agent: str, secret: str, *, by: Principal = BOSS, permissions: tuple[str, ...] = ()
    ) -> str:
        """A standing token; its id."""
        ref = f"t{next(self._refs)}"
        self.feed(events.TokenIssued(DESK, ref, by, edge, agent, secret, permissions))
        return self.replies[DESK, ref][0].id or ""

    def revoke(self, token_id: str, *, by: Principal = BOSS) -> effects.Reply:
        ref = f"t{next(self._refs)}"
        self.feed(events.TokenRevoked(DESK, ref, by, token_id))
        return self.replies[DESK, ref][0]

    def in_force(self, policy: Policy | None = None, limits: Limits | None = None, **terms: Any) -> None:
        """Other rules, limits or settings."""
        self.settings = HubSettings(policy or self.settings.policy, limits or Limits(), **terms)
        self.feed(events.SettingsChanged(self.settings))


def counted(hub: Hub) -> object:
    """What a hub counts beside the record: outcomes, what callers use, what agents and tools did."""
    registry = hub.registry
    agents = {
        agent.agent_id: (list(agent.running), list(agent.queue), agent.abandoned.ids(), agent.unanswered)
        for agent in registry.agents.values()
    }
    tools = {tool_id: (tool.succeeded, tool.failed) for tool_id, tool in registry.tools.items()}
    return views.figures(hub), hub.loads.total(), hub.loads.written(), agents, tools


def dump(state: State, now: Now) -> dict[str, object]:
    """What must be the same after any fold that has all it needs.

    A call that was sent and lost is queued in a live hub and running in a fold: both mean "sent, outcome open".
    """
    calls = {
        call_id: (
            call.entry,
            "sent" if call.attempt else call.status.value,
            call.attempt,
            (call.served_by, call.dedupes) if call.attempt else None,
            call.route.tried if call.route is not None else (),
            call.approval_id,
            call.trail,
        )
        for call_id, call in state.calls.items()
    }
    return {
        "last": state.last,
        "calls": calls,
        "numbers": sorted(state.by_number),
        "keys": {
            call.entry.key_id: state.keys[call.entry.key_id] for call in state.calls.values() if call.entry.key_id
        },
        "questions": {name: (q.entry, list(q.calls), q.trail) for name, q in state.questions.items()},
        "directives": {name: d for name, d in state.directives.items() if d.expires_ms > now.ms},
        "subscriptions": state.subscriptions,
        "owed": {number: (event.entry, list(event.to)) for number, event in state.owed.items()},
        "tokens": state.tokens,
        "revoked": state.revoked,
        "grants": state.grants,
        "processes": {key: [step.n for step in steps] for key, steps in state.processes.items()},
        "pins": state.pins,
        **labels(state, now.ms),
    }
