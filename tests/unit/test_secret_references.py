"""``secret_references``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from trunkline import secret_references
from trunkline.errors import SecretMissing
from trunkline.secret_references import Found

SECRET = "correct-horse-battery"


def test_references_are_looked_up_and_other_texts_stay(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    texts = {"A": "env:NAME", "B": f"file:{tmp_path / 'key'}", "C": "plain", "D": "literal:env:NAME", "E": ""}
    found = Found(texts, {"NAME": "of-the-environment"})
    assert found.texts == {"A": "of-the-environment", "B": SECRET, "C": "plain", "D": "env:NAME", "E": ""}
    assert found.secrets == [("A", "of-the-environment"), ("B", SECRET)]


@pytest.mark.parametrize("reference", ["env:NOT_SET", "env:EMPTY", "file:/no/such/file", "file:/", "keyring:x"])
def test_what_is_missing_is_named_by_its_reference(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(SecretMissing, match=r"^TOKEN: "):
        Found({"TOKEN": reference}, {"EMPTY": ""})


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\xfd", b"a" * 70_000, b"a\0b"])
def test_a_file_that_holds_no_secret_is_refused_without_its_content(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(SecretMissing) as raised:
        Found({"A": f"file:{tmp_path / 'key'}"}, {})
    assert "aaa" not in str(raised.value)


def test_a_file_of_somebody_else_is_no_place_for_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_text("correct horse")
    file.chmod(0o646)
    with pytest.raises(SecretMissing, match="everybody may write to it"):
        Found({"A": f"file:{file}"}, {})
    file.chmod(0o644)
    assert Found({"A": f"file:{file}"}, {}).texts == {"A": "correct horse"}
    if os.geteuid() == 0:
        os.chown(file, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(SecretMissing, match="somebody else's"):
        Found({"A": f"file:{file}"}, {})


def test_a_keyring_is_asked_under_our_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = ModuleType("keyring")
    ring.errors = ModuleType("errors")  # type: ignore[attr-defined]
    ring.errors.KeyringError = type("KeyringError", (Exception,), {})  # type: ignore[attr-defined]
    monkeypatch.setattr(
        ring, "get_password", lambda *place: {("trunkline", "github"): SECRET}.get(place), raising=False
    )
    monkeypatch.setitem(sys.modules, "keyring", ring)
    assert Found({"A": "keyring:github"}, {}).texts == {"A": SECRET}
    with pytest.raises(SecretMissing, match="keyring set trunkline other"):
        Found({"A": "keyring:other"}, {})


def test_only_a_keyring_is_waited_for() -> None:
    assert secret_references.may_wait({"A": "keyring:x"})
    assert not secret_references.may_wait({"A": "env:x", "B": "file:x", "C": "literal:keyring:x"})


@pytest.mark.parametrize(("text", "is_wrong"), [("env:", True), ("file:", True), ("keyring:", True), ("env:A", False)])
def test_a_reference_without_a_name_is_a_mistake(text: str, is_wrong: bool) -> None:
    assert bool(secret_references.problem_of(text)) is is_wrong
    assert not secret_references.problem_of(f"literal:{text}")


def test_files_are_those_beside_the_configuration() -> None:
    placed = secret_references.placed({"A": "file:key", "B": "file:/k", "C": "env:x"}, Path("/folder"))
    assert placed == {"A": "file:/folder/key", "B": "file:/k", "C": "env:x"}
