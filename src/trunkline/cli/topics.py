"""``trunkline topics``: who is told of events on which topics, what is owed to whom, and how one of them is ended.

Events themselves are ``trunkline publish`` and ``trunkline watch --topic``.

Owns the table. Does not own subscriptions (``hub.topics``).
"""

from __future__ import annotations

from typing import Any

import click

from trunkline.cli.client import ExchangeClient, at, decode
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import clock, printable, say, seconds_of, table, typed


@click.group(invoke_without_command=True)
@shared
@click.pass_context
def topics(context: click.Context, settings: CommandSettings) -> None:
    """Who is told of events on which topics, since when, and what is owed to them.

    \b
    trunkline topics
    trunkline topics end ID
    """
    if context.invoked_subcommand is not None:
        return
    found = _all(settings.connect())
    if settings.shown_as_json({"subscriptions": found}):
        return
    if not found:
        say(f"No subscriptions. `{typed('watch --topic PATTERN')}` makes one for as long as it runs.")
        return
    rows = [
        [
            one["subscription"],
            one["subscriber"],
            one["topic"],
            "durable" if one["durable"] else "while connected",
            str(one["qos"]),
            f"{one['owed_events']:,}",
            clock(seconds_of(one["since"])),
            "connected" if one["connected"] else "away",
        ]
        for one in found
    ]
    table(["ID", "WHO", "TOPIC", "LASTS", "QOS", "OWED", "SINCE", "STATE"], rows, status=7, keep=(0, 2))


def _all(exchange: ExchangeClient) -> list[dict[str, Any]]:
    """The subscriptions of all pages, oldest first."""
    found: list[dict[str, Any]] = []
    after: int | None = None
    while True:
        page = exchange.get(at("subscriptions", after=after))
        found += page["subscriptions"]
        after = page["next"]
        if after is None:
            return found


@topics.command("end", short_help="End a subscription of anybody.")
@click.argument("subscription_id", metavar="ID")
@shared
def end(settings: CommandSettings, subscription_id: str) -> None:
    """End the subscription ID, whoever has it: nothing more is told or owed by it. He may subscribe again; a rule that
    denies him the topic keeps him from being told (docs/topics.md).
    """
    answer = decode(settings.connect().request("DELETE", at("subscriptions", subscription_id)))
    if not settings.shown_as_json(answer):
        say(f"ended {printable(subscription_id)}")
