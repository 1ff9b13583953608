"""``trunkline mcp`` as a client starts it: no exchange, a token that was taken back, an exchange that came back."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.running import WAIT_S, Running, leash, running, started

BEGIN = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


def command(home: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "trunkline", "--home", str(home), "mcp", *words]


def bridged(exchange: Running, *messages: dict[str, Any], name: str = "me") -> list[dict[str, Any]]:
    given = "".join(json.dumps(message) + "\n" for message in messages)
    done = subprocess.run(
        command(exchange.home, "--as", name), input=given, env=exchange.env, capture_output=True, text=True,
        check=False, timeout=WAIT_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda said: str(said["id"]))


def test_without_an_exchange_it_starts_none_and_says_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path / "home"), input="", env=dict(os.environ), capture_output=True, text=True, check=False,
        timeout=WAIT_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "not running: trunkline" in done.stderr
    assert " up" in done.stderr
    assert not (tmp_path / "home").exists()


def test_its_token_is_made_once_and_kept_for_its_owner_only(tmp_path: Path) -> None:
    with running(tmp_path / "home") as exchange:
        for _ in range(2):
            assert "result" in bridged(exchange, BEGIN, LIST)[1]
        file = exchange.home / "keys" / "mcp" / "me.token"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        (token,) = [one for one in exchange.request("GET", "/v1/tokens")[1]["tokens"] if one["edge"] == "mcp"]
        assert exchange.request("DELETE", f"/v1/tokens/{token['id']}")[0] == 200
        (refused, _) = bridged(exchange, BEGIN, LIST)
        assert "not valid" in refused["error"]["message"]
        assert len([one for one in exchange.request("GET", "/v1/tokens")[1]["tokens"] if one["edge"] == "mcp"]) == 1


def test_a_name_that_is_a_path_is_refused(tmp_path: Path) -> None:
    with running(tmp_path / "home") as exchange:
        for name in ("../x", "", ".x"):
            done = subprocess.run(
                command(exchange.home, "--as", name), input="", env=exchange.env, capture_output=True, text=True,
                check=False, timeout=WAIT_S,
            )  # fmt: skip
            assert done.returncode == 2, name


def test_a_client_goes_on_after_the_exchange_was_killed_and_started_again(tmp_path: Path) -> None:
    with running(tmp_path / "home") as exchange:
        client = started(
            [*leash(), *command(exchange.home)], env=exchange.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert client.stdin is not None
        assert client.stdout is not None

        def ask(message: dict[str, Any]) -> Any:
            assert client.stdin is not None
            assert client.stdout is not None
            client.stdin.write(json.dumps(message).encode() + b"\n")
            client.stdin.flush()
            return json.loads(client.stdout.readline())

        try:
            assert "result" in ask(BEGIN)
            exchange.kill()
            assert "trunkline up" in ask(LIST)["error"]["message"]
            exchange.start()
            # Another port, perhaps, and the same session.
            assert "result" in ask({**LIST, "id": 2})
        finally:
            client.stdin.close()
            assert client.wait(WAIT_S) == 0
            client.stdout.close()
