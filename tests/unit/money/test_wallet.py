"""The wallet's fold: whatever steps are taken in whatever order, money is made by `fund` and by nothing else."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from msgspec import Raw

from trunkline.money import budget, wallet
from trunkline.money.budget import Budget
from trunkline.money.wallet import OWN, Held, Paid, Receipted, Refunded, Refused, Released, Sent, Settled, Step, Wallet


def held(name: str, payer: str, payee: str, msats: int, **fields: Any) -> Held:
    values = {
        "invoice": "", "asked": Raw(b"null"), "quote_id": "", "request_id": "", "schema_id": "", "job_hash": "",
        "provider": "npub", "at_ms": 0, "judge": "provider", **fields,
    }  # fmt: skip
    return Held(payment_hash=name, payer=payer, payee=payee, msats=msats, **values)


class WalletMachine(RuleBasedStateMachine):
    """Takes any steps, and folds them a second time from their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.wallet = Wallet()
        self.steps: list[bytes] = []
        self.funded = 0
        self.names = 0

    accounts = Bundle("accounts")
    holds = Bundle("holds")

    def take(self, step: Step) -> None:
        self.wallet.apply(step)
        self.steps.append(wallet.encode(step))

    @rule(target=accounts)
    def open_one(self) -> str:
        self.names += 1
        name = f"account-{self.names}"
        self.take(self.wallet.try_open(name, f"key-{self.names}"))
        return name

    @rule(account=accounts | st.just(OWN), msats=st.integers(-1, 10**6))
    def fund(self, account: str, msats: int) -> None:
        with contextlib.suppress(Refused):
            self.take(self.wallet.try_fund(account, msats))
            self.funded += msats

    @rule(target=holds, payer=accounts, payee=accounts | st.just(OWN), msats=st.integers(-1, 10**6))
    def hold(self, payer: str, payee: str, msats: int) -> str:
        self.names += 1
        name = f"hash-{self.names}"
        before = self.wallet.balances[payer]
        try:
            self.take(self.wallet.try_hold(held(name, payer, payee, msats)))
        except Refused:
            assert msats < 1 or msats > before
        return name

    @rule(name=holds)
    def hold_again(self, name: str) -> None:
        if name in self.wallet.held or name in self.wallet.over:
            with pytest.raises(Refused):
                self.wallet.try_hold(held(name, OWN, OWN, 1))

    @rule(name=holds | consumes(holds), is_right=st.booleans())
    def end(self, name: str, is_right: bool) -> None:
        balances = dict(self.wallet.balances)
        is_open = name in self.wallet.held
        self.take(Released(name, "00", 1, "", "", 1) if is_right else Refunded(name, "no", 1, "", "", 1))
        if not is_open:
            assert self.wallet.balances == balances  # an end that comes twice changes nothing

    @rule()
    def carry(self) -> None:
        self.steps = [wallet.encode(self.wallet.carried())]

    @invariant()
    def money_is_made_by_funding_alone(self) -> None:
        assert self.wallet.total == self.funded == self.wallet.funded
        assert all(msats >= 0 for msats in self.wallet.balances.values())

    @invariant()
    def the_same_steps_give_the_same_wallet(self) -> None:
        again = Wallet()
        for step in self.steps:
            again.apply(wallet.decode(step))
        assert (again.balances, again.held, again.over) == (self.wallet.balances, self.wallet.held, self.wallet.over)


TestWalletMachine = pytest.mark.slow(WalletMachine.TestCase)


def test_names_keys_and_amounts_are_judged() -> None:
    found = Wallet()
    found.apply(found.try_open("alice", "key"))
    for name, client in (("alice", "other"), ("bob", "key"), ("Bob", "k"), ("", "k"), ("b" * 64, "k")):
        with pytest.raises(Refused):
            found.try_open(name, client)
    for account, msats in (("alice", 0), ("nobody", 1), ("alice", 10**30)):
        with pytest.raises(Refused):
            found.try_fund(account, msats)
    with pytest.raises(Refused) as refused:
        found.try_hold(held("h", "alice", OWN, 1))
    assert refused.value.code == "INSUFFICIENT_BALANCE"


