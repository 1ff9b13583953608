"""Strangers on Nostr in a simulation: buyers, a relay that loses, repeats and reorders, and what must hold of jobs.

Requests are signed events, and everything behind the client is the real edge (``edges.nostr.provider``): what is taken
on, called once and answered once, and told again after a crash. Sockets, the relay's own process, encryption,
payments and buying are left out. ``breaches`` holds the record against what the relay heard.

Invariant: a buyer's request has a number that no other one has, so that no two are one event.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Final, Never

from msgspec import Raw

from trunkline import canonical
from trunkline.config import Config, Nostr
from trunkline.edges.background import Background
from trunkline.edges.edge import RunningEdge, Surroundings
from trunkline.edges.nostr import messages
from trunkline.edges.nostr.client import NEWEST_S, OLDEST_S
from trunkline.edges.nostr.ecash import Ecash
from trunkline.edges.nostr.events import Event, signed
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.names import EDGE
from trunkline.edges.nostr.offer import Offer
from trunkline.edges.nostr.payments import Payments
from trunkline.edges.nostr.provider import ANSWERED, PROCESS, TAKEN, Provider
from trunkline.edges.nostr.receipting import Receipting
from trunkline.edges.nostr.till import Till
from trunkline.errors import LedgerError
from trunkline.jobs.schemas import EMBEDDING, job_types
from trunkline.jobs.tool_schemas import schema_id_of
from trunkline.model import Status
from trunkline.testing import jobs
from trunkline.testing.clock import ManualLoop
from trunkline.testing.network import LATENCY_S
from trunkline.testing.promises import Breach, Record
from trunkline.testing.witness import Witness

BUYERS: Final = 3
OFFERED: Final = ("com.a/read", "com.a/write", "com.b/once", "com.nobody/here", EMBEDDING, EMBEDDING)
SETTINGS: Final = Nostr(offer=tuple(dict.fromkeys(OFFERED)), max_jobs=3, requests_per_minute=1_000_000)
# Of what is said in either direction so much is lost, until the quiet at the end; our client says it again.
LOSS: Final = 0.15
AGAIN_S: Final = 3.0


class NostrUsers:
    """The relay, and the buyers on it."""

    def __init__(self, loop: ManualLoop, rng: Random, witness: Witness, left: Callable[[], None]) -> None:
        self.loop = loop
        self.rng = rng
        self.witness = witness
        self.left = left
        # Without randomness of their own, so that a seed gives the same events again.
        self.signer = Signer(rng.randbytes(32), bytes)
        self._buyers = [Signer(rng.randbytes(32), bytes) for _ in range(BUYERS)]
        # What the relay has: requests and deletions in the order of their coming, each with its author.
        self.requests: dict[str, tuple[Event, Signer]] = {}
        self._deletions: list[Event] = []
        # What it heard from the exchange, by the request that it is about; and requests that it sent in the end.
        self.heard: dict[str, list[Event]] = {}
        self.last_sent: set[str] = set()
        # The exchange that is connected, if one is.
        self._reader: JobsOnRelay | None = None
        # In the end nothing is lost.
        self.is_quiet = False

    # -- the relay -----------------------------------------------------------------------------------------------------

    def open(self, reader: JobsOnRelay) -> None:
        """An exchange asks for what there is: deletions first, then requests."""
        self._reader = reader
        for event in (*self._deletions, *(event for event, _ in self.requests.values())):
            self._send(event)

    def close(self) -> None:
        """The exchange is gone."""
        self._reader = None

    def is_lost(self) -> bool:
        """Whether something does not arrive."""
        return not self.is_quiet and self.rng.random() < LOSS

    def _send(self, event: Event) -> None:
        """To the exchange, after a moment: later ones may come before it."""
        if not self.is_lost():
            self.loop.call_later(self.rng.uniform(*LATENCY_S), self._arrive, event)

    def _arrive(self, event: Event) -> None:
        if self._reader is not None:
            self._reader.arrive(event)

    def hear(self, event: Event) -> None:
        """The exchange says something, and the relay has it."""
        self.heard.setdefault(event.value("e"), []).append(event)

    # -- what buyers do ------------------------------------------------------------------------------------------------

    @property
    def _now_s(self) -> int:
        return int(self.loop.clock.wall)

    def ask(self) -> None:
        """Somebody wants something done, by us or by whoever does it."""
        rng, number = self.rng, len(self.requests)
        buyer, offered = rng.choice(self._buyers), rng.choice(OFFERED)
        schema_id = schema_id_of(offered) if "/" in offered else offered
        if rng.random() < 0.1:
            schema_id = "oa.unheard_of.v1"
        given = jobs.inputs(number) if schema_id == EMBEDDING else {"n": rng.choice((1, 2, 13)), "job": number}
        inputs = Raw(json.dumps(given).encode())
        filled = job_types()[EMBEDDING].filled(given) if schema_id == EMBEDDING else given
        named = Raw(json.dumps({"schema_id": schema_id, "inputs": filled}).encode())
        draft = messages.request_draft(
            SETTINGS.kinds,
            schema_id,
            inputs,
            canonical.openagents_hash(named) if rng.random() < 0.9 else "ab" * 32,
            created_at=self._now_s,
            nonce=str(number),
            provider=self.signer.public if rng.random() < 0.9 else "",
        )
        event = signed(draft, buyer)
        self.requests[event.id] = event, buyer
        self.witness.note("relay", f"has a request for {schema_id}: {event.id[:8]}")
        self._send(event)

    def repeat(self) -> None:
        """The relay sends something that it sent before."""
        if self.requests:
            self._send(self.rng.choice([event for event, _ in self.requests.values()][-8:]))

    def take_back(self) -> None:
        """A buyer does not want it any more; or somebody says so whose it is not."""
        if self.requests:
            event, buyer = self.rng.choice(list(self.requests.values())[-6:])
            by = buyer if self.rng.random() < 0.8 else self.rng.choice(self._buyers)
            deletion = signed(messages.deletion_draft([event.id], event.kind, "", created_at=self._now_s), by)
            self._deletions.append(deletion)
            self._send(deletion)

    def repeat_everything(self) -> None:
        """In the end: each request once more that an exchange still takes."""
        for event, _ in self.requests.values():
            if is_of_now(event, self.loop.clock.wall):
                self.last_sent.add(event.id)
                self._send(event)


def is_of_now(event: Event, wall: float) -> bool:
    """As the client does: what is too old or too far ahead is nobody's."""
    return -NEWEST_S <= wall - event.created_at <= OLDEST_S


