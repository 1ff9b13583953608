"""What a person is shown: nothing invisible, aligned columns, readable times."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click import unstyle
from hypothesis import given
from hypothesis import strategies as st

from trunkline.cli.terminal import clock, duration, printable, seconds_of, table, width

NASTY = {
    "red": "\x1b[31mred\x1b[0m",
    "clear screen": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\",
    "c1 csi": "\x9b31m",
    "c1 osc": "\x9d0;x\x9c",
    "newline": "ok\nERROR: forged line",
    "carriage return": "rm -rf /\rls      ",
    "backspaces": "evil\b\b\b\bgood",
    "nul": "a\0b",
    "del": "a\x7fb",
    "vertical tab": "a\x0bb\x0cc",
    "right-to-left override": "user\u202etxt.exe",
    "isolates": "a\u2066b\u2069c",
    "embedding": "\u202bx\u202c",
    "arabic mark": "a\u061cb",
    "zero width space": "pay\u200bpal",
    "zero width joiners": "a\u200d\u200cb",
    "byte order mark": "\ufeffa",
    "word joiner and soft hyphen": "a\u2060b\u00adc",
    "line separators": "a\u2028b\u2029c",
    "tag characters": "hi\U000e0041\U000e0042",
    "hangul filler": "a\u3164b\u115fc\uffa0",
    "variation selectors": "a\ufe0fb\U000e0100",
    "lone surrogate": "a\ud800b",
    "next line": "a\x85b",
    "braille blank": "a\u2800b",
    "private use": "a\ue000b",
    "unassigned": "a\U0003ffffb",
    "mongolian": "a\u180eb",
}


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_nothing_nasty_reaches_the_screen(text: str) -> None:
    shown = printable(text)
    assert shown != text
    assert "\\u" in shown
    assert shown.isprintable()
    assert not set(shown) & set("\u3164\u115f\uffa0\ufe0f\u2800")
    shown.encode()


@pytest.mark.parametrize("text", ["plain", "Grüße, 東京 😀", "naïve é", "a\\u0041", "'quoted' \"text\""])
def test_what_is_visible_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@given(st.text())
def test_escaped_json_is_the_same_value(text: str) -> None:
    assert json.loads(printable(json.dumps({"a": text}, ensure_ascii=False, indent=1), keep="\n")) == {"a": text}


@given(st.text())
def test_the_result_is_always_one_printable_line(text: str) -> None:
    assert printable(text).isprintable()


def test_kept_characters_stay() -> None:
    assert printable("a\n\tb\r", keep="\n\t") == "a\n\tb\\u000d"


def test_columns_are_aligned_also_with_wide_characters(capsys: pytest.CaptureFixture[str]) -> None:
    table(["NAME", "STATE", "NOTE"], [["東京", "ok", "x"], ["a", "bad\x1b[31m", ""]])
    assert capsys.readouterr().out == (
        "NAME  STATE          NOTE\n"
        "東京  ok             x\n"
        "a     bad\\u001b[31m\n"
    )  # fmt: skip


ROW = ["12:00:00", "com.example.notes/append", "a long remark that may be cut", "0123456789abcdef0123456789"]
HEAD = ["TIME", "TOOL", "WHY", "CALL"]


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (93, ["  ".join(ROW)]),
        (92, ["  ".join(ROW[:3]), f"    {ROW[3]}"]),
        (50, ["12:00:00  com.example.notes/append  a long remark…", f"    {ROW[3]}"]),
        (40, ["12:00:00  …mple.notes/append  a long re…", f"    {ROW[3]}"]),
        (32, ["12:00:00  …es/append  a long re…", f"    {ROW[3]}"]),
        (31, ["12:00:00  com.example.notes/ap…", "    why a long remark that may", "    be cut", f"    {ROW[3]}"]),
    ],
)
def test_on_a_narrow_terminal_ids_go_below_and_the_rest_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, lines: list[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    table(HEAD, [ROW], below=1)
    assert [unstyle(line) for line in capsys.readouterr().out.splitlines()[1:]] == lines


def on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, **options: Any
) -> list[str]:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    table(HEAD, [ROW], **options)
    return [unstyle(line) for line in capsys.readouterr().out.splitlines()]


def test_a_column_to_keep_is_whole_however_narrow_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, row = on_a_terminal(capsys, monkeypatch, 58, keep=(1,))
    assert row == "12:00:00  com.example.notes/append  …ay be cut  012345678…"


@pytest.mark.parametrize("columns", [7, 20, 30, 39, 40, 79, 80, 110])
@pytest.mark.parametrize("below", [0, 1, 2])
@pytest.mark.parametrize("keep", [(), (1,), (0, 1, 2, 3)])
def test_no_line_of_a_table_is_wider_than_the_terminal(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
    below: int,
    keep: tuple[int, ...],
) -> None:
    lines = on_a_terminal(capsys, monkeypatch, columns, below=below, keep=keep, status=2)
    assert max(map(width, lines)) <= columns


def test_what_is_to_be_kept_and_has_no_room_beside_the_rest_is_whole_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert on_a_terminal(capsys, monkeypatch, 48, keep=(0, 1, 3), below=1) == [
        "TIME      TOOL                      WHY",
        "12:00:00  com.example.notes/append  a long rema…",
        f"    {ROW[3]}",
    ]
    assert on_a_terminal(capsys, monkeypatch, 40, keep=(0, 1, 3)) == [
        "TIME      TOOL",
        "12:00:00  com.example.notes/append",
        "    why a long remark that may be cut",
        f"    call {ROW[3]}",
    ]


def test_wide_characters_below_a_row_are_parted_where_the_line_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "12")
    table(["NAME", "NOTE"], [["a", "東京東京東京 x"]], below=1)
    assert [unstyle(line) for line in capsys.readouterr().out.splitlines()[1:]] == ["a", "    東京東京", "    東京 x"]


def test_several_columns_go_below_together(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_a_terminal(capsys, monkeypatch, 61, below=2)[1:] == [
        "12:00:00  com.example.notes/append",
        f"    {ROW[2]}  {ROW[3]}",
    ]


def test_spare_columns_are_left_out_before_others_are_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    head, row = on_a_terminal(capsys, monkeypatch, 66, spare=(2, 0))
    assert head.split() == ["TIME", "TOOL", "CALL"]
    assert row == f"{ROW[0]}  {ROW[1]}  {ROW[3]}"


def test_elsewhere_nothing_is_cut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    table(HEAD, [ROW], below=1)
    assert capsys.readouterr().out.splitlines()[1] == "  ".join(ROW)


def test_combining_characters_take_no_room() -> None:
    assert width("e\u0301") == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (-0.1, "0 ms"),
        (0.0074, "7 ms"),
        (0.9996, "1.0 s"),
        (1.34, "1.3 s"),
        (59.96, "1 min 0 s"),
        (125, "2 min 5 s"),
        (12_000, "3 h 20 min"),
        (352_800, "4 d 2 h"),
    ],
)
def test_durations_are_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_todays_times_have_no_date_and_others_do() -> None:
    now = time.time()
    assert clock(now) == time.strftime("%H:%M:%S", time.localtime(now))
    assert clock(0.0).startswith(("1970-01-01 ", "1969-12-31 "))
    assert seconds_of("1970-01-01T00:00:01.500Z") == 1.5


@pytest.mark.parametrize(
    ("variable", "value", "is_coloured"), [("TERM", "xterm", True), ("TERM", "dumb", False), ("NO_COLOR", "1", False)]
)
def test_a_terminal_that_knows_no_colours_is_sent_none(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, is_coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(variable, value)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "trunkline", "--home", str(short_path)]
    subprocess.run(command, stdin=theirs, stdout=theirs, stderr=theirs, timeout=30, check=True)
    os.close(theirs)
    said = os.read(ours, 65536)
    os.close(ours)
    assert b"Trunkline joins agents" in said
    assert (b"\x1b" in said) is is_coloured
