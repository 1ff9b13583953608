"""``trunkline publish``: one event on a topic, for all who subscribed to it."""

from __future__ import annotations

import click

from trunkline.cli.client import at, decode
from trunkline.cli.numbers import WholeNumber
from trunkline.cli.options import CommandSettings, json_argument, say_json, shared
from trunkline.cli.terminal import answers, note, printable, say


@click.command()
@click.argument("topic")
@click.argument("json_payload", metavar="[JSON]", required=False)
@click.option("--qos", type=WholeNumber(0, 2), default=0, help="0: once, to who is there. 1, 2: until it was taken.")
@click.option("--key", metavar="K", help="A name of yours for this event: a repeat publishes nothing.")
@click.option("--correlation", metavar="ID", help="The conversation it belongs to, a name of yours.")
@shared
def publish(
    settings: CommandSettings, topic: str, json_payload: str | None, qos: int, key: str | None, correlation: str | None
) -> None:
    """Publish JSON (`-` for stdin, `@FILE` for a file, nothing for null) on TOPIC and print the event's id.

    \b
    trunkline publish build.done '{"ok": true}'
    trunkline watch --topic 'build.*'
    """
    body = b"null" if json_payload is None else json_argument(json_payload, "payload")
    exchange = settings.connect()
    path = at("topics", topic, qos=qos, key=key, correlation_id=correlation)
    data = exchange.request("POST", path, body)
    answer = decode(data)
    if settings.as_json:
        say_json(data)
    if "event" not in answer:
        approval_id = printable(str(answer.get("approval_id")))
        note(f"a person is asked first: {answers(approval_id)}")
        raise SystemExit(3)
    if not settings.as_json:
        say(printable(str(answer["event"])))
