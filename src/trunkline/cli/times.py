"""Times on the command line: a date, a time of day, or how long ago something was.

Owns the one parser of every option that takes a time. Does not own how times are shown (``terminal``).
Invariant: what has no zone is local, as every time that is shown is.
"""

from __future__ import annotations

import re
import time
from typing import Any, Final

import click

# For the help of an option that takes one.
FORMS: Final = "2026-11-15, 2026-11-15T10:00, 30m, 2h, 7d"
_AGE: Final = re.compile(r"(\d{1,9})(s|m|min|h|d|w)")
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
            return max(0, int(dt.datetime.fromisoformat(value).timestamp() * 1000))
        except (ValueError, OverflowError):
            self.fail(f"expected a time ({FORMS})", param, ctx)


MOMENT: Final = Moment()
