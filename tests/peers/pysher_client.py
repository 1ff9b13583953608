"""A client with pysher as it is published; one JSON object a line says what happened.

``python pysher_client.py HOST PORT SECURE KEY CWD SECRET_FILE``. It sends events on private channels only.
"""

from __future__ import annotations

import json
import queue
import sys
from pathlib import Path
from typing import Any

import pysher

SAID: queue.Queue[tuple[str, Any]] = queue.Queue()


def tell(name: str, value: object) -> None:
    sys.stdout.write(json.dumps({name: value}) + "\n")
    sys.stdout.flush()


def heard(name: str, within_s: float = 20, **fields: object) -> Any:
    """The next event of this name in which these fields are so."""
    while True:
        event, data = SAID.get(timeout=within_s)
        found = json.loads(data) if isinstance(data, str) and data else data
        if event == name and all(found.get(field) == value for field, value in fields.items()):
            return found


def listen(channel: Any, *events: str) -> Any:
    for event in events:
        channel.bind(event, lambda data, event=event: SAID.put((event, data)))
    return channel


def capabilities(client: Any) -> Any:
    """What is told at once to who subscribes. pysher notes a channel after it asked for it, and drops what comes before
    that: then it is asked again.
    """
    for _ in range(9):
        listen(client.subscribe("pylon.system"), "pylon.capabilities")
        try:
            return heard("pylon.capabilities", within_s=4)
        except queue.Empty:
            client.unsubscribe("pylon.system")
    raise AssertionError("nothing was told")


def main() -> None:
    host, port, secure, key, cwd, secret_file = sys.argv[1:]
    secret = Path(secret_file).read_text().strip()
    client = pysher.Pusher(key, secure=secure == "yes", custom_host=host, port=int(port), secret=secret)
    client.connection.bind("pusher:connection_established", lambda data: SAID.put(("established", data)))
    client.connection.bind("pusher:error", lambda data: SAID.put(("error", data)))
    client.connection.bind("pusher:pong", lambda data: SAID.put(("pong", data)))
    client.connect()
    event, data = SAID.get(timeout=20)
    tell(event, data if event == "error" else True)
    if event == "error":
        client.connection.join(20)
        tell("gave_up", not client.connection.is_alive())
        return
    tell("tools", [tool["tool_id"] for tool in capabilities(client)["tools"]])
    client.connection.send_ping()
    tell("pong", heard("pong"))
    system = listen(client.subscribe("private-pylon.system"), "pylon.system.pong")
    system.trigger("client-pylon.ping", "")
    tell("system_pong", sorted(heard("pylon.system.pong")))
    codex = listen(
        client.subscribe("private-pylon.codex"), "pylon.codex.status", "pylon.codex.response", "pylon.codex.event"
    )
    codex.trigger("client-codex.connect", {"workspaceId": "ws_1", "cwd": cwd})
    tell("status", heard("pylon.codex.status", status="connected")["status"])
    codex.trigger("client-codex.request", {"workspaceId": "ws_1", "requestId": "r1", "method": "thread/start"})
    tell("response", heard("pylon.codex.response"))
    # Without a bound its thread is waited for, which may wait in turn for this one.
    client.disconnect(timeout=5)
    tell("done", True)


if __name__ == "__main__":
    main()
