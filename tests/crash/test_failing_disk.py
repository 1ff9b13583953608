"""P-A3, P-A4 and P-A6 on a real exchange: a system call of its ledger fails, or its disk is full.

``strace`` makes the system calls fail; a small tmpfs is the disk. Below 64 MiB new calls are refused and open ones may
finish, on 16 MiB that were set aside; both go back to normal by themselves.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.crash.tracing import events, strace, tracer_of, wait_traced
from tests.running import RawAgent, Running, running, wait_until
from trunkline.host.housekeeping import CHECK_S, MIN_FREE_BYTES
from trunkline.ledger.store import RESERVE_BYTES
from trunkline.ledger.verify import verify

# P-A6: filled and freed so often.
TIMES = 20
MIB = 1_048_576
# A little more than what new calls need, besides the reserve and the log.
DISK_BYTES = MIN_FREE_BYTES + RESERVE_BYTES + 48 * MIB
CALLER_GONE = (OSError, ValueError, http.client.HTTPException)


class Doer(RawAgent):
    """An agent with one tool that has side effects; it does what it is asked, in a thread of its own."""

    def __init__(self, exchange: Running) -> None:
        super().__init__(exchange, "com.test.doer")
        self.hello()
        self.register({"name": "do"})
        self.done: list[int] = []
        self._pool = ThreadPoolExecutor(1)
        self._pool.submit(self._work)

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            while (message := self.receive()) is not None:
                if message["type"] == "core.tool.call":
                    self.done.append(message["payload"]["input"]["n"])
                    self.result(message, output={"n": self.done[-1]})

    def join(self) -> None:
        """Until the connection has ended."""
        self._pool.shutdown()


def call_until_it_ends(exchange: Running) -> list[dict[str, Any]]:
    """One call after the other until the exchange is gone; what was said of them."""
    answers: list[dict[str, Any]] = []
    with contextlib.suppress(*CALLER_GONE):
        for n in range(2000):
            answers.append(exchange.call("com.test.doer/do", {"n": n}))  # noqa: PERF401 - it ends by an exception
    return answers


@pytest.mark.parametrize(
    "rule",
    [
        "fdatasync:error=EIO:when=25",
        "fdatasync:error=EIO:when=40+",
        # Several: one of them may be that of the head beside the record, which is made again.
        "pwrite64:error=EIO:when=200..202",
        "pwrite64:error=ENOSPC:when=150+",
    ],
)
def test_a_failing_disk_ends_the_exchange_with_70_and_the_next_start_recovers(short_path: Path, rule: str) -> None:
    log = short_path / "trace"
    exchange = Running(short_path / "home", under=strace(log, rule)).start()
    assert exchange.process is not None
    tracer = tracer_of(exchange.process.pid)
    doer = Doer(exchange)
    answers = call_until_it_ends(exchange)
    assert exchange.process.wait(20) == 70
    doer.join()
    assert "the ledger failed" in exchange.said()
    answered = [answer for answer in answers if answer["http"] == 200]
    assert 0 < len(answered) < 1000
    for answer in answers[len(answered) :]:
        # Refused, or: it is on record, and its outcome comes later.
        assert answer["http"] == 202 or answer["error"]["code"] == "hub.unavailable", answer
    assert not (exchange.home / "ready.json").exists()
    if rule.startswith("fdatasync"):
        wait_traced(tracer)
        assert_no_further_sync_or_answer(log)
    # On a disk that works again:
    doer.close()
    exchange.under = ()
    exchange.start()
    wait_until(lambda: not exchange.request("GET", "/v1/status")[1]["backlog"], "what was open is taken up")
    settled = {entry["call_id"]: entry for entry in exchange.entries(kind="call.settled")}
    accepted = {entry["call_id"]: entry for entry in exchange.entries(kind="call.accepted")}
    for answer in answered:
        assert settled[answer["call_id"]]["output"] == answer["output"]
    assert {answer["call_id"] for answer in answers if answer["http"] == 202} <= settled.keys()
    # What ran is on record, and has one outcome.
    assert {entry["input"]["n"] for entry in accepted.values()} >= set(doer.done)
    assert accepted.keys() == settled.keys()
    assert len(doer.done) == len(set(doer.done))
    assert exchange.stop() == 0
    verify(exchange.home / "ledger.sqlite")


def assert_no_further_sync_or_answer(log: Path) -> None:
    """After the sync that failed: no other one, and no byte that delivers or gives an outcome."""
    has_failed = False
    for event in events(log):
        if event.call == "fdatasync" and event.ends and (event.result or 0) < 0:
            assert not has_failed, "a failed sync was tried again"
            has_failed = True
        elif has_failed:
            assert event.call not in {"fdatasync", "fsync"}, f"{event} after a failed sync"
            assert r"\"type\":\"core.tool.call\"" not in event.data
            assert r"\"status\":\"succeeded\"" not in event.data
    assert has_failed


def test_one_write_without_room_uses_the_reserve_and_goes_on(short_path: Path) -> None:
    # The head beside the record needs no reserve, and of two writes one at most is its own.
    assert any(_uses_the_reserve(short_path / str(when), when) for when in (200, 201))


def _uses_the_reserve(folder: Path, when: int) -> bool:
    folder.mkdir()
    trace = folder / "trace"
    with running(folder / "home", under=strace(trace, f"pwrite64:error=ENOSPC:when={when}")) as exchange:
        reserve = exchange.home / "ledger.reserve"
        Doer(exchange)
        assert reserve.stat().st_size == RESERVE_BYTES
        first = reserve.stat().st_mtime_ns
        for n in range(60):
            assert exchange.call("com.test.doer/do", {"n": n})["status"] == "succeeded"
        # It was given away, and there is room for another one.
        assert wait_until(reserve.exists, "a new reserve")
        is_another = reserve.stat().st_mtime_ns != first
    verify(exchange.home / "ledger.sqlite")
    [failed] = [line for line in trace.read_bytes().splitlines() if b"(INJECTED)" in line]
    assert is_another == (b"/ledger.head>" not in failed)
    return is_another


# --- a small disk -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(short_path: Path) -> Iterator[Path]:
    """A tmpfs a little larger than what the exchange wants to have free."""
    place = short_path / "disk"
    place.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "none", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small disk: to mount a tmpfs takes root and CAP_SYS_ADMIN ({mounted.stderr.strip()})")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


class Filler:
    """A file that takes the room away."""

    def __init__(self, disk: Path) -> None:
        self._disk = disk
        self._file = disk / "filler"

    def leave(self, size: int) -> None:
        """Only so much stays free."""
        with self._file.open("ab") as file:
            for _ in range(100):
                room = os.statvfs(self._disk)
                try:
                    os.posix_fallocate(file.fileno(), file.tell(), max(1, room.f_bavail * room.f_frsize - size))
                except OSError:
                    continue  # the exchange took some of it meanwhile
                return
        raise AssertionError("the disk could not be filled")

    def free(self) -> None:
        """All of it is there again."""
        self._file.unlink()


def refused(answer: dict[str, Any]) -> bool:
    """Refused for lack of room."""
    if answer["http"] == 200:
        return False
    assert (answer["http"], answer["error"]["code"], answer["error"]["retryable"]) == (503, "limit.resource", True)
    return True


@pytest.mark.timeout(120)
def test_below_64_mib_new_calls_are_refused_and_it_goes_on_by_itself(small_disk: Path) -> None:
    with running(small_disk / "home") as exchange:
        doer = Doer(exchange)
        filler = Filler(small_disk)
        slowest = 0.0
        for n in range(TIMES):
            assert not refused(exchange.call("com.test.doer/do", {"n": n}))
            filler.leave(MIN_FREE_BYTES - MIB)
            slowest = max(slowest, seconds_until(lambda n=n: refused(exchange.call("com.test.doer/do", {"n": -n}))))  # type: ignore[misc]
            filler.free()
            slowest = max(slowest, seconds_until(lambda n=n: not refused(exchange.call("com.test.doer/do", {"n": n}))))  # type: ignore[misc]
        assert slowest < 10 * CHECK_S + 2
        assert exchange.process is not None
        assert exchange.process.poll() is None
        assert doer.done


def seconds_until(condition: Callable[[], bool]) -> float:
    started = time.monotonic()
    wait_until(condition, "the exchange to notice the room on its disk")
    return time.monotonic() - started


@pytest.mark.timeout(120)
def test_on_a_disk_without_a_free_byte_open_calls_finish_again_and_again(small_disk: Path) -> None:
    """Twenty calls are open, the disk is filled to the last byte, and they end with 1 MiB of outputs."""
    with running(small_disk / "home") as exchange, ThreadPoolExecutor(24) as pool:
        agent = RawAgent(exchange, "com.test.doer")
        agent.hello()
        agent.register({"name": "do"})
        filler = Filler(small_disk)
        reserve = exchange.home / "ledger.reserve"
        for time_ in range(3):
            asked: list[Future[dict[str, Any]]] = [
                pool.submit(exchange.call, "com.test.doer/do", {"n": n}) for n in range(20)
            ]
            calls = [agent.wait_for("core.tool.call") for _ in asked]
            assert reserve.exists()
            filler.leave(0)
            for n, call in enumerate(calls):
                agent.result(call, output={"n": n, "text": f"{time_}-{n}-" * 8000})
            assert {future.result(20)["status"] for future in asked} == {"succeeded"}
            assert not reserve.exists()
            # Whether there is room is judged before whether there is such a tool.
            wait_until(lambda: refusal_code(exchange) == "limit.resource", "new calls are refused")
            filler.free()
            wait_until(lambda: refusal_code(exchange) == "tool.not_found", "new calls are welcome")
            wait_until(reserve.exists, "a new reserve")
    verify(exchange.home / "ledger.sqlite")
    lines = exchange.entries(kind="call.settled")
    assert len([line for line in lines if len(json.dumps(line)) > 8000]) == 60


def refusal_code(exchange: Running) -> str:
    return str(exchange.call("com.test.doer/nothing")["error"]["code"])
