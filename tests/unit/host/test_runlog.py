from __future__ import annotations

import base64
import itertools
import os
import stat
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.requirement import requirement
from trunkline.host.runlog import MAX_LINE_BYTES, RunLog, spellings

TOKEN = "tlk_" + "Zx9-_Qw7" * 5 + "abc"
MIB = 1_048_576


def written(path: Path, pieces: list[bytes], max_bytes: int = MIB, token: str = TOKEN) -> bytes:
    path.unlink(missing_ok=True)
    log = RunLog(str(path), max_bytes, bytes, [token] if token else [])
    for piece in pieces:
        log.feed(piece)
    log.close()
    return path.read_bytes()


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def test_what_was_printed_is_in_the_file_line_by_line(tmp_path: Path) -> None:
    assert written(tmp_path / "a" / "log", [b"one\ntw", b"o\n\nthr", b"ee"]) == b"one\ntwo\n\nthree\n"


def test_a_remark_of_the_exchange_is_a_line_of_its_own_and_stays_below_the_cap(tmp_path: Path) -> None:
    for max_bytes in (MIB, 100):
        log = RunLog(str(tmp_path / f"log{max_bytes}"), max_bytes, bytes, [TOKEN])
        log.feed(b"one\ntw")
        log.remark(f"look, {TOKEN}")
        log.feed(b"o\n")
        log.remark("x" * max_bytes)
        log.remark("nothing")
        log.close()
        assert (tmp_path / f"log{max_bytes}").stat().st_size <= max_bytes
    expected = b"one\n[trunkline: look, [masked]]\ntwo\n[trunkline: log full"
    assert (tmp_path / f"log{MIB}").read_bytes().startswith(expected)


def test_the_file_can_be_read_by_its_owner_only_and_is_never_an_existing_one(tmp_path: Path) -> None:
    written(tmp_path / "agent" / "log", [b"x\n"])
    assert stat.S_IMODE((tmp_path / "agent" / "log").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "agent").stat().st_mode) == 0o700
    with pytest.raises(FileExistsError):
        RunLog(str(tmp_path / "agent" / "log"), MIB, bytes, [TOKEN])
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        RunLog(str(tmp_path / "link"), MIB, bytes, [TOKEN])


@requirement("OS-136", "OS-142")
@given(
    before=st.binary(max_size=40),
    after=st.binary(max_size=40),
    places=st.lists(st.integers(0, 300), max_size=6),
    shape=st.sampled_from(["plain", "hex", "HEX", "base64", "urlsafe"]),
)
def test_the_runs_own_token_is_masked_however_it_is_spelled_and_cut(
    tmp_path_factory: pytest.TempPathFactory, before: bytes, after: bytes, places: list[int], shape: str
) -> None:
    secret = TOKEN.encode()
    text = {
        "plain": before + secret + after,
        "hex": before + secret.hex().encode() + after,
        "HEX": before + secret.hex().upper().encode() + after,
        "base64": base64.b64encode(before + secret + after),
        "urlsafe": base64.urlsafe_b64encode(before + secret + after),
    }[shape]
    found = written(tmp_path_factory.mktemp("log") / "log", cut(text + b"\n", places))
    assert b"[masked]" in found
    assert not any(spelling in found for spelling in spellings(secret))


@given(
    lines=st.lists(
        st.one_of(
            st.binary(max_size=30), st.integers(MAX_LINE_BYTES - 2, MAX_LINE_BYTES + 400).map(lambda n: b"x" * n)
        ),
        max_size=5,
    ),
    places=st.lists(st.integers(0, 40_000), max_size=8),
    max_bytes=st.sampled_from([100, 300, 20_000, MIB]),
)
def test_the_same_output_gives_the_same_lines_whole_or_in_pieces(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], places: list[int], max_bytes: int
) -> None:
    output = b"\n".join(lines)
    folder = tmp_path_factory.mktemp("log")
    whole = written(folder / "whole", [output], max_bytes).splitlines()
    pieces = written(folder / "pieces", cut(output, places), max_bytes).splitlines()
    kept = [line for line in whole if not line.startswith(b"[trunkline: log full")]
    assert kept == [line for line in pieces if not line.startswith(b"[trunkline: log full")]
    assert len(whole) == len(pieces)


def test_a_line_that_is_too_long_is_cut_and_half_a_secret_at_the_cut_is_not_shown(tmp_path: Path) -> None:
    # The cut goes through the token, one character before its end.
    start = b"a" * (MAX_LINE_BYTES - len(TOKEN) + 1)
    line = start + TOKEN.encode() + b"b" * 1000
    found = written(tmp_path / "log", [line, b"\nnext\n"])
    first, second = found.splitlines()
    assert TOKEN[:8].encode() not in found
    assert first.endswith(b"a [trunkline: line of %d bytes cut]" % len(line))
    assert len(first) < MAX_LINE_BYTES
    assert second == b"next"


