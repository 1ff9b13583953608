"""Planted tokens, sent through every field of OpenSentience and HTTP in every spelling; none may be found (P-H1).

The other edges have tests of their own that use ``forms``: ``tests/unit/edges/test_everywhere.py`` holds which.
``make soak`` goes on with other seeds.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import urllib.parse
from pathlib import Path
from typing import Any

import psutil

from tests.running import RawAgent, Running, calling, running, wait_until
from trunkline.model import INLINE_OUTPUT_BYTES

# What a launched agent prints: its own token in every spelling, cut into pieces; and a path that looks like an escape.
PRINTER = r"""
import base64, os, sys, time, urllib.parse
token = os.environ["OPENSENTIENCE_SESSION_TOKEN"]
open(sys.argv[1], "w").write(token)
data = token.encode()
for text in (token, data.hex(), base64.b64encode(data).decode(), base64.urlsafe_b64encode(b"u:" + data).decode(),
             "".join(f"%{byte:02x}" for byte in data), "C:\\u0041\\/" + token):
    for piece in (text[:20], text[20:], "\n"):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stderr.write("told " + text + "\n")
sys.stdout.write("\u2028 no newline " + token)
sys.stdout.flush()
open(sys.argv[1] + ".done", "w").close()
time.sleep(600)
"""


def spellings(secret: str) -> dict[str, str]:
    """How a secret may be written."""
    data = secret.encode()
    return {
        "plain": secret,
        "base64": base64.b64encode(data).decode(),
        "base64 after something": base64.b64encode(b"user:" + data).decode(),
        "base64 for addresses": base64.urlsafe_b64encode(b"x" + data).decode().rstrip("="),
        "hexadecimal": data.hex(),
        "percent": "".join(f"%{byte:02X}" for byte in data),
    }


def forms(secret: str) -> list[bytes]:
    """What must not be found of it: each spelling, of the encoded ones the part that is always the same."""
    data = secret.encode()
    found = [secret, data.hex(), data.hex().upper(), urllib.parse.quote(secret, safe="")]
    found += ["".join(f"%{byte:02{case}}" for byte in data) for case in "xX"]
    found += ["".join(f"\\u{byte:04x}" for byte in data)]
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + data).decode()[4:-4]
        found += [encoded, encoded.replace("+", "-").replace("/", "_")]
    return [text.encode() for text in found]


class Planting:
    """Puts canaries wherever a peer may put text."""

    def __init__(self, exchange: Running, canaries: list[str], seed: int) -> None:
        self.exchange = exchange
        self.spelled = [text for canary in canaries for text in spellings(canary).values()]
        self.choice = random.Random(seed)
        self.turn = itertools.cycle(self.spelled)
        self.calls = 0

    def text(self) -> str:
        return f"{self.choice.choice(['', 'see ', 'x=', 'at '])}{next(self.turn)}"

    def words_of_an_agent(self, agent: RawAgent) -> None:
        """Tools, errors, complaints."""
        described: dict[str, Any] = {
            "name": "read",
            "side_effects": False,
            "description": self.text(),
            "tags": [self.text()],
            "input_schema": {
                "type": "object",
                "description": self.text(),
                "properties": {"x": {"default": self.text()}},
            },
            "required_permissions": [],
        }
        agent.send("agent.tools.register", {"tools": [agent.tool(**described), {"tool_id": self.text(), "name": "y"}]})
        assert agent.wait_for("core.tools.registered")["payload"]["registered"], "a tool with canaries is a tool"
        agent.send("agent.error", {}, error={"code": "agent.x", "message": self.text()})
        agent.send("agent.tool.result", {"call_id": self.text()[:128], "status": "succeeded", "output": {}})
        agent.send(self.text()[:128], {"x": self.text()}, request_id=self.text()[:128])
        agent.send("agent.heartbeat", {"status": self.text()})
        agent.send("agent.tools.unregister", {"tool_ids": [self.text()]})
        agent.wait_for("core.tools.unregistered")

    def answer(self, agent: RawAgent, call: dict[str, Any]) -> None:
        """A stream in which a canary is cut in two, then a result or a failure."""
        cut = self.text()
        for seq, piece in enumerate((cut[: len(cut) // 2], cut[len(cut) // 2 :]), start=1):
            chunk = {"call_id": call["payload"]["call_id"], "seq": seq, "channel": "stdout", "data": {"text": piece}}
            agent.send("agent.tool.stream", chunk, request_id=call["request_id"])
        if self.choice.random() < 0.5:
            agent.result(
                call, output={self.text(): [self.text()], "n": {"deep": self.text()}}, metrics={"m": self.text()}
            )
        else:
            error = {"code": "tool.failed", "message": self.text(), "details": {"why": self.text()}}
            agent.result(call, "failed", error=error)

    def call(self, agent: RawAgent, caller: RawAgent) -> None:
        """One call with a canary in each field; over HTTP or by another agent."""
        self.calls += 1
        tool_id, name = f"{agent.agent_id}/read", f"c{self.calls}"
        value = {"a": self.text(), self.text(): 1, "list": [self.text(), {"b": self.text()}]}
        if self.calls % 4:
            payload = {"call_id": name, "tool_id": tool_id, "input": value, "context": {"c": self.text()}}
            if self.calls % 3 == 0:
                payload["idempotency_key"] = f"{name} {self.text()}"[:128]
            actor = {"type": "agent", "id": self.text()[:128], "display": self.text()[:128]}
            ids = {"correlation_id": self.text()[:128], "causation_id": self.text()[:128]}
            caller.send("agent.tool.call", payload, request_id=name, actor=actor, **ids)
            self.answer(agent, agent.wait_for("core.tool.call"))
            caller.wait_for("core.tool.result")
        else:
            fields = {"correlation_id": self.text()[:128], "causation_id": self.text()[:128]}
            asked = calling(self.exchange, tool_id, value, idempotency_key=f"{name} {self.text()}"[:128], **fields)
            self.answer(agent, agent.wait_for("core.tool.call"))
            asked.result(20)

    def words_of_people(self, agent_id: str) -> None:
        """Reasons, wrong tools, wrong fields, wrong paths."""
        request = self.exchange.request
        request(
            "POST",
            "/v1/directives",
            {"tool_id": f"{agent_id}/read", "reason": self.text(), "input": {"x": self.text()}},
        )
        request("POST", "/v1/calls", {"tool_id": self.text()[:128], "input": {}})
        request("POST", "/v1/calls", {"tool_id": f"{agent_id}/read", "input": {}, self.text(): self.text()})
        request("POST", f"/v1/calls/{urllib.parse.quote(self.text(), safe='')}/cancel", {"reason": self.text()})
        request("GET", f"/v1/{urllib.parse.quote(self.text(), safe='')}?{urllib.parse.quote(self.text(), safe='')}=1")


def plant(folder: Path, seed: int, canaries: int, calls: int) -> int:
    """Plant, stop, and search every file; how many calls there were."""
    script, loot = folder / "printer.py", folder / "out" / "loot"
    loot.parent.mkdir()
    script.write_text(PRINTER)
    agent_config = f"""
