from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest

from tests.unit.ledger.made import in_process, noticed
from trunkline.config import Anchor
from trunkline.host import anchoring as anchoring_module
from trunkline.host.anchoring import Anchoring
from trunkline.ledger.heads import public_key_of, written_heads
from trunkline.ledger.verify import verify


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A ledger with one entry and its signed head."""
    with in_process(tmp_path) as made:
        made.add(noticed(1))
    return tmp_path


def anchored(home: Path, **way: object) -> Anchoring:
    """An exchange that publishes this way, after it has stopped."""
    made = Anchoring(home / "ledger.sqlite", home / "keys", Anchor(**way))  # type: ignore[arg-type]
    made.finish()
    return made


def test_a_head_is_appended_to_a_file_and_proves_the_record(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "share"
    for number in (1, 2):
        assert anchored(home, file=str(file)).published == number
        with in_process(home) as made:
            made.add(noticed)
    kept = written_heads(file.read_text())
    assert [head.number for head in kept] == [1, 2]
    assert verify(home / "ledger.sqlite", kept=kept, public_key=public_key_of(home / "keys")).anchored == 2


def test_a_head_is_given_to_a_command_on_stdin(home: Path, tmp_path: Path) -> None:
    took = tmp_path / "took"
    script = f"import pathlib, sys; pathlib.Path({str(took)!r}).write_text(sys.stdin.read())"
    made = anchored(home, command=(sys.executable, "-c", script))
    assert (made.published, made.warnings()) == (1, [])
    told = json.loads(took.read_text())
    assert (told["number"], told["key"]) == (1, (home / "keys" / "heads.pub").read_text().strip())


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ({"command": (sys.executable, "-c", "raise SystemExit(3)")}, "ended with 3"),
        ({"command": ("/no/such/program",)}, "No such file or directory: /no/such/program"),
        ({"file": "/no/such/folder/heads"}, "No such file or directory: /no/such/folder/heads"),
    ],
)
def test_a_way_that_fails_is_a_warning(home: Path, way: dict[str, object], words: str) -> None:
    made = anchored(home, **way)
    assert made.published == 0
    assert made.warnings() == [f"[ledger] anchor: {_named(way)}{words}; nothing is published yet"]


def _named(way: dict[str, object]) -> str:
    return f"{sys.executable} " if sys.executable in str(way) else ""


def test_a_command_that_does_not_end_is_killed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchoring_module, "PUBLISH_S", 0.2)
    made = Anchoring(home / "ledger.sqlite", home / "keys", Anchor(command=("sleep", "60")))
    made.look(1)
    thread = made._publishing
    assert thread is not None
    thread.join(30)
    assert "sleep took longer than 0.2 s and was killed" in made.warnings()[0]


def test_nobody_waits_for_a_file_system_that_does_not_answer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(anchoring_module, "PUBLISH_S", 0.05)
    monkeypatch.setattr(anchoring_module, "_append", lambda _file, _text: answers.wait(60))
    made = Anchoring(home / "ledger.sqlite", home / "keys", Anchor(file="/elsewhere"))
    made.look(1)
    made.finish()
    try:
        assert "no answer for" in made.warnings()[0]
    finally:
        answers.set()
        assert made._publishing is not None
        made._publishing.join(30)
    assert (made.published, made.warnings()) == (1, [])


def test_entries_that_stay_unsigned_are_a_warning(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchoring_module, "PUBLISH_EVERY_S", 0.0)
    made = Anchoring(home / "ledger.sqlite", home / "keys", None)
    made.look(5)
    assert made.warnings() == [], "their head may be on its way"
    made.look(5)
    assert made.warnings() == ["entries after 1 are not signed: ledger.heads cannot be written"]
    made.look(1)
    made.look(1)
    assert made.warnings() == []


def test_without_an_anchor_nothing_is_published(home: Path) -> None:
    made = Anchoring(home / "ledger.sqlite", home / "keys", None)
    made.look(1)
    made.finish()
    assert (made.signed, made.published) == (1, 0)
