"""``trunkline calls``: the latest calls and how they ended, or with ``--refused`` those that nobody took on.

Calls come from ``GET /v1/calls``. A refusal is no call and is not there: it is looked for in the ledger's file, which
needs no running exchange.

Owns the table, and the search for refusals. Does not own calls, which the exchange shows.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from trunkline.cli.client import ExchangeClient, at, decode
from trunkline.cli.numbers import WholeNumber
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import clock, duration, note, printable, say, seconds_of, table, typed
from trunkline.cli.times import FORMS, MOMENT, check_range
from trunkline.model import FAULTS

if TYPE_CHECKING:
    from trunkline.ledger.reader import Reader

# What one request may ask for.
_PAGE = 500
# Entries looked through at once for refused calls.
_PIECE = 10_000
# Rules of policy; all others are those of the agent behind a tool, about its inputs.
_OF_POLICY = re.compile(r"rule-[0-9]+|builtin-.*|default|permissions|token")
_REFUSED = b'{"kind":"call.refused"'


@click.command()
@click.option("--last", type=WholeNumber(min=1), default=20, show_default=True, metavar="N", help="How many.")
@click.option("--correlation", metavar="ID", help="Only those of one conversation.")
@click.option("--search", metavar="WORDS", help="Only those with these words, or beginnings of words, in them.")
@click.option("--tool", metavar="PART", help="Only those of tools whose name has this in it.")
@click.option("--caller", metavar="PART", help="Only those of callers whose name has this in it.")
@click.option("--status", metavar="STATUS", help="Only those that ended so, or wait so.")
@click.option("--from", "first", type=MOMENT, metavar="TIME", help=f"Only those from this time on: {FORMS}.")
@click.option("--to", "end", type=MOMENT, metavar="TIME", help="Only those before it.")
@click.option("--refused", is_flag=True, help="Those that were not taken on: denied, no such tool, bad input.")
@shared
def calls(
    settings: CommandSettings,
    last: int,
    correlation: str | None,
    search: str | None,
    tool: str | None,
    caller: str | None,
    status: str | None,
    first: int | None,
    end: int | None,
    refused: bool,
) -> None:
    """The latest calls and how they ended, newest first.

    A call that was refused was never taken on, and is not among them: --refused shows those, also while no exchange
    is running. `trunkline ledger show --call ID` has the whole story of a call.
    """
    check_range(first, end, "--from and --to")
    if refused:
        if search is not None or status is not None:
            raise click.UsageError("--search and --status are for calls that were taken on, not for --refused")
        _show_refused(settings, last, correlation, _Terms(tool or "", caller or "", first, end))
        return
    exchange = settings.connect()
    terms = {"search": search, "tool": tool, "caller": caller, "status": status, "from": first, "to": end}
    found = _latest(exchange, last, {"correlation_id": correlation, **terms})
    if settings.shown_as_json({"calls": found}):
        return
    if not found and any(terms.values()):
        say("No call matches.")
        return
    _show(found, correlation)
    count = sum(exchange.get(at("status")).get("refused_calls", {}).values())
    if count and correlation is None:
        note(f"{count:,} refused since the start: {typed('calls --refused')}")


def _show(found: list[dict[str, Any]], correlation: str | None) -> None:
    if not found:
        if correlation is not None:
            say(f"No calls in the conversation {printable(correlation)}.")
        else:
            say(f"No calls yet. `{typed('tools')}` shows what can be called.")
        return
    rows = [
        [
            clock(seconds_of(call["accepted_at"])),
            _ended(call),
            call["tool_id"],
            call["caller"],
            _took(call),
            _remark(call),
            call["call_id"],
        ]
        for call in found
    ]
    table(["TIME", "STATUS", "TOOL", "CALLER", "TOOK", "WHY", "CALL"], rows, status=1, below=2, keep=(1, 2))


def _latest(exchange: ExchangeClient, last: int, terms: Mapping[str, object]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    before: int | None = None
    while len(found) < last:
        limit = min(_PAGE, last - len(found))
        page = exchange.get(at("calls", limit=limit, before=before, **terms))
        found += page["calls"]
        before = page["next"]
        if before is None:
            break
    return found


class _Terms(NamedTuple):
    """Which refused calls are wanted: as ``GET /v1/calls`` takes them for the others."""

    tool: str
    caller: str
    first: int | None
    end: int | None

    def fit(self, refusal: dict[str, Any]) -> bool:
        """Whether this one is."""
        return (
            self.tool.lower() in refusal["tool_id"].lower()
            and self.caller.lower() in refusal["caller"].lower()
            and (self.first is None or refusal["at"] >= self.first)
            and (self.end is None or refusal["at"] < self.end)
        )


def _show_refused(settings: CommandSettings, last: int, correlation: str | None, terms: _Terms) -> None:
    from trunkline.cli.ledger import reading

    with reading(settings) as reader:
        wanted = filter(terms.fit, map(decode, _refusals(reader, correlation)))
        found = list(itertools.islice(wanted, last))
    if settings.shown_as_json({"refused": found}):
        return
    if not found:
        say("No refused call matches." if any(terms) else "No refused calls on record.")
        return
    rows = [
        [clock(one["at"] / 1000), one["code"], one["tool_id"], one["caller"], _why_refused(one), one["call_id"]]
        for one in found
    ]
    table(["TIME", "REFUSED", "TOOL", "CALLER", "WHY", "CALL"], rows, below=2, keep=(1, 2))


def _why_refused(refusal: dict[str, Any]) -> str:
    """What was wrong, or what its code means; which rule decided, and through whom it was asked."""
    parts = [refusal.get("why") or _meaning(refusal), f"rule {refusal['rule']}" if refusal.get("rule") else ""]
    if refusal.get("chain"):
        parts.append(f"asked through {' → '.join(refusal['chain'])}")
    return "; ".join(filter(None, parts))


def _meaning(refusal: dict[str, Any]) -> str:
    """What its code means, and what to type to learn more."""
    tool_id = shlex.quote(refusal["tool_id"])
    if refusal["code"] == "policy.denied":
        # Who judges each input has an answer to an input only.
        given = "" if _OF_POLICY.fullmatch(refusal.get("rule", "")) else " JSON"
        asked = typed(f"policy check {shlex.quote(refusal['caller'])} {tool_id}{given}")
        return f"denied; {asked} says why" + (", with the JSON of the call" if given else "")
    if refusal["code"] == "policy.directive_required":
        return f"needs a directive; {typed(f'directive new {tool_id} --reason WHY')} states one"
    row = FAULTS.get(refusal["code"])
    return row.text if row is not None else ""


def _refusals(reader: Reader, correlation: str | None) -> Iterator[bytes]:
    """The entries of refused calls, newest first."""
    if correlation is not None:
        lines = (reader.line(number) for number in reversed(reader.by_correlation(correlation)))
        yield from (line for line in lines if line is not None and line.startswith(_REFUSED))
        return
    top = reader.head()[0]
    while top > 0:
        lines_here = list(reader.lines(top - _PIECE + 1, top))
        yield from (line for line in reversed(lines_here) if line.startswith(_REFUSED))
        top -= _PIECE


def _ended(call: dict[str, Any]) -> str:
    """How it stands: a call that succeeded and ran a command that did not is no success to who reads the list."""
    return f"ended with {call['failed_with']}" if "failed_with" in call else str(call["status"])


def _took(call: dict[str, Any]) -> str:
    if "started_at" not in call or "finished_at" not in call:
        return ""
    return duration(seconds_of(call["finished_at"]) - seconds_of(call["started_at"]))


def _remark(call: dict[str, Any]) -> str:
    if "approval_id" in call:
        return f"see approval {call['approval_id']}"
    error = call.get("error")
    return str(error["code"]) if error else ""
