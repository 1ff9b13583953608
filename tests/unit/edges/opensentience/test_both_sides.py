"""Core's side and the agent's side of the protocol talk to each other, in memory: what one says, the other takes."""

from __future__ import annotations

import pytest
from msgspec import Raw

from tests.requirement import requirement
from tests.unit.edges.opensentience.agent_side import ECHO, NOW, TOKEN, definition, later, read_echo
from trunkline import effects, events
from trunkline.edges.opensentience.agent_events import (
    AgentEvent,
    Answered,
    Called,
    CancelAsked,
    DirectiveAnswered,
    Dismissed,
    Progressed,
    Refused,
    ToolsConfirmed,
    Welcomed,
)
from trunkline.edges.opensentience.agent_session import AgentSession, Offer
from trunkline.edges.opensentience.agent_session import State as AgentState
from trunkline.edges.opensentience.session import CoreSession
from trunkline.edges.opensentience.settings import Settings
from trunkline.effects import ToSession
from trunkline.events import Event
from trunkline.model import Fault, Health, Peer, Status, fault


class Pair:
    """Both ends and the wire between them."""

    def __init__(self, **settings: int) -> None:
        self.core = CoreSession(7, Settings("0.1.0", "i-1", **settings), Peer("test"), seed=bytes(10), now=NOW)
        offers = [Offer(definition(), read_echo)]
        self.agent = AgentSession("com.example.echo", "1.0.0", TOKEN, offers, NOW, b"\1" * 10)
        self.heard_by_core: list[Event] = []
        self.heard_by_agent: list[AgentEvent] = []

    def carry(self) -> None:
        """Let both talk until nobody has anything to say."""
        while True:
            up, down = self.agent.take_output(), self.core.take_output()
            if not up and not down:
                return
            if up:
                self.heard_by_core += self.core.receive(up, NOW)
            if down:
                self.heard_by_agent += self.agent.receive(down, NOW)

    def say(self, effect: ToSession) -> None:
        self.core.send(effect, NOW)
        self.carry()

    def admit(self) -> Pair:
        self.carry()
        arrived = self.heard_by_core.pop()
        assert isinstance(arrived, events.AgentArrived)
        self.say(effects.Admit(7, 0, arrived.ref))
        offered = self.heard_by_core.pop()
        assert isinstance(offered, events.ToolsOffered)
        assert not offered.rejected
        self.say(effects.ConfirmTools(7, 0, offered.ref, tuple(tool.tool_id for tool in offered.tools)))
        return self

    def deliver(self, call_id: str = "c-1") -> Called:
        self.say(effects.Deliver(7, 0, call_id, ECHO, Raw(b'{"text":"hi"}'), "operator", "k-1", causation_id="x-1"))
        called = self.heard_by_agent[-1]
        assert isinstance(called, Called)
        return called


def test_an_agent_is_admitted_and_its_tools_are_taken() -> None:
    pair = Pair().admit()
    welcomed, confirmed = pair.heard_by_agent
    assert isinstance(welcomed, Welcomed)
    assert confirmed == ToolsConfirmed((ECHO,), ())
    assert pair.agent.state is AgentState.READY


def test_a_refused_agent_hears_it() -> None:
    pair = Pair()
    pair.carry()
    arrived = pair.heard_by_core.pop()
    assert isinstance(arrived, events.AgentArrived)
    pair.say(effects.Refuse(7, 0, arrived.ref))
    (refused,) = pair.heard_by_agent
    assert isinstance(refused, Refused)
    assert refused.code == "protocol.unauthorized"


@requirement("OS-040", "OS-041", "OS-042")
def test_a_call_streams_and_ends_and_core_has_nothing_to_remark() -> None:
    pair = Pair().admit()
    called = pair.deliver()
    assert called.arguments == {"text": "hi"}
    pair.agent.stream("c-1", "status", b'{"text":"half","percent":50}', NOW)
    pair.agent.stream("c-1", "partial_result", b'{"json":{"n":1}}', NOW)
    pair.agent.finish("c-1", Status.SUCCEEDED, later(1), output=b'{"text":"hi"}')
    pair.carry()
    first, second, finished = pair.heard_by_core
    assert isinstance(first, events.CallProgressed)
    assert isinstance(second, events.CallProgressed)
    assert (first.seq, second.seq) == (1, 2)
    assert isinstance(finished, events.CallFinished)
    assert (finished.status, bytes(finished.output or b"")) == (Status.SUCCEEDED, b'{"text":"hi"}')


