from __future__ import annotations

import pytest

from tests.unit.money.paid import JOB_HASH, NPUB, chain_of, onchain_paid
from trunkline.money.onchain.headers import REGTEST
from trunkline.money.onchain.proof import evidence_of
from trunkline.money.onchain.rail import OnchainRail
from trunkline.money.rail import Due, Hold, NotPaid, PaymentProof, Quote, Rail, RailFailed
from trunkline.money.refusals import ProofRefused

RAIL = OnchainRail(REGTEST, [chain_of(1, b"\x6a\x01\x07").checkpoint], confirmations=3)


async def test_what_is_asked_for_is_whole_satoshis_to_the_script_of_payee_and_job() -> None:
    rail: Rail = RAIL
    due = await rail.quote(12_001, NPUB, JOB_HASH, 0)
    assert due == Due(13_000, NPUB, "BTC", onchain_paid().due.request, JOB_HASH)


async def test_what_was_asked_for_and_paid_is_proven() -> None:
    due = await RAIL.quote(13_000, NPUB, JOB_HASH, 0)
    chain = chain_of(13, bytes.fromhex(due.request))
    proof = PaymentProof("onchain_txid", chain.txid)
    paid = Due(due.amount_msats, due.payee, due.asset_id, due.request, due.job_hash, evidence_of(chain.evidence))
    RAIL.verify(proof, paid)
    with pytest.raises(NotPaid):
        RAIL.verify(PaymentProof("onchain_txid", "00" * 32), paid)


async def test_nothing_on_the_chain_can_be_held_or_given_back() -> None:
    quote = Quote("q", "k", JOB_HASH, "onchain", onchain_paid().due, 0)
    hold = Hold("q", "onchain", 13_000, "")
    assert not RAIL.can_hold
    for asked in (RAIL.hold(quote, NPUB), RAIL.release(hold), RAIL.refund(hold)):
        with pytest.raises(RailFailed, match="cannot be held"):
            await asked


async def test_without_a_payee_or_a_job_nothing_can_be_asked_for() -> None:
    for payee, job_hash in (("npub1x", JOB_HASH), (NPUB, "")):
        with pytest.raises(ProofRefused):
            await RAIL.quote(13_000, payee, job_hash, 0)
