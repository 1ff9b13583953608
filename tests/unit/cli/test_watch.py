"""``trunkline watch``: one line for each thing that happens, whatever it is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import Any, get_args

import msgspec
import pytest
from msgspec import Raw

from tests.unit.cli.conftest import Running
from trunkline import entries
from trunkline.cli.watch import SENTENCES, sentence
from trunkline.entries import AnyEntry
from trunkline.model import Decision, Health, Status, ToolDefinition, fault

BOUND_S = 10
NASTY = "\x1b[31m\u202eevil\u200b\nforged line"


def example(kind: type[entries.Entry]) -> entries.Entry:
    """An entry of a kind with something nasty in every text."""
    values: dict[type, Any] = {
        str: NASTY,
        int: 7,
        float: 1.5,
        bool: True,
        Raw: Raw(json.dumps({"x": NASTY}).encode()),
        Decision: Decision.ASK,
        Status: Status.FAILED,
        Health: Health.OK,
        ToolDefinition: ToolDefinition(NASTY, NASTY, Raw(b"{}")),
    }
    given: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.required:
            given[field.encode_name] = values.get(field.type, ())
    if kind is entries.CallSettled:
        given |= {"fault": fault("tool.failed", NASTY), "started_ms": 1000, "finished_ms": 1250}
    return kind(**given)


@pytest.mark.parametrize("kind", get_args(AnyEntry), ids=lambda kind: kind.__name__)
def test_every_kind_of_entry_is_one_escaped_line(kind: type[entries.Entry]) -> None:
    line = sentence(json.loads(entries.encode(example(kind))))
    plain = line.replace("\x1b[0m", "")
    for code in ("\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[2m"):
        plain = plain.replace(code, "", 1)
    assert plain.isprintable(), plain


@pytest.mark.parametrize("kind", ["process.step", "some.new_kind"])
def test_what_an_entry_holds_is_shown_as_json_and_not_as_python_writes_it(kind: str) -> None:
    data = {"a": None, "b": ["c" * 300]}
    entry = {"kind": kind, "n": 1, "at": 0, "process": "spaces.run", "subject": "run_1", "step": "ended", "data": data}
    line = sentence(entry)
    assert '{"a":null,"b":["ccc' in line
    assert len(line) < 400


def test_each_kind_of_entry_has_a_sentence_and_no_other_one_has() -> None:
    known = {kind.__struct_config__.tag for kind in get_args(AnyEntry)}
    assert set(SENTENCES) - {"progress"} == known


def test_a_settled_call_says_how_and_how_long() -> None:
    entry = {"kind": "call.settled", "at": time.time() * 1000, "call_id": "c", "status": "succeeded"}
    assert "c  succeeded in 250 ms" in sentence({**entry, "started_ms": 1000, "finished_ms": 1250})


def test_an_unknown_kind_is_shown_with_its_fields() -> None:
    assert sentence({"kind": "new.kind", "n": 1, "at": 0, "what": "x"}).endswith("what=x")


def test_a_kind_with_missing_fields_is_no_crash() -> None:
    assert "call.settled" in sentence({"kind": "call.settled", "at": 0})


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_watching_prints_as_it_happens_and_ends_quietly(running: Running, options: tuple[str, ...]) -> None:
    command = [
        sys.executable,
        "-c",
        "from trunkline.cli.main import main; main()",
        "--home",
        str(running.home),
        "watch",
    ]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    deadline = time.monotonic() + BOUND_S
    while not running.watchers and time.monotonic() < deadline:
        time.sleep(0.01)
    running.later(running.watchers[0], b'{"kind":"agent.left","n":1,"at":0,"agent_id":"x","reason":"\\u001bbye"}')
    line = process.stdout.readline()
    assert "agent.left" in line
    assert "\\u001bbye" in line
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=BOUND_S)
    assert process.returncode == 0


def test_watching_ends_when_the_exchange_does(running: Running) -> None:
    running.later(lambda: running.loop.call_later(0.2, lambda: running.loop.create_task(running.edge.stop())))
    said = running.run("watch")
    assert said.code == 0
    assert said.err.endswith("the exchange has stopped\n")


def test_an_event_of_a_topic_has_its_time_as_everything_else_does() -> None:
    from trunkline.cli.terminal import clock
    from trunkline.cli.watch import event_line

    event = {"time": "2026-11-15T10:00:00.000Z", "topic": "build.done", "publisher": "operator", "payload": {"n": 1}}
    assert event_line(event) == f'{clock(1794736800)}  build.done  operator  {{"n":1}}'
