"""``trunkline replay``: files are checked and compared without an exchange; stand-ins answer in one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.requirement import requirement
from tests.unit.cli.conftest import Said, trunkline
from tests.unit.ledger.made import accepted, in_process, settled
from tests.unit.trajectory.made import failed, foreign, trajectory, written
from trunkline.ledger import export

LONG = b'{"text":"\\u202e' + b"long " * 90 + b'"}'
ODD_NUMBERS = b'{"x": 1.0, "\xf0\x9f\x98\x80": [-0.0, 1e300, 18446744073709551615]}'
EXAMPLES = Path(__file__).parents[3] / "examples"


def saved(folder: Path, name: str, lines: list[bytes]) -> str:
    file = folder / name
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    return str(file)


def test_a_whole_trajectory_is_told_with_its_hash(tmp_path: Path) -> None:
    file = saved(tmp_path, "a.jsonl", trajectory(accepted(1), settled(2, 1)))
    said = trunkline("replay", file)
    assert said.code == 0
    assert said.out.splitlines()[0] == "whole: 8 lines, 1 call, Success with confidence 1"
    shown = trunkline("replay", file, "--json").json
    assert said.out.splitlines()[-1] == f"trajectory {shown['trajectory_hash']}"
    assert (shown["status"], shown["lines"], shown["hashes"]) == ("Success", 8, 3)
    assert trunkline("--json", "replay", file).json == shown


def test_anybodys_file_is_told_with_what_could_not_be_proved(tmp_path: Path) -> None:
    lines = written([*foreign()[:3], {"event": "Thought"}, *foreign()[3:]])
    said = trunkline("replay", saved(tmp_path, "a.jsonl", lines))
    assert said.code == 0
    assert "1 hashes computed; 2 not, since the file does not hold what they are of; 1 events of somebody's" in said.out


@pytest.mark.parametrize(
    ("lines", "fault"),
    [([], "the file is empty"), ([b'{"protocolVersion": "1.0"}'], ""), ([b"[1,"], ""), ([b"hello"], "not strict JSON")],
)
def test_a_file_that_is_no_trajectory_is_said_to_be_none(tmp_path: Path, lines: list[bytes], fault: str) -> None:
    file = saved(tmp_path, "ops.json", lines)
    said = trunkline("replay", file)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith(f"trajectory.invalid: {file} is no trajectory: line 1: {fault}")
    assert trunkline("replay", "diff", file, file).err == said.err


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (written(foreign(ReplayHeader={"replay_version": 2})), "line 1: ReplayHeader: replay_version: "),
        (written(foreign(ToolCall={"params": {"\x1b": 1}})), "line 4: params_hash is "),
        ([*written(foreign())[:4], b'{"event":"\\u202e","a":1,"a":1}'], "line 5: not strict JSON: a key appears twice"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_ends_with_1(tmp_path: Path, lines: list[bytes], fault: str) -> None:
    file = saved(tmp_path, "a.jsonl", lines)
    said = trunkline("replay", file)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith(fault)
    error = trunkline("replay", file, "--json").json["error"]
    assert error["message"].startswith(fault)
    assert error["details"]["line"] == int(fault.split(":", maxsplit=1)[0].removeprefix("line "))


def test_a_file_that_is_not_there_is_bad_usage(tmp_path: Path) -> None:
    assert trunkline("replay", str(tmp_path / "none")).code == 2
    assert trunkline("replay", str(tmp_path)).code == 2
    assert trunkline("replay").code == 2


# --- two runs ---------------------------------------------------------------------------------------------------------


def compared(folder: Path, a: list[bytes], b: list[bytes], *more: str) -> Said:
    return trunkline("replay", "diff", saved(folder, "a.jsonl", a), saved(folder, "b.jsonl", b), *more)


def test_equal_runs_are_equal(tmp_path: Path) -> None:
    same = trajectory(accepted(1), settled(2, 1))
    assert compared(tmp_path, same, same).code == 0
    assert compared(tmp_path, same, same, "--json").json == {"same": True}


@pytest.mark.parametrize(
    ("entries", "told", "value"),
    [
        ((accepted(1, b'{"x":1}', tool_id="a/" + "b" * 60), settled(2, 1)), "call 1: another call is made", "a/bbb"),
        ((accepted(1, b'{"x":{"y":2}}'), settled(2, 1)), "its input differs", '{"y":2}'),
        ((accepted(1, b'{"x":1}'), settled(2, 1, LONG)), "its output differs", "\\u202e"),
        ((accepted(1, b'{"x":1}'), failed(2, 1)), "it ends otherwise", "failed"),
    ],
)  # fmt: skip
def test_where_two_runs_part_is_readable_in_80_columns(tmp_path: Path, entries: Any, told: str, value: str) -> None:
    a = trajectory(accepted(1, b'{"x":1}'), settled(2, 1))
    said = compared(tmp_path, a, trajectory(*entries))
    assert said.code == 1
    assert told in said.out.splitlines()[0]
    assert value in said.out
    # The folders of tests may be long; their names are cut.
    assert max(map(len, said.out.splitlines())) <= 80
    shown = compared(tmp_path, a, trajectory(*entries), "--json").json
    assert shown["same"] is False
    assert shown["call"] == 1


def test_a_difference_for_programs_has_its_place_and_both_values(tmp_path: Path) -> None:
    a, b = (trajectory(accepted(1, b'{"x":[1,%d]}' % last), settled(2, 1)) for last in (2, 3))
    shown = compared(tmp_path, a, b, "--json").json
    assert (shown["what"], shown["at"], shown["a"]["value"], shown["b"]["value"]) == ("params", "$.x[1]", 2, 3)
    assert (shown["a"]["line"], shown["b"]["tool"]) == (4, "com.example.echo/echo")


def test_only_trajectories_can_be_compared(tmp_path: Path) -> None:
    a = trajectory(accepted(1), settled(2, 1))
    assert compared(tmp_path, a, a[:-1]).err.startswith(
        f"{tmp_path / 'b.jsonl'}: line 7: is the last one, and no SessionEnd"
    )


# --- from the record --------------------------------------------------------------------------------------------------


@pytest.fixture
def home(short_path: Path) -> Path:
    with in_process(short_path) as made:
        made.add(
            lambda n: accepted(n, ODD_NUMBERS, correlation_id="c"),
            lambda n: settled(n, 1, b'{"\xef\xac\xb3": 1.5e-7, "t": "\\u2028\\u0001\\"", "e": 0.00001}'),
            lambda n: accepted(n, correlation_id="c"),
            lambda n: failed(n, 3),
        )  # fmt: skip
    return short_path


def exported(home: Path, form: str, *more: str) -> Said:
    return trunkline("ledger", "export", "--home", str(home), "--correlation", "c", "--format", form, *more)


@requirement("OA-094")
def test_the_native_file_and_the_exported_bundle_are_the_same_bytes(home: Path, tmp_path: Path) -> None:
    native = exported(home, "replay")
    assert native.code == 0
    bundle = tmp_path / "bundle.json"
    assert exported(home, "bundle", "--out", str(bundle)).code == 0
    assert json.loads(bundle.read_text())["session_id"] == "c"
    assert trunkline("replay", "export", str(bundle)).out == native.out
    out = tmp_path / "REPLAY.jsonl"
    exported(home, "replay", "--out", str(out))
    assert out.read_text() == native.out
    assert trunkline("replay", str(out)).code == 0


def test_what_is_no_bundle_is_said_so(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for content in ("", "{}", '{"session_id":"a","steps":[],"metadata":{}}'):
        file.write_text(content)
        said = trunkline("replay", "export", str(file))
        assert said.code == 1
        assert said.err.startswith("trajectory.invalid: not a ReplayBundle: ")


@requirement("OA-088", "OA-095", "OA-101", "OA-103", "OA-105")
@pytest.mark.parametrize("language", ["python", "node"])
def test_a_program_that_has_nothing_of_ours_computes_every_hash(
    home: Path, tmp_path: Path, node: str, language: str
) -> None:
    file = tmp_path / "REPLAY.jsonl"
    exported(home, "replay", "--out", str(file))
    ours = trunkline("replay", str(file), "--json").json
    script = {"python": [sys.executable, "-I", str(EXAMPLES / "check_trajectory.py")],
              "node": [node, str(EXAMPLES / "node" / "check_trajectory.js")]}[language]  # fmt: skip
    done = subprocess.run([*script, str(file)], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.splitlines() == ["5 hashes computed, 0 wrong", f"trajectory {ours['trajectory_hash']}"]
    file.write_text(file.read_text().replace("1.5e-7", "1.5e-8"))
    done = subprocess.run([*script, str(file)], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, "5 hashes computed, 1 wrong")


def test_the_two_faces_of_the_record_give_the_same_bytes(home: Path) -> None:
    from trunkline.ledger.reader import Reader

    reader = Reader(home / "ledger.sqlite")
    lines = list(export.trajectory(reader, "c"))
    reader.close()
    assert exported(home, "replay").out.encode() == b"".join(line + b"\n" for line in lines)
