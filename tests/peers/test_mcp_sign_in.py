"""``trunkline mcp login``: a person at a terminal, a real exchange, and servers that refuse each wrong step."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.running import WAIT_S, Running, contents, running, wait_until
from tests.unit.edges.mounts.oauth_kit import sites


def trunkline(exchange: Running, *words: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "trunkline", "--home", str(exchange.home), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=exchange.env)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def is_in_state(exchange: Running, state: str) -> bool:
    agents = exchange.request("GET", "/v1/agents")[1]["agents"]
    return [one["state"] for one in agents if one["agent_id"] == "mcp.issues"] == [state]


def test_a_person_signs_in_from_a_terminal_and_everything_says_so(short_path: Path) -> None:
    with sites() as server, running(short_path / "home", f'[[mcp]]\nid = "issues"\nurl = "{server.url}"\n') as exchange:
        wait_until(lambda: is_in_state(exchange, "signed-out"), "that it wants a sign-in")
        for verb, code in (("agents", 0), ("status", 0), ("doctor", 1)):
            said = trunkline(exchange, verb, code=code)
            assert "mcp.issues" in said, verb
            assert "sign" in said, verb
        command = [sys.executable, "-m", "trunkline", "--home", str(exchange.home), "mcp", "login", "issues"]
        login = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=exchange.env)
        assert login.stdout is not None
        address = login.stdout.readline().strip()
        with urllib.request.urlopen(address, timeout=WAIT_S) as page:  # noqa: S310  (of this test)
            assert "Signed in" in page.read().decode()
        rest, _ = login.communicate(timeout=WAIT_S)
        assert (login.returncode, "signed in" in rest) == (0, True)
        exchange.wait_tool("mcp.issues/echo")
        assert server.refusals == server.signs_in.refusals == []
        assert trunkline(exchange, "--json", "mcp", "logout", "issues")
        wait_until(lambda: is_in_state(exchange, "signed-out"), "that it wants a sign-in again")
        secrets = [*server.signs_in.issued, *server.signs_in.codes]
        assert len(secrets) == 3
        record = trunkline(exchange, "ledger", "show", "--last", "200")
        files = contents(exchange.home).values()
        for secret in secrets:
            assert secret not in record
            assert secret not in exchange.said()
            assert not any(secret.encode() in data for data in files)


def test_who_cannot_sign_in_is_told_why(short_path: Path) -> None:
    with sites() as server, running(short_path / "home", f'[[mcp]]\nid = "issues"\nurl = "{server.url}"\n') as exchange:
        wait_until(lambda: is_in_state(exchange, "signed-out"), "that it wants a sign-in")
        assert "nobody signs in" in trunkline(exchange, "mcp", "login", "other", code=2)
        server.signs_in.metadata = {"registration_endpoint": None}
        said = trunkline(exchange, "mcp", "login", "issues", "--no-wait", code=2)
        assert "`oauth.client_id`" in said
        server.signs_in.metadata = {}
        made = json.loads(trunkline(exchange, "--json", "mcp", "login", "issues", "--no-wait"))
        assert made["issuer"] == server.signs_in.origin
