"""Who can do a job: announcements that were heard, what we know of their authors ourselves, and the choice among them.

Pure. Owns the book of announcements (NIP-89), the estimate of a price, and the order in which providers are asked. Does
not own asking (``buyer``), nor how providers did before (``provider_records``).

Invariant: whatever is announced, and by however many, the book holds no more than its bounds, and one provider no more
than its share. The same book, record, job and source of chance give the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from fractions import Fraction
from random import Random
from typing import Final

from msgspec import Struct

from trunkline.config import NostrKinds
from trunkline.edges.nostr import messages
from trunkline.edges.nostr.events import Event
from trunkline.edges.nostr.messages import Announced, Announcement, BadMessage, Pricing
from trunkline.edges.nostr.provider_records import Record, Records
from trunkline.model import Now
from trunkline.money import quotes
from trunkline.money.quotes import Prices

# Announcements that are kept, all together and of one provider, and their bytes: read, they take up to five times that
# in memory. A network of jobs has some hundreds, of a kilobyte each.
MAX_ANNOUNCEMENTS: Final = 4096
MAX_OF_ONE: Final = 8
MAX_BOOK_BYTES: Final = 4_194_304
# One with a thousand schema ids and models has some 50 KB.
MAX_ANNOUNCEMENT_BYTES: Final = 65_536
# When one has to go, the first of so many drawn by chance whose author never did a job for us.
DRAWN: Final = 8
# As for jobs: clocks differ by a quarter of an hour at most. An old announcement holds until it is replaced.
NEWEST_S: Final = 900
# What a provider says of itself counts as much as so many jobs that it did for us.
WORD_COUNTS: Final = 4.0
UNKNOWN_RATE: Final = 0.5
# Providers whose jobs go well about equally often are alike, and the price decides.
BANDS: Final = 10


class Need(Struct, frozen=True):
    """What a job asks of its provider."""

    schema_id: str
    tokens: int = 0
    # Of a sandbox job: how long it may run at most.
    minutes: float = 0.0
    # A model that the inputs name.
    model: str = ""
    bid_msats: int | None = None


class Candidate(Struct, frozen=True):
    """A provider that can do a job, and what it would cost there by its announcement."""

    provider: str
    announcement: Announcement
    msats: int


class Choice(Struct, frozen=True):
    """Who can be asked now, the best first, and how many could be if they were not busy with jobs of ours."""

    ready: tuple[Candidate, ...] = ()
    busy: int = 0


class _Kept(Struct, frozen=True):
    announced: Announced
    size: int


class Book:
    """All announcements that hold. ``chance`` breaks ties, and says who has to go when there are too many."""

    def __init__(self, kinds: NostrKinds, chance: Random, records: Records) -> None:
        self._kinds = kinds
        self._chance = chance
        self._records = records
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._of_provider: dict[str, set[str]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """In bytes, as they were announced."""
        return self._bytes

    # -- what is heard -------------------------------------------------------------------------------------------------

    def heard(self, event: Event, now: Now) -> bool:
        """Somebody announces himself; whether that changed anything. ``BadMessage`` says why it cannot be used."""
        if event.kind != self._kinds.announcement:
            raise BadMessage("it is no announcement")
        size = len(event.content)
        if size > MAX_ANNOUNCEMENT_BYTES:
            raise BadMessage(f"an announcement has {MAX_ANNOUNCEMENT_BYTES} bytes at most")
        if event.created_at > now.wall + NEWEST_S:
            raise BadMessage(f"it is more than {NEWEST_S} s ahead of our clock")
        found = messages.read_announcement(event)
        if found.kinds and self._kinds.request not in found.kinds:
            return False  # for jobs of another kind
        name = (found.provider, found.name)
        present = self._kept.get(name)
        if present is not None and not found.replaces(present.announced):
            return False
        names = self._of_provider.get(found.provider, set())
        if present is None and len(names) >= MAX_OF_ONE:
            raise BadMessage(f"a provider has {MAX_OF_ONE} announcements at most")
        self._remove(name)
        self._kept[name] = _Kept(found, size)
        self._of_provider.setdefault(found.provider, set()).add(found.name)
        self._bytes += size
        while len(self._kept) > MAX_ANNOUNCEMENTS or self._bytes > MAX_BOOK_BYTES:
            self._remove(self._least())
        return True

    def _least(self) -> tuple[str, str]:
        """One that goes. Not the oldest: who floods would keep only his own. Who did a job for us stays if he can."""
        names = list(self._kept)
        drawn = [names[self._chance.randrange(len(names))] for _ in range(DRAWN)]
        return next((name for name in drawn if not self._records.of(name[0]).succeeded), drawn[0])

    def _remove(self, name: tuple[str, str]) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._bytes -= kept.size
            names = self._of_provider[name[0]]
            names.discard(name[1])
            if not names:
                del self._of_provider[name[0]]

    # -- what is known -------------------------------------------------------------------------------------------------

    def announced(self) -> list[Announced]:
        """All that hold, by provider and name."""
        return [self._kept[name].announced for name in sorted(self._kept)]

    def types(self) -> Counter[str]:
        """Schema ids that are announced, and by how many."""
        return Counter(schema_id for provider in self._of_provider for schema_id in self._types_of(provider))

    def _types_of(self, provider: str) -> set[str]:
        found = (self._kept[provider, name].announced.announcement for name in self._of_provider[provider])
        return {schema_id for one in found for schema_id in one.capabilities.supported_jobs}

    def choice(self, need: Need, excluded: Collection[str] = (), open_jobs: Mapping[str, int] | None = None) -> Choice:
        """Who can be asked for this job. ``open_jobs`` is what each has of ours at the moment."""
        best: dict[str, Candidate] = {}
        busy: set[str] = set()
        for (provider, _), kept in sorted(self._kept.items()):
            announcement = kept.announced.announcement
            if provider in excluded or not is_able(announcement, need):
                continue
            if (open_jobs or {}).get(provider, 0) >= announcement.capacity.max_concurrent_jobs:
                busy.add(provider)
                continue
            found = Candidate(provider, announcement, price(announcement.pricing, need))
            present = best.get(provider)
            if present is None or found.msats < present.msats:
                best[provider] = found
        candidates = list(best.values())
        self._chance.shuffle(candidates)
        ready = tuple(sorted(candidates, key=lambda one: self._rank(one, need)))
        return Choice(ready, len(busy - best.keys()))

    def _rank(self, one: Candidate, need: Need) -> tuple[object, ...]:
        """Liars last; then who has the model; then who does jobs well; then who is cheap."""
        record = self._records.of(one.provider)
        models = one.announcement.capabilities.models
        lacks_model = bool(need.model) and need.model not in models
        return (record.lied > 0, lacks_model, -round(reliability(one.announcement, record) * BANDS), one.msats)


def is_able(announcement: Announcement, need: Need) -> bool:
    """Whether a provider does such jobs, of such a size, for what is bid; by its own word."""
    if need.schema_id not in announcement.capabilities.supported_jobs:
        return False
    if announcement.capacity.max_concurrent_jobs < 1 or need.tokens > announcement.capacity.max_context_tokens:
        return False
    return need.bid_msats is None or price(announcement.pricing, need) <= need.bid_msats


def price(pricing: Pricing, need: Need) -> int:
    """What a job would cost by these prices, in thousandths of a satoshi."""
    prices = Prices(
        pricing.input_tokens_per_1k_msats, pricing.output_tokens_per_1k_msats, pricing.sandbox_per_minute_msats
    )
    return quotes.price(prices, need.schema_id, need.tokens, Fraction(need.minutes))


def reliability(announcement: Announcement, record: Record) -> float:
    """How often a job goes well, from 0 to 1: what we saw, and what the provider says where we saw little."""
    word = UNKNOWN_RATE if announcement.stability is None else float(announcement.stability.success_rate)
    return (record.succeeded + WORD_COUNTS * word) / (record.jobs + WORD_COUNTS)
