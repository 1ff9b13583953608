"""Large bodies that are sent once and named when they come again: the record is the same as if each had been sent."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from tests.requirement import requirement
from tests.unit.ledger.made import AT, KEYS, InProcess, accepted, in_process, noticed, settled
from tests.unit.ledger.masking_examples import TRUE
from trunkline.entries import CallAccepted, CallSettled, Entry, PartClosed, decode, encode
from trunkline.errors import InvariantBroken, LedgerError, LedgerFailed
from trunkline.ledger import blobs as blobs_module
from trunkline.ledger import ledger as ledger_module
from trunkline.ledger import store
from trunkline.ledger.blobs import SentBlobs
from trunkline.ledger.commit_group import CommitGroup, packed
from trunkline.ledger.ledger import Ledger
from trunkline.ledger.masking import Masker
from trunkline.ledger.reader import Reader
from trunkline.ledger.verify import verify
from trunkline.ledger.writer import INLINE_BODY_BYTES, Writer
from trunkline.model import INLINE_OUTPUT_BYTES

pytestmark = pytest.mark.slow

SIZE = INLINE_BODY_BYTES + 1000
PLAIN = b'{"text":"' + b"a" * SIZE + b'"}'
OTHER = b'{"text":"' + b"b" * SIZE + b'"}'
SECRET = b'{"text":"' + b"c" * SIZE + b'","password":"hunter2"}'


# --- the exchange's side ----------------------------------------------------------------------------------------------


def test_a_body_that_comes_again_has_the_number_it_had_and_is_not_sent() -> None:
    sent = SentBlobs()
    assert sent.number(Raw(PLAIN)) == (1, len(PLAIN))
    assert sent.number(Raw(bytes(bytearray(PLAIN)))) == (1, 0)
    assert sent.take() == ([(1, Raw(PLAIN))], [])
    assert sent.number(Raw(PLAIN)) == (1, 0)
    assert sent.take() == ([], [])


@pytest.mark.parametrize("place", [0, 1, 5, SIZE // 2, SIZE // 2 + 1, SIZE - 2, SIZE - 1])
def test_a_body_of_equal_length_that_differs_in_one_byte_is_another(place: int) -> None:
    other = bytearray(b"a" * SIZE)
    other[place] = 0x62
    sent = SentBlobs()
    first, _ = sent.number(Raw(b"a" * SIZE))
    second, size = sent.number(Raw(bytes(other)))
    assert second != first
    assert size == SIZE
    fresh, _ = sent.take()
    assert [bytes(body) for _, body in fresh] == [b"a" * SIZE, bytes(other)]


def test_the_least_recently_used_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs_module, "KEPT_BYTES", 3 * SIZE)
    bodies = [Raw(bytes([0x61 + n]) * SIZE) for n in range(4)]
    sent = SentBlobs()
    assert [sent.number(body)[0] for body in bodies[:3]] == [1, 2, 3]
    sent.number(bodies[0])
    assert sent.number(bodies[3]) == (4, SIZE)
    assert sent.take()[1] == [2]
    assert sent.number(bodies[0]) == (1, 0)
    # Numbers are never used again.
    assert sent.number(bodies[1]) == (5, SIZE)
    assert sent.take() == ([(5, bodies[1])], [3])


def test_a_huge_body_drives_nothing_out_and_is_not_kept() -> None:
    huge = Raw(b"h" * (blobs_module.LARGEST_KEPT + 1))
    sent = SentBlobs()
    sent.number(Raw(PLAIN))
    assert sent.number(huge) == (2, len(huge))
    assert sent.take() == ([(1, Raw(PLAIN)), (2, huge)], [2])
    assert sent.number(huge)[0] == 3
    assert sent.number(Raw(PLAIN)) == (1, 0)


def test_what_a_body_was_a_view_of_may_change() -> None:
    frame = bytearray(b'{"payload":' + PLAIN + b"}")
    body = msgspec.json.decode(memoryview(frame), type=dict[str, Raw])["payload"]
    sent = SentBlobs()
    sent.number(body)
    frame[100:200] = b"z" * 100
    ((number, kept),), _ = sent.take()
    assert bytes(kept) == PLAIN
    assert sent.number(Raw(PLAIN)) == (number, 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 40]), st.booleans()), max_size=40))
def test_both_sides_always_mean_the_same_body(steps: list[tuple[int, int, bool]]) -> None:
    # Many of one length, and many with the same samples.
    monkey = pytest.MonkeyPatch()
    monkey.setattr(blobs_module, "KEPT_BYTES", 400)
    monkey.setattr(blobs_module, "LARGEST_KEPT", 130)
    sent = SentBlobs()
    there: dict[int, bytes] = {}
    named: list[tuple[int, bytes]] = []
    try:
        for content, more, ends_group in steps:
            body = b"x" * 99 + b"%d" % content + b"y" * more
            named.append((sent.number(Raw(body))[0], body))
            if ends_group:
                fresh, forgotten = sent.take()
                assert not there.keys() & {number for number, _ in fresh}
                there.update((number, bytes(body)) for number, body in fresh)
                assert [there[number] for number, _ in named] == [body for _, body in named]
                named.clear()
                for number in forgotten:
                    del there[number]
                assert sum(map(len, there.values())) <= 400
    finally:
        monkey.undo()


# --- the record is the same -------------------------------------------------------------------------------------------


def sent_bodies(made: InProcess) -> list[int]:
    """The sizes of the bodies that go to the writer from now on."""
    sizes: list[int] = []
    send = made.ledger._link.send

    def watched(group: bytes, blobs: list[tuple[int, Raw]]) -> None:
        sizes.extend(len(body) for _, body in blobs)
        send(group, blobs)

    made.ledger._link.send = watched  # type: ignore[method-assign, assignment]
    return sizes


def tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Everything that is stored, but for what is encrypted anew each time."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        columns = {"held": "n, call, expires", "held_blobs": "name, expires"}
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {
            name: sorted(connection.execute(f"SELECT {columns.get(name, '*')} FROM {name}"))  # noqa: S608
            for name in names
        }
    finally:
        connection.close()


def test_a_repeated_body_is_sent_once_within_a_group_and_across_groups(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        sent = sent_bodies(made)
        made.add(accepted(1, PLAIN), settled(2, 1, PLAIN))
        made.add(accepted(3, PLAIN), accepted(4, OTHER))
        made.add(settled(5, 3, OTHER), settled(6, 4, PLAIN))
        assert sent == [len(PLAIN), len(OTHER)]
        assert list(made.ledger.reader.recovery()) == [
            *(accepted(1, PLAIN), settled(2, 1, PLAIN), accepted(3, PLAIN), accepted(4, OTHER)),
            *(settled(5, 3, OTHER), settled(6, 4, PLAIN)),
        ]
        assert verify(made.path).blobs == 2


SEEDED = b'{"text":"' + b"d" * SIZE + b'","next_page_token":"x"}'
HUGE_SECRET = b'{"password":"hunter2","text":"' + b"e" * INLINE_OUTPUT_BYTES + b'"}'
# `-u` is judged by what stands before it: with `curl` in the tool's name it begins a command line.
NEIGHBOUR = b'[" -u bob:hunter2x1 ","' + b"f" * SIZE + b'"]'
SMALL = b'{"n":1}'


@st.composite
def repeating(draw: st.DrawFn) -> list[list[Entry]]:
    """Groups of calls that use few bodies, often; with secrets in bodies, around them, and next to their edges."""
    groups: list[list[Entry]] = [[]]
    still_open: list[int] = []
    for n in range(1, draw(st.integers(1, 10)) + 1):
        body = draw(st.sampled_from([PLAIN, PLAIN, OTHER, SECRET, SEEDED, NEIGHBOUR, SMALL]))
        if still_open and draw(st.booleans()):
            call = still_open.pop()
            taints = draw(st.sampled_from([(), ("c1",)]))
            metrics = draw(st.sampled_from([None, Raw(b'{"password":"hunter3"}'), Raw(b'{"output":1}')]))
            groups[-1].append(settled(n, call, body, taints=taints, metrics=metrics))
        else:
            still_open.append(n)
            groups[-1].append(
                accepted(
                    n,
                    body,
                    tool_id=draw(st.sampled_from(["a/b", "curl/run", '"input":/x'])),
                    rule=draw(st.sampled_from(["r", "password=hunter4x", '","input":{'])),
                    key_id=draw(st.none() | st.sampled_from(["k1", "k2"])),
                )
            )
        if draw(st.booleans()):
            groups.append([])
    return groups


def written(folder: Path, groups: list[list[Entry]], **settings: int) -> dict[str, list[tuple[object, ...]]]:
    folder.mkdir()
    monkey = pytest.MonkeyPatch()
    for name, value in settings.items():
        monkey.setattr(ledger_module if name == "INLINE_BODY_BYTES" else blobs_module, name, value)
    try:
        with in_process(folder, keys=KEYS) as made:
            for group in groups:
                made.add(*group)
            reader = made.ledger.reader
            whole = [(entry.n, reader.entry(entry.n, original=True)) for group in groups for entry in group]
            verify(made.path)
        return {**tables(folder / "ledger.sqlite"), "originals": whole}
    finally:
        monkey.undo()


@settings(max_examples=25)
@given(repeating())
def test_what_is_stored_does_not_depend_on_how_bodies_travel(groups: list[list[Entry]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        as_it_is = written(Path(folder) / "a", groups)
        assert as_it_is == written(Path(folder) / "b", groups, LARGEST_KEPT=0)
        assert as_it_is == written(Path(folder) / "c", groups, KEPT_BYTES=len(PLAIN) + 10)
        # Inside their entries: the writer takes each apart by itself.
        assert as_it_is == written(Path(folder) / "d", groups, INLINE_BODY_BYTES=1 << 40)


@requirement("OS-102")
def test_a_secret_at_the_very_edge_of_a_large_body_is_masked(tmp_path: Path) -> None:
    masker = Masker()
    examples = [text for examples in TRUE.values() for text, _ in examples]
    bodies = [
        json.dumps(text).encode() for example in examples for text in (example + "a" * SIZE, "a" * SIZE + example)
    ]
    with in_process(tmp_path) as made:
        entries = [accepted(n, body) for n, body in enumerate(bodies, 1)]
        for entry in entries:
            made.add(entry)
        shown = [decode(masker.mask(encode(entry))) for entry in entries]
        assert list(made.ledger.reader.entries(1, len(entries))) == shown


@requirement("OS-002", "OS-150")
def test_a_repeated_body_with_a_secret_is_masked_each_time_and_whole_for_recovery(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        sent = sent_bodies(made)
        made.add(accepted(1, SECRET), accepted(2, SECRET))
        made.add(accepted(3, SECRET))
        assert sent == [len(SECRET)]
        stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert b"hunter2" not in stored
        reader = made.ledger.reader
        assert list(reader.recovery()) == [accepted(1, SECRET), accepted(2, SECRET), accepted(3, SECRET)]
        lines = [json.loads(line) for line in reader.lines(1, 3)]
        assert all("masked_mac" in line and line["moved"] == ["input"] for line in lines)
        assert verify(made.path).held == 3
        made.add(settled(4, 1, PLAIN), settled(5, 2), settled(6, 3))
        assert verify(made.path).held == 0


def test_a_clean_body_in_an_entry_with_a_secret_is_stored_with_what_is_around_it_masked(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1, PLAIN))
        made.add(accepted(2, PLAIN, rule="password=hunter2x"), noticed(3))
        line = json.loads(made.ledger.reader.line(2) or b"")
        assert line["rule"] == "password=[masked:named]"
        assert line["input"] == json.loads(made.ledger.reader.line(1) or b"")["input"]
        assert list(made.ledger.reader.recovery())[1] == accepted(2, PLAIN, rule="password=hunter2x")


def test_a_secret_that_becomes_known_is_masked_in_a_body_sent_before(tmp_path: Path) -> None:
    body = b'{"text":"plainwords ' + b"a" * SIZE + b'"}'
    with in_process(tmp_path) as made:
        sent = sent_bodies(made)
        made.add(accepted(1, body))
        made.ledger.add_secret("gateway", "plainwords")
        made.add(accepted(2, body))
        assert sent == [len(body)]
        shown = made.ledger.reader.entry(2)
        assert isinstance(shown, CallAccepted)
        assert bytes(shown.input) == body.replace(b"plainwords", b"[masked:gateway]")
        assert list(made.ledger.reader.recovery()) == [accepted(1, body), accepted(2, body)]


def test_a_body_that_names_a_masked_output_says_its_other_hash_also_when_it_was_sent_before(tmp_path: Path) -> None:
    digest = hashlib.sha256(HUGE_SECRET).hexdigest().encode()
    body = b'{"ref":"' + digest + b'","text":"' + b"a" * SIZE + b'"}'
    with in_process(tmp_path) as made:
        made.add(accepted(1, body))
        made.add(settled(2, 1, HUGE_SECRET))
        made.add(accepted(3, body))
        reader = made.ledger.reader
        shown = reader.entry(3)
        assert isinstance(shown, CallAccepted)
        other = json.loads(reader.line(2) or b"")["output"]["$blob"].removeprefix("sha256:").encode()
        assert bytes(shown.input) == body.replace(digest, other)
        # What has nothing to do with it is recognised as before.
        made.add(accepted(4, PLAIN))
        assert reader.entry(4) == accepted(4, PLAIN)


# --- retention, a full disk, a disagreement ---------------------------------------------------------------------------


def close_part(made: InProcess, before_ms: int) -> PartClosed:
    closing = made.ledger.close_part(before_ms, [])
    assert closing is not None
    entry = PartClosed(made.ledger.last + 1, AT + 1000, closing.first, closing.last, closing.head, closing.kept)
    made.add(entry)
    return entry


def bodies_stored(made: InProcess) -> int:
    return verify(made.path).blobs


def test_retention_keeps_a_body_that_was_repeated_and_removes_one_that_was_not(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1, PLAIN), settled(2, 1, OTHER))
        made.take_snapshot([])
        made.add(accepted(4, PLAIN))
        assert close_part(made, AT + 3).last == 2
        assert bodies_stored(made) == 1
        assert made.ledger.reader.entry(4) == accepted(4, PLAIN)


def test_a_body_that_retention_removed_is_stored_again_when_it_is_repeated(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        sent = sent_bodies(made)
        made.add(accepted(1, PLAIN), settled(2, 1))
        made.take_snapshot([])
        close_part(made, AT + 3)
        assert bodies_stored(made) == 0
        made.add(accepted(5, PLAIN))
        assert sent == [len(PLAIN)]
        assert bodies_stored(made) == 1
        assert made.ledger.reader.entry(5) == accepted(5, PLAIN)


def test_a_body_repeated_in_the_group_that_closes_its_part_stays(tmp_path: Path) -> None:
    with in_process(tmp_path) as made:
        made.add(accepted(1, PLAIN), settled(2, 1))
        made.take_snapshot([])
        closing = made.ledger.close_part(AT + 3, [])
        assert closing is not None
        closes = PartClosed(5, AT + 1000, closing.first, closing.last, closing.head, closing.kept)
        made.add(accepted(4, PLAIN), closes, accepted(6, PLAIN))
        made.add(accepted(7, PLAIN))
        assert bodies_stored(made) == 1
        assert [made.ledger.reader.entry(n) for n in (4, 6, 7)] == [accepted(n, PLAIN) for n in (4, 6, 7)]


def test_a_body_whose_first_write_was_rolled_back_is_written_with_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = InProcess(tmp_path)
    made.add(accepted(1, PLAIN))
    database = made.ledger._link._writer._db  # type: ignore[attr-defined]

    def limit_pages(extra: int) -> None:
        pages = database.execute("PRAGMA page_count").get
        database.execute(f"PRAGMA max_page_count = {pages + extra}")

    given_back = []

    def give_back(reserve: store.Reserve) -> bool:
        given_back.append(reserve)
        limit_pages(1000)
        return True

    monkeypatch.setattr(store.Reserve, "give_back", give_back)
    # Room for the first body, not for the second: the first was stored, and is gone again.
    limit_pages(25)
    made.add(accepted(2, OTHER), accepted(3, b'"' + b"g" * 200_000 + b'"'), settled(4, 1, PLAIN))
    made.add(settled(5, 2, OTHER))
    assert len(given_back) == 1
    assert made.acknowledged == [1, 4, 5]
    assert bodies_stored(made) == 3
    assert made.ledger.reader.call(2) == (accepted(2, OTHER), settled(5, 2, OTHER))
    made.ledger.close()


def test_the_writer_keeps_what_the_exchange_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs_module, "KEPT_BYTES", 3 * SIZE)
    with in_process(tmp_path) as made:
        writer = made.ledger._link._writer  # type: ignore[attr-defined]
        assert isinstance(writer, Writer)
        for n in range(1, 30):
            made.add(accepted(n, b'"' + b"%d" % (n * n % 7) * SIZE + b'"'))
            kept = {number: bytes(body) for number, body in made.ledger._blobs._kept.values()}
            assert writer._blobs == kept
            assert writer._references.keys() == kept.keys()
            assert len(kept) <= 3
        entries = [accepted(n, b'"' + b"%d" % (n * n % 7) * SIZE + b'"') for n in range(1, 30)]
        assert list(made.ledger.reader.recovery()) == entries


def naming(blob: int) -> bytes:
    data = b'{"kind":"call.accepted","n":1,"at":1,"input":}'
    return packed(
        CommitGroup(1, AT, [len(data)], {1: (len(data) - 1, blob)}, [], [], [], [], None, None, [], []), [data]
    )


def test_a_number_that_the_writer_does_not_know_is_the_end_of_it(tmp_path: Path) -> None:
    made = InProcess(tmp_path)
    writer = made.ledger._link._writer  # type: ignore[attr-defined]
    with pytest.raises(InvariantBroken, match="blob 7 was never sent, or is forgotten"):
        writer.commit(naming(7), [(6, PLAIN)])
    made.break_off()


# --- with the writer's process ----------------------------------------------------------------------------------------


class Heard:
    """A ledger with its process, until something is durable or fails."""

    def __init__(self, folder: Path) -> None:
        self.failures: list[LedgerError] = []
        self._heard = asyncio.Event()
        self.ledger = Ledger.open(
            folder / "ledger.sqlite",
            folder / "keys",
            loop=asyncio.get_running_loop(),
            on_durable=lambda _number: self._heard.set(),
            on_failure=self._fail,
        )

    def _fail(self, error: LedgerError) -> None:
        self.failures.append(error)
        self._heard.set()

    async def durable(self) -> None:
        """Until everything is, or nothing more will be."""
        self.ledger.need(self.ledger.last)
        async with asyncio.timeout(20.0):
            while self.ledger.backlog and not self.failures:
                self._heard.clear()
                await self._heard.wait()


def calls() -> Iterator[CallAccepted | CallSettled]:
    for n in range(1, 400, 2):
        body = (PLAIN, OTHER, SECRET)[n % 3]
        yield accepted(n, body)
        yield settled(n + 1, n, body)


async def test_repeated_bodies_through_the_process_are_few_bytes_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Heard(tmp_path)
    appended = []
    for entry in calls():
        made.ledger.append(entry)
        appended.append(entry)
        if entry.n == 1:
            # The first time it is all there.
            assert made.ledger.backlog_bytes > SIZE
        if entry.n % 50 == 0:
            # Three bodies and some entries; not fifty bodies.
            assert made.ledger.backlog_bytes < 4 * SIZE
            await made.durable()
    await made.durable()
    assert not made.failures
    reader = made.ledger.reader
    for entry in appended:
        if b"hunter2" not in bytes((entry.input if isinstance(entry, CallAccepted) else entry.output) or b""):
            assert reader.entry(entry.n) == entry
    made.ledger.close()
    report = verify(tmp_path / "ledger.sqlite")
    assert (report.last, report.blobs, report.held) == (400, 3, 0)


async def test_a_disagreement_ends_the_writer_and_nothing_is_acknowledged(tmp_path: Path) -> None:
    made = Heard(tmp_path)
    made.ledger.append(accepted(1, PLAIN))
    # As if it had been sent.
    made.ledger._blobs._fresh.clear()
    await made.durable()
    assert isinstance(made.failures[0], LedgerFailed)
    assert "blob 1 was never sent" in str(made.failures[0])
    assert made.ledger.durable == 0
    with pytest.raises(LedgerFailed):
        made.ledger.close()
    reader = Reader(tmp_path / "ledger.sqlite")
    assert reader.head()[0] == 0
    reader.close()
