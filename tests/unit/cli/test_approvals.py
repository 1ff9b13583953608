"""How a question is described in a terminal."""

from __future__ import annotations

from typing import Any

from trunkline.cli.approvals import described
from trunkline.money import bolt11

JOB_HASH = "ab" * 32
NPUB = "npub1" + "q" * 58
INVOICE = bolt11.written(bytes([1]) * 32, 6000, "cd" * 32, f"job {JOB_HASH}", 1_800_000_000, 600)


def question(**fields: Any) -> dict[str, Any]:
    payment = {
        "amount_msats": 6000,
        "payee": NPUB,
        "job": {"schema_id": "oa.embedding.v1", "job_hash": JOB_HASH, "request_id": "00" * 32, "order": "call-1"},
        "invoice": INVOICE,
        "invoice_names_job": True,
        "paid_before": {"count": 2, "msats": 9000},
        "asked": {"kind": 7000, "content": "", "tags": [["amount", "6000", INVOICE]]},
        **fields,
    }
    return {
        "approval_id": "a1",
        "subject": "call",
        "tool_id": "nostr.wallet/pay",
        "asked_by": "operator",
        "asked_at": "2026-01-01T00:00:00.000Z",
        "expires_at": "2026-01-01T01:00:00.000Z",
        "reason": "money",
        "input": payment,
    }


def test_of_a_payment_it_is_said_what_it_comes_to_and_the_signed_event_is_shown_on_request() -> None:
    lines = list(described(question()))
    assert f"  pays 6,000 msats to {NPUB}" in lines
    assert f"  for the job oa.embedding.v1, {JOB_HASH}" in lines
    assert "  paid to them before: 9,000 msats in 2 payments" in lines
    assert any(line.startswith("  the invoice can be paid until ") for line in lines)
    assert INVOICE not in "".join(lines)
    assert len(lines) < 15
    assert INVOICE in "".join(described(question(), raw=True))


def test_what_a_payment_does_not_prove_is_said() -> None:
    lines = "\n".join(described(question(invoice_names_job=False, amount_msats=5000, mint="https://mint.example")))
    assert "does not name this job" in lines
    assert "the invoice is over 6000 msats" in lines
    assert "in ecash of https://mint.example" in lines


def test_a_payment_that_cannot_be_read_is_shown_whole() -> None:
    assert '"invoice": "lnx"' in "\n".join(described(question(invoice="lnx")))
