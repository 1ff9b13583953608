from __future__ import annotations

import json
import ssl
import time
from pathlib import Path

from click.testing import CliRunner

from trunkline.cli.pylon import pylon
from trunkline.edges import tls


def run(home: Path, *more: str) -> tuple[int, str]:
    ran = CliRunner().invoke(pylon, ["trust", "--home", str(home), *more])
    return ran.exit_code, ran.output


def made(home: Path) -> None:
    (home / "keys").mkdir(mode=0o700)
    tls.own_certificate(home / "keys", time.time())


def test_what_is_shown_is_the_certificate_without_its_key_and_how_to_trust_it(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "ready.json").write_text(json.dumps({"pylon": "wss://127.0.0.1:8081"}))
    code, said = run(tmp_path)
    assert code == 0
    assert "open https://127.0.0.1:8081/" in said
    file = tmp_path / "trunkline.crt"
    assert said.count(str(file)) >= 5
    assert "PRIVATE KEY" not in file.read_text()
    assert len(ssl.create_default_context(cafile=str(file)).get_ca_certs()) <= 1
    own = ssl.PEM_cert_to_DER_cert(tls.shown_certificate(tmp_path / "keys" / "tls.pem").decode())
    assert ssl.PEM_cert_to_DER_cert(file.read_text()) == own


def test_as_json_it_says_where_the_certificate_is(tmp_path: Path) -> None:
    made(tmp_path)
    code, said = run(tmp_path, "--json")
    found = json.loads(said)
    assert (code, found["certificate"], found["page"]) == (0, str(tmp_path / "trunkline.crt"), "")
    assert len(found["sha256"].split(":")) == 32


def test_without_a_certificate_it_says_who_makes_it(tmp_path: Path) -> None:
    ran = CliRunner().invoke(pylon, ["trust", "--home", str(tmp_path)], standalone_mode=False)
    assert "`trunkline up` makes it" in str(ran.exception)
