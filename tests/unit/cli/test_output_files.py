"""Files that verbs write: one spelling, and nothing is written over unasked."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import trunkline.cli
from tests.unit.cli.conftest import Running
from trunkline.cli.client import ExchangeClient, encode
from trunkline.cli.main import cli

WRITES = {"--output", "--report", "--page"}
# A token is money: whatever is in its file stays.
NEVER_REPLACES = {"wallet send"}
# These write files of the home, or the files of other programs by a way of their own.
OWN_FILES = {"output_files.py", "pylon.py", "client_files.py", "up.py", "main.py"}


def verbs(command: click.Command = cli, name: str = "") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for part in command.list_commands(context):
            found = command.get_command(context, part)
            assert found is not None
            yield from verbs(found, f"{name} {part}".strip())
    else:
        yield name, command


def shown_options(command: click.Command) -> set[str]:
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    return {spelling for option in options for spelling in option.opts}


def test_every_verb_that_writes_a_file_writes_over_one_with_force_only_and_calls_it_output() -> None:
    shown = {name: shown_options(command) for name, command in verbs()}
    writing = {name for name, options in shown.items() if options & WRITES}
    assert writing == {"blob", "space export", "ledger export", "check ossa", "wallet send"}
    assert {name for name in writing if "--force" not in shown[name]} == NEVER_REPLACES
    assert {name for name, options in shown.items() if options & {"--out", "--overwrite"}} == set()


def test_no_verb_writes_a_file_in_a_way_of_its_own() -> None:
    writes = re.compile(r"\.write_(?:bytes|text)\(|open\(\"[wxa]|O_WRONLY")
    files = [*Path(trunkline.cli.__path__[0]).glob("*.py")]
    assert {file.name for file in files if writes.search(file.read_text())} - OWN_FILES == set()


def test_a_blob_is_not_written_over_a_file_that_is_there(running: Running, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text("precious")
    ref = f"sha256:{running.exchange.blob}"
    said = running.run("blob", ref, "--output", str(file))
    assert (said.code, file.read_text()) == (2, "precious")
    assert said.err == f"file.unusable: {file}: exists already: choose another name, or give --force\n"
    assert running.run("blob", ref, "--output", str(file), "--force").code == 0
    assert file.stat().st_size > 1_000_000
    assert running.run("blob", ref, "--output", os.devnull).code == 0, "nothing is lost there"


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What git says in a space, as ``patch``."""
    said = {"patch": b"diff --git a/x b/x\n"}

    def answer(_client: ExchangeClient, _method: str, _path: str, _body: bytes | None = None) -> tuple[int, bytes]:
        event = {"type": "shell", "success": True, "stdout": base64.b64encode(said["patch"]).decode()}
        return 200, encode({"protocolVersion": "1.0", "events": [event]})

    monkeypatch.setattr(ExchangeClient, "answer", answer)
    return said


def test_a_patch_is_not_written_over_a_file_that_is_there(
    running: Running, tmp_path: Path, patched: dict[str, bytes]
) -> None:
    file = tmp_path / "mine.patch"
    assert running.run("space", "export", "demo", "--output", str(file)).code == 0
    assert file.read_bytes() == patched["patch"]
    patched["patch"] = b"another"
    said = running.run("space", "export", "demo", "--output", str(file))
    assert (said.code, file.read_bytes()) == (2, b"diff --git a/x b/x\n")
    assert running.run("space", "export", "demo", "--output", str(file), "--force").code == 0
    assert file.read_bytes() == b"another"


def test_an_export_of_a_space_in_which_nothing_changed_writes_no_file_and_says_so(
    running: Running, tmp_path: Path, patched: dict[str, bytes]
) -> None:
    patched["patch"] = b""
    file = tmp_path / "none.patch"
    said = running.run("space", "export", "demo", "--output", str(file))
    assert (said.code, said.err) == (0, "nothing changed in demo since HEAD; no file is written\n")
    assert not file.exists()
    said = running.run("space", "export", "demo", "--since", "v1")
    assert (said.code, said.out, said.err) == (0, "", "nothing changed in demo since v1\n")


@pytest.mark.parametrize("option", ["--report", "--page"])
def test_a_check_says_that_its_file_is_there_before_it_checks_anything(
    running: Running, tmp_path: Path, option: str
) -> None:
    file = tmp_path / "mine"
    file.write_text("precious")
    said = running.run("check", "ossa", "https://127.0.0.1:1", option, str(file))
    assert (said.code, file.read_text()) == (2, "precious")
    assert "exists already" in said.err
