"""Jobs of strangers: taken on, called once, answered once, whatever relays and crashes do in between.

Theory of operation, of one job::

    request ──> looked at ──> (is paid, waits for a place) ──> TAKEN ──call──> ANSWERED ──a relay has it──> done
                   └── not for us, not offered, wrong, deleted: at most a feedback `error`, and no call

A job that is taken on is a step on record with its request, so that it is gone on with after a restart: the call has
the request's id as its key, and is the same call then. Its last event, the result or the feedback that says why there
is none, is signed and on record before any relay hears of it, so that a repeat of it is the same event. A request that
was taken on before is known by its steps. Does not own relays (``client``) or what is offered (``offer``).

Invariant: for each request there is one call at most, and for each job that was taken on one last event. What is kept
of strangers is bounded, however many they are.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from trunkline.config import Nostr
from trunkline.edges.exchange import BaseSink, Feed, Views
from trunkline.edges.nostr import keys, messages
from trunkline.edges.nostr.events import Draft, Event, Tags, signed
from trunkline.edges.nostr.keys import Signer, npub_of
from trunkline.edges.nostr.messages import BadMessage, Encrypt, JobRequest, Provenance, Status
from trunkline.edges.nostr.names import EDGE
from trunkline.edges.nostr.offer import NotServed, Offer
from trunkline.edges.nostr.pace import Pace
from trunkline.edges.nostr.till import Earned, Priced, Till, Unpaid
from trunkline.effects import Answer, Progress, Reply, ToSession, Wait
from trunkline.entries import ProcessStep
from trunkline.events import CallRequested, CancelRequested, Noticed, ProcessStepped
from trunkline.model import Now, Principal
from trunkline.model import Status as CallStatus
from trunkline.money.quotes import KeyTaken, NoRoom

log = logging.getLogger("trunkline")

PROCESS: Final = "nostr.job"
CALL: Final = "call"
TAKEN: Final = "taken"
ANSWERED: Final = "answered"
# What the embedded relay carries, and most public ones: a whole event. A result that is larger is not sent.
MAX_SENT_BYTES: Final = 65_536
# Jobs that wait for a place, and such that wait to be paid; more are told to come back. One buyer has a quarter of the
# latter: to ask costs nothing, and what is asked for stands there for as long as a quote holds.
MAX_WAITING: Final = 64
MAX_UNPAID_OF_BUYER: Final = 16
# Requests that their buyers took back (relays keep no order: they may come after that), and such that we refused.
MAX_REMEMBERED: Final = 4096
# A feedback for what a tool shows: so many of one job, and one in so many seconds.
MAX_PARTIAL: Final = 20
PARTIAL_S: Final = 1.0
CANCELED: Final = "canceled"
NOT_RIGHT: Final = "the run did not succeed; the result says how"
NOT_CHARGED: Final = "the run did not succeed and costs nothing; the result says how, and nothing that it made"


class Tally(Struct):
    """How jobs went, for our announcement and for ``status``."""

    succeeded: int = 0
    failed: int = 0
    total_ms: int = 0

    def add(self, is_success: bool, took_ms: int) -> None:
        """One more."""
        self.succeeded += is_success
        self.failed += not is_success
        self.total_ms += max(0, took_ms)


class _Taken(Struct, frozen=True):
    """What is on record of a job that was taken on."""

    request: Event
    tool: str


class _Answered(Struct, frozen=True, omit_defaults=True):
    """What is on record of a job that has an outcome: its last event, and the feedback that follows a result."""

    event: Event
    status: Status | None = None
    text: str = ""


_taken: Final = msgspec.json.Decoder(_Taken).decode
_answered: Final = msgspec.json.Decoder(_Answered).decode


class Outcome(Struct, frozen=True):
    """How a job ended, as its last event says it."""

    draft: Draft
    is_success: bool
    # Why nothing is paid for it.
    problem: str = ""
    # What the feedback beside a result says.
    text: str = ""


class Job(BaseSink):
    """One job on its way, and its conversation with the exchange."""

    def __init__(self, provider: Provider, event: Event, request: JobRequest, tool_id: str) -> None:
        self.event = event
        self.request = request
        self.tool_id = tool_id
        self.principal = Principal(f"{EDGE}:{npub_of(event.pubkey)}")
        self.number = 0
        self.is_canceled = False
        self.has_begun = False
        self.partial = 0
        self.partial_at = float("-inf")
        self._provider = provider

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange says something about it."""
        match effect:
            case Answer(ref=ref) if ref == CALL:
                self._provider.ended(self, effect, now)
            case Progress():
                self._provider.showed(self, effect, now)
            case Wait(ref=ref) if ref == CALL:
                self._provider.begun(self, effect, now)
            case Reply(ref=ref) if ref == TAKEN:
                self._provider.recorded(self, effect, now)
            case Reply(ref=ref) if ref == ANSWERED:
                self._provider.publish_last(self)
            case _:
                pass

    def abort(self) -> None:
        """A defect of ours ended its conversation; the record has it, and the next start goes on with it."""
        self._provider.forget(self)


