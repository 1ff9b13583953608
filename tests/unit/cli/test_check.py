"""``trunkline check ossa``: who it speaks as, what it prints and writes, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.unit.check.ossa.honest_server import HonestServer
from tests.unit.cli.conftest import Said, trunkline


class Served:
    """A server of the tests in a thread of its own, with the files of six identities."""

    def __init__(self, folder: Path, *defects: str, has_socket: bool = True) -> None:
        self.folder = folder
        self.server = HonestServer(*defects, has_socket=has_socket)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.do(self.server.__aenter__())
        self.files = [folder / f"{number}.json" for number in range(6)]
        for file in self.files:
            file.write_text(json.dumps(self.server.identity(f"agent-{file.stem}")))

    def do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(5)

    def check(self, *arguments: str) -> Said:
        given = [word for file in self.files for word in ("--identity", str(file))]
        return trunkline("check", "ossa", self.server.url, *given, "--timeout", "2", *arguments)

    def stop(self) -> None:
        self.do(self.server.__aexit__())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()


@pytest.fixture
def honest(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path)
    yield one
    one.stop()


@pytest.fixture
def careless(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path, "takes_alg_none")
    yield one
    one.stop()


def test_all_passed_is_exit_0_and_a_line_for_each_category(honest: Served) -> None:
    said = honest.check("--only", "patterns.request", "--only", "identity.correlation")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0] == f"OSSA 1.0.0 at {honest.server.url}, level advanced"
    assert "sha256 " in lines[1]
    assert [line.split()[0] for line in lines if "━" in line] == ["identity", "patterns"]
    assert lines[-1].startswith("2 of 2 passed; score 100, ")


def test_a_failure_is_exit_1_and_says_what_must_be_what_was_seen_and_what_to_mend(careless: Served) -> None:
    said = careless.check("--only", "security.alg-none", "--only", "security.unsigned")
    assert said.code == 1
    assert "FAILED security.alg-none  core, OSSA-070" in said.out
    told = said.out.partition("FAILED")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in told.splitlines()[1:] if line[2:3].strip()] == ["must", "seen", "mend"]
    assert "1 of 2 passed; score 50" in said.out


def test_one_cause_of_many_failures_is_told_once_and_the_report_has_a_line_for_each(tmp_path: Path) -> None:
    one = Served(tmp_path, has_socket=False)
    report = tmp_path / "report.json"
    try:
        said = one.check("--only", "patterns", "--report", str(report))
    finally:
        one.stop()
    assert said.code == 1
    failures = [case for part in json.loads(report.read_text())["results"] for case in part["failures"]]
    about_sockets = [case for case in failures if "no WebSocket at wss://" in case["actual"]]
    assert len(about_sockets) > 5
    assert said.out.count("no WebSocket at") == 1
    assert said.out.count("Serve a WebSocket at /ossa/v1/ws") == 1
    assert f"FAILED {len(about_sockets)} cases for one reason" in said.out
    assert all(case["id"] in said.out for case in about_sockets)


def test_the_report_is_written_and_is_what_json_prints(honest: Served, tmp_path: Path) -> None:
    report, page = tmp_path / "report.json", tmp_path / "page.html"
    said = honest.check("--only", "patterns.request", "--report", str(report), "--page", str(page), "--json")
    assert said.code == 0
    assert said.json == json.loads(report.read_text())
    assert said.json["summary"]["overallStatus"] == "passed"
    assert page.read_text().startswith("<!doctype html>")


def test_what_could_not_be_tried_is_told_with_its_reason(honest: Served) -> None:
    said = honest.check("--only", "errors.denied", "--only", "patterns.request")
    assert said.code == 0
    assert "skipped errors.denied  the policy denies nothing that is tried: deny the action" in said.out
    assert honest.check("--only", "errors.denied", "--denied", "vault/open").code == 0


def test_text_of_an_endpoint_is_harmless_on_a_terminal(tmp_path: Path) -> None:
    one = Served(tmp_path, "echoes_input")
    try:
        said = one.check("--only", "messages.nothing-is-echoed")
    finally:
        one.stop()
    assert said.code == 1
    assert all(line.isprintable() for line in said.out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--only", "securty"], "did you mean security"),
        (["--denied", "vault"], "AGENT/ACTION"),
        (["--level", "expert"], "expert"),
    ],
)
def test_bad_usage_is_exit_2(honest: Served, arguments: list[str], text: str) -> None:
    said = honest.check(*arguments)
    assert said.code == 2
    assert text in said.err


def test_identities_that_cannot_be_used_are_exit_2(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"agent": "a"}')
    file = str(tmp_path / "a.json")
    url = "https://127.0.0.1:1"
    assert "at least 2" in trunkline("check", "ossa", url, "--identity", file).err
    said = trunkline("check", "ossa", url, "--identity", file, "--identity", file)
    assert (said.code, 'expected "agent" and a private "jwk"' in said.err) == (2, True)
    missing = str(tmp_path / "missing.json")
    assert trunkline("check", "ossa", url, "--identity", missing, "--identity", missing).code == 2


def test_nobody_there_is_exit_2(honest: Served) -> None:
    given = [word for file in honest.files[:2] for word in ("--identity", str(file))]
    said = trunkline("check", "ossa", "https://127.0.0.1:1", *given, "--json")
    assert said.code == 2
    assert said.json["error"]["code"] == "endpoint.unreachable"


def test_where_plain_http_is_spoken_it_is_said_that_there_is_no_tls(honest: Served) -> None:
    given = [word for file in honest.files[:2] for word in ("--identity", str(file))]
    quiet = type("Quiet", (BaseHTTPRequestHandler,), {"log_message": lambda *_: None})
    plain = ThreadingHTTPServer(("127.0.0.1", 0), quiet)
    thread = threading.Thread(target=plain.serve_forever)
    thread.start()
    try:
        url = f"https://127.0.0.1:{plain.server_port}"
        said = trunkline("check", "ossa", url, *given)
    finally:
        plain.shutdown()
        thread.join(5)
        plain.server_close()
    assert (said.code, said.err.splitlines()[-1]) == (2, f"endpoint.unreachable: {url}: no TLS is spoken there")


def test_an_address_that_is_none_is_exit_2(honest: Served) -> None:
    given = [word for file in honest.files[:2] for word in ("--identity", str(file))]
    assert "expected https" in trunkline("check", "ossa", "http://127.0.0.1:1", *given).err
    assert "URL is missing" in trunkline("check", "ossa", *given).err


def test_the_cases_can_be_listed_without_an_endpoint() -> None:
    said = trunkline("check", "ossa", "--list", "--level", "core")
    assert said.code == 0
    assert all(" core " in line for line in said.out.splitlines())
    listed = trunkline("check", "ossa", "--list", "--only", "streams", "--json").json["tests"]
    assert {one["id"].partition(".")[0] for one in listed} == {"streams"}


# --- identities of its own --------------------------------------------------------------------------------------------


class Tokens:
    """The part of an exchange's HTTP interface that makes and revokes credentials."""

    def __init__(self, home: Path, server: HonestServer, url: str) -> None:
        self.made: list[dict[str, Any]] = []
        self.revoked: list[str] = []
        tokens = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                made = server.identity(asked["agent"], asked["type"])
                tokens.made.append(made)
                self.answer({name: value for name, value in made.items() if name != "type"})

            def do_DELETE(self) -> None:
                tokens.revoked.append(self.path.rpartition("/")[2])
                self.answer({})

            def answer(self, value: dict[str, Any]) -> None:
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._listener.serve_forever).start()
        http = f"http://127.0.0.1:{self._listener.server_port}"
        (home / "operator.token").write_text("secret\n")
        (home / "ready.json").write_text(json.dumps({"pid": os.getpid(), "http": http, "ossa": url}))

    def stop(self) -> None:
        self._listener.shutdown()
        self._listener.server_close()


def test_without_identities_six_are_made_and_taken_back_and_the_exchange_says_where_its_endpoint_is(
    honest: Served, tmp_path: Path
) -> None:
    tokens = Tokens(tmp_path, honest.server, honest.server.url)
    said = trunkline("check", "ossa", "--home", str(tmp_path), "--only", "patterns.request")
    tokens.stop()
    assert said.code == 0, said.err
    assert len(tokens.made) == 6
    assert tokens.revoked == [one["id"] for one in tokens.made]
    assert all(one["agent"].startswith("check-") and one["type"] == "worker" for one in tokens.made)


def test_identities_are_taken_back_when_nobody_is_there(honest: Served, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path, honest.server, "https://127.0.0.1:1")
    said = trunkline("check", "ossa", "--home", str(tmp_path))
    tokens.stop()
    assert said.code == 2
    assert len(tokens.revoked) == 6


def test_without_identities_and_without_an_exchange_it_is_not_running(tmp_path: Path) -> None:
    said = trunkline("check", "ossa", "https://127.0.0.1:1", "--home", str(tmp_path))
    assert said.code == 2
    assert "not running" in said.err
