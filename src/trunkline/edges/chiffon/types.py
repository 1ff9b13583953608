"""``chiffon.<type>``: an agent of the exchange's own that gives work of a type to its least loaded healthy instance.

A call of ``chiffon.infra/run_playbook`` becomes a call of ``<instance>/run_playbook``, made in the type's own name and
under a key that follows from the first call. Owns the choice. Does not own attempts: those are the instance's, decided
in the hub; only what an instance does not take on, or has not the means for, may move to another one.

Invariant: after a restart the same instance is asked under the same key, so nothing is run twice.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from trunkline.edges.chiffon import translate
from trunkline.edges.chiffon.process import RETRY
from trunkline.edges.chiffon.session import AgentSession
from trunkline.edges.exchange import BaseSink, Exchange
from trunkline.effects import Answer, Deliver, Progress, ToSession
from trunkline.events import (
    AgentArrived,
    AgentLaunched,
    AttemptFailed,
    CallFinished,
    CallProgressed,
    CallRequested,
    HealthReported,
    ToolsOffered,
)
from trunkline.model import AgentView, Decision, Fault, Health, Now, Peer, Principal, ProcessIdentity, Status, fault

# What another instance may have: this one was not asked, or said that it has not the means.
_MOVES: Final = ("tool.unavailable", "limit.resource", "limit.inflight")
# Each holds a few words; the instances have bounds of their own.
MAX_INFLIGHT: Final = 4096


class Passed(Struct):
    """One call on its way through: which instances refused it, and the number of the present try."""

    effect: Deliver
    count: int = 0
    agent_id: str = ""
    tried: list[str] = []


class _Router(BaseSink):
    """The other side of a type: what comes back from instances."""

    def __init__(self, owner: TypeAgent) -> None:
        self._owner = owner

    def send(self, effect: ToSession, now: Now) -> None:
        """A word of an instance."""
        del now
        self._owner.came_back(effect)


class TypeAgent(BaseSink):
    """One type of agents as an agent."""

    def __init__(
        self, exchange: Exchange, kind: str, instances: Callable[[], list[AgentSession]], process: ProcessIdentity
    ) -> None:
        self._exchange = exchange
        self.kind = kind
        self.agent_id = f"chiffon.{kind}"
        self._instances = instances
        self._principal = Principal(f"chiffon:{self.agent_id}")
        self._session = exchange.open_session(self)
        self._desk = exchange.open_session(_Router(self))
        self._passed: dict[str, Passed] = {}
        self._offered: tuple[str, ...] = ()
        self._is_well = True
        token, run_id = hashlib.sha256(secrets.token_bytes(32)).hexdigest(), secrets.token_hex(8)
        arrived = AgentArrived(
            self._session,
            "arrival",
            "chiffon",
            self.agent_id,
            "1.0",
            token,
            Peer("exchange", process, run_id),
            max_inflight=MAX_INFLIGHT,
            timeout_s=None,
            dedupes=True,
            retry=RETRY,
            is_resident=True,
        )
        exchange.feed([AgentLaunched(self.agent_id, run_id, process, token), arrived])

    def refresh(self) -> None:
        """Instances came, went or changed: offer what they do, say whether anybody is there."""
        there = [one for one in self._instances() if one.agent_type == self.kind and one.is_admitted]
        offered = tuple(sorted({*self._offered, *(work for one in there for work in one.work_types)}))
        if offered != self._offered:
            self._offered = offered
            tools = tuple(translate.type_definition(self.kind, work_type) for work_type in offered)
            self._exchange.feed([ToolsOffered(self._session, "tools", tools, replace=True)])
        if bool(there) is not self._is_well:
            self._is_well = bool(there)
            self._exchange.feed([HealthReported(self._session, Health.OK if there else Health.SILENT)])

    # -- on the way out ------------------------------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange has work for this type."""
        del now
        if isinstance(effect, Deliver):
            try:
                translate.pinned_agent(effect.input)
            except msgspec.ValidationError:
                # Only where schemas are not enforced: an input that is no object, or a name that is no text.
                problem = fault("tool.invalid_input", "expected an object; `$agent_id`, if given, is a text")
                self._exchange.feed([CallFinished(self._session, effect.call_id, Status.FAILED, fault=problem)])
                return
            passed = self._passed.get(effect.call_id)
            if passed is None:
                passed = self._passed[effect.call_id] = Passed(effect)
                if effect.attempt > 1:
                    self._recall(passed)
            passed.tried = []
            self._pass_on(passed, effect)

    def _recall(self, passed: Passed) -> None:
        """Whom this call was given to before a restart: asked again under the same key, it is the same call."""
        prefix = f"{passed.effect.call_id}:"
        for line in self._exchange.entries(correlation_id=passed.effect.correlation_id):
            entry = msgspec.json.decode(line, type=_Accepted)
            # Only what was asked in this name: anybody may use such a key in a name of their own.
            if entry.caller == self._principal.identity and entry.key.startswith(prefix):
                passed.count = int(entry.key.removeprefix(prefix))
                passed.agent_id = entry.tool_id.partition("/")[0]

    def _pass_on(self, passed: Passed, effect: Deliver) -> None:
        pinned, body = translate.pinned_agent(effect.input)
        work_type = effect.tool_id.partition("/")[2]
        if not passed.agent_id:
            chosen = self._choose(effect.caller, work_type, body, passed.tried, pinned)
            if chosen is None:
                text = f"no healthy agent of the type {self.kind} that you may call can take this"
                problem = fault("tool.unavailable", text)
                self._exchange.feed([AttemptFailed(self._session, effect.call_id, problem)])
                return
            passed.agent_id = chosen
            passed.count += 1
        request = CallRequested(
            self._desk,
            effect.call_id,
            self._principal,
            f"{passed.agent_id}/{work_type}",
            body,
            key=f"{effect.call_id}:{passed.count}",
            timeout_ms=effect.timeout_ms,
            correlation_id=effect.correlation_id,
            causation_id=effect.call_id,
            actor=effect.actor,
            context=effect.context,
        )
        self._exchange.feed([request])

    def _choose(self, caller: str, work_type: str, body: Raw, tried: list[str], pinned: str | None) -> str | None:
        """Silent point 25: healthy, with the work type and the means, least loaded.

        Nobody gets through the type to an instance that policy denies him (P-F2).
        """
        able = {
            one.agent_id: one
            for one in self._instances()
            if one.agent_type == self.kind
            and work_type in one.work_types
            and one.agent_id not in tried
            and self._exchange.check(caller, f"{one.agent_id}/{work_type}", None).decision is not Decision.DENY
        }
        if pinned is not None:
            return pinned if pinned in able else None
        memory = translate.memory_of(body)
        ready = [view for view in self._exchange.agents() if view.agent_id in able and view.state == "ready"]
        if not ready:
            return None

        def load(view: AgentView) -> tuple[bool, int, str]:
            there = able[view.agent_id].capacity.memory_mb
            return (memory is not None and there is not None and there < memory, view.open_calls, view.agent_id)

        return min(ready, key=load).agent_id

    # -- on the way back -----------------------------------------------------------------------------------------------

    def came_back(self, effect: ToSession) -> None:
        """What the instance, or the exchange in its place, says."""
        if isinstance(effect, Progress):
            told = CallProgressed(self._session, effect.ref, effect.seq, effect.channel, effect.data, effect.done)
            self._exchange.feed([told])
        elif isinstance(effect, Answer):
            passed = self._passed.get(effect.ref)
            if passed is not None:
                self._answered(passed, effect)

    def _answered(self, passed: Passed, answer: Answer) -> None:
        call_id, problem = passed.effect.call_id, answer.fault
        if problem is not None and problem.code in _MOVES and answer.status is Status.FAILED:
            passed.tried.append(passed.agent_id)
            passed.agent_id = ""
            pinned, body = translate.pinned_agent(passed.effect.input)
            other = None
            if pinned is None:
                work_type = passed.effect.tool_id.partition("/")[2]
                other = self._choose(passed.effect.caller, work_type, body, passed.tried, None)
            if other is not None:
                self._pass_on(passed, passed.effect)
                return
            if answer.refused:
                self._exchange.feed([AttemptFailed(self._session, call_id, _kept(problem))])
                return
        del self._passed[call_id]
        self._exchange.feed([CallFinished(self._session, call_id, answer.status, answer.output, problem)])

    def forget_ended(self) -> None:
        """Drop calls that were ended by somebody else."""
        for call_id in list(self._passed):
            view = self._exchange.call(call_id)
            if view is None or view.status.is_outcome:
                del self._passed[call_id]


class _Accepted(msgspec.Struct):
    """What is read of an entry."""

    caller: str = ""
    key: str = ""
    tool_id: str = ""


def _kept(problem: Fault) -> Fault:
    return replace(problem, retryable=True)
