"""An agent written only from the specification: a socket, four bytes of length, JSON. Nothing of Trunkline is imported.

Its one tool, ``add``, adds two numbers, shows one line on the way, and fails in a structured way when it cannot.
Started with the variables that an exchange sets; prints each message type it hears, and ends when the exchange closes.
"""

import json
import os
import socket
import struct
import sys
import threading
import time
import uuid
from datetime import UTC, datetime

AGENT_ID = os.environ["OPENSENTIENCE_AGENT_ID"]
ADDRESS = os.environ["OPENSENTIENCE_SOCKET"]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    "required": ["a", "b"],
}
sending = threading.Lock()

if ADDRESS.startswith("tcp://"):
    host, _, port = ADDRESS.removeprefix("tcp://").rpartition(":")
    line = socket.create_connection((host, int(port)))
else:
    line = socket.socket(socket.AF_UNIX)
    line.connect(ADDRESS)


def send(type_, payload, about=None):
    message = {"v": 1, "type": type_, "id": str(uuid.uuid4()), "ts": datetime.now(UTC).isoformat(), "payload": payload}
    for name in ("request_id", "correlation_id", "causation_id"):
        if about and about.get(name):
            message[name] = about[name]
    body = json.dumps(message).encode()
    with sending:
        line.sendall(struct.pack(">I", len(body)) + body)


def read(size):
    data = b""
    while len(data) < size:
        piece = line.recv(size - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data


def beat(session_id, interval_s):
    started = time.monotonic()
    while True:
        time.sleep(interval_s)
        uptime_ms = int((time.monotonic() - started) * 1000)
        send("agent.heartbeat", {"session_id": session_id, "uptime_ms": uptime_ms, "inflight_calls": 0, "status": "ok"})


def answer(message):
    call = message["payload"]
    numbers = [call["input"].get(name) for name in ("a", "b")]
    result = {"call_id": call["call_id"], "status": "succeeded"}
    if all(type(number) in {int, float} for number in numbers):
        chunk = {"call_id": call["call_id"], "seq": 1, "channel": "log", "data": {"text": "adding"}, "done": True}
        send("agent.tool.stream", chunk, message)
        result["output"] = {"sum": sum(numbers)}
    else:
        error = {"code": "tool.invalid_input", "message": "a and b must be numbers"}
        result |= {"status": "failed", "error": error}
    send("agent.tool.result", result, message)


hello = {
    "session_token": os.environ.pop("OPENSENTIENCE_SESSION_TOKEN"),
    "agent_id": AGENT_ID,
    "agent_version": "1.0.0",
    "protocol": {"supported_versions": [1], "capabilities": ["tools", "streaming"]},
}
send("agent.hello", hello)
while True:
    (length,) = struct.unpack(">I", read(4))
    heard = json.loads(read(length))
    print(heard["type"], flush=True)  # noqa: T201
    if heard["type"] == "core.welcome":
        if "error" in heard:
            sys.exit(f"refused: {heard['error']['code']}")
        welcome = heard["payload"]
        interval = welcome["heartbeat_interval_ms"] / 1000
        threading.Thread(target=beat, args=(welcome["session_id"], interval), daemon=True).start()
        tool = {"tool_id": f"{AGENT_ID}/add", "name": "add", "description": "Adds.", "input_schema": SCHEMA}
        send("agent.tools.register", {"tools": [{**tool, "side_effects": False}]})
    elif heard["type"] == "core.tool.call":
        answer(heard)
