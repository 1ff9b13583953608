"""docs/protocols/ossa.md: its worked example computes, and its agent is one, as both are printed there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.docs.pages import files
from tests.ossa import World
from tests.running import ROOT, running
from trunkline.edges import tls
from trunkline.edges.ossa import reading, signing

PAGE = (ROOT / "docs/protocols/ossa.md").read_text()
(EXAMPLE,) = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
CANONICAL, SIGNATURE = re.findall(r"```text\n(.*?)\n```", PAGE, re.DOTALL)
(SECRET,) = re.findall(r'`"d": "([\w-]+)"`', PAGE)


def page_code() -> dict[str, Any]:
    """What the page's program defines."""
    found: dict[str, Any] = {"__name__": "peer"}
    exec(files(PAGE)["peer.py"], found)  # noqa: S102  (our own page)
    return found


def test_the_worked_example_of_a_signature_computes() -> None:
    key = signing.key_of(signing.decoded(SECRET))
    data = json.dumps(EXAMPLE).encode()
    assert signing.signed_form(data).decode() == CANONICAL
    assert f"whose `kid` is `{key.kid}`" in PAGE
    message = reading.read(data)
    assert json.loads(signing.sign(message, key))["signature"] == SIGNATURE
    signing.check(data, signing.read_claim(SIGNATURE), key.public)


def test_the_pages_own_code_makes_and_checks_the_same_signature() -> None:
    code = page_code()
    jwk = {"d": SECRET, "kid": signing.key_of(signing.decoded(SECRET)).kid}
    signed = code["signed"](EXAMPLE, jwk)
    assert signed["signature"] == SIGNATURE
    public = signing.public_jwk(signing.key_of(signing.decoded(SECRET)).public)
    code["check"](signed, {"keys": [{**public, "kid": jwk["kid"]}]})


def test_what_the_pages_code_seals_is_opened_and_the_other_way_round(tmp_path: Path) -> None:
    code = page_code()
    with World(tmp_path) as world:
        alice = world.agent("alice")
        bob = world.connect(world.agent("bob"), "do")
        message = alice.message("request", "bob", sensitive=True)
        message["body"]["payload"] = code["sealed"]({"n": 1}, message["header"]["messageId"], world.enc_key)
        posted = world.post(alice, message)
        assert code["opened"](bob.of("request")[0], bob.agent.enc_jwk) == {"n": 1}
        bob.respond({"n": 2})
        assert code["opened"](posted.reply, alice.enc_jwk) == {"n": 2}


def test_the_agent_on_the_page_registers_and_answers_calls(tmp_path: Path) -> None:
    (tmp_path / "peer.py").write_text(files(PAGE)["peer.py"])
    with running(tmp_path / "home", '[ossa]\nlisten = "127.0.0.1:0"\n') as exchange:
        made = exchange.request("POST", "/v1/tokens", {"edge": "ossa", "agent": "bob", "type": "worker"})[1]
        (tmp_path / "keys.json").write_text(json.dumps(made))
        shown = tls.shown_certificate(exchange.home / "keys" / tls.OWN_FILE)
        (tmp_path / "trunkline.crt").write_bytes(shown)
        given = {"KEYS": tmp_path / "keys.json", "CERTIFICATE": tmp_path / "trunkline.crt"}
        environment = {**os.environ, **{name: str(path) for name, path in given.items()}}
        environment["EXCHANGE"] = exchange.ready["ossa"]
        agent = subprocess.Popen([sys.executable, str(tmp_path / "peer.py")], env=environment)
        try:
            exchange.wait_tool("bob/greet")
            for bad in ({}, {"name": 1}):
                error = exchange.call("bob/greet", bad)["error"]
                assert (error["code"], error["message"]) == ("tool.invalid_input", "name: a text is expected")
            assert exchange.call("bob/greet", {"name": "you"})["output"] == {"text": "hello, you"}
        finally:
            agent.kill()
            agent.wait()
