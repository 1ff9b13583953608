"""P-D8: text that would act on a terminal, forge a line or hide, in every field that a stranger fills.

A real exchange, an agent that says it everywhere, and every verb of the command line; then the logs.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unicodedata import category

import pytest

from tests.running import RawAgent, Running, running, wait_until
from tests.unit.cli.conftest import Said, trunkline
from tests.unit.cli.test_terminal import NASTY

# A lone half of a character is no JSON: it does not come in.
TEXTS = [text for name, text in NASTY.items() if name != "lone surrogate"]
LIAR = "com.test.liar"
CONFIG = f"""
[[policy.rule]]
caller = "*"
tool = "{LIAR}/ask"
decision = "ask"

[[policy.rule]]
caller = "*"
tool = "*"
decision = "allow"

[[agent]]
id = "com.test.printer"
command = ["sh", "-c", "cat $0; exec sleep 600", FILE]
"""
# What nobody sees, or sees as something else, besides what Python calls unprintable.
INVISIBLE = set("\u034f\u115f\u1160\u2800\u3164\ufe0f\uffa0\u180e")


def lie(agent: RawAgent) -> None:
    """Answer each call with its own text, in a stream, an output or an error."""
    count = 0
    with contextlib.suppress(OSError):
        while (message := agent.receive()) is not None:
            if message["type"] != "core.tool.call":
                continue
            count += 1
            call, text = message["payload"], message["payload"]["input"]["text"]
            chunk = {"call_id": call["call_id"], "seq": 1, "channel": "stdout", "data": {"text": text}}
            agent.send("agent.tool.stream", chunk, request_id=message.get("request_id", ""))
            if count % 2:
                agent.result(message, output={"text": text, text: [text]})
            else:
                error = {"code": "liar.failed", "message": text, "retryable": False, "details": {text: text}}
                agent.result(message, "failed", error=error)


@pytest.fixture(scope="module")
def exchange(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="tl-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "printed").write_text("\n".join(TEXTS) + "\n")
        with running(folder / "home", CONFIG.replace("FILE", json.dumps(str(folder / "printed")))) as found:
            agent = RawAgent(found, LIAR)
            agent.socket.settimeout(None)
            agent.hello("tools", "streaming", "directives")
            agent.register({"name": "say", "side_effects": False}, {"name": "ask"})
            thread = threading.Thread(target=lie, args=(agent,))
            thread.start()
            for number, text in enumerate(TEXTS):
                found.call(
                    f"{LIAR}/say", {"text": text, text: text}, correlation_id=text, idempotency_key=f"{number}{text}"
                )
                found.call(f"{LIAR}/say", {"text": text})
                found.call(f"{LIAR}/{text}", {"text": text})
            for text in TEXTS[:4]:
                found.call(f"{LIAR}/ask", {"text": text, text: text}, wait=False)
                found.request("POST", "/v1/directives", {"tool_id": f"{LIAR}/say", "reason": text})
                agent.send("agent.error", {}, error={"code": text, "message": text})
                agent.send(f"agent.{text}", {}, request_id=text)
                agent.send("agent.directive.request", {"tool_id": f"{LIAR}/say", "reason": text, "input": {text: text}})
            yield found
            agent.socket.shutdown(2)
            thread.join(20)


def judge(shown: str, *, forged: bool = False) -> None:
    """Nothing is hidden; and no line looks like one of ours, unless the lines are the agent's own (``forged``)."""
    for line in shown.split("\n"):
        hidden = [f"U+{ord(char):04X}" for char in line if not char.isprintable() or char in INVISIBLE]
        assert not hidden, f"{hidden} in {line!r}"
        assert forged or not line.startswith("ERROR: forged"), "a line of ours that is not"


def judge_said(said: Said) -> None:
    judge(said.out)
    judge(said.err)


VERBS = [
    ("status",), ("agents",), ("tools",), ("tools", f"{LIAR}/say"), ("calls",), ("approvals",), ("policy",),
    ("token", "list"), ("ledger", "show"), ("ledger", "show", "--last", "500"), ("ledger", "verify"), ("reload",),
]  # fmt: skip


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["for people", "for programs"])
def test_every_verb_shows_what_is_hidden(exchange: Running, verb: tuple[str, ...], form: tuple[str, ...]) -> None:
    said = trunkline("--home", str(exchange.home), *form, *verb)
    judge_said(said)
    assert said.code == 0, said.err


@pytest.mark.parametrize("text", TEXTS, ids=[name for name in NASTY if name != "lone surrogate"])
def test_a_calls_output_its_stream_its_failure_and_its_record_are_shown_escaped(exchange: Running, text: str) -> None:
    for _ in range(2):
        said = trunkline("--home", str(exchange.home), "call", f"{LIAR}/say", json.dumps({"text": text}), "--follow")
        judge(said.out)
        # What a tool prints has lines, and whoever follows it sees them as they are.
        judge(said.err, forged=True)
        assert "\\u" in said.out + said.err or text == NASTY["newline"]
    judge_said(trunkline("--home", str(exchange.home), "call", f"{LIAR}/{text}", "{}"))


def test_what_is_watched_is_shown_escaped(exchange: Running) -> None:
    command = [sys.executable, "-m", "trunkline", "--home", str(exchange.home), "watch"]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert watching.stderr is not None
        assert "watching" in watching.stderr.readline()
        for text in TEXTS:
            exchange.call(f"{LIAR}/say", {"text": text}, correlation_id=text)
        exchange.call(f"{LIAR}/say", {"text": "the last"})
        assert watching.stdout is not None
        lines = []
        while "the last" not in (line := watching.stdout.readline()):
            assert line
            lines.append(line)
    finally:
        watching.kill()
        watching.communicate(timeout=20)
    judge("".join(lines))
    assert len(lines) >= 2 * len(TEXTS)


def test_the_logs_of_exchange_and_agents_are_plain_text(exchange: Running) -> None:
    judge(exchange.said())
    folder = exchange.home / "logs" / "com.test.printer"
    log = wait_until(lambda: [file for file in folder.glob("*.log") if file.stat().st_size > 200], "a log")[0]
    lines = log.read_text().replace("\ufe0f", "").split("\n")
    assert len(lines) >= len(TEXTS)
    for line in lines:
        hidden = [
            f"U+{ord(char):04X}" for char in line if category(char) in {"Cc", "Cf", "Zl", "Zp"} or char in INVISIBLE
        ]
        assert not hidden, f"{hidden} in {line!r}"
