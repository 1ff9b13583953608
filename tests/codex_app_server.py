"""A stand-in for ``codex app-server``: one JSON object a line, as the real one, and as little of it as tests need.

``thread/start`` is answered and announced; ``echo`` gives its params back; ``ask`` asks for an approval and tells its
answer as a notification; ``die`` ends it; ``say`` writes lines as they are.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def say(message: object) -> None:
    sys.stdout.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
    sys.stdout.flush()


def request(message: dict[str, Any], params: Any) -> None:
    number, method = message["id"], message["method"]
    if method == "initialize":
        say({"id": number, "result": {"userAgent": params["clientInfo"]["name"], "cwd": os.getcwd()}})  # noqa: PTH109
    elif method == "thread/start":
        say({"id": number, "result": {"thread": {"id": "thread_1"}}})
        say({"method": "thread/started", "params": {"thread": {"id": "thread_1"}}})
    elif method == "echo":
        say({"id": number, "result": params})
    elif method == "ask":
        say({"id": number, "result": {}})
        say({"id": params["id"], "method": params["method"], "params": params.get("params", {})})
    elif method == "die":
        sys.stderr.write("it is over\n")
        os._exit(3)
    elif method == "hang":
        pass
    elif method == "say":
        for line in params["lines"]:
            say(line)
        say({"id": number, "result": {}})
    else:
        say({"id": number, "error": {"code": -32601, "message": f"unknown method {method}"}})


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "method" in message and "id" in message:
            request(message, message.get("params"))
        elif "id" in message:
            say({"method": "answered", "params": {"id": message["id"], "result": message.get("result")}})


if __name__ == "__main__":
    main()
