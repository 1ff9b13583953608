"""A provider in Node.js with the package ``nostr-tools``, which has nothing of ours: we buy jobs from it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.nostr import CONFIG
from tests.peers.test_nostr_node import bundle_of_nostr_tools
from tests.running import Running, running

pytestmark = pytest.mark.timeout(120)
PROVIDER = Path(__file__).with_name("nostr_provider.mjs")
TOOL = "nostr.jobs/oa.words.repeat.v1"
ALLOWED = '[[policy.rule]]\ncaller = "*"\ntool = "nostr.jobs/*"\ndecision = "allow"\n'


async def bought(exchange: Running, **remote: Any) -> dict[str, Any]:
    inputs = {"word": 'ünïcode "quoted"', "count": 2, "remote": remote}
    return await asyncio.to_thread(exchange.call, TOOL, inputs, timeout_ms=30_000)


async def test_what_a_foreign_provider_announces_is_a_tool_and_its_results_count(short_path: Path, node: str) -> None:
    bundle = bundle_of_nostr_tools(node, short_path)
    with running(short_path / "home", CONFIG + ALLOWED) as exchange:
        process = await asyncio.create_subprocess_exec(
            node, str(PROVIDER), str(bundle), exchange.ready["relay"],
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            npub = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
            await asyncio.to_thread(exchange.wait_tool, TOOL)
            for is_private in (False, True):
                answer = await bought(exchange, private=is_private)
                assert answer["status"] == "succeeded", answer
                output = answer["output"]
                assert output["words"] == ['ünïcode "quoted"'] * 2
                assert output["provenance"] == {"model": "node", "provider_id": npub}
                assert output["verification"]["to_be_paid"] == [npub]
                # Of a private job the tags tell a stranger nothing of what it is about.
                assert ("i" in output["seenTag"], "param" in output["seenTag"]) == (not is_private, not is_private)
            process.stdin.close()
            assert await asyncio.wait_for(process.wait(), 30) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
