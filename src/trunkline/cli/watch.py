"""``trunkline watch``: one line for each thing that happens, as it happens.

Owns the sentence for each kind of entry, which ``ledger show`` uses too: a new kind gets a row in ``SENTENCES``, and is
shown with its fields until it has one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import click

from trunkline.cli.client import ExchangeClient, at, decode, encode
from trunkline.cli.numbers import WholeNumber
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import STATUS_COLOURS, answers, clock, duration, note, printable, say, seconds_of

Entry = dict[str, Any]

# Of the data of a step: one line of a wide terminal.
MAX_VALUE_CHARS: Final = 200


def _took(entry: Entry) -> str:
    if "started_ms" not in entry or "finished_ms" not in entry:
        return ""
    return f" in {duration((entry['finished_ms'] - entry['started_ms']) / 1000)}"


def _fault(entry: Entry) -> str:
    fault = entry.get("fault")
    return f": {fault.get('code')}: {fault.get('message')}" if isinstance(fault, dict) else ""


def _why(entry: Entry) -> str:
    parts = (entry.get("why"), f"by {entry['rule']}" if entry.get("rule") else None)
    told = "; ".join(part for part in parts if part)
    return f": {told}" if told else ""


def _served(entry: Entry) -> str:
    return f", served by {entry['provider']}" if "provider" in entry else ""


def _text(entry: Entry) -> str:
    data = entry.get("data")
    text = data.get("text") if isinstance(data, dict) else None
    return f"{entry.get('call_id')}  {text.rstrip() if isinstance(text, str) else encode(data).decode()}"


def _exit(entry: Entry) -> str:
    """How a command ended that the call ran, where that is not 0."""
    codes = entry["metrics"].get("exit_codes") if isinstance(entry.get("metrics"), dict) else None
    failed = next((code for code in codes if code), None) if isinstance(codes, list) else None
    return "" if failed is None else f", its command ended with {failed}"


# What is said of each kind of entry; any other kind is shown with its fields.
SENTENCES: Final[dict[str, Callable[[Entry], str]]] = {
    "progress": _text,
    "exchange.started": lambda e: f"version {e['version']}",
    "exchange.stopped": lambda e: f"{e.get('open_calls', 0)} calls are left for the next start",
    "policy.changed": lambda e: f"{len(e['rules'])} rules in force",
    "call.accepted": lambda e: f"{e['call_id']}  {e['tool_id']} for {e['caller']}: {e['decision']} by {e['rule']}",
    "call.sent": lambda e: f"call of entry {e['call']}, attempt {e['attempt']}{_served(e)}",
    "call.returned": lambda e: f"call of entry {e['call']} was not taken on by {e['provider']}: {e['code']}",
    "call.settled": lambda e: f"{e['call_id']}  {e['status']}{_exit(e)}{_took(e)}{_fault(e)}",
    "call.refused": lambda e: f"{e['call_id']}  {e['tool_id']} for {e['caller']}: {e['code']}{_why(e)}",
    "call.noted": lambda e: f"{e['call_id']}  {e['note']} {e.get('by', '')} {e.get('detail', '')}",
    "agent.launched": lambda e: f"{e['agent_id']}  pid {e['pid']}",
    "agent.admitted": lambda e: f"{e['agent_id']}  {e['version']} over {e['edge']}",
    "agent.refused": lambda e: f"{e['claimed']}  {e['reason']} (from {e['origin']})",
    "agent.permissions": lambda e: f"{e['agent_id']}  {', '.join(e['permissions'])}",
    "agent.left": lambda e: f"{e['agent_id']}  {e['reason']}",
    "agent.exited": lambda e: f"{e['agent_id']}  {e.get('note') or 'exit code ' + str(e['exit_code'])}",
    "agent.health": lambda e: f"{e['agent_id']}  {e['health']}",
    "tools.offered": lambda e: f"{e['agent_id']}  {', '.join(e['tool_ids'])}",
    "tools.withdrawn": lambda e: f"{e['agent_id']}  {', '.join(e['tool_ids'])}",
    "tool.pinned": lambda e: f"{e['definition']['tool_id']}",
    "question.opened": lambda e: (
        f"{e['approval_id']}  {e['subject']} of {e.get('tool_id') or e.get('agent_id')}, asked by {e['asked_by']}: "
        + answers(e["approval_id"])
    ),
    "question.joined": lambda e: f"{e['approval_id']}  call of entry {e['call']} waits behind it",
    "question.closed": lambda e: f"{e['approval_id']}  {e['how']} by {e.get('by') or 'nobody'} {e.get('reason', '')}",
    "directive.stated": lambda e: f"{e['directive_id']}  {e['tool_id']} by {e['by']}: {e['reason']}",
    "token.issued": lambda e: f"{e['token_id']}  {e['edge']} for {e['agent']}",
    "token.revoked": lambda e: f"{e['token_id']}",
    "process.step": lambda e: f"{e['process']}  {e['subject']} {e['step']}  {_plain(e['data'])}",
    "topic.subscribed": lambda e: f"{e['subscription_id']}  {e['pattern']} for {e['subscriber']}",
    "topic.unsubscribed": lambda e: f"{e['subscription_id']}  {e.get('reason', '')}",
    "event.published": lambda e: f"{e['event_id']}  {e['topic']} by {e['publisher']}",
    "event.taken": lambda e: f"event of entry {e['event']} by {e['subscription_id']}",
    "event.dropped": lambda e: f"event of entry {e['event']} for {e['subscription_id']}: {e['reason']}",
    "agents.labelled": lambda e: f"told of untrusted events: {', '.join(e['agents'])}",
    "ledger.snapshot": lambda e: f"through entry {e['through']}",
    "ledger.part_closed": lambda e: (
        f"entries {e['first']} to {e['last']} removed, {len(e.get('kept', {}))} of them kept"
    ),
    "notice": lambda e: f"{e['code']} at {e['place']} {e.get('who', '')} {e.get('detail', '')}",
}


@click.command()
@click.option("--topic", metavar="PATTERN", help="Only events on topics: `build.*`, `build.#`, `#` for all.")
@click.option("--durable", is_flag=True, help="With --topic: what is published while nobody watches is told later.")
@click.option("--qos", type=WholeNumber(0, 2), help="With --topic: 1 or 2 with --durable, else 0.")
@shared
def watch(settings: CommandSettings, topic: str | None, durable: bool, qos: int | None) -> None:
    """All that happens, one line each, as it happens: calls, questions, agents, tokens, rules. Ctrl-C ends it."""
    if topic is None and (durable or qos is not None):
        raise click.UsageError("--durable and --qos go with --topic")
    exchange = settings.connect()
    if topic is not None:
        _watch_topic(settings, exchange, topic, durable=durable, qos=int(durable) if qos is None else qos)
        return
    try:
        for name, data in exchange.events("GET", at("watch")):
            if settings.as_json:
                if name == "entry":
                    say(printable(data.decode()))
            elif name == "watching":
                note("watching; Ctrl-C ends it")
            elif name == "entry":
                say(sentence(decode(data)))
            elif name == "dropped":
                note(f"… {decode(data)['dropped']} lines were dropped: this terminal is too slow")
    except KeyboardInterrupt:
        return
    note("the exchange has stopped")


def _watch_topic(settings: CommandSettings, exchange: ExchangeClient, topic: str, *, durable: bool, qos: int) -> None:
    """Events on topics, one line each."""
    try:
        for name, data in exchange.events("GET", at("topics", topic, durable=int(durable), qos=qos)):
            if not name:
                # A payload may be written over several lines, which JSON allows between its parts only.
                line = data.replace(b"\r", b" ").replace(b"\n", b" ").decode()
                say(printable(line if settings.as_json else event_line(decode(line))))
            elif name == "watching" and not settings.as_json:
                note("watching; Ctrl-C ends it")
            elif name == "waiting_approval":
                approval_id = printable(str(decode(data)["approval_id"]))
                note(f"a person is asked first: {answers(approval_id)}")
            elif name == "dropped":
                note(f"… {decode(data)['dropped']} events were dropped: this terminal is too slow")
            elif name == "closing":
                note(printable(str(decode(data).get("reason", ""))))
    except KeyboardInterrupt:
        return
    note("the stream has ended")


def event_line(event: Entry) -> str:
    """One event as one line."""
    moment, payload = clock(seconds_of(event["time"])), encode(event["payload"]).decode()
    return f"{moment}  {event['topic']}  {event['publisher']}  {payload}"


def _plain(value: object) -> str:
    """A value as people read it: text as it is, all else as JSON, of which only the beginning is shown."""
    text = value if isinstance(value, str) else encode(value).decode()
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"


def sentence(entry: Entry) -> str:
    """One entry as one line."""
    kind = str(entry.get("kind", "?"))
    moment = float(entry["at"]) / 1000 if "at" in entry else time.time()
    try:
        text = SENTENCES[kind](entry)
    except (KeyError, TypeError):
        others = {name: value for name, value in entry.items() if name not in {"kind", "n", "at"}}
        text = "  ".join(f"{name}={_plain(value)}" for name, value in others.items())
    word = str(entry.get("status") or entry.get("how") or entry.get("decision") or "")
    word = "failed" if word == "succeeded" and _exit(entry) else word
    colour = STATUS_COLOURS.get(word, "red" if kind.endswith(".refused") else None)
    shown = click.style(f"{printable(kind):<18}", fg=colour, dim=True if colour is None else None)
    return f"{clock(moment)}  {shown}  {printable(text.rstrip())}"
