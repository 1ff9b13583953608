"""``trunkline approvals``, ``approve`` and ``deny``: the open questions and the answers.

What an answer would be about is shown whole, never cut: arguments exactly as they would be sent, and of a changed
definition what changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from trunkline.cli.client import at, encode
from trunkline.cli.completion import questions_here
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import clock, duration, heading, printable, say, seconds_of, typed


@click.command()
@shared
def approvals(settings: CommandSettings) -> None:
    """What waits for your answer: calls, changed definitions, permissions, intents; each with all it is about.

    A question that nobody answers expires, after an hour unless the configuration says otherwise.
    """
    found: list[dict[str, Any]] = settings.connect().get(at("approvals"))["approvals"]
    if settings.shown_as_json({"approvals": found}):
        return
    if not found:
        say("No open questions.")
    for question in found:
        for line in described(question):
            say(line)
        say()


def described(question: dict[str, Any]) -> Iterator[str]:
    """One question, for the person who has to answer it."""
    approval_id = question["approval_id"]
    yield heading(f"{approval_id}  {_subject(question)}")
    # First why: of a long command it says which part is dangerous.
    if question.get("reason"):
        yield f"  because: {printable(question['reason'])}"
    asked, expires = seconds_of(question["asked_at"]), seconds_of(question["expires_at"])
    left = duration(expires - time.time())
    yield f"  asked by {printable(question['asked_by'])} at {clock(asked)}, expires in {left}"
    if question.get("chain"):
        yield f"  through: {printable(' → '.join((*question['chain'], question['asked_by'])))}"
    if question.get("waiting", 1) > 1:
        yield f"  {question['waiting']} identical calls wait; the answer covers the first"
    if question.get("permissions"):
        yield f"  permissions: {printable(', '.join(question['permissions']))}"
    if "input" in question:
        yield "  with the input:"
        yield from _indented(question["input"])
    if "after" in question:
        yield from _changed(question.get("before"), question["after"])
    yield f"  {typed(f'approve {approval_id}')}   or   {typed(f'deny {approval_id} --reason …')}"


def _subject(question: dict[str, Any]) -> str:
    tool, agent = question.get("tool_id", ""), question.get("agent_id", "")
    return {
        "call": f"call of {tool}",
        "definition": f"changed definition of {tool}",
        "manifest": f"permissions for {agent}",
        "directive": f"directive for {tool}",
    }.get(question["subject"], f"{question['subject']} {tool}{agent}")


def _lines(value: object) -> list[str]:
    import msgspec

    return printable(msgspec.json.format(encode(value), indent=2).decode(), keep="\n").split("\n")


def _indented(value: object) -> Iterator[str]:
    for line in _lines(value):
        yield f"    {line}"


def _changed(before: object, after: object) -> Iterator[str]:
    import difflib

    if before is None:
        yield "  the definition:"
        yield from _indented(after)
        return
    yield "  what changed:"
    colours = {"+": "green", "-": "red"}
    for line in list(difflib.unified_diff(_lines(before), _lines(after), n=2, lineterm=""))[2:]:
        if not line.startswith("@@"):
            yield "    " + click.style(line, fg=colours.get(line[:1]))


@click.command()
@click.argument("approval_id", metavar="ID", shell_complete=questions_here)
@click.option("--reason", default=None, help="For the record.")
@shared
def approve(settings: CommandSettings, approval_id: str, reason: str | None) -> None:
    """Answer the question ID with yes: what it asks about happens. `trunkline approvals` shows it whole."""
    _answer(settings, approval_id, "approved", reason)


@click.command()
@click.argument("approval_id", metavar="ID", shell_complete=questions_here)
@click.option("--reason", default=None, help="Told to the one who asked.")
@shared
def deny(settings: CommandSettings, approval_id: str, reason: str | None) -> None:
    """Answer the question ID with no: whoever asked gets `policy.denied`, with the reason if you give one."""
    _answer(settings, approval_id, "denied", reason)


def _answer(settings: CommandSettings, approval_id: str, decision: str, reason: str | None) -> None:
    body: dict[str, object] = {"decision": decision}
    if reason is not None:
        body["reason"] = reason
    answer = settings.connect().post(at("approvals", approval_id), body)
    if not settings.shown_as_json(answer):
        about = answer.get("call_id")
        say(f"{decision} {printable(approval_id)}" + (f": call {printable(about)}" if about else ""))
