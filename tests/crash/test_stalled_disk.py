"""Decision 51 on a real exchange: the disk does not answer. Its writer process is stopped, as if it waited for it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.running import RawAgent, Running, calling, running, wait_until
from trunkline.host.housekeeping import STALL_S
from trunkline.host.up import EXIT_FAILED
from trunkline.ledger.verify import verify

# A stop with a stalled disk takes no longer.
STOP_WITHIN_S = 15.0


def writer_of(exchange: Running) -> int:
    assert exchange.process is not None
    pid = exchange.process.pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"trunkline.ledger.writer" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise AssertionError("there is no writer")


@contextmanager
def stalled(exchange: Running) -> Iterator[None]:
    """The disk does not answer for the length of a block."""
    writer = writer_of(exchange)
    os.kill(writer, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(writer, signal.SIGCONT)


def doer(exchange: Running) -> RawAgent:
    agent = RawAgent(exchange, "com.test.doer")
    agent.hello()
    agent.register({"name": "do"}, {"name": "read", "side_effects": False})
    return agent


def test_a_stalled_disk_is_told_of_and_calls_that_wait_for_it_are_answered_at_their_deadline(tmp_path: Path) -> None:
    with running(tmp_path / "home") as exchange:
        agent = doer(exchange)
        done = calling(exchange, "com.test.doer/do", {"n": 1}, timeout_ms=int((STALL_S + 2) * 1000))
        delivered = agent.wait_for("core.tool.call")
        with stalled(exchange):
            agent.result(delivered, output={"n": 1})
            waiting = calling(exchange, "com.test.doer/do", {"n": 2}, timeout_ms=int((STALL_S + 2) * 1000))
            status, told = wait_until(
                lambda: (found := exchange.request("GET", "/healthz"))[0] != 200 and found, "/healthz to say so"
            )
            assert (status, told) == (503, {"status": "unavailable", "reason": "the disk does not answer"})
            refused = exchange.call("com.test.doer/read")
            assert (refused["http"], refused["error"]["code"]) == (503, "hub.unavailable")
            first, second = done.result(20), waiting.result(20)
            for answer in (first, second):
                assert (answer["http"], answer["status"]) == (200, "unknown")
            assert first["error"]["code"] == "hub.unavailable"
            assert second["error"]["retryable"] is False
        wait_until(lambda: exchange.request("GET", "/healthz")[0] == 200, "/healthz to be well")
        again = calling(exchange, "com.test.doer/do", {"n": 3})
        last = agent.wait_for("core.tool.call")
        assert last["payload"]["input"] == {"n": 3}, "what was given up before it could be sent is not sent"
        agent.result(last, output={"n": 3})
        assert again.result(20)["output"] == {"n": 3}
        # The record has what came of them.
        assert exchange.request("GET", f"/v1/calls/{first['call_id']}")[1]["status"] == "succeeded"
        assert exchange.request("GET", f"/v1/calls/{second['call_id']}")[1]["status"] == "unknown"


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_stop_does_not_wait_for_a_stalled_disk_and_says_so(tmp_path: Path, is_busy: bool) -> None:
    with running(tmp_path / "home") as exchange:
        assert exchange.process is not None
        agent = doer(exchange)
        os.kill(writer_of(exchange), signal.SIGSTOP)
        if is_busy:
            waiting = calling(exchange, "com.test.doer/do", {"n": 1})
            wait_until(lambda: exchange.request("GET", "/v1/status")[1]["backlog"], "the call to wait")
        began = time.monotonic()
        exchange.process.send_signal(signal.SIGTERM)
        assert exchange.process.wait(STOP_WITHIN_S + 10) == EXIT_FAILED
        assert time.monotonic() - began < STOP_WITHIN_S
        assert "does not answer" in exchange.said()
        if is_busy:
            answer = waiting.result(20)
            assert answer["http"] in {202, 503}, "it is told that it may go on, or that nobody knows"
        agent.close()
        exchange.start()
        assert exchange.request("GET", "/healthz")[0] == 200
        assert exchange.stop() == 0
    verify(tmp_path / "home" / "ledger.sqlite")
