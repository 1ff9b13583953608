"""Tokens that are wrong, stolen, used twice or used elsewhere (P-E1, P-E2, P-E3, P-E8)."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.attack.door import Visitor, hello, words
from tests.running import Running, attached, leash, running, wait_until


def revoked_token(exchange: Running, agent_id: str, edge: str) -> str:
    status, answer = exchange.request("POST", "/v1/tokens", {"edge": edge, "agent": agent_id})
    assert status == 201
    assert exchange.request("DELETE", f"/v1/tokens/{answer['id']}")[0] == 200
    return str(answer["token"])


def bad_tokens(exchange: Running, agent_id: str, good: str, edge: str) -> dict[str, str]:
    """Every way in which a token can be no good, for somebody who has nearly everything right."""
    other_edge = "http" if edge == "opensentience" else "opensentience"
    return {
        "empty": "",
        "wrong": "wrong",
        "of the right form": "tlk_" + "A" * 43,
        "first letter wrong": "x" + good[1:],
        "last letter wrong": good[:-1] + ("a" if good[-1] != "a" else "b"),
        "cut off": good[:-1],
        "with something added": good + "A",
        "in capitals": good.upper(),
        "overlong": good * 100,
        "revoked": revoked_token(exchange, agent_id, edge),
        "somebody else's": exchange.new_token("raw.other", edge="opensentience") if edge == "opensentience" else "tlk_",
        "of another edge": exchange.new_token(agent_id, edge=other_edge),
    }


# --- each token opens its own door (P-E8) -----------------------------------------------------------------------------


def test_a_token_opens_the_door_it_was_made_for_and_no_other(exchange: Running) -> None:
    # One agent for each of the two: whoever comes second in one name replaces the first.
    agent_id, tcp_id = (f"raw.{uuid.uuid4().hex[:12]}" for _ in range(2))
    tokens = {}
    for name in (agent_id, tcp_id):
        by_http, own = exchange.new_token(name, edge="http"), exchange.new_token(name)
        tokens[name] = {"operator": exchange.token, "http": by_http, "own": own}

    # All at once: each refusal on an address waits longer than the one before.
    sockets = {kind: Visitor(exchange, hello(agent_id, token)) for kind, token in tokens[agent_id].items()}
    by_tcp = {kind: Visitor(exchange, hello(tcp_id, token), tcp=True) for kind, token in tokens[tcp_id].items()}
    doors = {
        kind: (
            exchange.request("GET", "/v1/tools", token=token)[0] == 200,
            not sockets[kind].told()[0]["closed"],
            not by_tcp[kind].told()[0]["closed"],
        )
        for kind, token in tokens[agent_id].items()
    }
    assert doors == {"operator": (True, False, False), "http": (True, False, False), "own": (False, True, True)}


def test_no_credential_of_a_caller_reaches_the_one_who_is_called(exchange: Running) -> None:
    provider, caller = attached(exchange), attached(exchange, "calls")
    provider.register({"name": "read", "side_effects": False})
    by_http = exchange.new_token("somebody", edge="http")
    tool_id = f"{provider.agent_id}/read"
    heard = []
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(
            exchange.request,
            "POST",
            "/v1/calls",
            {"tool_id": tool_id, "input": {}},
            headers={"Cookie": "sid=canary-cookie", "X-Forwarded-User": "root"},
        )
        heard.append(provider.wait_for("core.tool.call"))
        provider.result(heard[-1], output={})
        assert asked.result(20)[0] == 200
    caller.send("agent.tool.call", {"call_id": "c", "tool_id": tool_id, "input": {}}, request_id="r")
    heard.append(provider.wait_for("core.tool.call"))
    provider.result(heard[-1], output={})
    text = json.dumps(heard)
    for secret in (exchange.token, by_http, caller.token, provider.token, "canary-cookie", "tlk_"):
        assert secret not in text


# --- one answer for all (P-E1) ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
def test_every_bad_token_hears_the_same_bytes_and_the_door_on_the_socket(exchange: Running, tcp: bool) -> None:
    agent_id = f"raw.{uuid.uuid4().hex[:12]}"
    good = exchange.new_token(agent_id)
    bad = {**bad_tokens(exchange, agent_id, good, "opensentience"), "the operator's": exchange.token}
    hellos = [hello(agent_id, token) for token in bad.values()]
    hellos.append(hello(f"raw.{uuid.uuid4().hex[:12]}", good))  # a good one, for nobody it knows
    if tcp:
        # On TCP an address has failures, not a process: they add up, and everything else must still be equal.
        told = [answer for one in hellos[:6] for answer in Visitor(exchange, one, tcp=True).told()]
    else:
        told = [visitor.told()[0] for visitor in [Visitor(exchange, one) for one in hellos]]
    assert len({words(answer["heard"]) for answer in told}) == 1
    assert all(answer["closed"] for answer in told)
    message = json.loads(bytes.fromhex(told[0]["heard"])[4:])
    assert message["error"]["code"] == "protocol.unauthorized"
    refused = [e for e in exchange.entries(kind="agent.refused") if e["claimed"] == agent_id]
    assert len(refused) >= len(told) - 1
    record = json.dumps(exchange.entries())
    assert not [name for name, token in bad.items() if len(token) > 8 and token in record]
    assert not Visitor(exchange, hello(agent_id, good), tcp=tcp).told()[0]["closed"]


def test_every_bad_token_hears_the_same_bytes_over_http(exchange: Running) -> None:
    good = exchange.new_token("somebody", edge="http")
    bad = bad_tokens(exchange, "somebody", good, "http")
    headers: list[dict[str, str]] = [{"Authorization": f"Bearer {token}"} for token in bad.values()]
    headers += [{}, {"Authorization": "Basic c29tZWJvZHk6eA=="}, {"Authorization": good}]

    def ask(header: dict[str, str]) -> tuple[int, bytes, list[tuple[str, str]]]:
        connection = http.client.HTTPConnection(exchange.ready["http"].removeprefix("http://"), timeout=40)
        try:
            connection.request("GET", "/v1/tools", headers=header)
            answer = connection.getresponse()
            found = [(name, value) for name, value in answer.getheaders() if name.lower() != "date"]
            return answer.status, answer.read(), found
        finally:
            connection.close()

    with ThreadPoolExecutor(len(headers)) as pool:
        answers = list(pool.map(ask, headers))
    assert answers[0][0] == 401
    assert len({repr(answer) for answer in answers}) == 1
    assert ask({"Authorization": f"Bearer {good}"})[0] == 200


def test_whoever_guesses_slows_only_himself(exchange: Running) -> None:
    agent_id = f"raw.{uuid.uuid4().hex[:12]}"
    good = exchange.new_token(agent_id)
    guesser = Visitor(exchange, *(hello(agent_id, f"guess {n}") for n in range(7)))
    # While he waits for his fifth to seventh refusal (0.8, 1.6 and 3.2 s) others come and go.
    wait_until(
        lambda: len([e for e in exchange.entries(kind="agent.refused") if e["claimed"] == agent_id]) >= 5,
        "five guesses",
    )
    bystander = Visitor(exchange, hello("raw.bystander", "mistyped"))
    owner = Visitor(exchange, hello(agent_id, good))
    (refused,) = bystander.told()
    assert refused["closed"]
    # His first: it comes at once. With those of the guesser it would be the sixth, and take 1.6 s.
    assert refused["after_s"] < 1.6
    assert not owner.told()[0]["closed"]
    assert guesser.process.poll() is None, "he still waits"
    waited = [answer["after_s"] for answer in guesser.told()]
    assert all(took >= least for took, least in zip(waited, [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2], strict=True))


# --- a launch token is taken once, by one process, in its session (P-E2, P-E3) ----------------------------------------

RACES = 20
# The launched process lets two children race for its token, and afterwards one that left its session.
_RACER = r"""
import json, os, socket, struct, sys, time
out, token, agent_id = sys.argv[1], os.environ["OPENSENTIENCE_SESSION_TOKEN"], os.environ["OPENSENTIENCE_AGENT_ID"]

