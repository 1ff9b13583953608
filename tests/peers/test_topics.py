"""Topics from the command line: `trunkline publish`, `trunkline watch --topic`, against a real exchange."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import leash, running, started

BOUND_S = 20


@pytest.mark.timeout(90)
def test_what_one_terminal_publishes_another_one_shows_at_once(short_path: Path) -> None:
    with running(short_path / "home") as exchange:
        trunkline = [sys.executable, "-m", "trunkline", "--home", str(exchange.home)]

        def publish(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
            return subprocess.run(
                [*trunkline, "publish", *words], input=stdin, capture_output=True, timeout=BOUND_S, check=False
            )

        command = [*leash(), *trunkline, "watch", "--topic", "build.#"]
        for_people, for_programs = (
            started([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE) for more in ((), ("--json",))
        )
        assert for_people.stdout is not None
        assert for_people.stderr is not None
        assert for_programs.stdout is not None
        try:
            assert b"watching" in for_people.stderr.readline()
            # The other one says nothing before its first event: publish until it hears one.
            said = publish("build.done", '{"ok":\n true}')
            assert said.returncode == 0, said.stderr
            line = for_people.stdout.readline().decode()
            assert line.split()[1:] == ["build.done", "operator", '{"ok":true}']
            exchange.wait_entry("topic.subscribed", pattern="build.#")
            said = publish("build.done", "-", "--qos", "1", "--json", stdin=b'[1,\n2.0, "x"]')
            event = json.loads(said.stdout)["event"]
            while (shown := json.loads(for_programs.stdout.readline()))["event"] != event:
                pass
            assert shown["payload"] == [1, 2.0, "x"]
            refused = publish("not a topic")
            assert (refused.returncode, refused.stdout) == (2, b"")
            assert b"a topic is segments between dots" in refused.stderr
            assert publish("other", "{").returncode == 2
        finally:
            for process in (for_people, for_programs):
                process.terminate()
                process.communicate(timeout=BOUND_S)


@pytest.mark.timeout(60)
def test_what_was_published_while_nobody_watched_is_shown_to_who_watches_durably(short_path: Path) -> None:
    with running(short_path / "home") as exchange:
        trunkline = [sys.executable, "-m", "trunkline", "--home", str(exchange.home)]
        command = [*leash(), *trunkline, "watch", "--topic", "a", "--durable", "--json"]
        first = started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        exchange.wait_entry("topic.subscribed", pattern="a", durable=True)
        first.terminate()
        first.communicate(timeout=BOUND_S)
        assert subprocess.run([*trunkline, "publish", "a", "7", "--qos", "1"], timeout=BOUND_S, check=True)
        second = started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert second.stdout is not None
        assert json.loads(second.stdout.readline())["payload"] == 7
        second.terminate()
        second.communicate(timeout=BOUND_S)
        usage = subprocess.run([*trunkline, "watch", "--durable"], capture_output=True, timeout=BOUND_S, check=False)
        assert usage.returncode == 2
