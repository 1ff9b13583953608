"""Who is told that a person is asked, and of what."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Raw

from trunkline.config import Notify
from trunkline.host import asked
from trunkline.host.asked import MAX_LINES, AskedPeople
from trunkline.shown import Question


def question(approval_id: str) -> Question:
    return Question(
        approval_id,
        "call",
        "opensentience:com.a",
        "2026-01-01T00:00:00Z",
        "2026-01-01T01:00:00Z",
        "it changes things",
        tool_id="com.b/write",
        input=Raw(b'{"password":"hunter2"}'),
    )


class Exchange:
    """Its open questions, and what was said of them."""

    def __init__(self, notify: Notify | None = None) -> None:
        self.said: list[str] = []
        self.open: list[Question] = []
        self.notify = notify
        self.asked = AskedPeople(self.said.append, lambda: self.notify, lambda name: f"http://x/#/approvals/{name}")

    def look(self) -> None:
        self.asked.look([one.approval_id for one in self.open], lambda: self.open)

    def wait_told(self) -> None:
        """Until what was handed over is told, or was not."""
        self.asked._waiting.join()


def test_a_question_is_told_of_once() -> None:
    exchange = Exchange()
    exchange.look()
    exchange.open.append(question("a5"))
    exchange.look()
    exchange.look()
    line = "a5 waits for your answer: call of com.b/write, asked by opensentience:com.a; `trunkline approvals`"
    assert exchange.said == [line]
    exchange.open.append(question("a6"))
    exchange.look()
    assert len(exchange.said) == 2


def test_many_at_once_are_counted() -> None:
    exchange = Exchange()
    exchange.open += [question(f"a{number}") for number in range(MAX_LINES + 5)]
    exchange.look()
    assert exchange.said[MAX_LINES:] == ["and 5 more questions: `trunkline approvals`"]


def test_a_command_gets_it_on_stdin_without_the_input(tmp_path: Path) -> None:
    script = f"import pathlib, sys; pathlib.Path({str(tmp_path / 'got')!r}).write_text(sys.stdin.read())"
    exchange = Exchange(Notify(command=(sys.executable, "-c", script)))
    exchange.open.append(question("a5"))
    exchange.look()
    exchange.wait_told()
    got = (tmp_path / "got").read_text()
    assert json.loads(got)["approval_id"] == "a5"
    assert json.loads(got)["tool_id"] == "com.b/write"
    assert json.loads(got)["url"] == "http://x/#/approvals/a5"
    assert "hunter2" not in got


@pytest.mark.parametrize("command", [(sys.executable, "-c", "raise SystemExit(3)"), ("/no/such/program",)])
def test_a_command_that_fails_is_a_warning_and_the_next_is_tried(
    command: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    exchange = Exchange(Notify(command=command))
    for name in ("a5", "a6"):
        exchange.open.append(question(name))
        exchange.look()
        exchange.wait_told()
    assert len(exchange.said) == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_command_that_does_not_end_is_told_of_without_its_arguments(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(asked, "NOTIFY_S", 0.1)
    exchange = Exchange(Notify(command=(sys.executable, "-c", "import time; time.sleep(60)", "https://hooks/hunter2")))
    exchange.open.append(question("a5"))
    exchange.look()
    exchange.wait_told()
    assert caplog.messages == ["[approvals] notify: the command did not end within 0.1 s"]


@pytest.mark.parametrize(
    ("notify", "why"),
    [
        (Notify(url="http://127.0.0.1:1/hooks/hunter2"), "nobody listens there (127.0.0.1:1)"),
        (Notify(command=("/nowhere/tell", "hunter2")), "/nowhere/tell: no such file or directory"),
    ],
)
def test_who_cannot_be_told_is_named_in_words_until_it_works_again(notify: Notify, why: str) -> None:
    exchange = Exchange(notify)
    exchange.open.append(question("a5"))
    exchange.look()
    exchange.wait_told()
    assert exchange.asked.warnings() == [f"[approvals] notify: {why}"]
    exchange.notify = Notify(command=(sys.executable, "-c", ""))
    exchange.open.append(question("a6"))
    exchange.look()
    exchange.wait_told()
    assert exchange.asked.warnings() == []


@pytest.fixture
def hook() -> Iterator[tuple[str, list[bytes]]]:
    """A URL that takes what is posted there."""
    got: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/asked", got
        server.shutdown()
        thread.join()


def test_a_url_gets_it_as_a_body(hook: tuple[str, list[bytes]]) -> None:
    url, got = hook
    exchange = Exchange(Notify(url=url))
    exchange.open.append(question("a5"))
    exchange.look()
    exchange.wait_told()
    assert [json.loads(body)["approval_id"] for body in got] == ["a5"]
