"""P-D1 for MCP: wrong messages and headers of both eras, and wrong lines on stdin. Deterministic by seed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz import mcp
from tests.fuzz.kept import judge_memory
from tests.fuzz.mutations import Mutator
from tests.running import running

SHARDS, SHARD_STEPS = 2, 2_500


@pytest.mark.parametrize("shard", range(SHARDS))
def test_nothing_that_is_said_is_fatal_unanswered_or_kept(shard: int) -> None:
    mcp.fuzz(shard + 1000, SHARD_STEPS // 2)
    judge_memory(mcp.fuzz, shard, SHARD_STEPS, SHARD_STEPS)


def test_the_messages_reach_the_exchange_and_are_wrong_in_many_ways() -> None:
    seen: Counter[str] = Counter()
    for seed in range(6):
        seen += mcp.story(seed, mcp.STEPS)
    assert seen.keys() >= {"200", "202", "400", "401", "404", "405", "406", "result", "error"}
    assert min(seen["result"], seen["error"]) > 100
    assert seen["without a task"] > 30


def test_the_bridge_on_stdin_answers_whatever_is_written_to_it(short_path: Path) -> None:
    mutator = Mutator(7, mcp.messages())
    lines = [mutator.body().replace(b"\n", b" ") for _ in range(400)]
    begin = json.dumps({**mcp.messages()[0], "id": "begin"}).encode()
    end = json.dumps({"jsonrpc": "2.0", "id": "the end", "method": "ping"}).encode()
    with running(short_path / "home") as exchange:
        command = [sys.executable, "-m", "trunkline", "--home", str(exchange.home), "mcp"]
        given = b"\n".join([begin, *lines, end]) + b"\n"
        done = subprocess.run(command, input=given, env=exchange.env, capture_output=True, check=False, timeout=50)
        assert exchange.request("GET", "/v1/status")[1]["defects"] == 0
    assert done.returncode == 0
    assert done.stderr == b""
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"jsonrpc": "2.0", "id": "the end", "result": {}} in answers
