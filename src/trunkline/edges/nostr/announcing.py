"""What we say of ourselves as a provider (NIP-89): said at the start, when it changed, and once an hour.

Owns the content of the announcement and when it is said. All of it is taken from what is there: the offer from the
configuration, models from the job types, capacity and prices from the settings, stability from our own record. Does not
own relays or signatures.

Invariant: of two announcements the later one has a later ``created_at``, so that relays keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trunkline.config import Nostr
from trunkline.edges.exchange import Feed, Timer, Views
from trunkline.edges.nostr import messages
from trunkline.edges.nostr.events import Draft
from trunkline.edges.nostr.messages import Announcement, Capabilities, Capacity, Pricing, Stability
from trunkline.edges.nostr.offer import Offer
from trunkline.edges.nostr.provider import EDGE, Tally
from trunkline.model import Now, Status
from trunkline.shown import CallView

# The tag ``d``: of one provider the newest announcement of this name counts.
NAME: Final = "trunkline"
# How often it is looked whether something changed, and how often stability is told anew.
LOOK_S: Final = 10.0
AGAIN_S: Final = 3600.0
# Calls of our record that are looked through at the start, newest first.
LOOKED_AT: Final = 1000
PAGE: Final = 200


class Announcer:
    """Says it. ``say`` signs a draft and tells all relays."""

    def __init__(self, feed: Feed, settings: Nostr, offer: Offer, tally: Tally, say: Callable[[Draft], object]) -> None:
        self._feed = feed
        self._settings = settings
        self._offer = offer
        self._tally = tally
        self._say = say
        self._said: Announcement | None = None
        self._said_at = float("-inf")
        self._created_at = 0
        self._timer: Timer | None = None

    def start(self) -> None:
        """Say it, and go on looking."""
        self.look()

    def stop(self) -> None:
        """Say nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Say it if it is another than before, or was said long ago."""
        now = self._feed.now()
        found = self.announcement()
        if _without_stability(found) != _without_stability(self._said) or now.mono - self._said_at >= AGAIN_S:
            self._announce(found, now)
        self._timer = self._feed.call_later(LOOK_S, self.look)

    def _announce(self, found: Announcement, now: Now) -> None:
        self._created_at = max(self._created_at + 1, int(now.wall))
        draft = messages.announcement_draft(self._settings.kinds, NAME, found, created_at=self._created_at)
        self._said, self._said_at = found, now.mono
        self._say(draft)

    def announcement(self) -> Announcement:
        """What there is to say now."""
        settings, price = self._settings, self._settings.pricing
        return Announcement(
            supply_class="SingleNode",
            capabilities=Capabilities(self._offer.ids, self._offer.models()),
            pricing=Pricing(
                price.input_tokens_per_1k_msats, price.output_tokens_per_1k_msats, price.sandbox_per_minute_msats
            ),
            capacity=Capacity(settings.max_jobs, settings.max_context_tokens),
            stability=stability(self._tally),
        )


def stability(tally: Tally) -> Stability | None:
    """How jobs went so far; nothing is said before there was one."""
    count = tally.succeeded + tally.failed
    if not count:
        return None
    return Stability(round(tally.succeeded / count, 4), round(tally.total_ms / count, 1), tally.succeeded)


def count_record(views: Views, tally: Tally) -> None:
    """Count the jobs that are on record, of the newest calls."""
    before: int | None = None
    for _ in range(LOOKED_AT // PAGE):
        calls, before = views.calls(PAGE, before)
        for call in calls:
            if call.caller.startswith(f"{EDGE}:") and call.status in (Status.SUCCEEDED, Status.FAILED):
                tally.add(call.status is Status.SUCCEEDED, _took_ms(call))
        if before is None:
            return


def _took_ms(call: CallView) -> int:
    from datetime import datetime

    if call.started_at is None or call.finished_at is None:
        return 0
    took = datetime.fromisoformat(call.finished_at) - datetime.fromisoformat(call.started_at)
    return int(took.total_seconds() * 1000)


def _without_stability(announcement: Announcement | None) -> tuple[object, ...] | None:
    if announcement is None:
        return None
    return (announcement.capabilities, announcement.pricing, announcement.capacity)
