"""``cli.times``: one way to write a time for every option that takes one."""

from __future__ import annotations

import datetime as dt
import importlib
import time
from pathlib import Path

import click
import pytest

from tests.unit.cli.conftest import trunkline
from trunkline.cli.main import VERBS
from trunkline.cli.times import MOMENT, Moment

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("text", "ago_s"),
    [("45s", 45), ("30m", 1800), ("90min", 5400), ("2h", 7200), ("7d", 604_800), ("1w", 604_800), ("0h", 0)],
)
def test_an_age_is_a_time_that_long_ago(text: str, ago_s: int) -> None:
    before = time.time()
    found = MOMENT.convert(text, None, None)
    assert (before - ago_s) * 1000 - 1 <= found <= (time.time() - ago_s) * 1000


def test_a_time_without_a_zone_is_local_and_a_date_is_its_beginning() -> None:
    noon = dt.datetime(2026, 11, 15, 12).astimezone()
    assert MOMENT.convert("2026-11-15T12:00", None, None) == noon.timestamp() * 1000
    assert MOMENT.convert("2026-11-15", None, None) == noon.replace(hour=0).timestamp() * 1000
    assert MOMENT.convert("1970-01-01T02:00Z", None, None) == 2 * HOUR_MS
    assert MOMENT.convert("1970-01-01T02:00+01:00", None, None) == HOUR_MS


@pytest.mark.parametrize("form", ["%H:%M:%S", "%H:%M"])
def test_a_time_of_day_is_todays_or_yesterdays_if_today_it_is_still_to_come(form: str) -> None:
    now = dt.datetime.now()  # noqa: DTZ005  (local)
    for shift_h, days_back in ((-1, 0), (1, 1)):
        shown = now + dt.timedelta(hours=shift_h)
        meant = shown.replace(microsecond=0, second=shown.second if "%S" in form else 0) - dt.timedelta(days=days_back)
        assert MOMENT.convert(shown.strftime(form), None, None) == meant.timestamp() * 1000


def test_an_hour_may_have_one_digit() -> None:
    assert MOMENT.convert("9:05", None, None) == MOMENT.convert("09:05:00", None, None)


@pytest.mark.parametrize(
    "line", [("calls", "--from", "1h", "--to", "2h"), ("ledger", "export", "--since", "1h", "--until", "2h")]
)
def test_a_range_that_ends_before_it_begins_is_refused(short_path: Path, line: tuple[str, ...]) -> None:
    said = trunkline(*line, "--home", str(short_path))
    assert (said.code, "the first is not before the second" in said.err) == (2, True)


@pytest.mark.parametrize("text", ["999999999w", "1960-01-01"])
def test_what_was_before_all_computers_is_the_beginning_of_time(text: str) -> None:
    assert MOMENT.convert(text, None, None) == 0


@pytest.mark.parametrize("text", ["yesterday", "24:00", "10:60", "1000", "2 h", "-2h", "h", "2y", "2026-13-01", ""])
def test_what_is_no_time_is_refused_with_what_would_be_one(text: str) -> None:
    with pytest.raises(click.BadParameter, match="2026-11-15T10:00, 30m, 2h, 7d"):
        MOMENT.convert(text, None, None)


def test_every_option_that_takes_a_time_is_read_alike() -> None:
    commands = [getattr(importlib.import_module(f"trunkline.cli.{verb.module}"), verb.name) for verb in VERBS.values()]
    for command in list(commands):
        commands += command.commands.values() if isinstance(command, click.Group) else ()
    taking = [param for command in commands for param in command.params if param.metavar == "TIME"]
    assert len(taking) == 4
    assert all(isinstance(param.type, Moment) for param in taking)