[[agent]]
id = "print.er"
command = ["python", "-I", "-S", {json.dumps(str(script))}, {json.dumps(str(loot))}]
write = [{json.dumps(str(loot.parent))}]
"""
    home = folder / "home"
    with running(home, agent_config) as exchange:
        issued = [exchange.new_token(f"nobody.{n}", edge=("opensentience", "http")[n % 2]) for n in range(canaries - 4)]
        agent, caller = RawAgent(exchange, "raw.agent"), RawAgent(exchange, "raw.caller")
        secrets = [*issued, exchange.token, agent.token, caller.token]
        agent.hello("tools", "streaming", agent_version="1.0.0", manifest_hash=secrets[0])
        caller.hello("tools", "calls")
        planting = Planting(exchange, secrets, seed)
        planting.words_of_an_agent(agent)
        for _ in range(calls):
            planting.call(agent, caller)
        planting.words_of_people(agent.agent_id)
        _cut_ends(exchange, agent, secrets)
        _escapes(exchange, agent, secrets)
        _large_outputs(exchange, agent, secrets)
        wait_until(loot.with_name("loot.done").exists, "everything is printed")
        secrets.append(loot.read_text())
        loot.unlink()
        _search_processes(secrets)
        assert exchange.stop() == 0
    found = [form for secret in secrets for form in forms(secret)]
    # Nor in two pieces: as much of one as nobody could guess.
    found += [piece.encode() for secret in secrets for piece in (secret[4:24], secret[-20:])]
    files = [path for path in [*home.rglob("*"), exchange.output] if path.is_file() and path.name != "operator.token"]
    assert len(files) >= 4
    for path in files:
        data = path.read_bytes()
        leaked = [form for form in found if form in data]
        assert not leaked, f"{path.name} has {leaked[0][:40]!r}"
    assert "[masked:trunkline-token]" in json.dumps(exchange.entries())
    assert (home / "logs" / "print.er").exists()
    return planting.calls


def _escapes(exchange: Running, agent: RawAgent, secrets: list[str]) -> None:
    """Each letter of a token as a JSON escape, on the wire."""
    for secret in secrets[:8]:
        asked = calling(exchange, f"{agent.agent_id}/read")
        call = agent.wait_for("core.tool.call")
        hidden = "".join(f"\\u{ord(letter):04x}" for letter in secret)
        message = {
            "v": 1,
            "type": "agent.tool.result",
            "id": "e",
            "ts": "2026-01-01T00:00:00Z",
            "request_id": call["request_id"],
            "payload": {"call_id": call["payload"]["call_id"], "status": "succeeded", "output": {"x": "HERE"}},
        }
        agent.send_bytes(json.dumps(message).replace("HERE", hidden).encode())
        assert asked.result(20)["output"] == {"x": secret}


def _large_outputs(exchange: Running, agent: RawAgent, secrets: list[str]) -> None:
    """An output that is handed over by reference is stored by itself."""
    for secret in secrets[:4]:
        asked = calling(exchange, f"{agent.agent_id}/read")
        call = agent.wait_for("core.tool.call")
        output = {"text": ["z" * INLINE_OUTPUT_BYTES, *spellings(secret).values()]}
        agent.result(call, output=output)
        told = asked.result(20)["output"]
        exchange.wait_entry("call.settled", call_id=call["payload"]["call_id"])
        status, whole = exchange.request("GET", f"/v1/blobs/{told['$ref'].removeprefix('sha256:')}")
        assert (status, whole) == (200, output), "whoever may see it sees what was said"


def _cut_ends(exchange: Running, agent: RawAgent, secrets: list[str]) -> None:
    """A stream so long that only its end is kept, which then begins in the middle of a token."""
    for secret in secrets[:8]:
        asked = calling(exchange, f"{agent.agent_id}/read")
        call = agent.wait_for("core.tool.call")
        end = " " + "z" * 65_500
        for seq, text in enumerate((f"token {secret}", end), start=1):
            chunk = {"call_id": call["payload"]["call_id"], "seq": seq, "channel": "stdout", "data": {"text": text}}
            agent.send("agent.tool.stream", chunk, request_id=call["request_id"])
        agent.result(call, output={})
        asked.result(20)
        settled = exchange.wait_entry("call.settled", call_id=call["payload"]["call_id"])
        assert secret[-20:] not in settled["stream"]["tail"], "the end of a token"
        assert settled["stream"]["tail"].endswith("z" * 1000)


def _search_processes(secrets: list[str]) -> None:
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        assert not [secret for secret in secrets if secret in line], process
