"""Times on the command line: a date, a time of day, or how long ago something was.

Owns the one parser of every option that takes a time, and what is said of a range that holds nothing. Does not own how
times are shown (``terminal``).
Invariant: what has no zone is local, as every time that is shown is; a time of day is the last one that was.
"""

from __future__ import annotations

import re
import time
from typing import Any, Final

import click

# For the help of an option that takes one.
FORMS: Final = "10:00, 2026-11-15, 2026-11-15T10:00, 30m, 2h, 7d"
_AGE: Final = re.compile(r"(\d{1,9})(s|m|min|h|d|w)")
_TIME_OF_DAY: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_UNITS_S: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Moment(click.ParamType[int]):
    """The type of an option that takes a time; its value is wall milliseconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a time; one that is none ends the command."""
        if isinstance(value, int):
            return value
        age = _AGE.fullmatch(value)
        if age is not None:
            return max(0, int((time.time() - int(age[1]) * _UNITS_S[age[2]]) * 1000))
        import datetime as dt

        try:
            time_of_day = _TIME_OF_DAY.fullmatch(value)
            if time_of_day is not None:
                hour, minute, second = (int(part or 0) for part in time_of_day.groups())
                now = dt.datetime.now()  # noqa: DTZ005  (local, as the times that are shown)
                moment = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
                value = (moment if moment <= now else moment - dt.timedelta(days=1)).isoformat()
            return max(0, int(dt.datetime.fromisoformat(value).timestamp() * 1000))
        except (ValueError, OverflowError):
            self.fail(f"expected a time ({FORMS})", param, ctx)


MOMENT: Final = Moment()


def check_range(first: int | None, end: int | None, names: str) -> None:
    """End the command if nothing can be between these two. ``names`` are those of the two options."""
    if first is not None and end is not None and first >= end:
        raise click.UsageError(f"{names}: the first is not before the second, so nothing is between them")
