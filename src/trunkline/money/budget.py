"""What the exchange may pay: so much for one job, so much in a day.

Pure. Owns the arithmetic and the words of a refusal. Does not own the settings or who is asked.

Invariant: what is held and what is on its way counts as spent until it comes back.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from trunkline.money.wallet import DAY_MS, Paid, Wallet

# By what the wallet's own judgement goes on record, beside the rules of the file.
BUDGET_RULE: Final = "wallet-budget"
UNTIED_RULE: Final = "wallet-untied-invoice"


class Budget(Struct, frozen=True):
    """The most that may be paid, in msats. Nobody can approve more."""

    per_job: int
    per_day: int


def problem(budget: Budget, wallet: Wallet, msats: int, order: str, now_ms: int) -> str:
    """Why so much more may not be paid for this job now; empty if it may. ``order`` is the call it is bought for."""
    for_job = sum(one.msats + one.fee_msats for one in wallet.spent.values() if order and one.order == order)
    if for_job + msats > budget.per_job:
        return f"this job would cost {for_job + msats} msats, and max_msats_per_job is {budget.per_job}"
    today = sum(one.msats + one.fee_msats for one in wallet.spent.values() if now_ms - one.at_ms < DAY_MS)
    if today + msats > budget.per_day:
        return f"{today + msats} msats would be paid within a day, and max_msats_per_day is {budget.per_day}"
    return ""


def claim_problem(wallet: Wallet, payee: str, claimed: Paid) -> str:
    """Why somebody's word of what a payee was paid before is wrong: more than that would look like trust."""
    found = wallet.paid.get(payee, Paid())
    if claimed.count > found.count or claimed.msats > found.msats:
        return f"paid_before: {payee} was paid {found.msats} msats in {found.count} payments, and no more"
    return ""
