"""``trunkline calls``: the latest calls and how they ended."""

from __future__ import annotations

from typing import Any

import click

from trunkline.cli.connection import Connection, at
from trunkline.cli.options import Settings, shared
from trunkline.cli.terminal import clock, duration, printable, say, seconds_of, table

# What one request may ask for.
_PAGE = 500


@click.command()
@click.option("--last", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="How many.")
@click.option("--correlation", metavar="ID", help="Only those of one conversation.")
@shared
def calls(settings: Settings, last: int, correlation: str | None) -> None:
    """The latest calls and how they ended, newest first."""
    found = _latest(settings.connect(), last, correlation)
    if settings.shown_as_json({"calls": found}):
        return
    if not found:
        if correlation is not None:
            say(f"No calls in the conversation {printable(correlation)}.")
        else:
            say("No calls yet. `trunkline tools` shows what can be called.")
        return
    rows = [
        [
            clock(seconds_of(call["accepted_at"])),
            call["status"],
            call["tool_id"],
            call["caller"],
            _took(call),
            call["call_id"],
            _remark(call),
        ]
        for call in found
    ]
    table(["TIME", "STATUS", "TOOL", "CALLER", "TOOK", "CALL", "WHY"], rows, status=1)


def _latest(exchange: Connection, last: int, correlation: str | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    before: int | None = None
    while len(found) < last:
        limit = min(_PAGE, last - len(found))
        page = exchange.get(at("calls", limit=limit, before=before, correlation_id=correlation))
        found += page["calls"]
        before = page["next"]
        if before is None:
            break
    return found


def _took(call: dict[str, Any]) -> str:
    if "started_at" not in call or "finished_at" not in call:
        return ""
    return duration(seconds_of(call["finished_at"]) - seconds_of(call["started_at"]))


def _remark(call: dict[str, Any]) -> str:
    if "approval_id" in call:
        return f"see approval {call['approval_id']}"
    error = call.get("error")
    return str(error["code"]) if error else ""
