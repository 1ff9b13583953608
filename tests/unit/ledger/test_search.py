from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.ledger.made import AT, InProcess, accepted, in_process, noticed, settled
from tests.unit.ledger.test_blobs import close_part
from trunkline.errors import LedgerError
from trunkline.ledger import search
from trunkline.ledger.search import SearchIndex
from trunkline.ledger.search_process import SearchProcess
from trunkline.model import Fault, Status
from trunkline.shown import CallSearch

SECRET = "tlk_" + "s" * 43


def index_of(made: InProcess, folder: Path) -> SearchIndex:
    return SearchIndex(folder / "index", made.ledger.reader)


def found(index: SearchIndex, limit: int = 50, **terms: object) -> list[int]:
    while index.follow():
        pass
    return index.find(CallSearch(limit, **terms)).numbers  # type: ignore[arg-type]


def fill(made: InProcess) -> None:
    made.add(
        accepted(1, b'{"city":"Vienna","note":"a long Danube walk"}'),
        settled(2, 1, b'{"weather":"sunny"}'),
        accepted(3, b'{"city":"Graz"}', tool_id="com.example.weather/today", caller="opensentience:com.example.asker"),
        settled(4, 3, status=Status.FAILED, output=None, fault=Fault("tool.failed", "the barometer broke")),
        accepted(5, b'{"city":"Linz"}', correlation_id="trip-7"),
        noticed(6),
    )


@pytest.mark.parametrize(
    ("terms", "numbers"),
    [
        ({}, [5, 3, 1]),
        ({"words": "vienna"}, [1]),
        ({"words": "VIEN"}, [1]),
        ({"words": "danube vienna"}, [1]),
        ({"words": "danube graz"}, []),
        ({"words": "sunny"}, [1]),
        ({"words": "vienna sunny"}, [1]),
        ({"words": "barometer"}, [3]),
        ({"words": "com.example.weather/today"}, [3]),
        ({"words": "trip-7"}, [5]),
        ({"words": "city"}, [5, 3, 1]),
        ({"tool": "Weather"}, [3]),
        ({"caller": "asker"}, [3]),
        ({"own": "operator"}, [5, 1]),
        ({"own": "oper"}, []),
        ({"status": "failed"}, [3]),
        ({"status": "succeeded"}, [1]),
        ({"status": "running"}, [5]),
        ({"first_ms": AT + 3}, [5, 3]),
        ({"last_ms": AT + 3}, [1]),
        ({"before": 5}, [3, 1]),
        ({"words": "city", "tool": "echo", "status": "succeeded"}, [1]),
    ],
)
def test_calls_are_found_by_what_is_in_them(tmp_path: Path, terms: dict[str, object], numbers: list[int]) -> None:
    with in_process(tmp_path) as made:
        fill(made)
        assert found(index_of(made, tmp_path), **terms) == numbers


def test_pages_follow_each_other(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        fill(made)
        index = index_of(made, tmp_path)
        assert found(index, 2) == [5, 3]
        first = index.find(CallSearch(2, "city"))
        assert (first.numbers, first.next, first.upto) == ([5, 3], 3, 6)
        assert index.find(CallSearch(2, "city", before=first.next)) == search.Found([1], None, 6)


def test_the_record_is_followed_as_it_grows_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "STEP", 2)
    with in_process(tmp_path) as made:
        fill(made)
        index = index_of(made, tmp_path)
        assert index.follow()
        assert index.at == 2
        assert found(index, words="linz") == [5]
        made.add(settled(7, 5, b'{"weather":"fog"}'), accepted(8, b'{"city":"Wels"}'))
        assert found(index, words="fog") == [5]
        assert found(index, words="wels") == [8]
        assert found(index, status="running") == [8]


