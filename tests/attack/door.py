"""Somebody at the door: a process of its own that says hello with a token and reports what it was told.

Failures are counted for each process, so each attempt that is to be judged by itself needs one. Only the standard
library, and as little of it as possible: a hundred of them start in a second.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.running import Running

# argv: where to connect, then as many hellos as there are further arguments, each on a connection of its own.
_CODE = r"""
import json, socket, struct, sys, time
where = sys.argv[1]
for hello in sys.argv[2:]:
    if where.startswith("/"):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(where)
    else:
        host, _, port = where.rpartition(":")
        peer = socket.create_connection((host, int(port)))
    peer.settimeout(20)
    data = hello.encode()
    started = time.monotonic()
    peer.sendall(struct.pack(">I", len(data)) + data)
    heard = b""
    while True:
        try:
            more = peer.recv(65536)
        except ConnectionResetError:
            break
        heard += more
        # A welcome stays open; so much is enough to tell.
        if not more or b'"session_id"' in heard:
            break
    print(json.dumps({"heard": heard.hex(), "closed": not more, "after_s": time.monotonic() - started}), flush=True)
"""


class Visitor:
    """One process at the door."""

    def __init__(self, exchange: Running, *hellos: dict[str, Any], tcp: bool = False) -> None:
        where = exchange.ready["tcp"].removeprefix("tcp://") if tcp else exchange.ready["socket"]
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CODE, where, *map(json.dumps, hellos)],
            stdout=subprocess.PIPE,
            text=True,
        )

    def told(self) -> list[dict[str, Any]]:
        """What it heard to each of its hellos."""
        said, _ = self.process.communicate(timeout=40)
        assert self.process.returncode == 0, said
        return [json.loads(line) for line in said.splitlines()]


def hello(agent_id: str, token: object, **payload: Any) -> dict[str, Any]:
    """A hello whose id and time are always the same, so that answers can be compared byte for byte."""
    return {
        "v": 1,
        "type": "agent.hello",
        "id": "11111111-1111-4111-8111-111111111111",
        "ts": "2026-01-01T00:00:00Z",
        "payload": {
            "session_token": token,
            "agent_id": agent_id,
            "agent_version": "1.0.0",
            "protocol": {"supported_versions": [1], "capabilities": ["tools"]},
            **payload,
        },
    }


def words(heard: str) -> bytes:
    """The answer without what differs from answer to answer: its own id and its time, whose lengths stay."""
    data = bytes.fromhex(heard)
    message = json.loads(data[4:])
    for name in ("id", "ts"):
        data = data.replace(message[name].encode(), b"-" * len(message[name]))
    return data
