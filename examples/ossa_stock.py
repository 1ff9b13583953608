"""An OSSA agent: keeps stock. What it is told by a message of quality 2 happens exactly once, whatever is killed when.

    (umask 077; trunkline token new ossa --agent stock --type worker --json > stock.json)
    OSSA_IDENTITY=stock.json python examples/ossa_stock.py
    trunkline call trunkline/publish '{"topic": "stock.delivered", "payload": {"item": "tea", "count": 3}, "qos": 2}'
    trunkline call stock/reserve '{"item": "tea", "count": 2}'
    trunkline call stock/count '{"item": "tea"}'

``STOCK`` names the file with the stock; the agent's inbox is in the same one, so that both change in one transaction.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from trunkline.sdk import OssaAgent, OssaError, OssaMessage

STOCK = os.environ.get("STOCK", "stock.sqlite")
MOVE = "insert into moves values (?, ?)"
# One at a time: each sees what the one before it did.
agent = OssaAgent(inbox=STOCK, concurrency=1)
ITEM = {"item": {"type": "string"}}
ITEM_AND_COUNT = {**ITEM, "count": {"type": "integer", "minimum": 1}}


@agent.handle("reserve", input_schema={"type": "object", "properties": ITEM_AND_COUNT, "required": ["item", "count"]})
def reserve(request: OssaMessage) -> dict[str, Any]:
    """Takes something out of stock."""
    item, count = request.payload["item"], request.payload["count"]
    left = in_stock(item)
    if count > left:
        raise OssaError(507, f"there are {left}", {"left": left})
    request.also(MOVE, item, -count)
    return {"item": item, "left": left - count}


@agent.handle("count", input_schema={"type": "object", "properties": ITEM, "required": ["item"]}, side_effects=False)
def count(request: OssaMessage) -> dict[str, Any]:
    """How many of something there are."""
    return {"item": request.payload["item"], "count": in_stock(request.payload["item"])}


def delivered(event: OssaMessage) -> None:
    """Something was delivered, perhaps while this agent was not running."""
    event.also(MOVE, event.payload["item"], event.payload["count"])


def in_stock(item: str) -> int:
    """The sum of all that came and went."""
    with sqlite3.connect(STOCK) as db:
        found: int = db.execute("select coalesce(sum(count), 0) from moves where item = ?", (item,)).fetchone()[0]
    db.close()
    return found


if __name__ == "__main__":
    with sqlite3.connect(STOCK) as made:
        made.execute("create table if not exists moves (item text, count integer)")
    made.close()
    agent.subscribe("stock.delivered", delivered, qos=2, durable=True)
    agent.run()