def test_an_index_is_taken_up_where_it_was_left(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        fill(made)
        first = index_of(made, tmp_path)
        found(first)
        first.close()
        again = index_of(made, tmp_path)
        assert again.find(CallSearch(9, "vienna")).numbers == [1]
        assert again.at == 6


@pytest.mark.parametrize("harm", ["deleted", "deleted while it is used", "damaged", "of another record"])
def test_an_index_that_cannot_be_used_is_made_anew(tmp_path: Path, harm: str) -> None:
    file = tmp_path / "index"
    if harm == "of another record":
        (tmp_path / "other").mkdir()
        with in_process(tmp_path / "other") as other:
            other.add(accepted(1, b'{"city":"Rome"}'), accepted(2, b'{"city":"Bari"}'))
            stranger = SearchIndex(file, other.ledger.reader)
            found(stranger)
            stranger.close()
    with in_process(tmp_path) as made:
        fill(made)
        index = index_of(made, tmp_path)
        if harm != "of another record":
            found(index)
        if harm == "damaged":
            index.close()
            file.write_bytes(b"x" * 8192)
        elif harm == "deleted":
            index.close()
            file.unlink()
        elif harm == "deleted while it is used":
            file.unlink()
        assert found(index, words="vienna") == [1]
        assert found(index, words="rome") == []
        assert file.exists()


def test_what_is_removed_from_the_record_is_removed_from_the_index(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1, b'{"city":"Quetzaltenango"}'), settled(2, 1, b'{"weather":"Xylophonic"}'))
        made.take_snapshot([])
        made.add(accepted(4))
        index = index_of(made, tmp_path)
        assert found(index, words="quetzal") == [1]
        close_part(made, AT + 3)
        assert found(index, words="quetzal") == []
        assert found(index) == [4]
        index.close()
        kept = (tmp_path / "index").read_bytes().lower()
        assert b"uetzaltenango" not in kept
        assert b"ylophonic" not in kept


def test_the_index_holds_what_the_record_shows_and_no_secret(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1, b'{"city":"Graz","token":"%b"}' % SECRET.encode()))
        index = index_of(made, tmp_path)
        assert found(index, words="graz") == [1]
        assert found(index, words=SECRET) == []
        index.close()
        assert b"s" * 20 not in (tmp_path / "index").read_bytes()


@given(st.text(max_size=40))
def test_any_words_can_be_looked_for(words: str) -> None:
    index = _shared()
    assert isinstance(index.find(CallSearch(5, words, tool=words, caller=words)).numbers, list)


_kept: list[SearchIndex] = []


def _shared() -> SearchIndex:
    if not _kept:
        import tempfile

        folder = Path(tempfile.mkdtemp())
        with in_process(folder) as made:
            fill(made)
            index = SearchIndex(folder / "index", made.ledger.reader)
            found(index)
            _kept.append(index)
    return _kept[0]


@pytest.mark.slow
async def test_a_process_of_its_own_searches_and_follows(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        fill(made)
        made.ledger.close()
        process = SearchProcess(tmp_path / "ledger.sqlite", tmp_path / "index")
        await process.start()
        assert process._process is None, "nobody has searched yet"
        try:
            many = await asyncio.gather(*(process.find(CallSearch(9, word)) for word in ("vienna", "graz", "nothing")))
            assert [one.numbers for one in many] == [[1], [3], []]
            # One that was killed is started again.
            assert process._process is not None
            process._process.kill()
            await process._process.wait()
            assert (await process.find(CallSearch(9, "linz"))).numbers == [5]
        finally:
            await process.stop()
        await process.start()
        assert process._process is not None, "there is an index, which follows the record"
        await process.stop()
        assert (tmp_path / "index").stat().st_mode & 0o777 == 0o600


async def test_without_a_record_a_search_fails_and_says_so(tmp_path: Path) -> None:
    process = SearchProcess(tmp_path / "ledger.sqlite", tmp_path / "index")
    try:
        with pytest.raises(LedgerError, match="did not answer"):
            await process.find(CallSearch(9, "x"))
    finally:
        await process.stop()
