"""Agents: launched, admitted, healthy or not, gone; the tools they offer.

Owns what follows from an agent's coming and going. Does not own calls (they are told: ``interruptions.lost``,
``tools_are_back``) or who may do what (``policy``).

Invariant: an agent has at most one session; a fresh, valid one replaces the old. What an agent can have written by
coming, going and changing its mind is bounded (``limits.try_note``); what is beyond that is refused, or not written.
"""

from __future__ import annotations

from typing import Final

from trunkline import effects, entries, events
from trunkline.hub.approvals import Approvals
from trunkline.hub.breaker import Breaker
from trunkline.hub.calls import Calls
from trunkline.hub.credentials import FIRST_USE_S, Credentials, Launch
from trunkline.hub.in_force import InForce
from trunkline.hub.interruptions import Interruptions
from trunkline.hub.journal import Journal
from trunkline.hub.limits import Loads
from trunkline.hub.offers import Offer
from trunkline.hub.policy import Judge
from trunkline.hub.registry import Agent, Registry, Tool
from trunkline.hub.routing import Routing
from trunkline.hub.timers import AlarmKey, OfBreaker, Timers
from trunkline.model import Fault, Health, Now, fault, reserved_prefix

# Under which refusals of strangers are counted, who have no identity.
STRANGERS: Final = "strangers"


def notes_of_offer(tools: int) -> int:
    """Entries that a list of so many tools counts for: each may be pinned or is named with its fault, and the list."""
    return 1 + tools