def attempt():
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(20)
    peer.connect(os.environ["OPENSENTIENCE_SOCKET"])
    payload = {"session_token": token, "agent_id": agent_id, "agent_version": "1.0.0",
               "protocol": {"supported_versions": [1], "capabilities": ["tools"]}}
    message = {"v": 1, "type": "agent.hello", "id": "1", "ts": "2026-01-01T00:00:00Z", "payload": payload}
    data = json.dumps(message).encode()
    return peer, struct.pack(">I", len(data)) + data

def admitted(peer):
    size = struct.unpack(">I", peer.recv(4, socket.MSG_WAITALL))[0]
    return "error" not in json.loads(peer.recv(size, socket.MSG_WAITALL))

def child(gate, result, leave):
    pid = os.fork()
    if pid == 0:
        if leave:
            os.setsid()
        peer, data = attempt()
        os.read(gate, 1)
        peer.sendall(data)
        os.write(result, b"1" if admitted(peer) else b"0")
        time.sleep(600)  # the connection stays
    return pid

gate, go = os.pipe()
verdicts, result = os.pipe()
def one_more(leave):
    child(gate, result, leave)
    os.write(go, b"2")
    return os.read(verdicts, 1)

racers = [child(gate, result, leave=False), child(gate, result, leave=False)]
os.write(go, b"22")
found = os.read(verdicts, 1) + os.read(verdicts, 1)
found += one_more(leave=True)
# The winner is gone, and its session closed; the token is still its own.
for pid in racers:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
for _ in range(4):
    time.sleep(0.1)
    found += one_more(leave=False)
with open(out + ".part", "w") as file:
    json.dump({"verdicts": found.decode(), "token": token}, file)