def ecash_without_mints(given: Surroundings, payments: Payments) -> Ecash:
    """Ecash where no mint is listed: nobody pays with it or is paid in it."""

    def nobody(*_given: object) -> Never:
        raise AssertionError("without mints nothing is told and no purse is read")

    return Ecash(
        given.feed, given.views, (), SETTINGS.kinds, Signer(bytes(31) + b"\x01"), given.key, payments,
        Receipting(given.feed, given.views, payments), Background(given.feed), nobody, nobody, given.entropy,
    )  # fmt: skip


def till_of(given: Surroundings, settings: Nostr, signer: Signer, payments: Payments) -> Till:
    """A till that takes what the embedded wallet holds, and no ecash."""
    receipting, ecash = Receipting(given.feed, given.views, payments), ecash_without_mints(given, payments)
    return Till(given.feed, settings, signer.public, payments, receipting, ecash, Background(given.feed))


class JobsOnRelay(RunningEdge):
    """OpenAgents over Nostr, whose one relay is that of the simulation."""

    def __init__(self, given: Surroundings, users: NostrUsers) -> None:
        self._given = given
        self._users = users
        self._loop: asyncio.AbstractEventLoop | None = None
        payments = Payments(given.feed, given.views, given.key)
        till = till_of(given, SETTINGS, users.signer, payments)
        offer = Offer(Config(nostr=SETTINGS), given.views)
        self._provider = Provider(given.feed, given.views, SETTINGS, users.signer, offer, till, self._say)

    async def start(self) -> None:
        """Go on with what is on record, then ask the relay."""
        self._loop = asyncio.get_running_loop()
        self._provider.take_up()
        self._users.open(self)

    async def stop(self) -> None:
        """Nobody is heard any more."""
        self._users.close()

    def arrive(self, event: Event) -> None:
        """The relay sends something; the exchange's loop takes it."""
        if self._loop is not None:
            self._loop.call_soon(self._take, event)

    def _take(self, event: Event) -> None:
        now = self._given.feed.now()
        if not is_of_now(event, now.wall):
            return
        with suppress(LedgerError):  # the disk is broken: the exchange says so itself
            if event.kind == messages.DELETION:
                self._provider.deleted(event, now)
            else:
                self._provider.requested(event, now)

    def _say(self, event: Event, told: Callable[[bool], None]) -> None:
        """Tell the relay; again, while it does not have it."""
        users, loop = self._users, self._loop
        assert loop is not None
        users.left()
        if users.is_lost():
            loop.call_later(AGAIN_S, self._say, event, told)
        else:
            users.loop.call_later(users.rng.uniform(*LATENCY_S), self._hear, event, told)

    def _hear(self, event: Event, told: Callable[[bool], None]) -> None:
        self._users.hear(event)
        if self._loop is not None:
            self._loop.call_soon(self._told, told)

    def _told(self, told: Callable[[bool], None]) -> None:
        with suppress(LedgerError):
            told(True)


