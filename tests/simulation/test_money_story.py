"""One exchange that sells jobs for money and buys others, its wallet in the middle: everybody lies, and it is killed.

One seed is one story in fake time, with the real hub, record and wallet. Foreign buyers and providers have accounts in
the wallet. Relays drop, repeat, reorder and forget; the disk rests now and then, so that a kill loses what was not on
it; providers ask for wrong amounts, by invoices of others or of other jobs, and give wrong results; buyers pay twice,
pay for each other and take requests back. Whatever happened, in the end the sum of all balances is what was funded,
nothing is held, each payment was released once, with one receipt that proves itself, or refunded, and nobody was paid
twice for a job or for one that was not done.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from tests.unit.edges.nostr.kit import ECHO, TOOL
from tests.unit.edges.nostr.market import PROVIDERS, US, WALLET_SECRET, announcement
from trunkline import canonical
from trunkline.config import Config, Nostr, NostrBuyer, NostrPricing, NostrWallet
from trunkline.edges.background import Background
from trunkline.edges.nostr import events, messages, nip47, order_record, orders
from trunkline.edges.nostr.client import Told
from trunkline.edges.nostr.events import Draft, Event
from trunkline.edges.nostr.jobs_agent import GATHER_S, RemoteJobs
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.messages import Provenance, Status
from trunkline.edges.nostr.offer import Offer
from trunkline.edges.nostr.payments import Payments
from trunkline.edges.nostr.provider import Provider
from trunkline.edges.nostr.receipting import Receipting
from trunkline.edges.nostr.remote_tools import tool_id
from trunkline.edges.nostr.session import Filter
from trunkline.edges.nostr.settling import Settling, is_open
from trunkline.edges.nostr.till import Till
from trunkline.edges.nostr.wallet_agent import AGENT, WalletAgent
from trunkline.edges.nostr.wallet_service import WalletService
from trunkline.entries import CallSettled
from trunkline.events import CancelRequested
from trunkline.ledger import receipts, wallets
from trunkline.model import Now, ToolDefinition, fault
from trunkline.model import Status as CallStatus
from trunkline.money import bolt11, proving, wallet
from trunkline.testing.memory import ANY_OBJECT, BOSS, MemoryExchange

STEPS = 300
SELLERS = {signer.public: (f"seller{number}", signer) for number, signer in enumerate(PROVIDERS[:3])}
BUYERS = {signer.public: (f"buyer{number}", signer) for number, signer in enumerate(PROVIDERS[3:5])}
OWN_MSATS, BUYERS_MSATS = 60_000, 30_000
FUNDED = OWN_MSATS + BUYERS_MSATS * len(BUYERS)
PRICE, MOST_MSATS = 700, 5_000
# Of our requests foreigners look at the newest.
RECENT = 4
STRANGE_NODE = bytes(31) + b"\x22"
DONE = {"done": True}
SETTINGS = Nostr(
    offer=(TOOL,),
    max_jobs=2,
    pricing=NostrPricing(input_tokens_per_1k_msats=1_000_000),
    buyer=NostrBuyer(silence_s=20),
    wallet=NostrWallet(max_msats_per_job=MOST_MSATS, max_msats_per_day=1_000_000),
)


class House:
    """One process of the exchange, with all of the Nostr edge that money goes through; ``said`` are its words."""

    def __init__(self, exchange: MemoryExchange) -> None:
        self.exchange = exchange
        self.said: list[Event] = []
        self.heard: dict[str, Told] = {}
        given = exchange.surroundings()
        feed, views = given.feed, given.views
        tool = ToolDefinition(TOOL, "a tool", ANY_OBJECT, capabilities=("cancellation",))
        self.payments = Payments(feed, views, WALLET_SECRET)
        self.payments.take_up()
        receipting = Receipting(feed, views, self.payments)
        till = Till(feed, SETTINGS, US.public, self.payments, receipting)
        settling = Settling(feed, views, self.payments, receipting)
        wallet_signer = Signer(WALLET_SECRET)
        self.service = WalletService(feed, wallet_signer, self.payments, till, self.said.append)
        self.wallet_agent = WalletAgent(
            feed, SETTINGS.wallet, self.payments, till, partial(is_open, views), wallet_signer.public, (), None,
            lambda: "ws://relay", Background(feed), given.process, "0", given.entropy,
        )  # fmt: skip
        feed.guard(AGENT, self.wallet_agent.guard)
        self.tool = exchange.attach("com.example.echo", tool)
        self.finished: set[int] = set()
        self.provider = Provider(feed, views, SETTINGS, US, Offer(exchange.config, views), till, self._say)
        # As the edge starts them.
        now = exchange.now()
        self.provider.take_up()
        self.service.start(now)
        self.payments.close_older()
        settling.take_up(now)
        self.wallet_agent.arrive()
        self.jobs = RemoteJobs(
            feed, views, SETTINGS, US, self, self._say, given.process, "0", Random(exchange._run).randbytes, settling
        )
        self.jobs.begin()

    def _say(self, event: Event, told: Callable[[bool], None]) -> None:
        self.said.append(event)
        told(True)

    def subscribe(
        self, name: str, filters: Callable[[Now], Sequence[Filter]], told: Told, *, has_window: bool = True
    ) -> None:
        del filters, has_window
        self.heard[name] = told

    def unsubscribe(self, name: str) -> None:
        del self.heard[name]

    def hear(self, event: Event) -> None:
        """A relay sends this to us; it is signed by its author, as the client has checked."""
        now = self.exchange.now()
        if event.kind == nip47.REQUEST:
            self.service.heard(event, now)
        elif event.kind == messages.DELETION:
            self.provider.deleted(event, now)
        elif event.kind == SETTINGS.kinds.request:
            self.provider.requested(event, now)
        else:
            self.heard["answers"](event, "ws://relay")


class Story:
    """The exchange, a relay, and foreigners who do what chance says."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        config = Config(nostr=SETTINGS)
        self.house = House(MemoryExchange(policy=config.policy(), config=config))
        for public, (name, _) in (SELLERS | BUYERS).items():
            self.payments.take(wallet.Opened(name, public))
        self.payments.take(wallet.Funded(wallet.OWN, OWN_MSATS))
        for name, _ in BUYERS.values():
            self.payments.take(wallet.Funded(name, BUYERS_MSATS))
        # What the relay has of ours, and what is on its way to us.
        self.stored: dict[str, Event] = {}
        self.sent: list[Event] = []
        self.queue: list[Event] = []
        self.invoices: list[str] = []
        self.done: Counter[str] = Counter()
        self.announce()

    @property
    def exchange(self) -> MemoryExchange:
        return self.house.exchange

    @property
    def payments(self) -> Payments:
        return self.house.payments

    def announce(self) -> None:
        for _, signer in SELLERS.values():
            at = int(self.exchange.now().wall)
            draft = messages.announcement_draft(SETTINGS.kinds, "d", announcement(ECHO, jobs=3), created_at=at)
            self.house.heard["announcements"](events.signed(draft, signer), "ws://relay")
        self.exchange.advance(GATHER_S)

    def look(self) -> None:
        """What we said is at the relay. The sum is right at any moment."""
        self.stored.update((event.id, event) for event in self.house.said)
        self.house.said.clear()
        found = self.payments.wallet
        assert found.total == FUNDED
        assert min(found.balances.values()) >= 0

    def tell(self, draft: Draft, by: Signer) -> Event:
        """A foreigner says something to us."""
        event = events.signed(draft, by)
        self.queue.append(event)
        self.sent.append(event)
        return event

    def at(self) -> int:
        return int(self.exchange.now().wall)

    # -- what can happen -----------------------------------------------------------------------------------------------

    def step(self) -> None:
        acts = {
            "buy": 4, "demand": 10, "give": 16, "person": 12, "sell": 5, "pay": 7, "finish": 8, "deliver": 40,
            "pass": 3, "repeat": 4, "drop": 1, "forget": 0.5, "fail": 1, "cancel": 1, "take_back": 1, "rest": 2,
            "store": 6, "kill": 2,
        }  # fmt: skip
        [act] = self.random.choices(list(acts), list(acts.values()))
        getattr(self, f"_{act}")()
        self.look()

    def _deliver(self) -> None:
        if self.queue:
            self.house.hear(self.queue.pop(self.random.randrange(len(self.queue))))

    def _repeat(self) -> None:
        if self.sent:
            self.house.hear(self.random.choice(self.sent))

    def _drop(self) -> None:
        if self.queue:
            self.queue.pop(self.random.randrange(len(self.queue)))

    def _forget(self) -> None:
        self.stored.clear()
        self.queue.clear()

    def _pass(self) -> None:
        self.exchange.advance(self.random.choice([0.5, 5, 25]))

    def _rest(self) -> None:
        self.exchange.disk_rests = True

    def _store(self) -> None:
        self.exchange.disk_rests = False
        self.exchange.store()

    def _kill(self) -> None:
        self.look()
        self.house = House(self.exchange.restarted())
        self.announce()

    def _person(self) -> None:
        for question in self.exchange.views.questions():
            self.exchange.answer(question.approval_id, approved=self.random.random() < 0.85)

    # -- jobs that we buy ----------------------------------------------------------------------------------------------

    def _buy(self) -> None:
        remote: dict[str, Any] = {"providers": self.random.choice([1, 1, 1, 2, 3])}
        if self.random.random() < 0.2:
            remote["bid_msats"] = PRICE
        self.done["buy"] += 1
        self.exchange.call(tool_id(ECHO), {"n": self.done["buy"], "remote": remote})

    def _request(self) -> tuple[Event, Signer] | None:
        """One of our requests, and the provider that it is for."""
        found = [event for event in self.stored.values() if event.kind == SETTINGS.kinds.request]
        if not found:
            return None
        event = self.random.choice(found[-RECENT:])
        return event, SELLERS[event.value("p")][1]

    def _demand(self) -> None:
        """A provider asks for money, mostly as it should."""
        found = self._request()
        if found is None:
            return
        request, seller = found
        msats = self.random.choice([PRICE, PRICE, PRICE, PRICE + 1, MOST_MSATS + 1])
        about = messages.read_request(request, seller.decrypt).job_hash
        account, luck = SELLERS[seller.public][0], self.random.random()
        if luck < 0.1:
            about = "sha256:" + "0" * 64
        elif luck < 0.2:
            about = "lunch"
        if luck > 0.95:
            text = bolt11.written(STRANGE_NODE, msats, self.random.randbytes(32).hex(), about, self.at(), 600)
        elif luck > 0.85 and self.invoices:
            text = self.random.choice(self.invoices)
        else:
            quote_id = self.random.randbytes(8).hex()
            text = self.payments.invoice(account, msats, quote_id, f"{ECHO} {about}", self.exchange.now(), 600).text
        self.invoices.append(text)
        claimed = msats if self.random.random() < 0.95 else msats - 1
        draft = messages.feedback_draft(
            SETTINGS.kinds,
            request,
            Status.PAYMENT_REQUIRED,
            "",
            created_at=self.at(),
            amount_msats=claimed,
            invoice=text,
        )
        self.tell(draft, seller)

    def _give(self) -> None:
        """A provider gives a result, mostly when the money is there, and mostly the right one."""
        found = self._request()
        if found is None:
            return
        request, seller = found
        is_held = any(one.request_id == request.id for one in self.payments.wallet.held.values())
        if not is_held and self.random.random() < 0.9:
            return
        outputs = self.random.choice([DONE, DONE, DONE, {"done": self.random.random()}])
        digest = canonical.openagents_hash(msgspec.json.encode(outputs))
        if self.random.random() < 0.05:
            digest = "sha256:" + "0" * 64
        draft = messages.result_draft(
            SETTINGS.kinds, request, Raw(msgspec.json.encode(outputs)), Provenance("m", seller.npub), digest,
            created_at=self.at(),
        )  # fmt: skip
        self.tell(draft, seller)

    def _fail(self) -> None:
        found = self._request()
        if found is not None:
            draft = messages.feedback_draft(SETTINGS.kinds, found[0], Status.ERROR, "no", created_at=self.at())
            self.tell(draft, found[1])

    def _cancel(self) -> None:
        still_open = list(self.exchange.views.open_steps(order_record.PROCESS))
        if still_open:
            self.exchange.feed.feed([CancelRequested(0, "c", BOSS, call_id=self.random.choice(still_open))])

    # -- jobs that we sell ---------------------------------------------------------------------------------------------

    def _sell(self) -> None:
        """A buyer wants a job done here."""
        self.done["sell"] += 1
        inputs = Raw(msgspec.json.encode({"text": "hi", "n": self.random.randrange(20)}))
        job_hash = canonical.openagents_hash(msgspec.json.encode({"schema_id": ECHO, "inputs": inputs}))
        draft = messages.request_draft(
            SETTINGS.kinds,
            ECHO,
            inputs,
            job_hash,
            created_at=self.at(),
            nonce=str(self.done["sell"]),
            provider=US.public,
        )
        self.tell(draft, self.random.choice(list(BUYERS.values()))[1])

    def _demands(self) -> list[Event]:
        kind = SETTINGS.kinds.feedback
        return [event for event in self.stored.values() if event.kind == kind and event.tag("amount")]

    def _pay(self) -> None:
        """Somebody pays an invoice of ours: mostly who was asked to, and once or twice."""
        demands = self._demands()
        if not demands:
            return
        demand = self.random.choice(demands)
        payer = BUYERS[demand.value("p")][1]
        if self.random.random() < 0.1:
            payer = self.random.choice([*BUYERS.values(), *SELLERS.values()])[1]
        now = self.at()
        for _ in range(self.random.choice([1, 1, 2])):
            params = {"invoice": demand.tag("amount")[2]}
            draft = nip47.request_draft(payer, self.house.service.public, "pay_invoice", params, now, now + 600)
            self.tell(draft, payer)

    def _take_back(self) -> None:
        requests = [event for event in self.sent if event.kind == SETTINGS.kinds.request]
        if requests:
            request = self.random.choice(requests)
            draft = messages.deletion_draft([request.id], request.kind, "", created_at=self.at())
            self.tell(draft, BUYERS[request.pubkey][1])

    def _finish(self) -> None:
        house = self.house
        still_open = [at for at in range(len(house.tool.delivered)) if at not in house.finished]
        if still_open:
            at = self.random.choice(still_open)
            house.finished.add(at)
            if self.random.random() < 0.75:
                house.tool.finish(DONE, at=at)
            else:
                house.tool.finish(None, CallStatus.FAILED, fault("tool.failed"), at=at)

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Disk and relay are good again, everybody does what is left, and time passes."""
        self._store()
        for _ in range(40):
            while self.queue:
                self._deliver()
            self._person()
            while len(self.house.finished) < len(self.house.tool.delivered):
                self._finish()
            self.exchange.advance(25)
            self.look()
        self.exchange.advance(700)
        self.look()


def judge(story: Story) -> Counter[str]:
    """What must be true of the record; how many payments ended how."""
    exchange, reader = story.exchange, story.exchange.ledger.reader
    folded = wallets.fold(reader)
    assert folded.carried() == story.payments.wallet.carried()
    assert folded.total == FUNDED
    assert (folded.held, folded.unreceipted) == ({}, {})
    assert [code for code in exchange.notices() if code == "defect"] == []
    assert exchange.views.open_steps(order_record.PROCESS) == {}

    held: dict[str, wallet.Held] = {}
    ended: dict[str, str] = {}
    for number in range(1, exchange.hub.state.last + 1):
        entry = reader.entry(number)
        if getattr(entry, "process", "") != wallet.PROCESS:
            continue
        step = wallet.decode(entry.data)  # type: ignore[union-attr]
        if isinstance(step, wallet.Held):
            assert step.payment_hash not in held, "held twice"
            held[step.payment_hash] = step
        elif isinstance(step, wallet.Released | wallet.Refunded):
            assert step.payment_hash not in ended, "ended twice"
            ended[step.payment_hash] = "released" if isinstance(step, wallet.Released) else "refunded"
    assert set(held) == set(ended)
    paid = {name: one for name, one in held.items() if ended[name] == "released"}
    # Nobody is paid twice for a job: a request is paid once, and of one call each provider once.
    assert set(Counter(one.request_id for one in paid.values()).values()) <= {1}
    assert set(Counter((one.order, one.provider) for one in paid.values() if one.order).values()) <= {1}

    proved = [proving.prove(receipts.evidence(reader, one)).receipt for one in receipts.listed(reader)]
    receipted = Counter((one.provider_id, one.session_id, one.job_hash, one.amount_msats) for one in proved)
    assert receipted == Counter(
        (one.provider, one.order or one.request_id, one.job_hash, one.msats) for one in paid.values()
    )
    outcomes = {entry.call_id: entry for entry in _entries(exchange) if isinstance(entry, CallSettled)}
    for one in paid.values():
        if one.order:
            settled = outcomes[one.order]
            assert settled.status is CallStatus.SUCCEEDED
            assert one.provider in msgspec.json.decode(bytes(settled.output or b""))["verification"]["to_be_paid"]
    return Counter(f"{'bought' if one.order else 'sold'} {ended[name]}" for name, one in held.items())


def _entries(exchange: MemoryExchange) -> list[Any]:
    return [exchange.ledger.reader.entry(number) for number in range(1, exchange.hub.state.last + 1)]


def told(seed: int) -> Counter[str]:
    """One story, judged."""
    story = Story(seed)
    try:
        for _ in range(STEPS):
            story.step()
        story.end()
        return judge(story)
    finally:
        story.exchange.close()


@pytest.mark.parametrize("first", range(0, 16, 8))
def test_money_is_constant_and_each_payment_is_receipted_or_refunded_once(first: int) -> None:
    found: Counter[str] = sum((told(seed) for seed in range(first, first + 8)), Counter())
    assert set(found) == {"bought released", "bought refunded", "sold released", "sold refunded"}, found


def _nothing_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Settling, "end", lambda *_: None)


def _refunds_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wallet.Wallet, "_refunded", lambda found, step: found.held.pop(step.payment_hash, None))


def _two_receipts(patch: pytest.MonkeyPatch) -> None:
    put = Receipting.put

    def twice(found: Receipting, issued: Any) -> None:
        put(found, issued)
        put(found, issued)

    patch.setattr(Receipting, "put", twice)


def _paid_by_anybodys_verdict(patch: pytest.MonkeyPatch) -> None:
    right = Settling.end

    def end(found: Settling, payments: orders.EndPayments) -> None:
        everybody = tuple(signer.npub for _, signer in SELLERS.values())
        right(found, msgspec.structs.replace(payments, to_be_paid=everybody))

    patch.setattr(Settling, "end", end)


@pytest.mark.parametrize("broken", [_nothing_ends, _refunds_are_kept, _two_receipts, _paid_by_anybodys_verdict])
def test_what_is_broken_on_purpose_is_found(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        sum((told(seed) for seed in range(16)), Counter())
