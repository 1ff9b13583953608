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