class Agents:
    """One method for each event about agents: they are launched, come in, offer tools, report how they are, leave."""

    def __init__(
        self,
        journal: Journal,
        registry: Registry,
        loads: Loads,
        calls: Calls,
        interruptions: Interruptions,
        approvals: Approvals,
        credentials: Credentials,
        judge: Judge,
        routing: Routing,
        timers: Timers[AlarmKey],
        in_force: InForce,
    ) -> None:
        self._journal = journal
        self._state = journal.state
        self._registry = registry
        self._loads = loads
        self._calls = calls
        self._interruptions = interruptions
        self._approvals = approvals
        self._credentials = credentials
        self._judge = judge
        self._routing = routing
        self._timers = timers
        self._in_force = in_force
        # By agent id: coming back with another session does not make an agent well.
        self._breakers: dict[str, Breaker] = {}

    def launched(self, event: events.AgentLaunched, now: Now) -> None:
        """A run was started: its token is expected from here on."""
        self._credentials.expect(
            event.token_sha256,
            Launch(event.agent_id, event.run_id, event.process, now.mono + FIRST_USE_S, event.manifest),
        )
        self._judge.forget()
        self._journal.write(
            entries.AgentLaunched(
                n=self._journal.next,
                at=now.ms,
                agent_id=event.agent_id,
                run_id=event.run_id,
                pid=event.process.pid,
                manifest_sha256=None if event.manifest is None else event.manifest.sha256,
            )
        )

    def stopping(self, event: events.AgentStopping, _now: Now) -> None:
        """A run is about to end because we want it to: callers are told why, until the agent is back."""
        self._registry.stopping[event.agent_id] = (event.run_id, event.reason)

    def exited(self, event: events.AgentExited, now: Now) -> None:
        """A run is over, and its token with it."""
        self._credentials.forget(event.run_id)
        if self._registry.stopping.get(event.agent_id, (event.run_id, ""))[0] != event.run_id:
            # A later run, which ended for a reason of its own.
            del self._registry.stopping[event.agent_id]
        self._journal.write(
            entries.AgentExited(
                n=self._journal.next,
                at=now.ms,
                agent_id=event.agent_id,
                run_id=event.run_id,
                exit_code=event.exit_code,
                restart_in_s=event.restart_in_s,
                note=event.note,
            )
        )

    def arrived(self, event: events.AgentArrived, now: Now) -> None:
        """Somebody says who they are: refused, or admitted with what their credential gives them."""
        present = self._registry.agents.get(event.agent_id)
        launch = self._credentials.launch_of(event.token_sha256)
        in_use = launch is not None and present is not None and present.credential == f"run:{launch.run_id}"
        credential, reason = self._credentials.admit(
            event.edge, event.agent_id, event.token_sha256, event.peer, now.mono, in_use=in_use
        )
        reason = reason or self._name_taken(event)
        who = STRANGERS
        if not reason and not event.is_resident:
            # One entry when it comes, one when it goes.
            who = f"{event.edge}:{event.agent_id}"
            reason = "" if self._loads.try_note(who, 2, now.mono) is None else "it comes and goes too often"
        if reason:
            self._refuse(event, who, reason, now)
            return
        if present is not None:  # a fresh session replaces the old one
            self._detach(present.session, "replaced", now)
            self._journal.say(effects.Close(present.session, 0, "replaced"))
        self._admit(event, credential, launch, now)

    def _refuse(self, event: events.AgentArrived, who: str, reason: str, now: Now) -> None:
        """Say no, after a while; on record, unless this one, or all strangers together, are there too often already."""
        if self._loads.try_note(who, 1, now.mono) is None:
            self._journal.write(
                entries.AgentRefused(
                    n=self._journal.next,
                    at=now.ms,
                    edge=event.edge,
                    claimed=event.agent_id[:128],
                    origin=event.peer.origin,
                    reason=reason,
                )
            )
        delay_s = self._credentials.delay_after_failure(event.peer.origin)
        self._journal.say(effects.Refuse(event.session, 0, event.ref, delay_s))

    def _admit(self, event: events.AgentArrived, credential: str, launch: Launch | None, now: Now) -> None:
        """Let an agent in; what its manifest asks for, a person grants."""
        manifest = launch.manifest if launch is not None else None
        known_sha256 = None if manifest is None else manifest.sha256
        # Without a manifest of ours there is nothing to drift from.
        drift = known_sha256 is not None and event.manifest_sha256 not in (None, known_sha256)  # OS-062
        number = self._journal.write(
            entries.AgentAdmitted(
                n=self._journal.next,
                at=now.ms,
                agent_id=event.agent_id,
                edge=event.edge,
                version=event.version,
                credential=credential,
                capabilities=event.capabilities,
                manifest_sha256=known_sha256,
                drift=drift,
            )
        )
        agent = _agent(event, credential, known_sha256)
        if event.breaker is not None:
            agent.breaker = self._breakers.setdefault(event.agent_id, Breaker(event.breaker))
        self._registry.attach(agent, is_launched=launch is not None)
        self._judge.forget()
        if manifest is not None and manifest.permissions:
            grant = self._state.grants.get(event.agent_id)
            if grant is not None and grant.manifest_sha256 == manifest.sha256:
                agent.permissions = grant.permissions
            else:
                self._approvals.ask_manifest(agent.identity, event.agent_id, manifest, now)
        self._journal.say(effects.Admit(event.session, number, event.ref))
        if agent.breaker is not None:
            # The one who was asked is gone, or the rest ended while nobody was there to be asked.
            agent.breaker.is_checking = False
            self.breaker_due(event.agent_id, now)

    def _name_taken(self, event: events.AgentArrived) -> str:
        """Why this id is not for this agent, whatever its token (decision 19)."""
        other = self._registry.look_alike(event.agent_id)
        if other is not None:
            return f"the id equals {other} but for case"
        present = self._registry.agents.get(event.agent_id)
        if present is not None and present.edge != event.edge:
            return f"the id belongs to an agent on the edge {present.edge}"
        prefix = reserved_prefix(event.agent_id)
        if prefix and not (prefix == f"{event.edge}." and (event.is_resident or event.is_mounted)):
            return f"ids that start with {prefix} are reserved"
        return ""

    def left(self, event: events.AgentLeft, now: Now) -> None:
        """A session ended."""
        self._detach(event.session, event.reason, now)

    def _detach(self, session: int, reason: str, now: Now) -> None:
        agent = self._registry.detach(session)
        self._interruptions.caller_left(session, None, now)
        if agent is None:
            return
        self._judge.forget()
        self._journal.write(
            entries.AgentLeft(n=self._journal.next, at=now.ms, agent_id=agent.agent_id, reason=reason[:256])
        )
        for number in agent.running:
            call = self._state.by_number[number]
            # Its process may live on, work on, and come back.
            agent.abandon(call, now.mono)
            self._interruptions.lost(call, now)
        for number in agent.queue:
            self._calls.send_or_wait(self._state.by_number[number], now)

    def health_reported(self, event: events.HealthReported, now: Now) -> None:
        """An agent said how it is, or was silent."""
        agent = self._registry.by_session.get(event.session)
        if agent is None:
            return
        if agent.breaker is not None and agent.breaker.is_checking:
            self._breaker_checked(agent, agent.breaker, event.health, now)
        if agent.health is event.health:
            return
        agent.health = event.health
        if self._loads.try_note(agent.identity, 1, now.mono) is None:
            self._journal.write(
                entries.AgentHealthChanged(
                    n=self._journal.next, at=now.ms, agent_id=agent.agent_id, health=event.health
                )
            )
        if agent.is_usable:
            self._calls.tools_are_back(agent.tools, now)
        else:
            self._calls.leave_queue(agent, now)

    # -- breakers ------------------------------------------------------------------------------------------------------

    def count_failure(self, session: int, problem: Fault, now: Now) -> None:
        """An attempt failed at this agent; after some in a row it gets no new work for a while."""
        agent = self._registry.by_session[session]
        breaker = agent.breaker
        if breaker is not None and breaker.failed(problem, now.mono):
            self._note_breaker(agent, "breaker.opened", f"{breaker.failures} failed attempts in a row", now)
            self._timers.arm(OfBreaker(agent.agent_id), breaker.rests_until)
            self._calls.leave_queue(agent, now)

    def breaker_due(self, agent_id: str, now: Now) -> None:
        """A rest is over: one look whether the agent is well, if it is here."""
        agent = self._registry.agents.get(agent_id)
        if agent is not None and agent.breaker is not None and agent.breaker.is_due(now.mono):
            agent.breaker.check()  # CH-073
            self._journal.say(effects.CheckHealth(agent.session, 0))

    def _breaker_checked(self, agent: Agent, breaker: Breaker, health: Health, now: Now) -> None:
        is_well = health in {Health.OK, Health.DEGRADED}
        breaker.checked(now.mono, is_well=is_well)
        if is_well:
            self._note_breaker(agent, "breaker.closed", "the health check went well", now)
            self._calls.tools_are_back(agent.tools, now)
        else:
            self._note_breaker(agent, "breaker.opened", "the health check failed", now)
            self._timers.arm(OfBreaker(agent.agent_id), breaker.rests_until)

    def _note_breaker(self, agent: Agent, code: str, detail: str, now: Now) -> None:
        self._journal.write(
            entries.Noticed(
                n=self._journal.next, at=now.ms, code=code, place=agent.edge, who=agent.agent_id, detail=detail
            )
        )

    def offer_refused(self, identity: str, tools: int, now: Now) -> Fault | None:
        """Why a list of so many tools of this agent would not be looked at, if it would not. Nothing is counted."""
        return self._loads.too_many_notes(identity, notes_of_offer(tools), now.mono)

    def tools_offered(self, event: events.ToolsOffered, now: Now) -> None:
        """An agent announces tools: each is taken, held back or rejected for itself."""
        agent = self._registry.by_session.get(event.session)
        if agent is None:
            return
        # Before anything is compiled.
        count = notes_of_offer(len(event.tools) + len(event.rejected))
        too_often = None if agent.is_resident else self._loads.try_note(agent.identity, count, now.mono)
        if too_often is not None:
            refused = (*event.rejected, *((definition.tool_id, too_often) for definition in event.tools))
            self._journal.say(effects.ConfirmTools(event.session, 0, event.ref, (), refused))
            return
        prefix = f"{agent.agent_id}/"
        pinned = (tool_id for tool_id in self._state.pins if tool_id.startswith(prefix))
        is_shared = self._routing.routes_for(agent.agent_id)
        offer = Offer(agent, self._registry, pinned, replace=event.replace, is_shared=is_shared)
        for definition in event.tools:
            offer.read(definition)
        taken, rejected = offer.taken, (*event.rejected, *offer.rejected)
        if event.replace:  # OS-087
            self._remove(agent, set(agent.tools) - set(taken), now)
        for tool in taken.values():
            self._take_tool(agent, tool, now)
        self._journal.write(
            entries.ToolsOffered(
                n=self._journal.next,
                at=now.ms,
                agent_id=agent.agent_id,
                tool_ids=tuple(taken),
                rejected={tool_id[:256]: problem.code for tool_id, problem in rejected},
            )
        )
        self._journal.say(effects.ConfirmTools(event.session, 0, event.ref, tuple(taken), rejected))
        self._calls.tools_are_back(taken, now)

    def _take_tool(self, agent: Agent, tool: Tool, now: Now) -> None:
        """Pin a definition at its first use; hold back one that differs from its pin."""
        definition, fingerprint = tool.definition, tool.fingerprint
        pin = self._state.pins.get(definition.tool_id)
        changed = pin is not None and pin.fingerprint != fingerprint
        is_pinned = not agent.is_resident and agent.agent_id not in self._in_force.settings.unpinned_agents
        suspended = changed and is_pinned
        if suspended:
            self._approvals.ask_definition(agent.identity, definition, fingerprint, now)
        else:
            self._approvals.definition_settled(agent.identity, definition.tool_id, "another one is in force", now)
            if pin is None or changed:
                self._journal.write(
                    entries.ToolPinned(n=self._journal.next, at=now.ms, definition=definition, fingerprint=fingerprint)
                )
        self._registry.put(agent, tool, suspended=suspended)

    def _remove(self, agent: Agent, tool_ids: set[str], now: Now) -> None:
        for tool_id in tool_ids:
            self._registry.remove(agent, tool_id)
        self._calls.leave_queue(agent, now)

    def tools_withdrawn(self, event: events.ToolsWithdrawn, now: Now) -> None:
        """An agent takes tools back; calls that run go on."""
        agent = self._registry.by_session.get(event.session)
        if agent is None:
            return
        too_often = None if agent.is_resident else self._loads.try_note(agent.identity, 1, now.mono)
        if too_often is not None:
            refused = tuple((tool_id, too_often) for tool_id in event.tool_ids)
            self._journal.say(effects.ConfirmWithdrawal(event.session, 0, event.ref, (), refused))
            return
        gone = tuple(tool_id for tool_id in dict.fromkeys(event.tool_ids) if tool_id in agent.tools)
        rejected = tuple((tool_id, fault("tool.not_found")) for tool_id in event.tool_ids if tool_id not in gone)
        self._remove(agent, set(gone), now)
        self._journal.write(
            entries.ToolsWithdrawn(n=self._journal.next, at=now.ms, agent_id=agent.agent_id, tool_ids=gone)
        )
        self._journal.say(effects.ConfirmWithdrawal(event.session, 0, event.ref, gone, rejected))


def _agent(event: events.AgentArrived, credential: str, manifest_sha256: str | None) -> Agent:
    """Somebody who was admitted, as they described themselves."""
    return Agent(
        agent_id=event.agent_id,
        edge=event.edge,
        identity=f"{event.edge}:{event.agent_id}",
        session=event.session,
        version=event.version,
        capabilities=frozenset(event.capabilities),
        max_inflight=event.max_inflight,
        timeout_s=event.timeout_s,
        dedupes=event.dedupes,
        credential=credential,
        process=event.peer.process,
        manifest_sha256=manifest_sha256,
        retry=event.retry,
        is_resident=event.is_resident,
        only_records=event.only_records,
    )
