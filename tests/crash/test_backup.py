"""A copy that was taken while the exchange ran, and a fresh home that starts from it (docs/operations.md)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.running import RawAgent, Running, calling, running, wait_until

QUIET = '[ossa]\nlisten = ""\n'


def trunkline(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trunkline", *words, "--home", str(home)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def made_call(exchange: Running, agent: RawAgent, number: int) -> str:
    answer = calling(exchange, f"{agent.agent_id}/do", {"n": number})
    agent.result(agent.wait_for("core.tool.call"), output={"n": number})
    return str(answer.result(20)["call_id"])


def test_a_fresh_home_starts_from_a_copy_and_the_keys_and_goes_on(short_path: Path) -> None:
    copy, restored = short_path / "copies" / "monday.sqlite", short_path / "restored"
    copy.parent.mkdir()
    with running(short_path / "home", QUIET) as exchange:
        agent = RawAgent(exchange, "com.test.doer")
        agent.hello()
        agent.register({"name": "do", "side_effects": False})
        before = made_call(exchange, agent, 1)
        exchange.wait_entry("call.settled")
        wait_until((exchange.home / "ledger.heads").exists, "the first signed head")
        done = trunkline(exchange.home, "ledger", "backup", str(copy))
        assert (done.returncode, "verified" in done.stdout, "ecash" in done.stderr) == (0, True, False), done.stderr
        after = made_call(exchange, agent, 2)
        checked = trunkline(exchange.home, "ledger", "verify", str(copy))
        assert checked.stdout.startswith("whole: "), checked.stderr
        # What the page says: the copy and its heads under the names of a home, with the keys.
        restored.mkdir(mode=0o700)
        shutil.copy2(copy, restored / "ledger.sqlite")
        shutil.copy2(copy.with_suffix(".heads"), restored / "ledger.heads")
        shutil.copytree(exchange.home / "keys", restored / "keys")
    with running(restored, QUIET) as second:
        assert second.request("GET", f"/v1/calls/{before}")[1]["output"] == {"n": 1}
        assert second.request("GET", f"/v1/calls/{after}")[0] == 404, "made after the copy"
        returned = RawAgent(second, "com.test.doer")
        returned.hello()
        returned.register({"name": "do", "side_effects": False})
        made_call(second, returned, 3)
    assert trunkline(restored, "ledger", "verify").returncode == 0


def test_a_copy_without_the_keys_of_its_home_is_refused_by_name(short_path: Path) -> None:
    with running(short_path / "home", QUIET) as exchange:
        exchange.wait_entry("exchange.started")
        # Money that is in no copy of the record is named.
        (exchange.home / "keys" / "ecash").mkdir(mode=0o700)
        (exchange.home / "keys" / "ecash" / "0").touch(0o600)
        done = trunkline(exchange.home, "ledger", "backup", str(short_path / "copy.sqlite"))
        assert (done.returncode, "ecash is not in it" in done.stderr) == (0, True), done.stderr
    bare = short_path / "bare"
    bare.mkdir(mode=0o700)
    shutil.copy2(short_path / "copy.sqlite", bare / "ledger.sqlite")
    ended = trunkline(bare, "up")
    assert ended.returncode == 1
    assert "ledger.key is missing: put back the key that belongs to this ledger" in ended.stderr
    assert "Traceback" not in ended.stderr
