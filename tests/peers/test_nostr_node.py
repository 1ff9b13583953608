"""A buyer in Node.js with the package ``nostr-tools``, which has nothing of ours, at a real exchange."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.npm import unpacked
from tests.running import Running, running, wait_until

pytestmark = pytest.mark.timeout(120)
BUYER = Path(__file__).with_name("nostr_buyer.mjs")
PACKAGE = "nostr-tools@2.25.2"
SHA512 = "7JAx+brEPmqGz1yzaK9MOxvis/Nl1B38j9hVsBSRDMRmxk5XSc0+5LlPEYbzeiUyk41RURBDcfuMzmaT754HAg=="
AGENT = """
from trunkline import Agent

agent = Agent("com.example.words", version="1.0.0")


@agent.tool(side_effects=False)
async def repeat(word: str, count: int) -> dict:
    \"\"\"A word, so often.\"\"\"
    return {"words": [word] * count}


agent.run()
"""
CONFIG = """
[ossa]
listen = ""
[nostr]
relay = "127.0.0.1:0"
offer = ["com.example.words/repeat"]
[[agent]]
id = "com.example.words"
command = ["python", "words.py"]
isolation = "none"
"""


def bundle_of_nostr_tools(node: str, folder: Path) -> Path:
    return unpacked(node, PACKAGE, SHA512, folder) / "lib" / "nostr.bundle.js"


def is_offered(exchange: Running) -> bool:
    _, found = exchange.request("GET", "/v1/tools")
    return any(tool["tool_id"] == "com.example.words/repeat" for tool in found["tools"])


async def told_by(node: str, *command: str | Path) -> dict[str, Any]:
    """The JSON object that a program prints."""
    process = await asyncio.create_subprocess_exec(
        node, *map(str, command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, complaints = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, complaints.decode()
    found: dict[str, Any] = json.loads(out)
    return found


async def test_a_foreign_buyer_finds_us_has_jobs_done_and_computes_their_hashes(short_path: Path, node: str) -> None:
    bundle = bundle_of_nostr_tools(node, short_path)
    home = short_path / "home"
    home.mkdir(mode=0o700)
    (home / "words.py").write_text(AGENT)
    with running(home, CONFIG) as exchange:
        wait_until(lambda: is_offered(exchange), "the agent's tool")
        found = await told_by(node, BUYER, bundle, exchange.ready["relay"])
    assert found["announced"]
    for way in ("open", "private"):
        job = found[way]
        assert job["outputs"] == {"words": ['ünïcode "quoted"'] * 2}
        assert job["isSigned"] and job["isForUs"] and job["isHash"] and job["isProvider"]  # noqa: PT018
        assert job["model"] == "com.example.words/repeat"
        assert set(job["statuses"]) == {"processing", "success"}
    assert found["open"]["showsInputs"]
    assert not found["private"]["showsInputs"]
