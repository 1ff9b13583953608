from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from trunkline.edges.console import signing_in
from trunkline.edges.console.signing_in import CODE_S, MAX_CODES, MAX_SIGN_INS, SIGN_IN_S, SignIns
from trunkline.errors import ConfigError
from trunkline.model import Now

START = Now(100.0, 1_000_000.0)


def later(seconds: float) -> Now:
    return Now(START.mono + seconds, START.wall + seconds)


def sign_ins(folder: Path, key: bytes = b"k" * 32) -> SignIns:
    numbers = itertools.count(1)
    return SignIns(key, lambda size: next(numbers).to_bytes(size, "big"), folder)


def test_a_code_is_good_once(tmp_path: Path) -> None:
    kept = sign_ins(tmp_path)
    code = kept.new_code(START)
    assert not kept.try_spend(code + "x", START)
    assert kept.try_spend(code, START)
    assert not kept.try_spend(code, START)


def test_a_code_expires_also_when_the_clock_is_set_back(tmp_path: Path) -> None:
    kept = sign_ins(tmp_path)
    early, late = kept.new_code(START), kept.new_code(START)
    assert kept.try_spend(early, later(CODE_S - 1))
    assert not kept.try_spend(late, Now(START.mono + CODE_S, START.wall - 10_000))


def test_the_oldest_code_makes_room(tmp_path: Path) -> None:
    kept = sign_ins(tmp_path)
    codes = [kept.new_code(START) for _ in range(MAX_CODES + 1)]
    assert [kept.try_spend(code, START) for code in codes] == [False] + [True] * MAX_CODES


def test_a_sign_in_ends_after_its_time(tmp_path: Path) -> None:
    kept = sign_ins(tmp_path)
    made = kept.begin(START)
    found = kept.find(made.cookie, later(SIGN_IN_S - 1))
    assert found is not None
    assert kept.is_key_of(found, made.key)
    assert not kept.is_open(found, later(SIGN_IN_S))
    assert kept.find(made.cookie, later(SIGN_IN_S)) is None


def test_the_oldest_sign_in_makes_room(tmp_path: Path) -> None:
    kept = sign_ins(tmp_path)
    made = [kept.begin(START) for _ in range(MAX_SIGN_INS + 1)]
    assert [kept.find(one.cookie, START) is not None for one in made] == [False] + [True] * MAX_SIGN_INS
    assert kept.count == MAX_SIGN_INS


def test_the_next_run_knows_who_is_signed_in_and_who_is_not_any_more(tmp_path: Path) -> None:
    kept = sign_ins(tmp_path)
    stays, goes = kept.begin(START), kept.begin(later(1))
    found = kept.find(goes.cookie, START)
    assert found is not None
    kept.end(found)
    after = sign_ins(tmp_path)
    after.load(later(2))
    again = after.find(stays.cookie, later(2))
    assert again is not None
    assert after.is_key_of(again, stays.key)
    assert after.find(goes.cookie, later(2)) is None
    expired = sign_ins(tmp_path)
    expired.load(later(SIGN_IN_S))
    assert expired.count == 0


def test_with_another_token_of_the_operator_nobody_is_signed_in_any_more(tmp_path: Path) -> None:
    made = sign_ins(tmp_path).begin(START)
    after = sign_ins(tmp_path, b"another operator".ljust(32))
    after.load(START)
    assert after.find(made.cookie, START) is None
    assert after.count == 0


def test_keys_and_signatures_belong_to_a_home_and_a_sign_in(tmp_path: Path) -> None:
    kept, other = sign_ins(tmp_path), sign_ins(tmp_path, b"o" * 32)
    first, second = kept.begin(START), kept.begin(START)
    found = kept.find(first.cookie, START)
    assert found is not None
    assert not kept.is_key_of(found, second.key)
    assert other.key_of(found) != kept.key_of(found)
    assert kept.channel_secret(found) != kept.key_of(found).encode()
    assert other.channel_secret(found) != kept.channel_secret(found)


def test_the_file_is_for_its_owner_only_and_holds_no_secret(tmp_path: Path) -> None:
    kept = sign_ins(tmp_path)
    made = kept.begin(START)
    file = tmp_path / signing_in.FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert made.cookie not in file.read_text()
    assert made.key not in file.read_text()
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        sign_ins(tmp_path).load(START)


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'[{"sha256": 1}]', b"[[]]", b'{"mark": "x", "sign_ins": []}'])
def test_a_file_that_cannot_be_read_means_that_nobody_is_signed_in(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / signing_in.FILE
    file.touch(0o600)
    file.write_bytes(content)
    kept = sign_ins(tmp_path)
    kept.load(START)
    assert kept.count == 0


def test_where_nothing_can_be_written_a_sign_in_lasts_as_long_as_the_exchange(tmp_path: Path) -> None:
    blocked = tmp_path / "keys"
    blocked.touch()
    kept = sign_ins(blocked)
    made = kept.begin(START)
    assert kept.find(made.cookie, START) is not None
    assert "cannot be written" in kept.trouble
