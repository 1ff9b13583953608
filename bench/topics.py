"""What an event costs in the hub, by the number of its subscribers: ``python -m bench.topics``.

Microseconds for each subscriber, the median of many events: to tell all of them, and until each has taken it.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Final

from msgspec import Raw

from trunkline import events
from trunkline.config import BUILTIN_RULES
from trunkline.effects import Notify
from trunkline.hub.hub import Hub
from trunkline.model import HubSettings, Now, Policy, Principal

COUNTS: Final = (1, 10, 100, 1000)
EVENTS: Final = 100
NOW: Final = Now(1.0, 1_800_000_000.0)


def new_hub() -> Hub:
    """A hub with the built-in rules."""
    ids = itertools.count(1)
    hub = Hub(
        mac_key=b"k" * 32,
        call_prefix="00000000-0000-8000-8000-",
        new_id=lambda: f"id-{next(ids)}",
        operator_sha256="",
        launch_edge="opensentience",
        operator_edge="http",
        settings=HubSettings(Policy(BUILTIN_RULES, "builtin")),
    )
    hub.handle(events.ExchangeStarted("1.0", "bench"), NOW)
    return hub


def measure(count: int, *, durable: bool) -> tuple[float, float]:
    """Microseconds for each of so many subscribers: told, and taken."""
    hub = new_hub()
    for number in range(count):
        who = Principal(f"ossa:agent-{number}")
        hub.handle(events.SubscriberArrived(100 + number, who), NOW)
        hub.handle(events.SubscriptionRequested(1, "s", who, "build.*", 1, durable), NOW)
    told_us: list[float] = []
    taken_us: list[float] = []
    published = events.EventPublished(1, "p", "http:ci", "build.done", Raw(b'{"ok":true}'), 1)
    for _ in range(EVENTS):
        began = time.perf_counter()
        said = hub.handle(published, NOW)
        told_us.append((time.perf_counter() - began) * 1e6 / count)
        notes = [effect for effect in said if isinstance(effect, Notify)]
        assert len(notes) == count
        began = time.perf_counter()
        for note in notes:
            hub.handle(events.EventTaken(note.session, note.subscription_id, note.event), NOW)
        taken_us.append((time.perf_counter() - began) * 1e6 / count)
    return statistics.median(told_us), statistics.median(taken_us)


def main() -> None:
    """Print the table."""
    print("| subscribers | told, µs each | durable: told | durable: taken |")
    print("|---:|---:|---:|---:|")
    for count in COUNTS:
        told, _ = measure(count, durable=False)
        durable_told, taken = measure(count, durable=True)
        print(f"| {count:,} | {told:.1f} | {durable_told:.1f} | {taken:.1f} |")


if __name__ == "__main__":
    main()