def test_an_endless_line_takes_no_more_memory_than_one_line(tmp_path: Path) -> None:
    log = RunLog(str(tmp_path / "log"), MIB, bytes, [TOKEN])
    for _ in range(100):
        log.feed(b"x" * 65_536)
    assert len(log._line) == MAX_LINE_BYTES
    log.close()
    assert (tmp_path / "log").read_bytes().endswith(b"[trunkline: line of 6553600 bytes cut]\n")


@pytest.mark.parametrize("max_bytes", [0, 10, 1000, 5000])
def test_the_file_stays_below_its_cap_and_one_line_counts_what_was_left_out(tmp_path: Path, max_bytes: int) -> None:
    log = RunLog(str(tmp_path / "log"), max_bytes, bytes, [TOKEN])
    for number in range(1000):
        log.feed(b"line %d\n" % number)
    found = (tmp_path / "log").read_bytes()
    log.feed(b"y" * 1_000_000)
    log.close()
    *kept, notice = (tmp_path / "log").read_bytes().splitlines()
    assert kept == found.splitlines()[:-1]
    assert kept == [b"line %d" % number for number in range(len(kept))]
    printed = sum(len(b"line %d\n" % number) for number in range(1000))
    left_out = printed - sum(len(line) + 1 for line in kept) + 1_000_000
    assert notice == b"[trunkline: log full at %d bytes; %15d bytes left out]" % (max_bytes, left_out)
    assert (tmp_path / "log").stat().st_size <= max(max_bytes, len(notice) + 1)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("\x07\x00", r"\x07\x00"),
        ("\x9b31m", r"\x9b31m"),
        ("a\rb", r"a\rb"),
        ("windows\r", "windows"),
        ("right\u202eleft", r"right\u202eleft"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("\ufeffbom", r"\ufeffbom"),
        ("tab\tstays", "tab\tstays"),
        ("Grüße 日本 👍", "Grüße 日本 👍"),
    ],
)
def test_what_would_act_on_a_readers_terminal_is_shown_instead(tmp_path: Path, printed: str, shown: str) -> None:
    assert written(tmp_path / "log", [printed.encode() + b"\n"]).decode() == shown + "\n"


def test_bytes_that_are_no_text_are_shown_as_numbers(tmp_path: Path) -> None:
    assert written(tmp_path / "log", [b"\xff\xfe ok\n"]) == rb"\xff\xfe ok" + b"\n"


def test_the_mask_sees_what_was_printed_and_its_answer_is_kept(tmp_path: Path) -> None:
    log = RunLog(str(tmp_path / "log"), MIB, lambda data: data.replace(b"hunter2\x01", b"[masked]"), [TOKEN])
    log.feed(b"password hun")
    log.feed(b"ter2\x01\n")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"password [masked]\n"


def test_a_secret_of_several_lines_that_is_masked_with_their_end_does_not_join_the_next_line(tmp_path: Path) -> None:
    log = RunLog(str(tmp_path / "log"), MIB, lambda data: data.replace(b"KEY\nkey\n", b"[masked]"), [TOKEN])
    log.feed(b"KEY\nkey\n")
    log.feed(b"next\n")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"[masked]\nnext\n"


def test_a_mask_that_raises_costs_the_line_in_which_it_does(tmp_path: Path) -> None:
    def mask(data: bytes) -> bytes:
        if b"bad" in data:
            raise RecursionError
        return data.replace(b"secret", b"***")

    log = RunLog(str(tmp_path / "log"), MIB, mask, [TOKEN])
    log.feed(b"one secret\na bad secret\ntwo\nbad " + b"x" * 2 * MAX_LINE_BYTES + b"\nthree\n")
    log.close()
    one, left, two, cut, three = (tmp_path / "log").read_bytes().splitlines()
    assert (one, two, three) == (b"one ***", b"two", b"three")
    assert left == b"[trunkline: 12 bytes left out, they could not be masked]"
    assert cut.endswith(b"[trunkline: line of 32772 bytes cut]")
    assert b"xxx" not in cut


def test_a_mask_that_only_raises_at_several_lines_costs_those(tmp_path: Path) -> None:
    def mask(data: bytes) -> bytes:
        if data.count(b"\n") > 1:
            raise MemoryError
        return data

    log = RunLog(str(tmp_path / "log"), MIB, mask, [TOKEN])
    log.feed(b"one\n")
    log.feed(b"two\nthree\n")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"one\n[trunkline: 10 bytes left out, they could not be masked]\n"


def test_a_full_disk_loses_lines_and_says_how_many_bytes_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RunLog(str(tmp_path / "log"), MIB, bytes, [TOKEN])
    log.feed(b"before\n")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", full)
        log.feed(b"lost\n")
        log.feed(b"lost\n")
    log.feed(b"after\n")
    log.close()
    lines = (tmp_path / "log").read_bytes().splitlines()
    assert lines[0] == b"before"
    assert lines[1].startswith(b"[trunkline: ")
    assert b"bytes lost, the disk was full" in lines[1]
    assert lines[2:] == [b"after"]


def test_a_base64_spelling_is_never_so_short_that_it_hits_by_chance() -> None:
    secret = (string.ascii_letters[:43]).encode()
    assert min(len(spelling) for spelling in spellings(secret)) >= len(secret)
