"""OSSA-091: a real exchange passes the validation suite, started as a user starts both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirement import requirement
from tests.running import running

CONFIG = """
[ossa]
listen = "127.0.0.1:0"

[[policy.rule]]
caller = "ossa:*"
tool = "check-*/forbidden"
decision = "deny"
"""


@requirement("OSSA-091")
@pytest.mark.timeout(180)
def test_the_exchange_passes_all_of_the_validation_suite(tmp_path: Path) -> None:
    with running(tmp_path / "home", CONFIG) as exchange:
        command = [sys.executable, "-m", "trunkline", "check", "ossa", "--home", str(exchange.home), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
        report = json.loads(done.stdout)
        failures = [failure for category in report["results"] for failure in category["failures"]]
        assert (done.returncode, failures) == (0, []), done.stderr
        assert report["summary"]["score"] == 100
        assert sum(len(category["tests"]) for category in report["results"]) >= 126
        _, left = exchange.request("GET", "/v1/subscriptions")
        assert left["subscriptions"] == []


def test_a_check_that_is_ended_by_a_signal_takes_its_identities_back(tmp_path: Path) -> None:
    with running(tmp_path / "home", CONFIG) as exchange:
        command = [sys.executable, "-m", "trunkline", "check", "ossa", "--home", str(exchange.home)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as check:
            assert check.stderr is not None
            assert b"cases to check" in check.stderr.readline()
            check.terminate()
            check.communicate(timeout=60)
        _, answer = exchange.request("GET", "/v1/tokens")
        made = [one for one in answer["tokens"] if str(one.get("agent")).startswith("check-")]
        assert check.returncode != 0
        assert all(one.get("revoked") for one in made)
        assert len(made) == 6