def test_what_is_held_or_on_its_way_counts_against_the_budget_until_it_comes_back() -> None:
    found, limits = Wallet(), Budget(per_job=100, per_day=250)
    found.apply(found.try_fund(OWN, 1000))
    found.apply(found.try_hold(held("a", OWN, OWN, 90, judge="buyer", order="o1")))
    assert budget.problem(limits, found, 10, "o1", 0) == ""
    assert "this job would cost 101" in budget.problem(limits, found, 11, "o1", 0)
    found.apply(Sent("b", "npub", 100, "", "o2", "c", 0))
    assert "within a day" in budget.problem(limits, found, 61, "o3", 0)
    found.apply(Settled("b"))
    assert budget.problem(limits, found, 61, "o3", 0) == ""
    found.apply(Refunded("a", "no", 1, OWN, OWN, 90))
    assert budget.problem(limits, found, 100, "o1", 0) == ""
    found.apply(Sent("c", "npub", 100, "", "o4", "c", 0))
    found.apply(Sent("d", "npub", 100, "", "o5", "c", 0))
    assert budget.problem(limits, found, 100, "o6", wallet.DAY_MS) == ""
    assert budget.problem(limits, found, 100, "o6", wallet.DAY_MS - 1)


def test_what_somebody_was_paid_before_is_counted_and_cannot_be_exaggerated() -> None:
    found = Wallet()
    found.apply(found.try_fund(OWN, 1000))
    found.apply(found.try_hold(held("a", OWN, OWN, 90, judge="buyer")))
    assert found.paid == {}
    found.apply(Released("a", "00", 1, OWN, OWN, 90))
    found.apply(Sent("b", "npub", 10, "", "", "c", 0))
    found.apply(Settled("b", "00"))
    assert found.paid == {"npub": Paid(2, 100)}
    assert budget.claim_problem(found, "npub", Paid(1, 90)) == ""
    assert budget.claim_problem(found, "npub", Paid(2, 101))
    assert budget.claim_problem(found, "other", Paid(1, 0))
    assert list(found.unreceipted) == ["a"]
    found.apply(Receipted("a", "r"))
    assert found.unreceipted == {}


def test_what_is_over_is_known_while_its_invoice_can_be_paid_and_an_hour_at_least() -> None:
    found = Wallet()
    found.apply(found.try_fund(OWN, 1000))
    day = wallet.DAY_MS

    def paid(name: str, at_ms: int, expires_ms: int) -> None:
        found.apply(found.try_hold(held(name, OWN, OWN, 1, at_ms=at_ms, expires_ms=expires_ms)))
        found.apply(Released(name, "00", at_ms, OWN, OWN, 1))

    paid("short", 0, 1000)
    paid("long", 0, day)
    paid("b", wallet.HOUR_MS - 1, 0)
    assert {"short", "long"} <= set(found.over)
    paid("c", day - 1, 0)
    assert "short" not in found.over
    again = Wallet()
    again.apply(wallet.decode(wallet.encode(found.carried())))
    for known in (found, again):
        with pytest.raises(Refused):
            known.try_hold(held("long", OWN, OWN, 1))
    found = again
    paid("d", day + 2 * wallet.HOUR_MS, 0)
    assert "long" not in found.over


def test_what_was_carried_over_with_names_is_read_too() -> None:
    found = Wallet()
    over = wallet.Over("h", "alice", 5, "00", 7)
    found.apply(wallet.decode(wallet.encode(wallet.Carried({OWN: 0}, {}, (), (), (over,), (), {}, 0))))
    assert found.over == {"h": over}
    assert found.carried().over == ()
    assert len(found.carried().ended) == 1


def test_what_was_sent_elsewhere_is_sent_once_until_its_invoice_is_worth_nothing() -> None:
    found, day = Wallet(), wallet.DAY_MS

    def sent(name: str, at_ms: int, expires_ms: int) -> Sent:
        return Sent(name, "npub", 1, "", "", "c", at_ms, expires_ms)

    found.apply(found.try_send(sent("a", 0, 30 * day)))
    found.apply(found.try_send(sent("b", 29 * day, 30 * day)))
    for at_ms, why in ((29 * day, "sent to be paid before"), (30 * day, "before")):
        with pytest.raises(Refused, match=why):
            found.try_send(sent("a", at_ms, 30 * day))
    found.apply(found.try_send(sent("c", 31 * day, 32 * day)))
    with pytest.raises(Refused, match="expired"):
        found.try_send(sent("a", 31 * day, 30 * day))
    found.apply(Settled("c"))
    assert found.try_send(sent("c", 31 * day, 32 * day))