os.rename(out + ".part", out)
time.sleep(600)
"""


def test_of_two_processes_that_race_for_a_launch_token_exactly_one_wins_and_nobody_outside(short_path: Path) -> None:
    script, out = short_path / "racer.py", short_path / "out"
    out.mkdir()
    script.write_text(_RACER)
    agents = "".join(
        f'[[agent]]\nid = "race.{n}"\nrestart = "never"\nwrite = [{json.dumps(str(out))}]\n'
        f'command = ["python", "-I", "-S", {json.dumps(str(script))}, {json.dumps(str(out / f"{n}.json"))}]\n'
        for n in range(RACES)
    )
    with running(short_path / "home", agents) as exchange:
        found: list[dict[str, Any]] = []
        for n in range(RACES):
            path = out / f"{n}.json"
            wait_until(path.exists, f"race {n}")
            found.append(json.loads(path.read_text()))
        assert [sorted(race["verdicts"][:2]) for race in found] == [["0", "1"]] * RACES
        assert [race["verdicts"][2] for race in found] == ["0"] * RACES, "one outside the session"
        assert [race["verdicts"][3:] for race in found] == ["0000"] * RACES, "another one, after the winner left"
        # A sibling that read it from the environment, and the exchange's own operator.
        stolen = [Visitor(exchange, hello(f"race.{n}", race["token"])) for n, race in enumerate(found)]
        assert all(visitor.told()[0]["closed"] for visitor in stolen)
        reasons = {entry["reason"] for entry in exchange.entries(kind="agent.refused") if entry["claimed"] == "race.0"}
        assert any("second process" in reason or "session is open" in reason for reason in reasons)
        assert any("outside its run" in reason for reason in reasons)
        # Admitted once each, on record before the welcome.
        admitted = [entry["agent_id"] for entry in exchange.entries(kind="agent.admitted")]
        assert len([agent_id for agent_id in admitted if agent_id.startswith("race.")]) == RACES
        exchange.kill()
        exchange.config_file.write_text('[http]\nlisten = "127.0.0.1:0"\n')
        exchange.start()
        again = [Visitor(exchange, hello(f"race.{n}", race["token"])) for n, race in enumerate(found[:5])]
        assert all(visitor.told()[0]["closed"] for visitor in again), "after a restart"
        record = json.dumps(exchange.entries())
        assert not [race for race in found if race["token"] in record]


# --- only those who are meant to reach the door (P-E7) ----------------------------------------------------------------


def test_another_user_reaches_neither_the_socket_nor_the_token(exchange: Running) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    child = os.fork()
    if child == 0:
        reached = 0
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            home = exchange.home
            for attempt in (
                lambda: socket.socket(socket.AF_UNIX).connect(exchange.ready["socket"]),
                (home / "operator.token").read_text,
                (home / "ledger.sqlite").read_bytes,
                lambda: list(home.iterdir()),
            ):
                try:
                    attempt()
                except PermissionError:
                    continue
                reached += 1
        finally:
            os._exit(reached)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_home_the_folder_of_the_socket_and_the_socket_are_the_owners_alone(exchange: Running) -> None:
    path = Path(exchange.ready["socket"])
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (exchange.home, path.parent, path)]
    assert modes == [0o700, 0o700, 0o600]


def _open_to_all(folder: Path) -> None:
    folder.chmod(0o777)


def _link(folder: Path) -> None:
    (folder.parent / "elsewhere").touch()
    (folder / "agents.sock").symlink_to(folder.parent / "elsewhere")


def _file(folder: Path) -> None:
    (folder / "agents.sock").write_text("mine")


def _linked_folder(folder: Path) -> None:
    folder.rename(folder.parent / "real")
    folder.symlink_to(folder.parent / "real")


@pytest.mark.parametrize("trap", [_open_to_all, _link, _file, _linked_folder])
def test_it_does_not_start_where_somebody_else_could_put_a_socket(
    short_path: Path, trap: Callable[[Path], None]
) -> None:
    folder = short_path / "sockets"
    folder.mkdir(mode=0o700)
    trap(folder)
    home = short_path / "home"
    home.mkdir(mode=0o700)
    path = folder / "agents.sock"
    (home / "trunkline.toml").write_text(
        f'[http]\nlisten = "127.0.0.1:0"\n[opensentience]\nsocket = {json.dumps(str(path))}\n'
    )
    before = (os.path.lexists(path), path.is_symlink(), path.read_bytes() if path.is_file() else b"")
    ended = subprocess.run(
        [*leash(), sys.executable, "-m", "trunkline", "up", "--home", str(home)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert str(folder) in ended.stderr
    assert "Traceback" not in ended.stderr
    assert before == (os.path.lexists(path), path.is_symlink(), path.read_bytes() if path.is_file() else b"")


def test_a_socket_left_by_a_killed_exchange_is_replaced(short_path: Path) -> None:
    with running(short_path / "home") as exchange:
        exchange.kill()
        assert Path(exchange.ready["socket"]).is_socket()
        exchange.start()
        assert "error" not in attached(exchange).register({"name": "t"})
