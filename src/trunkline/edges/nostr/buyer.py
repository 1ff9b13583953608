"""Jobs that others do for us: a call becomes requests to providers, and what they answer becomes its one outcome.

Theory of operation, of one call::

    Deliver ──> (announcements may come in) ──> ask N providers ──> N results ──> judged ──> verified: the outcome
                each: on record ──> told to relays ──> a word ──> result        └── more: one more, N + 2 at most

A provider that fails, lies or says nothing in its time is replaced by the next one; one that was silent may still
answer. The time is over, nobody is left, or the call is canceled: what is still open is taken back (NIP-09), and the
call ends. Every request is on record before a relay hears of it, and every payment before anybody is asked for it;
after a restart the exchange delivers the call again, the requests on record are told again as they are, the same
payments are waited for, and the time goes on from where it was. What was received is not on record: relays tell it
again.

Pure: time, chance and announcements come in, events and signed requests go out. Does not own relays (``client``),
the form of an order (``orders``) or of its steps (``order_record``), whom to ask (``asking``), what a result is worth
(``results``) or how providers did before (``provider_records``).

Invariant: each call ends once. A provider is asked once for a call. Only the provider that was asked can answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

import msgspec
from msgspec import Raw, Struct

from trunkline.config import Nostr
from trunkline.edges.nostr import messages, order_calls, order_record, orders, results
from trunkline.edges.nostr.asking import Asking
from trunkline.edges.nostr.discovery import Book
from trunkline.edges.nostr.events import Event, signed
from trunkline.edges.nostr.keys import Signer, npub_of
from trunkline.edges.nostr.lookups import Lookups
from trunkline.edges.nostr.messages import BadMessage, JobFeedback, Status
from trunkline.edges.nostr.order_calls import JUDGE, PAY, BadDemand
from trunkline.edges.nostr.order_record import ASKED, OVER, PAYING, PROCESS, VERDICT
from trunkline.edges.nostr.orders import BadOrder, EndPayments, Order, Paying, Request
from trunkline.edges.nostr.provider_records import Fate, Records
from trunkline.edges.nostr.results import Finding, Received
from trunkline.effects import Answer, Cancel, Deliver, Reply
from trunkline.entries import ProcessStep
from trunkline.events import CallFinished, CallProgressed, CancelAcknowledged, Noticed, ProcessStepped
from trunkline.events import Event as Happened
from trunkline.jobs.schemas import SANDBOX
from trunkline.jobs.verification import MOST_MORE, JobVerdict
from trunkline.model import Fault, Now, fault
from trunkline.model import Status as CallStatus
from trunkline.shown import CallView

EDGE: Final = "nostr"
# Right after a start announcements come in one by one.
LOOK_S: Final = 5.0
# A provider that has begun may take so many times as long as one that has said nothing.
WORKING_TIMES: Final = 4.0
# Of a sandbox job that failed, the result follows the feedback that says so.
RESULT_FOLLOWS_S: Final = 5.0
# What of one provider's feedback is shown; the rest is more of the same.
MAX_SHOWN: Final = 100
# Calls from before a restart that have not come again are looked up so often.
LOST_S: Final = 30.0


class Say(Struct, frozen=True):
    """Tell relays of this. Whoever does says ``not_taken`` if none of them will have it."""

    event: Event


class ListenAgain(Struct, frozen=True):
    """Ask relays for everything about the open requests: what came before may have been dropped."""


Output = Happened | Say | ListenAgain | EndPayments


class Buyer:
    """All jobs that are being bought. ``session`` is the agent's conversation, set whenever it comes in."""

    def __init__(
        self,
        settings: Nostr,
        signer: Signer,
        book: Book,
        records: Records,
        lookups: Lookups,
        entropy: Callable[[int], bytes],
        chance: Random,
    ) -> None:
        self._settings = settings
        self._signer = signer
        self._asking = Asking(settings, signer, book, entropy)
        self._records = records
        self._lookups = lookups
        self._chance = chance
        self.session = 0
        self._orders: dict[str, Order] = {}
        self._by_request: dict[str, Order] = {}
        # Calls from before a restart that were not delivered again yet, with their steps.
        self._expected: dict[str, Sequence[ProcessStep]] = {}
        self._look_at = 0.0
        self._out: list[Output] = []
        self.counts = dict.fromkeys(("succeeded", "failed", "canceled"), 0)

    def __len__(self) -> int:
        return len(self._orders)

    def request_ids(self) -> list[str]:
        """The requests of which something may still come, newest first."""
        open_ones = [
            name for order in self._orders.values() for name, request in order.requests.items() if request.is_open
        ]
        return open_ones[::-1]

    def _take(self) -> list[Output]:
        out, self._out = self._out, []
        return out

    # -- after a restart -----------------------------------------------------------------------------------------------

    def take_up(
        self, open_steps: Mapping[str, Sequence[ProcessStep]], providers: Mapping[str, Sequence[ProcessStep]], now: Now
    ) -> list[Output]:
        """What is on record: requests whose calls will be delivered again, or have ended; and how providers did."""
        self._out += self._records.take_up(providers)
        self._expected = dict(open_steps)
        self._look(now)
        return self._take()

    def _look(self, now: Now) -> None:
        """Take back the requests of calls that ended without us; nobody is asked any more whether to pay for them."""
        self._look_at = now.mono + LOST_S
        for call_id in [call_id for call_id in self._expected if not self._lookups.is_open(call_id)]:
            steps = self._expected.pop(call_id)
            self._take_back(order_record.asked_ids(steps), now)
            payments = order_record.payments(steps)
            for payment in payments:
                made = self._lookups.made_by(call_id, order_calls.pay_key(call_id, payment.payment_hash))
                if made is not None and not made.status.is_outcome:
                    self._out.append(order_calls.lost_call_ends(self.session, made))
            self._step(call_id, VERDICT, Raw(b'{"state":"lost"}'), done=not payments)
            self._out.append(EndPayments(call_id, None))

    def forget_all(self) -> list[str]:
        """A defect of ours ended the agent's conversation: every call is delivered again, and taken up anew."""
        names = list(self._orders)
        self._orders.clear()
        self._by_request.clear()
        self._out.clear()
        return names

    # -- what the exchange says ----------------------------------------------------------------------------------------

    def handle(self, effect: Deliver | Cancel | Reply | Answer, now: Now) -> list[Output]:
        """A call, its end, or the answer to something that was said to the exchange."""
        match effect:
            case Deliver():
                self._begin(effect, now)
            case Cancel():
                self._cancel(effect, now)
            case Reply():
                self._recorded(effect, now)
            case Answer():
                (self._pay_answered if effect.ref.startswith(PAY) else self._judge_answered)(effect, now)
        return self._take()

    def _begin(self, call: Deliver, now: Now) -> None:
        if call.call_id in self._orders:
            return
        self._expected.pop(call.call_id, None)
        try:
            order = orders.order_of(call, self._settings.buyer.silence_s, LOOK_S, now.mono)
        except BadOrder as error:
            self._finish(call, CallStatus.FAILED, fault("tool.invalid_input", str(error)))
            return
        self._orders[call.call_id] = order
        if call.attempt > 1:
            order_record.take_up(order, self._lookups.steps(call.call_id), now)
            self._by_request.update(dict.fromkeys(order.requests, order))
            self._out += [Say(request.event) for request in order.open_requests()]
            if order.requests:
                self._out.append(ListenAgain())
            for request in order.open_requests():
                if request.paying is not None:
                    self._pay(order, request, request.paying, now)
        self._advance(order, now)

    def _cancel(self, effect: Cancel, now: Now) -> None:
        order = self._orders.get(effect.call_id)
        self._out.append(CancelAcknowledged(self.session, effect.call_id, accepted=order is not None))
        if order is None:
            return
        is_begun = any(request.state != "over" for request in order.requests.values())
        status = CallStatus.CANCELED if order.is_harmless or not is_begun else CallStatus.UNKNOWN
        self._fail(order, status, fault("tool.canceled"), now)

    def _recorded(self, reply: Reply, now: Now) -> None:
        """A request is on record, or may not be."""
        order = self._by_request.get(reply.ref)
        request = None if order is None else order.requests.get(reply.ref)
        if order is None or request is None or request.state != "recording":
            return
        if reply.fault is not None:
            self._fail(order, CallStatus.FAILED, reply.fault, now)
            return
        request.state, request.posted_at, request.due = "posted", now.mono, now.mono + order.patience_s
        self._out.append(Say(request.event))

    # -- what relays say -----------------------------------------------------------------------------------------------

    def heard(self, event: Event, now: Now) -> list[Output]:
        """A result or feedback, whose id and signature were checked."""
        order = self._by_request.get(event.value("e"))
        if order is None:
            return []
        request = order.requests[event.value("e")]
        if event.pubkey != request.provider:
            # Without a name: of the same the exchange writes down only some, and names cost nothing.
            self._note("nostr.not_asked", "", "somebody answers a request that another one was asked")
        elif request.state not in {"recording", "answered"} and request.fate != "lied":
            if event.kind == self._settings.kinds.result:
                self._result(order, request, event, now)
            elif event.kind == self._settings.kinds.feedback and request.is_open:
                self._feedback(order, request, event, now)
        return self._take()

    def not_taken(self, request_id: str, now: Now) -> list[Output]:
        """No relay will have this request."""
        order = self._by_request.get(request_id)
        if order is not None and order.requests[request_id].is_open:
            self._over(order, order.requests[request_id], "failed", "no relay takes the request", now)
        return self._take()

    def _result(self, order: Order, request: Request, event: Event, now: Now) -> None:
        try:
            received = results.receive(
                order.job,
                order.inputs,
                event,
                is_private=order.is_private,
                decrypt=self._signer.decrypt,
                chance=self._chance,
            )
        except BadMessage as error:
            self._note("nostr.lied", npub_of(request.provider), str(error))
            self._over(order, request, "lied", str(error), now)
            return
        request.state, request.fate = "answered", None
        request.took_ms = int((now.mono - request.posted_at) * 1000)
        order.results[request.provider] = received
        self._advance(order, now)

    def _feedback(self, order: Order, request: Request, event: Event, now: Now) -> None:
        try:
            said = messages.read_feedback(event, self._signer.decrypt)
        except BadMessage:
            return
        match said.status:
            case Status.ERROR if order.job.schema_id == SANDBOX:
                request.has_failed, request.due = True, now.mono + RESULT_FOLLOWS_S
                request.reason = orders.words_of(order, said)
            case Status.ERROR:
                self._over(order, request, "failed", orders.words_of(order, said), now)
                return
            case Status.PAYMENT_REQUIRED:
                self._ask_to_pay(order, request, said, event, now)
                return
            case _:
                request.state = "working"
                request.due = now.mono + max(order.patience_s * WORKING_TIMES, order.need.minutes * 60)
                request.is_silent = False
        self._show(order, request, said)

    def _ask_to_pay(self, order: Order, request: Request, said: JobFeedback, event: Event, now: Now) -> None:
        """A provider wants money first: a call of its own, which a person is asked about. Once for each provider, and
        once more if it was restarted as we were: then its invoice of before is not good any more.
        """
        before = request.paying
        if order.is_late or (before is not None and not (before.is_taken_up and before.state == "asked")):
            return
        try:
            how = (self._settings.wallet, self._signer, self._lookups.way)
            known = self._lookups.paid_before(npub_of(request.provider))
            paying = order_calls.demanded(order, said, event, *how, known)
        except BadDemand as error:
            if before is None:
                self._take_back([request.event.id], now)
                self._over(order, request, "failed", str(error), now)
            return
        if before is not None:
            if before.payment_hash == paying.payment_hash:
                return
            self._out.append(order_calls.unpaid_call_ends(self.session, order, request, before))
        request.paying = paying
        self._step(order.call_id, PAYING, order_record.paying_step(request, paying))
        self._pay(order, request, paying, now)

    def _pay(self, order: Order, request: Request, paying: Paying, now: Now) -> None:
        """Have it paid, by the same call whenever it is asked; unless it is held, or was handed over."""
        request.state, request.due, request.is_silent = "working", order.deadline, False
        held_by = self._lookups.held_by(paying.payment_hash, order.call_id)
        if held_by:
            paying.preimage = "" if paying.mint else self._lookups.preimage_of(paying.payment_hash)
            paying.state, paying.call_id, paying.is_prepaid = "done", held_by, bool(paying.mint or paying.preimage)
            self._wait_for_paid(order, request, now)
        elif order.is_late and self._made(order, paying) is None:
            paying.state, paying.why = "over", "the time of the job was over"
        else:
            self._out.append(order_calls.pay_call(self.session, order, request, paying))

    def _made(self, order: Order, paying: Paying) -> CallView | None:
        """The call that pays this, if it is on record."""
        return self._lookups.made_by(order.call_id, order_calls.pay_key(order.call_id, paying.payment_hash))

    @staticmethod
    def _wait_for_paid(order: Order, request: Request, now: Now) -> None:
        """It has its money: it may take as long as one that has begun."""
        request.due = now.mono + max(order.patience_s * WORKING_TIMES, float(order.need.minutes) * 60)

    def _pay_answered(self, answer: Answer, now: Now) -> None:
        """It is held or paid, or it is not; where nobody knows, it is not tried again."""
        name, _, payment_hash = answer.ref.removeprefix(PAY).partition(" ")
        order = self._by_request.get(name)
        request = None if order is None else order.requests[name]
        paying = None if request is None else request.paying
        if order is None or request is None or paying is None or paying.payment_hash != payment_hash:
            return
        order_calls.pay_answered(paying, answer)
        if paying.state == "done":
            self._wait_for_paid(order, request, now)
            self._advance(order, now)
        elif request.is_open:
            told = "unknown whether it was paid" if paying.is_unknown else "it was not paid"
            if not paying.is_unknown:
                # Its quote would hold on, and be that of the same job if it is bought again.
                self._take_back([name], now)
            self._over(order, request, "failed", f"{told} ({paying.why})"[: orders.MAX_REASON_CHARS], now)
        else:
            self._advance(order, now)

    def _show(self, order: Order, request: Request, said: JobFeedback) -> None:
        if request.shown >= MAX_SHOWN:
            return
        request.shown += 1
        order.shown += 1
        channel, data = orders.shown(request, said)
        self._out.append(CallProgressed(self.session, order.call_id, order.shown, channel, data))

    def _over(self, order: Order, request: Request, fate: Fate, reason: str, now: Now) -> None:
        """Wait for this provider no more, and ask the next one."""
        request.state, request.fate, request.reason = "over", fate, reason
        self._step(order.call_id, OVER, order_record.over_step(request, fate, reason))
        self._advance(order, now)

    # -- time and announcements ----------------------------------------------------------------------------------------

    def wake_at(self) -> float | None:
        """When something is due."""
        moments = [self._look_at] if self._expected else []
        for order in self._orders.values():
            moments.append(order.deadline)
            moments += [request.due for request in order.open_requests() if not request.is_silent]
            if len(order.results) < order.goal and order.look_until:
                moments.append(order.look_until)
        return min(moments) if moments else None

    def wake(self, now: Now) -> list[Output]:
        """Do what is due."""
        if self._expected and now.mono >= self._look_at:
            self._look(now)
        for order in list(self._orders.values()):
            if order.call_id not in self._orders:
                continue  # what ended before it ended it, too
            if now.mono >= order.deadline:
                self._conclude(order, now, is_late=True)
                continue
            for request in order.open_requests():
                if now.mono < request.due or request.is_silent or order.call_id not in self._orders:
                    continue
                if request.has_failed:
                    self._over(order, request, "failed", request.reason, now)
                else:
                    request.is_silent = True
                    self._advance(order, now)
            if order.look_until and now.mono >= order.look_until:
                order.look_until = 0.0
                self._advance(order, now)
        return self._take()

    def announced(self, now: Now) -> list[Output]:
        """There is somebody new: who looked for a provider may have one."""
        self._advance_all(now)
        return self._take()

    def _advance_all(self, now: Now) -> None:
        for order in list(self._orders.values()):
            if order.live() < order.goal:
                self._advance(order, now)

    # -- what is done next ---------------------------------------------------------------------------------------------

    def _advance(self, order: Order, now: Now) -> None:
        """Judge what there is, ask whoever is missing, and end what has nobody left."""
        if order.call_id not in self._orders or order.is_judging or order.is_paying:
            return
        if len(order.results) >= order.goal:
            verdict = self._verdict(order, order.wanted)
            if verdict is None or self._is_decided(order, verdict, now):
                return
            if order.goal >= order.wanted + MOST_MORE or order.named:
                self._fail(order, CallStatus.FAILED, orders.no_agreement(order, verdict), now, verdict)
                return
            order.goal = len(order.results) + 1
        denied = self._lookups.denied(order.call_id)
        if denied is not None:
            self._fail(order, CallStatus.FAILED, denied, now)
            return
        is_waiting = self._ask_missing(order, now)
        if order.call_id in self._orders and not is_waiting:
            self._conclude(order, now)

    def _is_decided(self, order: Order, verdict: JobVerdict, now: Now) -> bool:
        """Whether the call ends with what there is. That a run failed is a result, too."""
        is_honest_failure = verdict.state == "failed" and (
            bool(verdict.agreed) or (order.job.schema.verification_mode == "objective" and order.wanted == 1)
        )
        if verdict.state != "verified" and not is_honest_failure:
            return False
        names = verdict.agreed or verdict.dissented
        chosen = next(one for one in order.results.values() if one.result.provider == names[0])
        self._succeed(order, verdict, chosen, now)
        return True

    def _ask_missing(self, order: Order, now: Now) -> bool:
        """Ask as many as are missing; whether there is somebody to wait for."""
        busy = 0
        while not order.is_late and order.live() < order.goal and len(order.requests) < orders.MAX_ASKED:
            provider, busy = self._asking.next(order, self._open_jobs())
            if not provider:
                break
            self._ask(order, provider, now)
            if order.call_id not in self._orders:
                return False
        is_awaited = any(not request.is_silent for request in order.open_requests())
        return is_awaited or busy > 0 or bool(order.look_until and now.mono < order.look_until)

    def _open_jobs(self) -> Counter[str]:
        return Counter(request.provider for order in self._orders.values() for request in order.open_requests())

    def _ask(self, order: Order, provider: str, now: Now) -> None:
        """Put a request on record; it is told as soon as it is there."""
        try:
            request = self._asking.request(order, provider, now)
        except messages.TooLarge as error:
            self._fail(order, CallStatus.FAILED, fault("tool.invalid_input", str(error)), now)
            return
        name = request.event.id
        order.requests[name], self._by_request[name] = request, order
        self._step(order.call_id, ASKED, order_record.asked_step(request), ref=name, caller=order.call.caller)

    # -- judging -------------------------------------------------------------------------------------------------------

    def _verdict(self, order: Order, wanted: int, *, is_late: bool = False) -> JobVerdict | None:
        """What the results amount to; None while a judge is asked."""
        given = list(order.results.values())
        names = tuple(one.provider for one in given)
        if self._settings.buyer.judge and len(given) > 1 and not is_late:
            if order.judged_of != names:
                self._ask_judge(order, given)
                return None
            if order.groups is not None:
                groups = order.groups
                return results.judged(order.job, order.inputs, given, wanted, lambda *_: groups)
        return results.judged(order.job, order.inputs, given, wanted)

    def _ask_judge(self, order: Order, given: Sequence[Received]) -> None:
        """A tool says which results mean the same: a call of its own, for those for whom the job is done."""
        order.judged_of = tuple(one.provider for one in given)
        order.groups, order.is_judging = None, True
        self._out.append(order_calls.judge_call(self.session, order, given, self._settings.buyer.judge))

    def _judge_answered(self, answer: Answer, now: Now) -> None:
        order = self._orders.get(answer.ref.removeprefix(JUDGE))
        if order is None or not order.is_judging:
            return
        order.is_judging = False
        order.groups = results.groups_of(answer.output, len(order.judged_of))
        if order.groups is None:
            self._note("nostr.judge", self._settings.buyer.judge, "it did not say which results mean the same")
        self._advance(order, now)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _conclude(self, order: Order, now: Now, *, is_late: bool = False) -> None:
        """Nobody is left to ask, or the time is over: what there is decides."""
        verdict: JobVerdict | None = None
        if order.results:
            verdict = self._verdict(order, len(order.results), is_late=is_late)
            if verdict is None:
                return
            enough = len(verdict.agreed or verdict.dissented) >= order.quorum
            if enough and self._is_decided(order, verdict, now):
                return
        if is_late:
            is_begun = any(request.is_open for request in order.requests.values())
            status = CallStatus.FAILED if order.is_harmless or not is_begun else CallStatus.UNKNOWN
            self._fail(order, status, fault("tool.timeout", orders.too_late(order)), now, verdict)
        elif not order.open_requests():
            self._fail(order, CallStatus.FAILED, self._asking.nobody_left(order, verdict), now, verdict)

    def _succeed(self, order: Order, verdict: JobVerdict, chosen: Received, now: Now) -> None:
        finding = orders.finding_of(order, verdict)
        output = Raw(results.answer(chosen, finding))
        made = {
            "model": chosen.result.provenance.get("model"),
            "provider_id": chosen.result.provider,
            "job_hash": finding.job_hash,
            "output_hash": finding.output_hash,
        }
        self.counts["succeeded"] += 1
        finished = CallFinished(
            self.session,
            order.call_id,
            CallStatus.SUCCEEDED,
            output,
            metrics=Raw(msgspec.json.encode(made)),
        )
        self._end(order, finished, finding, now)

    def _fail(
        self, order: Order, status: CallStatus, problem: Fault, now: Now, verdict: JobVerdict | None = None
    ) -> None:
        finding = orders.failed(orders.finding_of(order, verdict))
        for paying in order.payments():
            order_calls.look_at_payment(paying, self._made(order, paying))
        problem = orders.with_money(problem, order)
        if order.requests:
            details = {**(problem.details or {}), "verification": msgspec.json.decode(msgspec.json.encode(finding))}
            problem = msgspec.structs.replace(problem, details=details)
        self.counts["canceled" if status is CallStatus.CANCELED else "failed"] += 1
        self._end(order, CallFinished(self.session, order.call_id, status, None, problem), finding, now)

    def _end(self, order: Order, finished: CallFinished, finding: Finding, now: Now) -> None:
        """The outcome first, then the verdict: a job whose outcome is lost with a crash must still be known."""
        del self._orders[order.call_id]
        for name in order.requests:
            del self._by_request[name]
        self._out.append(finished)
        ends = orders.payments_end(order, finding)
        if order.requests:
            # Where a receipt is left to make, who makes it closes the job.
            self._step(order.call_id, VERDICT, Raw(msgspec.json.encode(finding)), done=not ends.prepaid)
        self._out += [*order_calls.unpaid_calls_end(self.session, order), ends]
        self._take_back([request.event.id for request in order.requests.values() if request.may_be_done], now)
        self._remember(order, finding)
        # Whoever waits for one of these providers can have it.
        self._advance_all(now)

    def _remember(self, order: Order, finding: Finding) -> None:
        """How each provider did, for the next choice."""
        for request, fate in orders.fates_of(order, finding):
            self._out += self._records.count(request.provider, fate, request.took_ms)

    def _take_back(self, names: Sequence[str], now: Now) -> None:
        if names:
            kind = self._settings.kinds.request
            draft = messages.deletion_draft(names, kind, "not needed any more", created_at=int(now.wall))
            self._out.append(Say(signed(draft, self._signer)))

    # -- words ---------------------------------------------------------------------------------------------------------

    def _finish(self, call: Deliver, status: CallStatus, problem: Fault) -> None:
        self.counts["failed"] += 1
        self._out.append(CallFinished(self.session, call.call_id, status, None, problem))

    def _step(self, call_id: str, step: str, data: Raw, *, ref: str = "", caller: str = "", done: bool = False) -> None:
        self._out.append(ProcessStepped(self.session, ref, PROCESS, call_id, step, data, done, caller))

    def _note(self, code: str, who: str, detail: str) -> None:
        self._out.append(Noticed(code, EDGE, who, detail))