def test_a_cancel_is_heard_acknowledged_and_answered() -> None:
    pair = Pair().admit()
    pair.deliver()
    pair.say(effects.Cancel(7, 0, "c-1", "timeout", 5000))
    assert pair.heard_by_agent[-1] == CancelAsked("c-1", "timeout", 5000)
    pair.agent.finish("c-1", Status.CANCELED, NOW, error=fault("tool.canceled"))
    pair.carry()
    acknowledged, finished = pair.heard_by_core
    assert acknowledged == events.CancelAcknowledged(7, "c-1", accepted=True)
    assert isinstance(finished, events.CallFinished)
    assert finished.status is Status.CANCELED


def test_heartbeats_are_taken_and_health_is_heard() -> None:
    pair = Pair(heartbeat_interval_ms=1000).admit()
    pair.agent.wake(later(1))
    pair.carry()
    assert pair.heard_by_core == []
    pair.agent.report("unhealthy", later(1), b'{"reason":"stopping"}')
    pair.carry()
    assert pair.heard_by_core == [events.HealthReported(7, Health.UNHEALTHY)]


def test_a_call_of_the_agents_own_waits_progresses_and_is_answered() -> None:
    pair = Pair().admit()
    ref = pair.agent.call("a/b", b'{"n":1}', NOW, key="k", timeout_ms=500, correlation_id="k-1", causation_id="c-1")
    pair.carry()
    requested = pair.heard_by_core.pop()
    assert isinstance(requested, events.CallRequested)
    assert (requested.ref, requested.key, requested.timeout_ms) == (ref, "k", 500)
    assert (requested.correlation_id, requested.causation_id) == ("k-1", "c-1")
    pair.say(effects.Wait(7, 0, ref, "e-1", Status.WAITING_APPROVAL, "a1"))
    pair.say(effects.Progress(7, 0, ref, "e-1", 1, "log", Raw(b'{"text":"x"}')))
    pair.say(effects.Answer(7, 0, ref, "e-1", Status.UNKNOWN, fault=fault("agent.lost")))
    waits, shows, answered = pair.heard_by_agent[-3:]
    assert isinstance(waits, Progressed)
    assert b"waiting_approval" in bytes(waits.data)
    assert isinstance(shows, Progressed)
    assert isinstance(answered, Answered)
    assert (answered.status, answered.exchange_call_id) == (Status.UNKNOWN, "e-1")
    assert answered.fault is not None
    assert (answered.fault.code, answered.fault.retryable) == ("tool.disconnected", False)


def test_a_cancel_of_the_agents_own_call_is_heard() -> None:
    pair = Pair().admit()
    ref = pair.agent.call("a/b", b"{}", NOW)
    pair.agent.cancel(ref, "enough", NOW)
    pair.carry()
    cancel = pair.heard_by_core[-1]
    assert isinstance(cancel, events.CancelRequested)
    assert (cancel.target, cancel.reason) == (ref, "enough")


@requirement("OS-158")
@pytest.mark.parametrize("refusal", [None, fault("policy.denied")])
def test_a_directive_is_wished_for_and_answered(refusal: Fault | None) -> None:
    pair = Pair().admit()
    ref = pair.agent.request_directive("a/b", b'{"n":1}', "because", NOW)
    pair.carry()
    wished = pair.heard_by_core.pop()
    assert isinstance(wished, events.DirectiveRequested)
    assert (wished.tool_id, wished.reason) == ("a/b", "because")
    pair.say(effects.Reply(7, 0, wished.ref, id=None if refusal else "d-1", fault=refusal, status="stated"))
    answered = pair.heard_by_agent[-1]
    assert isinstance(answered, DirectiveAnswered)
    assert (answered.ref, answered.directive_id) == (ref, None if refusal else "d-1")
    assert (answered.fault and answered.fault.code) == (refusal and refusal.code)


def test_a_goodbye_is_heard_with_the_time_to_come_back() -> None:
    pair = Pair().admit()
    pair.say(effects.Close(7, 0, "shutdown", 250))
    assert pair.heard_by_agent[-1] == Dismissed("shutdown", 250)


@requirement("OS-016")
def test_neither_side_says_what_the_other_would_refuse_for_its_size() -> None:
    pair = Pair(max_frame_bytes=16_384).admit()
    pair.deliver()
    assert not pair.agent.finish("c-1", Status.SUCCEEDED, NOW, output=b'{"x":"%b"}' % (b"x" * 16_384))
    pair.carry()
    (finished,) = pair.heard_by_core
    assert isinstance(finished, events.CallFinished)
    assert finished.fault is not None
    assert finished.fault.code == "tool.output_too_large"
