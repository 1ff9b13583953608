"""A buyer in Node.js with the package ``nostr-tools``, which has nothing of ours, at a real exchange."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import tarfile
from pathlib import Path

import pytest

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


async def fetched(node: str, folder: Path) -> Path:
    """The package's bundle, as it was published; the test is left out where no registry can be reached."""
    npm = Path(node).parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    process = await asyncio.create_subprocess_exec(
        node, str(npm), "pack", PACKAGE, "--silent", cwd=folder,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await asyncio.wait_for(process.wait(), 40)
    except TimeoutError:
        process.kill()
        await process.wait()
    return unpacked(folder)


def unpacked(folder: Path) -> Path:
    found = list(folder.glob("nostr-tools-*.tgz"))
    if not found:
        pytest.skip("the package nostr-tools cannot be fetched here")
    assert base64.b64encode(hashlib.sha512(found[0].read_bytes()).digest()).decode() == SHA512
    with tarfile.open(found[0]) as packed:
        packed.extractall(folder, filter="data")
    return folder / "package" / "lib" / "nostr.bundle.js"


def is_offered(exchange: Running) -> bool:
    _, found = exchange.request("GET", "/v1/tools")
    return any(tool["tool_id"] == "com.example.words/repeat" for tool in found["tools"])


async def test_a_foreign_buyer_finds_us_has_jobs_done_and_computes_their_hashes(short_path: Path, node: str) -> None:
    bundle = await fetched(node, short_path)
    home = short_path / "home"
    home.mkdir(mode=0o700)
    (home / "words.py").write_text(AGENT)
    with running(home, CONFIG) as exchange:
        wait_until(lambda: is_offered(exchange), "the agent's tool")
        process = await asyncio.create_subprocess_exec(
            node, str(BUYER), str(bundle), exchange.ready["relay"],
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            out, complaints = await asyncio.wait_for(process.communicate(), 60)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, complaints.decode()
        found = json.loads(out)
    assert found["announced"]
    for way in ("open", "private"):
        job = found[way]
        assert job["outputs"] == {"words": ['ünïcode "quoted"'] * 2}
        assert job["isSigned"] and job["isForUs"] and job["isHash"] and job["isProvider"]  # noqa: PT018
        assert job["model"] == "com.example.words/repeat"
        assert set(job["statuses"]) == {"processing", "success"}
    assert found["open"]["showsInputs"]
    assert not found["private"]["showsInputs"]
