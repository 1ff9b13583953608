"""Schemathesis, which nobody here wrote, tries what the document allows and what it does not on a running exchange."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import running

ROOT = Path(__file__).parents[2]
# What it looks at besides: no answer is a defect of ours, and each is one that the document names.
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"

pytest.importorskip("schemathesis")


@pytest.mark.parametrize("kind", ["infra", "orchestrator"])
def test_every_answer_is_one_of_the_documents(tmp_path: Path, kind: str) -> None:
    document = json.loads((ROOT / "docs" / "chiffon.openapi.json").read_text())
    # Long polls are tried elsewhere; here each would take its time.
    del document["paths"]["/api/agent/messages"]["get"]["parameters"]
    page = tmp_path / "chiffon.json"
    page.write_text(json.dumps(document))
    with running(tmp_path / "home") as exchange:
        body = {"edge": "chiffon", "agent": "peer", "type": kind}
        token = exchange.request("POST", "/v1/tokens", body)[1]["token"]
        registration = {"agent_id": "peer", "agent_type": kind, "supported_versions": ["1.0"], "work_types": ["run"]}
        assert exchange.request("POST", "/api/agent/register", registration, token=token)[0] == 200
        words = [sys.executable, "-m", "schemathesis.cli", "run", str(page), "--url", exchange.ready["http"]]
        words += ["--header", f"Authorization: Bearer {token}", "--checks", CHECKS, "--max-examples", "40"]
        words += ["--phases", "coverage,fuzzing", "--max-time", "8", "--generation-deterministic", "--no-color"]
        found = subprocess.run(words, capture_output=True, text=True, timeout=50, check=False, cwd=tmp_path)
        assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
        assert exchange.request("GET", "/healthz")[0] == 200
