"""P-A1 in a sandbox job: `kill -9` of the exchange while its commands run."""

from __future__ import annotations

import threading
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from tests.running import Running, wait_until

MARK = "47139"


def sleeping() -> list[str]:
    """Commands of the job that are alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if line.startswith("sleep") and MARK in line:
                    found.append(line)
    return found


def test_a_job_killed_with_the_exchange_leaves_no_process_and_no_folder_and_has_one_outcome(short_path: Path) -> None:
    exchange = Running(short_path / "home").start()
    try:
        command = f"sleep {MARK} & setsid sleep {MARK} & wait"
        body = {"tool_id": "trunkline.jobs/oa.sandbox_run.v1", "input": {"commands": [{"cmd": command}]}}

        def ask() -> None:
            with suppress(OSError, HTTPException):
                exchange.request("POST", "/v1/calls", {**body, "idempotency_key": "once"})

        threading.Thread(target=ask, daemon=True).start()
        wait_until(lambda: len(sleeping()) == 2, "both commands run")
        assert len(list((exchange.home / "jobs").iterdir())) == 1
        exchange.kill()
        wait_until(lambda: sleeping() == [], "nothing of the job is left")
        exchange.start()
        wait_until(lambda: len(exchange.entries(kind="call.settled")) == 1, "the call has an outcome")
        (accepted,) = exchange.entries(kind="call.accepted")
        (settled,) = exchange.entries(kind="call.settled")
        assert (settled["call_id"], settled["status"]) == (accepted["call_id"], "unknown")
        assert list((exchange.home / "jobs").iterdir()) == []
        status, again = exchange.request("POST", "/v1/calls", {**body, "idempotency_key": "once"})
        assert (status, again["status"], again["call_id"]) == (200, "unknown", accepted["call_id"])
        assert sleeping() == []
        assert exchange.stop() == 0
    finally:
        if exchange.process is not None and exchange.process.poll() is None:
            exchange.kill()
