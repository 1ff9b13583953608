"""Secrets that nobody told us of: how many are found, what is taken for one, and what it costs (P-H2, P-H3)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import orjson
import pytest

from tests.attack.labelled import Positive, negatives, positives
from trunkline.ledger.masking import MOST_JUDGED, WINDOW_BYTES, Masker

MASKER = Masker()


def found(label: Positive) -> bool:
    masked = MASKER.mask(label.body.encode())
    orjson.loads(masked)
    return label.secret not in masked.decode()


def test_the_set_is_as_large_as_promised_and_labelled_as_it_says() -> None:
    assert len(positives()) >= 400
    assert len(negatives()) >= 2000
    assert all(len(label.secret) >= 3 and label.secret in label.body for label in positives())
    assert {label.kind for label in positives()} == {"structured", "free"}


def test_recall_and_precision_are_as_promised(record_property: Callable[[str, object], None]) -> None:
    labels = positives()
    hits = [label for label in labels if found(label)]
    structured = [label for label in labels if label.kind == "structured"]
    false = [body for body in negatives() if MASKER.mask(body.encode()) != body.encode()]
    recall = len(hits) / len(labels)
    recall_structured = sum(label.kind == "structured" for label in hits) / len(structured)
    precision = len(hits) / (len(hits) + len(false))
    record_property("recall, structured", recall_structured)
    record_property("recall", recall)
    record_property("precision", precision)
    # Measured: 96.9 %, 96.3 % and 99.7 %. One point less is a step back, far above what is promised as it may be.
    assert recall_structured > 0.959
    assert recall > 0.953
    assert precision > 0.987


# --- cost (P-H3) ------------------------------------------------------------------------------------------------------

MIB = 1 << 20
# Each as small as it can be: so many more of them fit into a body.
FLOODS = {
    "members": b'{"password":"abcd1"},',
    "tiny members": b'{"pwd":"a"},',
    "empty members": b'{"pwd":""},',
    "numbers": b'{"password":1},',
    "lists": b'{"pwd":["a"]},',
    "weak names": b'{"token":"a"},',
    "spaced": b'{"pwd" : "a"},',
    "keys of a JWK": b'{"d":"' + b"a" * 43 + b'"},',
    "texts": b'"password=a1b2",',
    "flags": b'"--token a1b2",',
    "addresses": b'"://a:b@",',
    "escaped keys": b'{"\\u0070wd":"a"},',
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_of_small_secrets_takes_linear_time_and_hides_none(name: str) -> None:
    piece = FLOODS[name]

    def flood(size: int) -> bytes:
        # What comes after the flood is what it would hide.
        tail = b'{"password":"canary-1","pwd" : 4711471147,"secret":["canary-2"],"x":"ok"}'
        return b"[" + piece * (size // len(piece)) + tail + b"]"

    def cpu_s(data: bytes) -> float:
        started = time.process_time()
        MASKER.mask(data)
        return time.process_time() - started

    masked = MASKER.mask(flood(MIB // 8))
    last = orjson.loads(masked)[-1]
    assert b"canary" not in masked
    assert b"4711471147" not in masked
    assert set(last) == {"password", "pwd", "secret", "x"}
    assert last["x"] == "ok"
    # A quarter of a mebibyte takes 25 ms on a quiet machine, and a mebibyte four times as long, not sixteen.
    quarter = max(0.02, min(cpu_s(flood(MIB // 4)) for _ in range(2)))
    assert quarter < 0.25
    assert cpu_s(flood(MIB)) < 10 * quarter


def test_a_flood_masks_at_least_what_would_be_masked_without_it() -> None:
    choice = random.Random(3)
    secrets = [label for label in positives() if label.kind == "structured" and found(label)]
    flood = b'{"password":"abcd1"},' * MOST_JUDGED
    for label in choice.sample(secrets, 150):
        masked = MASKER.mask(b"[" + flood + label.body.encode() + b"]")
        assert label.secret not in masked.decode(), label
        orjson.loads(masked)


def test_behind_a_flood_a_secret_is_found_wherever_the_border_of_a_window_cuts_it() -> None:
    flood = b'{"password":"abcd1"},' * MOST_JUDGED
    for shift in range(120):
        space = b'"' + b"z" * (WINDOW_BYTES - 90 + shift) + b'",'
        masked = MASKER.mask(b"[" + flood + space + b'{"password":"canary-1"}]')
        assert b"canary" not in masked, shift
        assert orjson.loads(masked)[-2] == "z" * (WINDOW_BYTES - 90 + shift)


def test_a_body_that_is_no_json_is_masked_too() -> None:
    """Agents print what they like: a path with backslashes must not end the process that writes their logs."""
    for text in (
        b"C:\\users\\bob",
        b"\\/ and \\u0041",
        b'{"a":"\\/"}\n{"b":1}',
        b"\xff\\u0041",
        b"password=abcd1 " * 600,
    ):
        assert b"abcd1" not in MASKER.mask(text)
    assert MASKER.mask(b"see C:\\u0041 password=abcd1") == b"see C:\\u0041 password=[masked:named]"
