"""From a conversation to its trace, from a call to its span, and back from a ``traceparent``."""

from __future__ import annotations

import uuid

import pytest

from trunkline.edges.chiffon.translate import trace_id_of
from trunkline.traces import Trace, read_traceparent, span_of, trace_of, traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"


def test_a_traceparent_names_its_trace_and_the_span_above() -> None:
    assert read_traceparent(GIVEN) == trace_of(GIVEN) == Trace(TRACE, SPAN)
    assert read_traceparent(f"cc-{TRACE}-{SPAN}-01-more") == Trace(TRACE, SPAN), "a later version may say more"


@pytest.mark.parametrize(
    "text",
    ["", "chat", GIVEN.upper(), f"ff-{TRACE}-{SPAN}-01", f"{GIVEN}-more", f"00-{'0' * 32}-{SPAN}-01",
     f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}", f" {GIVEN}", f"{GIVEN}\n"],
)  # fmt: skip
def test_what_is_no_traceparent_is_none_and_still_has_a_trace(text: str) -> None:
    assert read_traceparent(text) is None
    trace = trace_of(text)
    assert trace.parent == ""
    assert len(trace.trace_id) == 32
    assert trace_of(text) == trace
    assert trace_of(text + "x") != trace


def test_a_uuid_is_its_own_trace_and_the_one_that_chiffon_is_told() -> None:
    correlation = str(uuid.uuid4())
    assert trace_of(correlation).trace_id == uuid.UUID(correlation).hex == uuid.UUID(trace_id_of(correlation)).hex
    assert uuid.UUID(trace_id_of(GIVEN)).hex == TRACE


def test_a_span_is_the_end_of_a_calls_id_and_goes_into_the_traceparent_for_whoever_serves_it() -> None:
    call_id = "01234567-89ab-8cde-aF01-00000000002a"
    assert span_of(call_id) == "af0100000000002a"
    assert traceparent(GIVEN, call_id) == f"00-{TRACE}-af0100000000002a-01"
    for odd in ("x", "", "0" * 32):
        assert len(span_of(odd)) == 16
        assert span_of(odd) != "0" * 16
