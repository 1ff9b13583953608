from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.ledger.made import AT, InProcess, accepted, call_id, in_process, noticed, question, settled
from trunkline.entries import CallNoted, CallRefused, CallSent, QuestionClosed
from trunkline.errors import LedgerCorrupt, LedgerError
from trunkline.ledger.export import entry_lines, proof, story, verify_proof

LARGE = b'{"text":"' + b"a" * 70_000 + b'"}'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """Two calls of correlation c, with a question, a second delivery and a late result; others in between."""
    with in_process(tmp_path_factory.mktemp("ledger")) as ledger:
        ledger.add(
            accepted(1, b'{\n "password": "hunter2"\n}', correlation_id="c", sent=False),
            question(2, 1),
            noticed(3),
            QuestionClosed(n=4, at=AT, approval_id="a2", how="approved", by="operator"),
            CallSent(n=5, at=AT, call=1, attempt=1),
            accepted(6, LARGE, correlation_id="c", causation_id=call_id(1)),
            accepted(7, correlation_id="other"),
            settled(8, 6),
            settled(9, 1),
            CallNoted(n=10, at=AT, call_id=call_id(1), note="late result"),
            CallRefused(
                n=11, at=AT, call_id=call_id(11), caller="x", tool_id="a/b", code="limit.rate", correlation_id="c"
            ),
            settled(12, 7),
        )
        yield ledger


def test_the_story_of_a_call_is_everything_recorded_of_it_in_order(made: InProcess) -> None:
    told = story(made.ledger.reader, call_id=call_id(1))
    assert [entry["n"] for entry in told] == [1, 2, 4, 5, 9, 10]
    assert [entry["kind"] for entry in told][:3] == ["call.accepted", "question.opened", "question.closed"]


def test_the_story_of_a_correlation_is_that_of_its_calls(made: InProcess) -> None:
    assert [entry["n"] for entry in story(made.ledger.reader, correlation="c")] == [1, 2, 4, 5, 6, 8, 9, 10, 11]


def test_the_story_of_a_refused_call_is_its_refusal(made: InProcess) -> None:
    assert [entry["kind"] for entry in story(made.ledger.reader, call_id=call_id(11))] == ["call.refused"]


def test_there_is_no_story_of_what_never_was(made: InProcess) -> None:
    for unknown in (call_id(3), call_id(99), "x", call_id(1).replace("0123", "4567")):
        assert story(made.ledger.reader, call_id=unknown) == []
    assert story(made.ledger.reader, correlation="nothing") == []


def test_an_export_has_one_masked_line_for_each_entry(made: InProcess) -> None:
    lines = list(entry_lines(made.ledger.reader, correlation="c"))
    assert len(lines) == 9
    assert all(b"\n" not in line for line in lines)
    assert b"hunter2" not in b"".join(lines)
    assert json.loads(lines[0])["input"] == {"password": "[masked:named]"}


def made_proof(made: InProcess) -> io.BytesIO:
    out = io.BytesIO()
    assert proof(made.ledger.reader, "c", out) == 9
    return out


def test_a_proof_proves_itself_and_where_it_is_from(made: InProcess) -> None:
    out = made_proof(made)
    held = verify_proof(out)
    assert held.correlation == "c"
    assert list(held.entries) == story(made.ledger.reader, correlation="c")
    assert len(held.blobs) == 1
    assert verify_proof(out, made.ledger.reader.hash) == held
    assert b"hunter2" not in out.getvalue()


def test_the_same_record_gives_the_same_proof(made: InProcess, tmp_path: Path) -> None:
    path = tmp_path / "c.zip"
    proof(made.ledger.reader, "c", path)
    assert path.read_bytes() == made_proof(made).getvalue()


def test_a_proof_of_nothing_is_an_error(made: InProcess) -> None:
    with pytest.raises(LedgerError, match="nothing is recorded under the correlation x"):
        proof(made.ledger.reader, "x", io.BytesIO())


def test_a_proof_of_another_ledger_is_told_apart(made: InProcess, tmp_path: Path) -> None:
    out = made_proof(made)
    (tmp_path / "other").mkdir()
    with in_process(tmp_path / "other") as other:
        other.add(accepted(1, correlation_id="c"))
        with pytest.raises(LedgerCorrupt, match="is not what this ledger has there") as caught:
            verify_proof(out, other.ledger.reader.hash)
    assert caught.value.number == 1


def rezipped(source: io.BytesIO, name: str, data: bytes | None) -> io.BytesIO:
    out = io.BytesIO()
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(out, "w") as new:
        for member in old.namelist():
            if member != name:
                new.writestr(member, old.read(member))
        if data is not None:
            new.writestr(name, data)
    return out


@pytest.mark.parametrize("member", range(13))
@pytest.mark.parametrize("how", ["changed", "removed", "emptied"])
def test_any_changed_file_of_a_proof_is_noticed(made: InProcess, member: int, how: str) -> None:
    out = made_proof(made)
    with zipfile.ZipFile(out) as archive:
        names = archive.namelist()
        if member >= len(names):
            return
        name = names[member]
        data = bytearray(archive.read(name))
    data[len(data) // 2] ^= 1
    given = rezipped(out, name, {"changed": bytes(data), "removed": None, "emptied": b""}[how])
    with pytest.raises(LedgerCorrupt) as caught:
        verify_proof(given)
    if how == "changed" and name.startswith("entries/"):
        assert name == f"entries/{caught.value.number}.json"


def test_an_added_file_is_noticed(made: InProcess) -> None:
    with pytest.raises(LedgerCorrupt, match="does not match the manifest"):
        verify_proof(rezipped(made_proof(made), "blobs/" + "ab" * 32, b"x"))


@pytest.mark.parametrize("data", [b"", b"PK", b"not a zip at all" * 10])
def test_what_is_no_proof_is_said_so(data: bytes) -> None:
    with pytest.raises(LedgerCorrupt, match="this is no proof"):
        verify_proof(io.BytesIO(data))
