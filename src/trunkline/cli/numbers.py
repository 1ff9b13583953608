"""Numbers on the command line: Click's ranges, under names that people know.

Click says "is not a valid float range" of something that is no number, after the name of its own type.
"""

from __future__ import annotations

import click

__all__ = ["Number", "WholeNumber"]


class Number(click.FloatRange):
    """A number within bounds."""

    name = "number"


class WholeNumber(click.IntRange):
    """A number without a fraction, within bounds."""

    name = "whole number"