# --- what must hold ---------------------------------------------------------------------------------------------------


def breaches(users: NostrUsers, record: Record) -> Iterator[Breach]:
    """A request is one call at most, a job that was taken on has one last event, and what was told is on record.

    Before it is taken on it may have been refused: what is refused is not on record, and after a start looked at again.
    """
    calls: dict[str, list[str]] = {}
    succeeded: set[str] = set()
    for accepted in record.accepted.values():
        if accepted.caller.startswith(f"{EDGE}:"):
            outcome = record.outcome(accepted)
            calls.setdefault(accepted.key or "", []).append(accepted.call_id)
            if outcome is not None and outcome.status is Status.SUCCEEDED:
                succeeded.add(accepted.key or "")
    steps = [step for step in record.steps if step.process == PROCESS]
    taken = {step.subject for step in steps if step.step == TAKEN}
    answers: dict[str, set[str]] = {name: set() for name in taken}
    for step in steps:
        if step.step == ANSWERED:
            answers[step.subject].add(json.loads(bytes(step.data))["event"]["id"])
    for name in taken - {step.subject for step in steps if step.done}:
        yield Breach(f"the job {name} was taken on and never ended", tuple(calls.get(name, ())))
    for name, found in calls.items():
        if len(found) > 1 or name not in taken:
            yield Breach(f"{len(found)} calls were made for the request {name}", tuple(found))
    for name in users.requests:
        told, ids = users.heard.get(name, []), tuple(calls.get(name, ()))
        last, said = answers.get(name, set()), {event.id for event in told}
        results = {event.id for event in told if event.kind == SETTINGS.kinds.result}
        errors = {event.id for event in told if event.value("status") == messages.Status.ERROR}
        if len(last) > 1 or not results <= last:
            yield Breach(f"the request {name} has {len(results)} results, and {len(last)} are on record", ids)
        if results and name not in succeeded:
            yield Breach(f"the result of the request {name} was told, and its call did not succeed", ids)
        if not last <= said:
            yield Breach(f"the last word on the job {name} is on record, and no relay has it", ids)
        is_ours = name in users.last_sent and messages.providers_of(users.requests[name][0])
        if is_ours and not results and not errors:
            yield Breach(f"nobody was told how the request {name} ended", ids)
