"""The masker: whatever it is given, it neither raises nor breaks JSON nor shows a secret."""

from __future__ import annotations

import json

import pytest

from tests.fuzz.masker import judge
from trunkline.host.log_mask import mask_log
from trunkline.ledger.masking import MASKED_WHOLE, Masker


@pytest.mark.parametrize("seed", range(4))
def test_no_bytes_stop_it_break_json_or_show_a_secret(seed: int) -> None:
    assert judge(seed, 1500) == 1500


@pytest.mark.parametrize(
    "value",
    [
        {"x": [{"password": "r"}] * 501, "y": ["\\/", "\\/"]},
        {"y": ["\\/", "\\/"], "x": [{"password": "r"}] * 501},
        {"x": [{"password": "r"}] * 2000, "y": ["\\/", "\\u0041"] * 2000},
    ],
)
def test_a_flood_beside_escapes_stays_json(value: object) -> None:
    masked = json.loads(Masker().mask(json.dumps(value).encode()))
    assert not [one for one in masked["x"] if one["password"] == "r"]
    assert masked["y"] == value["y"]  # type: ignore[index]


@pytest.mark.parametrize("depth", [253, 254, 255, 300, 1023, 1024, 5000])
def test_what_is_nested_too_deeply_to_be_judged_is_masked_whole(depth: int) -> None:
    token = "ghp_" + "a1B2" * 9
    hidden = token.replace("g", "\\u0067", 1)
    data = b"[" * depth + f'"{hidden}"'.encode() + b"]" * depth
    masked = Masker().mask(data)
    assert masked == MASKED_WHOLE or b"[masked:" in masked
    assert token.encode() not in masked
    assert hidden.encode() not in masked


def test_a_line_of_a_log_that_cannot_be_judged_costs_that_line_only() -> None:
    logged = mask_log(b"before\n" + b"[" * 300 + b'"\\/"' + b"]" * 300 + b"\nafter\n")
    assert logged == b"before\n" + MASKED_WHOLE + b"\nafter\n"