class Provider:
    """All jobs. ``say`` tells relays of an event and hears whether one took it."""

    def __init__(
        self,
        feed: Feed,
        views: Views,
        settings: Nostr,
        signer: Signer,
        offer: Offer,
        till: Till,
        say: Callable[[Event, Callable[[bool], None]], None],
    ) -> None:
        self._feed = feed
        self._views = views
        self._settings = settings
        self._signer = signer
        self._offer = offer
        self._say = say
        self._till = till
        till.on_held, till.on_unpaid, till.on_refused = self.paid, self.unpaid, self.refused
        self.tally = Tally()
        # Taken on; those that wait for a place; those that wait for payment. By the request's id.
        self._jobs: dict[str, Job] = {}
        self._waiting: deque[Job] = deque()
        self._unpaid: dict[str, Job] = {}
        self._last: dict[str, _Answered] = {}
        self._deleted: dict[tuple[str, str], None] = {}
        self._refused: dict[str, None] = {}
        # Jobs that ended: their last step may be on its way to disk.
        self._over: dict[str, None] = {}
        self._pace = Pace(settings.requests_per_minute)

    def status(self) -> dict[str, object]:
        """Figures for ``trunkline status``."""
        return {
            "jobs": len(self._jobs),
            "waiting": len(self._waiting) + len(self._unpaid),
            "succeeded": self.tally.succeeded,
            "failed": self.tally.failed,
        }

    # -- what buyers say -----------------------------------------------------------------------------------------------

    def requested(self, event: Event, now: Now) -> None:
        """A request, whose id and signature were checked."""
        addressed = messages.providers_of(event)
        is_ours = self._signer.public in addressed
        is_own = event.pubkey == self._signer.public and not self._settings.buyer.from_ourselves
        if (addressed and not is_ours) or is_own:
            return
        if event.id in self._refused:
            self._note("nostr.repeated", "a request that was refused before")
            return
        if self._views.closed() is not None:
            return  # its relay has it, and the next start looks for it
        if not self._pace.try_take(now):
            self._note("nostr.too_many", "requests of strangers came faster than they are looked at")
            return
        try:
            request = messages.read_request(event, self._signer.decrypt if is_ours else None)
            if request.schema_id not in self._offer.tools:
                raise BadMessage("this job is not offered here")
        except BadMessage as error:
            if is_ours:
                self._refuse(event, str(error), now)
            return
        self._take(Job(self, event, request, self._offer.tools[request.schema_id]), now)

    def _take(self, job: Job, now: Now) -> None:
        name = job.event.id
        is_known = name in self._jobs or name in self._unpaid or any(one.event.id == name for one in self._waiting)
        # A job whose call was refused has used no key: its steps say that it was here.
        if is_known or name in self._over or self._views.steps(PROCESS, name):
            self._note("nostr.repeated", "a request that was taken on before")
            return
        if (job.event.pubkey, name) in self._deleted:
            self._refuse(job.event, CANCELED, now)
            return
        schema_id, inputs = job.request.schema_id, job.request.inputs
        try:
            self._offer.check(schema_id, inputs, job.request.job_hash)
            priced = self._offer.priced(schema_id, inputs, self._till.prices)
            if priced.msats and self._has_place(job):
                self._ask_to_pay(job, priced, now)
                return
        except (NotServed, KeyTaken, NoRoom) as error:
            self._refuse(job.event, str(error), now)
            return
        if not priced.msats and len(self._jobs) < self._settings.max_jobs:
            self._open(job)
        elif not priced.msats and len(self._waiting) < MAX_WAITING:
            self._waiting.append(job)
        else:
            self._refuse(job.event, "at capacity; try again later", now)

    def _has_place(self, job: Job) -> bool:
        """Whether one more job of this buyer may wait to be paid."""
        own = sum(one.event.pubkey == job.event.pubkey for one in self._unpaid.values())
        return own < MAX_UNPAID_OF_BUYER and len(self._unpaid) < MAX_WAITING

    # -- a job that is to be paid --------------------------------------------------------------------------------------

    def _ask_to_pay(self, job: Job, priced: Priced, now: Now) -> None:
        """Say what it costs. Nothing is called before the money is held (OA-080)."""
        if job.request.is_private:
            salt = self._signer.job_salt(job.event.pubkey, priced.job_hash)
            priced = msgspec.structs.replace(priced, salt=salt)
        price = self._till.quote(job.request, priced, now)
        assert price is not None
        self._unpaid[job.event.id] = job
        draft = self._feedback(
            job, Status.PAYMENT_REQUIRED, "", int(now.wall), msats=price.msats, invoice=price.invoice, also=price.also
        )
        event = signed(draft, self._signer)
        self._till.asked(price.payment_hash, event)
        self._say(event, _nobody)

    def refused(self, request_id: str, why: str) -> None:
        """What somebody gave for a job that waits for payment is refused; it still waits."""
        job = self._unpaid.get(request_id)
        if job is not None:
            self._tell(job, Status.PAYMENT_REQUIRED, why, self._feed.now())

    def paid(self, request_id: str) -> None:
        """The money of a job that waited for it is held: it may be called."""
        job = self._unpaid.pop(request_id, None)
        if job is None:
            # Taken back, or forgotten, while it was paid.
            self._till.settle(request_id, "the request was taken back", _nothing)
            return
        self._waiting.append(job)
        self._fill()

    def unpaid(self, request_id: str, why: str) -> None:
        """Nobody pays for it any more."""
        job = self._unpaid.pop(request_id, None)
        if job is not None:
            self._refuse(job.event, why, self._feed.now())

    def deleted(self, event: Event, now: Now) -> None:
        """A buyer takes requests back (NIP-09): what has not ended is canceled."""
        for name in messages.deleted_by(event):
            job = self._jobs.get(name) or self._unpaid.get(name)
            job = job or next((one for one in self._waiting if one.event.id == name), None)
            _remember(self._deleted, (event.pubkey, name))
            if job is not None and job.event.pubkey == event.pubkey and not job.is_canceled:
                job.is_canceled = True
                if job.number:
                    by, reason = job.principal, "the buyer took the request back"
                    self._feed.feed([CancelRequested(job.number, "cancel", by, target=CALL, reason=reason)])
                else:
                    self._drop(job)
                    self._till.withdraw(name)
                    self._till.settle(name, "the buyer took the request back", _nothing)
                    self._refuse(job.event, CANCELED, now)

    def _drop(self, job: Job) -> None:
        self._unpaid.pop(job.event.id, None)
        if job in self._waiting:
            self._waiting.remove(job)

    # -- a job that is taken on ----------------------------------------------------------------------------------------

    def take_up(self) -> None:
        """After a restart: what was taken on goes on, and what was answered is told."""
        for subject, steps in self._views.open_steps(PROCESS).items():
            try:
                self._resume(steps)
            except (msgspec.DecodeError, BadMessage):
                # Not what we write: nothing can be told to anybody, and it must not be looked at at each start.
                self._feed.feed([ProcessStepped(0, "", PROCESS, subject, "lost", Raw(b"{}"), done=True)])
        self._till.take_up(lambda name: name in self._jobs)

    def _resume(self, steps: list[ProcessStep]) -> None:
        taken = _taken(steps[0].data)
        request = messages.read_request(taken.request, self._signer.decrypt)
        job = Job(self, taken.request, request, taken.tool)
        job.has_begun = True
        self._jobs[job.event.id] = job
        job.number = self._feed.open_session(job)
        if len(steps) > 1:
            self._last[job.event.id] = _answered(steps[1].data)
            self.publish_last(job)
        else:
            self._call(job)

    def _open(self, job: Job) -> None:
        """Put it on record first: what is not there can be lost, and is then taken on anew."""
        self._jobs[job.event.id] = job
        job.number = self._feed.open_session(job)
        self._step(job, TAKEN, Raw(msgspec.json.encode(_Taken(job.event, job.tool_id))))

    def _step(self, job: Job, step: str, data: Raw, *, done: bool = False) -> None:
        who = job.principal.identity
        self._feed.feed([ProcessStepped(job.number, step, PROCESS, job.event.id, step, data, done, who)])

    def recorded(self, job: Job, reply: Reply, now: Now) -> None:
        """It is on record: make its call."""
        if reply.fault is not None:
            self.forget(job)
            self._till.settle(job.event.id, reply.fault.message, _nothing)
            self._refuse(job.event, reply.fault.message, now)
        else:
            self._call(job)

    def _call(self, job: Job) -> None:
        request = job.request
        asked = CallRequested(
            job.number,
            CALL,
            job.principal,
            job.tool_id,
            request.inputs,
            key=job.event.id,
            correlation_id=job.event.id,
            announce=True,
            sensitive=request.is_private,
        )
        self._feed.feed([asked])
        if job.is_canceled:
            by = job.principal
            self._feed.feed([CancelRequested(job.number, "cancel", by, target=CALL, reason="the buyer took it back")])

    def begun(self, job: Job, wait: Wait, now: Now) -> None:
        """It runs, or waits for its turn or for a person."""
        if not job.has_begun:
            job.has_begun = True
            self._tell(job, Status.PROCESSING, "a person is asked first" if wait.approval_id else "", now)

    def showed(self, job: Job, progress: Progress, now: Now) -> None:
        """Its tool shows something."""
        if job.is_canceled or job.partial >= MAX_PARTIAL or now.mono - job.partial_at < PARTIAL_S:
            return
        job.partial, job.partial_at = job.partial + 1, now.mono
        # What a job makes is told when it is paid; until then only that it goes on.
        content = "" if self._is_priced(job) else _shown(progress.data)
        self._tell(job, Status.PARTIAL, "", now, content=content)

    def ended(self, job: Job, answer: Answer, now: Now) -> None:
        """It has its outcome: what is held for it is released or refunded, then its last event is put on record."""
        is_held = self._till.held_for(job.event.id) is not None
        spare_bytes = self._till.receipt_bytes(job.event.id)
        # What is encrypted is padded, and written in four characters for three bytes.
        found = self._outcome(job, answer, now, 2 * spare_bytes if job.request.is_private else spare_bytes)
        if not job.is_canceled and not answer.refused:
            took_ms = (answer.finished_ms or now.ms) - (answer.started_ms or answer.finished_ms or now.ms)
            self.tally.add(found.is_success, took_ms)
        if is_held:
            problem = "" if found.is_success else found.problem
            self._till.settle(
                job.event.id, problem, lambda paid: self._conclude(job, answer, found, paid), answer.call_id
            )
        else:
            self._conclude(job, answer, found, self._paid_before(job) if found.is_success else None)

    def _paid_before(self, job: Job) -> Earned | None:
        """A crash came between its receipt and its result."""
        if not job.has_begun:
            return None
        priced = self._offer.priced(job.request.schema_id, job.request.inputs, self._till.prices)
        return self._till.paid_before(job.event.id, priced.job_hash) if priced.msats else None

    def _conclude(self, job: Job, answer: Answer, found: Outcome, paid: Earned | Unpaid | None) -> None:
        """Put the last event on record; it is told when it is there."""
        if job.event.id not in self._jobs:
            return
        if isinstance(paid, Unpaid):
            found, paid = self._without_result(job, paid.why, self._feed.now().ms // 1000), None
        draft = found.draft
        if paid is not None:
            draft = self._outcome(job, answer, self._feed.now(), 0, paid).draft
            if draft.kind != self._settings.kinds.result:
                # What was paid for is given, if need be without its receipt, which is on record.
                alone = msgspec.structs.replace(paid, receipt=None)
                draft = self._outcome(job, answer, self._feed.now(), 0, alone).draft
        status = None
        if draft.kind == self._settings.kinds.result:
            status = Status.SUCCESS if found.is_success else Status.ERROR
        last = self._last[job.event.id] = _Answered(signed(draft, self._signer), status, found.text)
        self._step(job, ANSWERED, Raw(msgspec.json.encode(last)))

    def _outcome(self, job: Job, answer: Answer, now: Now, spare_bytes: int, paid: Earned | None = None) -> Outcome:
        """The last event, whether the job succeeded, and what is said beside a result. ``spare_bytes`` are left for
        what is added when it is paid.
        """
        at = (answer.finished_ms or now.ms) // 1000
        if job.is_canceled or answer.status is CallStatus.CANCELED:
            return self._without_result(job, CANCELED, at)
        if answer.status is not CallStatus.SUCCEEDED or answer.output is None:
            why = "it failed" if answer.fault is None else f"{answer.fault.code}: {answer.fault.message}"
            return self._without_result(job, why, at)
        schema_id, inputs = job.request.schema_id, job.request.inputs
        try:
            made = self._offer.made(schema_id, inputs, answer.output)
            problem = self._offer.problem(schema_id, inputs, made, self._signer.npub)
            is_success = made.is_success and not problem
            text = "" if is_success else NOT_RIGHT
            if not is_success and self._is_priced(job):
                # Its money goes back: who fails on purpose must not have the work for nothing.
                unpaid, text = self._offer.unpaid(schema_id, inputs, made), NOT_CHARGED
                if unpaid is None:
                    return self._without_result(job, problem or NOT_RIGHT, at)
                made = unpaid
            provenance = Provenance(made.model, self._signer.npub, made.token_counts)
            draft = messages.result_draft(
                self._settings.kinds, job.event, made.outputs, provenance, made.output_hash, created_at=at,
                encrypt=self._encrypt(job), max_bytes=MAX_SENT_BYTES - spare_bytes,
                amount_msats=None if paid is None else paid.msats,
                invoice="" if paid is None else paid.invoice,
                receipt="" if paid is None or paid.receipt is None else bytes(paid.receipt.receipt).decode(),
            )  # fmt: skip
        except (messages.TooLarge, keys.CannotEncrypt, NotServed) as error:
            why = str(error) if isinstance(error, NotServed) else "the result is larger than a relay carries"
            return self._without_result(job, why, at)
        return Outcome(draft, is_success, "" if is_success else problem, text)

    def _is_priced(self, job: Job) -> bool:
        """Whether a job is one that is paid for, also if its money went back before a restart."""
        if self._till.held_for(job.event.id) is not None:
            return True
        try:
            return bool(self._offer.priced(job.request.schema_id, job.request.inputs, self._till.prices).msats)
        except NotServed:  # its tool left
            return False

    def _without_result(self, job: Job, why: str, at: int) -> Outcome:
        return Outcome(self._feedback(job, Status.ERROR, why, at), False, why)

    def publish_last(self, job: Job) -> None:
        """Its last event is on record: tell relays until one has it."""
        last = self._last[job.event.id]
        self._say(last.event, lambda is_taken: self._told(job, is_taken))
        if last.status is not None:
            # At the time of the result, so that it is the same event when it is told again.
            draft = self._feedback(job, last.status, last.text, last.event.created_at)
            self._say(signed(draft, self._signer), _nobody)

    def _told(self, job: Job, is_taken: bool) -> None:
        """A relay has it, or none will: nothing more can be done for this job."""
        if job.event.id in self._jobs:
            self._step(job, "told" if is_taken else "untold", Raw(b"{}"), done=True)
            self._feed.when_stored(lambda: self._till.told(job.event.id))
            self.forget(job)

    def forget(self, job: Job) -> None:
        """It is over here."""
        self._last.pop(job.event.id, None)
        if self._jobs.pop(job.event.id, None) is not None:
            _remember(self._over, job.event.id)
            self._feed.close_session(job.number)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._jobs) < self._settings.max_jobs:
            self._open(self._waiting.popleft())

    # -- words ---------------------------------------------------------------------------------------------------------

    def _encrypt(self, job: Job) -> Encrypt | None:
        return self._signer.encrypt if job.request.is_private else None

    def _feedback(
        self,
        job: Job,
        status: Status,
        text: str,
        at: int,
        content: str = "",
        msats: int | None = None,
        invoice: str = "",
        also: Tags = (),
    ) -> Draft:
        return messages.feedback_draft(
            self._settings.kinds, job.event, status, text,
            created_at=at, content=content, amount_msats=msats, invoice=invoice, also=also, encrypt=self._encrypt(job),
        )  # fmt: skip

    def _tell(
        self, job: Job, status: Status, text: str, now: Now, *,
        content: str = "", msats: int | None = None, invoice: str = "",
    ) -> None:  # fmt: skip
        draft = self._feedback(job, status, text, int(now.wall), content, msats, invoice)
        self._say(signed(draft, self._signer), _nobody)

    def _refuse(self, event: Event, text: str, now: Now) -> None:
        """Say why there is no job. The same refusal of the same request is the same event, also after a restart."""
        _remember(self._refused, event.id)
        at = min(event.created_at, int(now.wall))
        is_private = bool(event.tag("encrypted"))
        encrypt = self._signer.encrypt if is_private else None
        draft = messages.feedback_draft(self._settings.kinds, event, Status.ERROR, text, created_at=at, encrypt=encrypt)
        self._say(signed(draft, self._signer), _nobody)

    def _note(self, code: str, detail: str) -> None:
        self._feed.feed([Noticed(code, EDGE, "", detail)])


T = TypeVar("T")


def _remember(known: dict[T, None], one: T) -> None:
    """One more, and of too many not the oldest."""
    known[one] = None
    if len(known) > MAX_REMEMBERED:
        del known[next(iter(known))]


def _nothing(_paid: Earned | Unpaid | None) -> None:
    """Nobody waits for how the money of a job ended that was never called."""


def _nobody(_is_taken: bool) -> None:
    """A feedback on the way is told again by the client, and nobody waits for it."""


def _shown(data: Raw) -> str:
    """What a tool shows, as the content of a feedback: its text, or its JSON."""
    try:
        shown = msgspec.json.decode(data, type=dict[str, Raw])
        if "text" in shown:
            return msgspec.json.decode(shown["text"], type=str)[:4096]
        return bytes(shown.get("json", data)).decode()[:4096]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
