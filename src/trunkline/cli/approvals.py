"""``trunkline approvals``, ``approve`` and ``deny``: the open questions and the answers.

What an answer would be about is shown whole, never cut: arguments exactly as they would be sent, and of a changed
definition what changed. Of a payment it is what it comes to, who gets it, for what and until when; the invoice and the
payee's signed event, in which the same stands again, are shown when asked for (``--raw``).

Owns how a question is described and which words answer it. Whether an answer is taken is the exchange's to say.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import click

from trunkline.cli.client import ExchangeClient, at, encode
from trunkline.cli.completion import questions_here
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import (
    CommandFailed,
    clock,
    confirm,
    duration,
    heading,
    note,
    printable,
    say,
    seconds_of,
    typed,
)

# The tool that pays for jobs, whose input holds one thing several times.
PAY: Final = "nostr.wallet/pay"
_NOT_ALL: Final = "there is no answer to all questions at once: name several ids, or a run of a space with --run RUN"


@click.command()
@click.option("--raw", is_flag=True, help="Of payments, too, the whole input as it would be sent.")
@shared
def approvals(settings: CommandSettings, raw: bool) -> None:
    """What waits for your answer: calls, changed definitions, permissions, intents; each with all it is about.

    A question that nobody answers expires, after an hour unless the configuration says otherwise. `approve ID` and
    `deny ID` answer it; `approve ID --always` also writes a rule, so that the same is not asked again.
    """
    found: list[dict[str, Any]] = _read(settings.connect(), at("approvals"))["approvals"]
    if settings.shown_as_json({"approvals": found}):
        return
    if not found:
        say("No open questions.")
    rules = {rule["id"] for rule in settings.connect().get(at("policy"))["rules"]} if found else set()
    for question in found:
        for line in (*described(question, raw=raw), *_answering(question, rules)):
            say(line)
        say()


def _read(exchange: ExchangeClient, path: str) -> Any:
    """Questions as they are on the wire: a number with more digits than a double has keeps all of them."""
    from msgspec import Raw, json

    return json.Decoder(float_hook=lambda text: Raw(text.encode())).decode(exchange.request("GET", path))


def described(question: dict[str, Any], *, raw: bool = False) -> Iterator[str]:
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
    if question.get("provider"):
        yield f"  served by: {printable(question['provider'])}"
    if question.get("waiting", 1) > 1:
        yield f"  {question['waiting']} identical calls wait; the answer covers the first"
    if question.get("permissions"):
        yield f"  permissions: {printable(', '.join(question['permissions']))}"
    paying = [] if raw or question.get("tool_id") != PAY else _payment(question.get("input"))
    if paying:
        yield from (f"  {line}" for line in paying)
        yield f"  the invoice and what the payee signed: {typed('approvals --raw')}"
    elif "input" in question:
        yield "  with the input:"
        yield from _indented(question["input"])
    if question.get("actor"):
        yield f"  for, as the caller says: {printable(' '.join(str(word) for word in question['actor'].values()))}"
    if question.get("context"):
        yield "  and beside it, in the caller's words:"
        yield from _indented(question["context"])
    if "after" in question:
        yield from _changed(question.get("before"), question["after"])


def _answering(question: dict[str, Any], rules: set[str]) -> Iterator[str]:
    """What can be typed to answer it; only what a rule of the configuration asks about can be allowed from now on."""
    approval_id = question["approval_id"]
    yield f"  {typed(f'approve {approval_id}')}   or   {typed(f'deny {approval_id} --reason …')}"
    if question["subject"] == "call" and question.get("rule", "") in {*rules, ""}:
        yield f"  {typed(f'approve {approval_id} --always')}   allows it from now on, by a rule that is shown first"


def _subject(question: dict[str, Any]) -> str:
    tool, agent = question.get("tool_id", ""), question.get("agent_id", "")
    return {
        "call": f"call of {tool}",
        "definition": f"changed definition of {tool}",
        "manifest": f"permissions for {agent}",
        "directive": f"directive for {tool}",
    }.get(question["subject"], f"{question['subject']} {tool}{agent}")


def _payment(asked: Any) -> list[str]:
    """What a payment comes to, in a few lines; none if the input does not say it, which is then shown whole."""
    from trunkline.money import demands

    try:
        job, before, invoice = asked["job"], asked.get("paid_before", {}), asked["invoice"]
        demand = demands.read(invoice, job["job_hash"])
        count, msats = before.get("count", 0), before.get("msats", 0)
        lines = [f"pays {asked['amount_msats']:,} msats to {asked['payee']}"]
        if demand.amount_msats != asked["amount_msats"]:
            lines.append(f"the invoice is over {demand.amount_msats or 'any number of'} msats")
        lines.append(f"for the job {job['schema_id']}, {job['job_hash']}")
        if job.get("order"):
            lines.append(f"ordered by the call {job['order']}")
        if not asked.get("invoice_names_job"):
            lines.append("the invoice does not name this job: only the payee says that it is for it")
        if asked.get("mint"):
            lines.append(f"in ecash of {asked['mint']}")
        if demand.expires_s:
            lines.append(f"the invoice can be paid until {clock(demand.expires_s)}")
        lines.append(
            f"paid to them before: {msats:,} msats in {count:,} payments"
            if count
            else "nothing was paid to them before"
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        return []
    return [printable(line) for line in lines]


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


def _refuse_all(_: click.Context, __: click.Parameter, value: bool) -> None:
    """``--all`` is looked for, and there is no such answer: what was not read is not answered."""
    if value:
        raise click.UsageError(_NOT_ALL)


_without_all = click.option("--all", is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=_refuse_all)


@click.command()
@click.argument("approval_ids", metavar="ID…", nargs=-1, shell_complete=questions_here)
@_without_all
@click.option("--run", "run_id", metavar="RUN", help="All questions of a run of a space, as they come, to its end.")
@click.option("--always", is_flag=True, help="Write a rule that allows it from now on, after showing it.")
@click.option("--also-untrusted", is_flag=True, help="With --always: also when strangers' words may have led to it.")
@click.option("--yes", is_flag=True, help="With --always: do not ask.")
@click.option("--reason", default=None, help="For the record.")
@shared
def approve(
    settings: CommandSettings,
    approval_ids: tuple[str, ...],
    run_id: str | None,
    always: bool,
    also_untrusted: bool,
    yes: bool,
    reason: str | None,
) -> None:
    """Answer the questions ID… with yes: what they ask about happens. `trunkline approvals` shows them whole.

    \b
    trunkline approve a5 a6
    trunkline approve a5 --always      # this caller may call this tool from now on, with any input
    trunkline approve --run run_0f3a…  # what this run of a space asks, until it ends
    """
    _check_named(approval_ids, run_id)
    exchange = settings.connect()
    if always:
        if run_id is not None or len(approval_ids) != 1:
            raise click.UsageError("--always is for one question: its rule is shown before it is written")
        _allow_from_now_on(settings, exchange, approval_ids[0], reason, yes=yes, also_untrusted=also_untrusted)
    elif also_untrusted:
        raise click.UsageError("--also-untrusted is for --always")
    elif run_id is not None:
        _answer_run(settings, exchange, run_id, "approved", reason)
    else:
        _answer_all(settings, exchange, approval_ids, "approved", reason)


@click.command()
@click.argument("approval_ids", metavar="ID…", nargs=-1, shell_complete=questions_here)
@_without_all
@click.option("--run", "run_id", metavar="RUN", help="All questions of a run of a space, as they come, to its end.")
@click.option("--reason", default=None, help="Told to the one who asked.")
@shared
def deny(settings: CommandSettings, approval_ids: tuple[str, ...], run_id: str | None, reason: str | None) -> None:
    """Answer the questions ID… with no: whoever asked gets `policy.denied`, with the reason if you give one."""
    _check_named(approval_ids, run_id)
    exchange = settings.connect()
    if run_id is not None:
        _answer_run(settings, exchange, run_id, "denied", reason)
    else:
        _answer_all(settings, exchange, approval_ids, "denied", reason)


def _check_named(approval_ids: tuple[str, ...], run_id: str | None) -> None:
    if "all" in approval_ids:
        raise click.UsageError(_NOT_ALL)
    if bool(approval_ids) == (run_id is not None):
        raise click.UsageError(f"name the questions (`{typed('approvals')}` lists them), or a run with --run")


def _answer_all(
    settings: CommandSettings,
    exchange: ExchangeClient,
    approval_ids: tuple[str, ...],
    decision: str,
    reason: str | None,
) -> None:
    """Each question by itself: one that is not open keeps none of the others from its answer."""
    if len(approval_ids) == 1:
        answer = _answer(exchange, approval_ids[0], decision, reason)
        if not settings.shown_as_json(answer):
            _tell(answer)
        return
    answers: list[dict[str, Any]] = []
    worst = 0
    for approval_id in dict.fromkeys(approval_ids):
        try:
            answers.append(_answer(exchange, approval_id, decision, reason))
        except CommandFailed as failed:
            failed.show()
            worst = max(worst, failed.exit_code)
            answers.append({"approval_id": approval_id, "error": failed.error})
            continue
        if not settings.as_json:
            _tell(answers[-1])
    settings.shown_as_json({"answers": answers})
    if worst:
        raise SystemExit(worst)


def _answer(exchange: ExchangeClient, approval_id: str, decision: str, reason: str | None) -> dict[str, Any]:
    body: dict[str, object] = {"decision": decision}
    if reason is not None:
        body["reason"] = reason
    try:
        answer: dict[str, Any] = exchange.post(at("approvals", approval_id), body)
    except CommandFailed as failed:
        # Of several that were named, the one that it is about.
        raise failed.about(approval_id) from None
    return answer


def _tell(answer: dict[str, Any]) -> None:
    about = answer.get("call_id")
    if "earlier_id" in answer:
        say(f"{printable(answer['earlier_id'])} was asked again as {printable(answer['approval_id'])}")
    say(f"{answer['decision']} {printable(answer['approval_id'])}" + (f": call {printable(about)}" if about else ""))
    count = answer.get("still_waiting", 0)
    if count:
        calls = "1 identical call waits" if count == 1 else f"{count} identical calls wait"
        say(f"{calls} on, with another question: `{typed('approvals')}`")


def _answer_run(
    settings: CommandSettings, exchange: ExchangeClient, run_id: str, decision: str, reason: str | None
) -> None:
    """Answer what a run asks, each question shown with its answer, until the run has ended."""
    from trunkline.cli.space import WAIT_S, events_message

    seen, answers = 0, []
    while True:
        message = events_message(exchange.answer("GET", at("runs", run_id, wait=WAIT_S, after=seen))[1])
        seen += len(message["events"])
        is_open = {one["approval_id"]: one for one in _read(exchange, at("approvals"))["approvals"]}
        named = [str(event.get("details", {}).get("approvalId", "")) for event in message["events"]]
        for approval_id in named:
            if approval_id not in is_open:
                continue
            if not settings.as_json:
                for line in described(is_open[approval_id]):
                    say(line)
            answers.append(_answer(exchange, approval_id, decision, reason))
            if not settings.as_json:
                _tell(answers[-1])
        if message["status"] != "awaiting_approval" and not message.get("more"):
            break
    counted = "1 question" if len(answers) == 1 else f"{len(answers)} questions"
    if not settings.shown_as_json({"answers": answers, "status": message["status"]}):
        say(f"{printable(run_id)} ended: {printable(message['status'])}, {counted} {decision}")


def _allow_from_now_on(
    settings: CommandSettings,
    exchange: ExchangeClient,
    approval_id: str,
    reason: str | None,
    *,
    yes: bool,
    also_untrusted: bool,
) -> None:
    file = exchange.ready.get("config_file", exchange.home.config_file)
    address = at("approvals", approval_id, "rule")
    shown = exchange.get(f"{address}?also_untrusted=true" if also_untrusted else address)
    if not settings.as_json:
        for line in described(_read(exchange, at("approvals", approval_id)), raw=True):
            note(line)
        note(f"\nfor {printable(str(file))}:\n")
        note(printable(shown["rule"], keep="\n"))
        if shown.get("passed_over"):
            note("For this caller and tool these rules of yours are not reached any more:\n")
            for rule in shown["passed_over"]:
                note(f"  {printable(rule)}")
            note("")
        _show_also(exchange, shown["also"])
    if not yes:
        confirm("Allow this from now on?", "this would write these rules")
    body = {"rule": shown["rule"], "also_untrusted": also_untrusted}
    body |= {} if reason is None else {"reason": reason}
    answer = {**exchange.post(address, body), "decision": "approved"}
    if not settings.shown_as_json(answer):
        _tell(answer)
        for other in answer["also"]:
            say(f"allowed by the rule: {printable(other)}")
        say(f"allowed from now on; `{typed('policy')}` shows the rules")
        if not also_untrusted:
            say("(asked about all the same when strangers' words may have led to it; --also-untrusted includes that)")


def _show_also(exchange: ExchangeClient, also: list[str]) -> None:
    """The other calls that wait now and that the same rules let go, whole."""
    if also:
        note("The same rules let go what waits now besides:\n")
    for one in _read(exchange, at("approvals"))["approvals"] if also else ():
        if one["approval_id"] in also:
            for line in described(one):
                note(line)
            note("")
