"""Heartbeats: what an agent says of its health, and what its silence says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.requirement import requirement
from tests.unit.edges.opensentience.core_side import NOW, SESSION, Talk
from trunkline.edges.opensentience.heartbeats import Heartbeats, Step
from trunkline.effects import Admit
from trunkline.events import AgentLeft, Event, HealthReported, Noticed
from trunkline.model import Health


class Beating(Talk):
    def __init__(self, interval_ms: int = 10_000) -> None:
        super().__init__(heartbeat_interval_ms=interval_ms)
        self.session_id = self.admit()["payload"]["session_id"]
        self.events.clear()

    def beat(self, status: Any = "ok", **fields: Any) -> list[Event]:
        given = {"session_id": self.session_id, "uptime_ms": 5, "inflight_calls": 0, "status": status, **fields}
        return self.tell("agent.heartbeat", {name: value for name, value in given.items() if value is not ...})


@requirement("OS-130", "OS-131")
def test_health_is_reported_when_it_changes() -> None:
    talk = Beating()
    assert talk.beat("ok") == []
    assert talk.beat("degraded", details={"queue": 3}) == [HealthReported(SESSION, Health.DEGRADED)]
    assert talk.beat("degraded") == []
    assert talk.beat("unhealthy") == [HealthReported(SESSION, Health.UNHEALTHY)]
    assert talk.beat("ok") == [HealthReported(SESSION, Health.OK)]


@requirement("OS-129", "OS-130", "OS-131")
@pytest.mark.parametrize(
    "fields",
    [
        {"session_id": "another"},
        {"session_id": ...},
        {"session_id": 1},
        {"uptime_ms": ...},
        {"uptime_ms": "5"},
        {"uptime_ms": 5.0},
        {"uptime_ms": -1},
        {"uptime_ms": True},
        {"inflight_calls": ...},
        {"inflight_calls": 1.5},
        {"status": "OK"},
        {"status": "silent"},
        {"status": ...},
        {"details": []},
        {"details": "x"},
    ],
)
def test_a_wrong_heartbeat_is_refused_and_does_not_count(fields: dict[str, Any]) -> None:
    talk = Beating()
    talk.wake(15.0)
    talk.beat(**fields)
    (said,) = talk.said()
    assert (said["type"], said["error"]["code"]) == ("core.error", "protocol.invalid_message")
    assert talk.session.wake_at() == NOW.mono + 20.0


@requirement("OS-132", "OS-134")
def test_silence_is_asked_about_then_reported_then_ended() -> None:
    talk = Beating()
    assert talk.session.wake_at() == NOW.mono + 20.0
    assert talk.wake(20.0) == []
    (said,) = talk.said()
    assert (said["type"], said["payload"]) == ("core.ping", {})
    assert talk.session.wake_at() == NOW.mono + 30.0
    assert talk.wake(29.9) == []
    assert talk.wake(30.0) == [HealthReported(SESSION, Health.SILENT)]
    assert talk.session.wake_at() == NOW.mono + 60.0
    assert [type(event) for event in talk.wake(60.0)] == [Noticed, AgentLeft]
    assert talk.said()[-1]["payload"] == {"reason": "heartbeat_timeout"}
    assert talk.state == "closed"


@requirement("OS-132")
def test_a_late_heartbeat_makes_the_agent_healthy_again() -> None:
    talk = Beating()
    talk.wake(20.0)
    talk.wake(45.0)
    assert talk.beat("ok") == [HealthReported(SESSION, Health.OK)]
    assert talk.session.wake_at() == NOW.mono + 65.0


@requirement("OS-134")
def test_answering_pings_is_not_enough_heartbeats_alone_decide() -> None:
    talk = Beating()
    talk.beat("degraded")
    talk.wake(20.0)
    assert talk.tell("agent.pong", {}) == []
    talk.wake(35.0)
    assert talk.events[-1] == HealthReported(SESSION, Health.SILENT)
    assert talk.tell("agent.pong", {}) == []
    talk.wake(60.0)
    assert talk.said()[-1]["payload"] == {"reason": "heartbeat_timeout"}


def test_a_wake_that_comes_very_late_goes_through_every_step() -> None:
    talk = Beating(100)
    events = talk.wake(99.0)
    assert [type(event) for event in events] == [HealthReported, Noticed, AgentLeft]
    assert [said["type"] for said in talk.said()] == ["core.ping", "core.goodbye"]


def test_regular_heartbeats_never_lead_to_a_step() -> None:
    talk = Beating()
    for n in range(1, 50):
        talk.wake(10.0 * n)
        talk.beat()
    assert talk.events == []
    assert talk.said() == []


def test_silence_counts_from_the_welcome_on() -> None:
    talk = Talk(heartbeat_interval_ms=1000)
    talk.now = NOW
    arrived = talk.arrive()
    talk.wake(100.0)
    assert talk.state == "authenticating"
    talk.send(Admit(SESSION, 0, arrived.ref))
    assert talk.session.wake_at() == NOW.mono + 102.0


def test_each_step_comes_once_and_in_order() -> None:
    silence = Heartbeats(1.0, 0.0)
    assert silence.due(1.9) is None
    assert [silence.due(99.0) for _ in range(4)] == [Step.PING, Step.SILENT, Step.GONE, None]
    assert silence.due_at is None
    silence.heard(100.0)
    assert silence.due_at == 102.0
    silence.excuse(5.0)
    assert silence.due_at == 107.0
    assert not silence.is_silent
