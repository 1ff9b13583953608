"""``trunkline ledger`` and ``token list`` read the record's file; no exchange runs here."""

from __future__ import annotations

import datetime as dt
import io
import json
import re
import shutil
import sqlite3
import time
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.cli.conftest import Said, trunkline
from tests.unit.ledger.made import AT, accepted, call_id, change, in_process, noticed, settled
from trunkline.cli import calls as calls_module
from trunkline.entries import CallRefused, TokenIssued, TokenRevoked
from trunkline.ledger.heads import public_key_of
from trunkline.ledger.verify import verify

NASTY = "\x1b[31m\u202eevil\u200b"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose exchange has stopped: two calls of one conversation, two tokens."""
    folder = tmp_path_factory.mktemp("home")
    body = json.dumps({"text": NASTY}, ensure_ascii=False).encode()
    with in_process(folder) as made:
        made.add(
            lambda n: accepted(n, body, correlation_id="chat:1"),
            lambda n: settled(n, 1, body),
            lambda n: accepted(n, correlation_id="chat:1"),
            lambda n: TokenIssued(n=n, at=AT, token_id="t4", edge="http", agent=NASTY, sha256="ab" * 32),
            lambda n: TokenIssued(
                n=n, at=AT, token_id="t5", edge="http", agent="bob", sha256="cd" * 32, permissions=("p",)
            ),
            lambda n: TokenRevoked(n=n, at=AT, token_id="t4"),
            lambda n: noticed(n, NASTY),
        )
    return folder


@pytest.fixture
def home(recorded: Path, short_path: Path) -> Path:
    shutil.copy(recorded / "ledger.sqlite", short_path)
    return short_path


def run(home: Path, *arguments: str) -> Said:
    return trunkline("ledger", *arguments, "--home", str(home))


def test_a_whole_record_is_proved_and_its_head_printed(home: Path) -> None:
    said = run(home, "verify")
    assert said.code == 0
    assert said.out.startswith("whole: 7 entries, ")
    head = said.out.splitlines()[-1].removeprefix("head ")
    assert head.startswith("7:")
    assert run(home, "verify", "--head", head).code == 0
    assert run(home, "verify", "--json").json["last"] == 7


def test_damage_is_named_with_its_number_and_ends_with_1(home: Path) -> None:
    head = run(home, "verify").out.splitlines()[-1].removeprefix("head ")
    change(home / "ledger.sqlite", "UPDATE entries SET data = CAST(replace(data, 'bob', 'eve') AS BLOB) WHERE n = 5")
    said = run(home, "verify")
    assert said.code == 1
    assert said.err.startswith("ledger.corrupt: entry 5: ")
    assert run(home, "verify", "--head", head).code == 1


@pytest.mark.parametrize("head", ["7", "x:y", "7:abc", ":" + "a" * 64])
def test_a_head_that_is_none_is_bad_usage(home: Path, head: str) -> None:
    assert run(home, "verify", "--head", head).code == 2


@pytest.fixture
def signed(recorded: Path, short_path: Path) -> Path:
    """The same home, with its keys and signed heads."""
    return Path(shutil.copytree(recorded, short_path / "signed"))


def test_verify_says_how_far_the_record_is_signed_and_anchored(home: Path, signed: Path) -> None:
    assert "not signed" in run(home, "verify").out
    said = run(signed, "verify")
    assert "signed up to 7\n" in said.out
    assert "not anchored" in said.out
    shown = run(signed, "verify", "--json", "--head", run(signed, "anchor").out.strip()).json
    assert (shown["signed"], shown["anchored"]) == (7, 7)


def test_a_head_fits_on_one_line_that_a_person_copies(signed: Path) -> None:
    head = run(signed, "anchor").out
    assert re.fullmatch(r"7:([0-9a-f]{4}-){9}[0-9a-f]{4}\n", head)
    assert run(signed, "verify", "--head", head.strip().replace("-", "").upper()).code == 0
    assert run(signed, "verify", "--anchor", head.strip()).code == 0
    wrong = head.strip()[:-1] + ("0" if head.strip()[-1] != "0" else "1")
    said = run(signed, "verify", "--head", wrong)
    assert (said.code, said.err.startswith("ledger.corrupt: entry 7: ")) == (1, True)


def test_a_published_head_is_checked_from_a_file_and_as_it_is(signed: Path, tmp_path: Path) -> None:
    published = run(signed, "anchor", "--json")
    assert published.json["key"] == (signed / "keys" / "heads.pub").read_text().strip()
    elsewhere = tmp_path / "heads"
    elsewhere.write_text(json.dumps(published.json) + "\n")
    assert run(signed, "verify", "--anchor", str(elsewhere), "--json").json["anchored"] == 7
    assert run(signed, "verify", "--anchor", json.dumps(published.json), "--json").json["anchored"] == 7
    assert run(signed, "verify", "--anchor", str(tmp_path / "none")).code == 2


def test_the_file_where_heads_are_published_is_compared_by_itself(signed: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "heads"
    (signed / "trunkline.toml").write_text(f'[ledger]\nanchor = {{file = "{elsewhere}"}}\n')
    assert "cannot be read from here" in run(signed, "verify").err
    elsewhere.write_text("8:" + "0" * 40)
    said = run(signed, "verify")
    assert (said.code, said.err) == (1, "ledger.corrupt: entry 8: missing; 8 were there before\n")


def test_a_copy_is_verified_and_has_its_heads_beside_it(signed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    said = run(signed, "backup", str(copy))
    assert (said.code, "7 entries, verified; signed up to 7" in said.out) == (0, True)
    assert verify(copy, public_key=public_key_of(signed / "keys")).signed == 7
    assert {file.name for file in tmp_path.glob("*copy*")} == {"copy.sqlite", "copy.heads"}
    assert copy.stat().st_mode & 0o777 == 0o600
    assert run(signed, "backup", str(copy)).code == 2, "nothing is written over"


def test_a_damaged_record_is_not_copied(signed: Path, tmp_path: Path) -> None:
    change(signed / "ledger.sqlite", "UPDATE entries SET data = CAST(replace(data, 'bob', 'eve') AS BLOB) WHERE n = 5")
    said = run(signed, "backup", str(tmp_path / "copy.sqlite"))
    assert (said.code, said.err.startswith("ledger.corrupt: entry 5: ")) == (1, True)
    assert not [*tmp_path.glob("*copy*")]


def test_a_proof_is_checked_against_this_record_or_by_itself(signed: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof.zip"
    assert run(signed, "export", "--correlation", "chat:1", "--format", "proof", "--out", str(proof)).code == 0
    assert "of this record" in run(signed, "check", str(proof)).out
    alone = tmp_path / "empty"
    alone.mkdir(mode=0o700)
    assert run(alone, "check", str(proof), "--json").json["compared_with_record"] is False
    proof.write_bytes(proof.read_bytes()[:-40])
    assert run(signed, "check", str(proof)).code == 1


def test_the_story_of_a_call_has_its_bodies(home: Path) -> None:
    said = run(home, "show", "--call", call_id(1))
    assert said.code == 0
    assert [line.split()[0] for line in said.out.splitlines() if line[:7].strip().isdigit()] == ["1", "2"]
    assert "input:" in said.out
    assert "output:" in said.out
    assert said.out.replace("\n", "").isprintable()
    assert "\\u202eevil" in said.out


def test_the_story_of_a_conversation_has_all_its_calls(home: Path) -> None:
    shown = run(home, "show", "--correlation", "chat:1", "--json").json
    assert [entry["n"] for entry in shown["entries"]] == [1, 2, 3]


def test_without_a_name_the_latest_entries_are_shown(home: Path) -> None:
    said = run(home, "show", "--last", "3")
    assert [int(line.split()[0]) for line in said.out.splitlines()] == [5, 6, 7]
    assert said.out.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "--call", "nope"),
        ("show", "--correlation", "nope"),
        ("show", "--call", "a", "--correlation", "b"),
        ("export", "--correlation", "nope"),
        ("export",),
        ("export", "--correlation", "chat:1", "--format", "pdf"),
        ("export", "--correlation", "chat:1", "--out", "/nowhere/x"),
    ],
    ids=" ".join,
)
def test_what_is_not_there_or_cannot_be_ends_with_2(home: Path, arguments: tuple[str, ...]) -> None:
    said = run(home, *arguments)
    assert said.code == 2
    assert said.out == ""


def test_of_ways_to_say_what_is_exported_one_is_asked_for(home: Path) -> None:
    for given in ((), ("--all", "--since", "1h")):
        said = run(home, "export", *given).err
        assert "give --correlation, --all or a time range (--since, --until), and only one of them" in said


def test_an_export_is_one_entry_a_line_as_stored(home: Path, tmp_path: Path) -> None:
    said = run(home, "export", "--correlation", "chat:1")
    assert [json.loads(line)["n"] for line in said.out.splitlines()] == [1, 2, 3]
    file = tmp_path / "replay.jsonl"
    assert run(home, "export", "--correlation", "chat:1", "--out", str(file)).out == ""
    assert file.read_text() == said.out


def test_a_proof_is_a_zip(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.zip"
    said = run(home, "export", "--correlation", "chat:1", "--format", "proof", "--out", str(file))
    assert said.code == 0
    names = zipfile.ZipFile(io.BytesIO(file.read_bytes())).namelist()
    assert "MANIFEST.json" in names
    assert "entries/3.json" in names


@pytest.mark.parametrize("arguments", [("verify",), ("show",), ("export", "--correlation", "x")], ids=" ".join)
def test_a_home_without_a_record_says_so(short_path: Path, arguments: tuple[str, ...]) -> None:
    said = run(short_path, *arguments)
    assert said.code == 1
    assert said.err.startswith("ledger.unreadable: ")
    assert "no exchange has run here" in said.err


def test_tokens_are_listed_from_the_record(home: Path) -> None:
    said = trunkline("token", "list", "--home", str(home))
    assert said.code == 0
    rows = [line.split() for line in said.out.splitlines()[1:]]
    assert [(row[0], row[-1] if row[-1] in {"revoked", "p"} else "") for row in rows] == [
        ("t4", "revoked"),
        ("t5", "p"),
    ]
    assert said.out.replace("\n", "").isprintable()
    shown = trunkline("token", "list", "--home", str(home), "--json").json
    assert [token["revoked"] for token in shown["tokens"]] == [True, False]
    assert "ab" * 32 not in json.dumps(shown)


# --- refused calls ----------------------------------------------------------------------------------------------------


def refusal(n: int, caller: str, correlation: str | None = None) -> CallRefused:
    return CallRefused(
        n=n, at=AT, call_id=call_id(n), caller=caller, tool_id="a/b", code="policy.denied", rule="default",
        correlation_id=correlation,
    )  # fmt: skip


@pytest.mark.parametrize("piece", [1, 2, 10_000])
def test_refused_calls_are_shown_from_the_record_newest_first(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(calls_module, "_PIECE", piece)
    with in_process(short_path) as made:
        made.add(
            lambda n: refusal(n, "http:one", "chat:1"),
            lambda n: accepted(n, correlation_id="chat:1"),
            lambda n: refusal(n, f"http:two{NASTY}"),
            lambda n: settled(n, 2, b"{}"),
            lambda n: refusal(n, "http:three"),
        )
    home = ("--home", str(short_path))
    lines = trunkline("calls", "--refused", *home).out.splitlines()
    assert lines[0].split() == ["TIME", "REFUSED", "TOOL", "CALLER", "WHY", "CALL"]
    assert f"denied; trunkline policy check http:three a/b --home {short_path} says why; rule default" in lines[1]
    assert [line.split()[2:5] for line in lines[1:]] == [
        ["policy.denied", "a/b", caller]
        for caller in ("http:three", "http:two\\u001b[31m\\u202eevil\\u200b", "http:one")
    ]
    assert lines[1].endswith(call_id(5))
    found = trunkline("calls", "--refused", "--last", "2", "--json", *home).json["refused"]
    assert [one["n"] for one in found] == [5, 3]
    found = trunkline("calls", "--refused", "--correlation", "chat:1", "--json", *home).json["refused"]
    assert [one["n"] for one in found] == [1]


def test_what_is_to_be_typed_about_a_refused_call_is_whole(short_path: Path) -> None:
    with in_process(short_path) as made:
        made.add(
            lambda n: replace(refusal(n, "http:one"), rule="wallet-budget"),
            lambda n: replace(refusal(n, "http:two"), code="policy.directive_required"),
        )
    out = trunkline("calls", "--refused", "--home", str(short_path)).out
    home = f"--home {short_path}"
    # Without an input the rules would be asked, which did not deny it.
    assert f"trunkline policy check http:one a/b JSON {home} says why, with the JSON of the call" in out
    assert f"trunkline directive new a/b --reason WHY {home} states one" in out


def test_at_80_columns_refused_calls_are_no_wider_and_their_ids_are_whole(short_path: Path) -> None:
    tool_id, caller = "com.example.warehouse/put_order_away", "mcp:a-client-with-a-long-name"
    with in_process(short_path) as made:
        made.add(lambda n: replace(refusal(n, caller), code="policy.directive_required", tool_id=tool_id))
    lines = trunkline("calls", "--refused", "--home", str(short_path), columns=80).out.splitlines()
    assert max(map(len, lines)) <= 80
    for cell in ("policy.directive_required", tool_id, caller):
        assert any(cell in line for line in lines)
    assert lines[-1].strip() == call_id(1)


def test_what_was_wrong_with_a_refused_call_is_shown_in_the_place_of_what_its_code_means(short_path: Path) -> None:
    why = '$: "text" is a required property'
    with in_process(short_path) as made:
        made.add(lambda n: replace(refusal(n, "http:one"), code="tool.invalid_input", rule="", why=why))
    home = ("--home", str(short_path))
    shown = trunkline("calls", "--refused", *home).out
    assert f"http:one  {why}  {call_id(1)}" in shown
    assert f"tool.invalid_input: {why}" in trunkline("ledger", "show", "--call", call_id(1), *home).out


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (("--caller", "TWO"), [2]),
        (("--tool", "A/"), [3, 2, 1]),
        (("--tool", "elsewhere"), []),
        (("--from", "1h"), [3]),
        (("--to", "1h"), [2, 1]),
        (("--from", "1h", "--caller", "two"), []),
    ],
    ids=str,
)
def test_of_refused_calls_those_are_shown_that_are_looked_for(
    short_path: Path, options: tuple[str, ...], numbers: list[int]
) -> None:
    now = int(time.time() * 1000)
    with in_process(short_path) as made:
        made.add(
            lambda n: refusal(n, "http:one"),
            lambda n: refusal(n, "http:two"),
            lambda n: replace(refusal(n, "http:three"), at=now),
        )
    found = trunkline("calls", "--refused", *options, "--json", "--home", str(short_path)).json["refused"]
    assert [one["n"] for one in found] == numbers


@pytest.mark.parametrize("option", ["--search", "--status"])
def test_what_a_refused_call_does_not_have_is_not_looked_for(home: Path, option: str) -> None:
    said = trunkline("calls", "--refused", option, "failed", "--home", str(home))
    assert (said.code, "not for --refused" in said.err) == (2, True)


@pytest.mark.parametrize("verb", ["balance", "history"])
def test_an_account_that_is_not_there_has_no_history_either(home: Path, verb: str) -> None:
    said = trunkline("wallet", verb, "bob", "--home", str(home))
    assert (said.code, said.out, said.err.startswith("not_found: no wallet 'bob'")) == (2, "", True)


@pytest.mark.parametrize("verb", ["show", "export", "verify"])
def test_a_receipt_that_is_not_there_ends_with_2_like_everything_else_that_is_not(home: Path, verb: str) -> None:
    said = trunkline("receipts", verb, "nope", "--home", str(home))
    assert (said.code, said.out, said.err.startswith("not_found: no receipt 'nope' is on record")) == (2, "", True)


def test_no_refused_calls_are_said_to_be_none(home: Path) -> None:
    assert trunkline("calls", "--refused", "--home", str(home)).out == "No refused calls on record.\n"


@pytest.mark.parametrize("what", ["text", "database", "empty"])
def test_a_file_that_is_no_ledger_is_said_to_be_none(signed: Path, tmp_path: Path, what: str) -> None:
    file = tmp_path / "notes"
    if what == "database":
        sqlite3.connect(file).executescript("CREATE TABLE t (a); INSERT INTO t VALUES (1)").connection.close()
    else:
        file.write_text("not a ledger\n" if what == "text" else "")
    said = run(signed, "verify", str(file))
    assert said.code == 1
    assert said.err.startswith(f"ledger.unreadable: {file} is {'empty' if what == 'empty' else 'not a ledger'}")


def test_a_file_that_is_no_proof_is_said_to_be_none_and_a_backup_goes_to_a_new_file(
    signed: Path, tmp_path: Path
) -> None:
    file = tmp_path / "notes"
    file.write_text("not a proof\n")
    said = run(signed, "check", str(file))
    assert (said.code, said.err.startswith(f"ledger.unreadable: {file} is not a proof: it is no zip that")) == (1, True)
    said = run(signed, "backup", str(file))
    assert (said.code, said.err) == (2, f"file.unusable: {file}: exists already: choose another name\n")
    assert file.read_text() == "not a proof\n"


def test_the_heads_beside_a_copy_are_said_to_be_no_ledger(signed: Path, tmp_path: Path) -> None:
    assert run(signed, "backup", str(tmp_path / "monday.db")).code == 0
    said = run(signed, "verify", str(tmp_path / "monday.heads"))
    assert (said.code, said.err.partition(";")[0]) == (
        1,
        f"ledger.unreadable: {tmp_path / 'monday.heads'} is not a ledger: it has the name of a ledger's signed heads",
    )


def test_a_zip_of_something_else_is_no_proof_for_any_verb(signed: Path, tmp_path: Path) -> None:
    file = tmp_path / "photos.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("cat.txt", "meow")
    assert run(signed, "check", str(file)).err.startswith(f"ledger.unreadable: {file} is not a proof")
    assert run(signed, "verify", str(file)).err.startswith(f"ledger.unreadable: {file} is not a ledger")


def test_a_proof_that_lost_its_end_is_damaged_in_words(signed: Path, tmp_path: Path) -> None:
    file = tmp_path / "cut.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("MANIFEST.json", "{}")
    file.write_bytes(file.read_bytes()[:-20])
    said = run(signed, "check", str(file))
    assert (said.code, said.err) == (
        1,
        "ledger.corrupt: this is no proof, or a damaged one: it is no whole zip\n",
    )


@pytest.mark.parametrize("name", ["copy.heads", "taken.db", "nowhere/copy.db"])
def test_a_copy_that_cannot_go_where_it_was_told_is_about_that_file(signed: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "taken.heads").write_text("somebody's\n")
    said = run(signed, "backup", str(tmp_path / name))
    assert (said.code, said.err.partition(":")[0]) == (2, "file.unusable")


def test_a_copy_whose_beginning_is_damaged_is_a_damaged_record(signed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    assert run(signed, "backup", str(copy)).code == 0
    with copy.open("r+b") as file:
        file.write(b"x" * 100)
    said = run(signed, "verify", str(copy))
    assert (said.code, said.err.split(":")[0]) == (1, "ledger.corrupt")


def test_a_file_of_another_kind_is_named_with_the_verb_that_is_for_it(signed: Path, tmp_path: Path) -> None:
    made = {kind: tmp_path / f"{kind} file" for kind in ("proof", "replay", "bundle", "backup")}
    for kind in ("proof", "replay", "bundle"):
        said = run(signed, "export", "--correlation", "chat:1", "--format", kind, "--out", str(made[kind]))
        assert said.code == 0, said
    assert run(signed, "backup", str(made["backup"])).code == 0
    for kind, file in made.items():
        verbs = {"proof": "ledger check", "replay": "replay", "bundle": "replay export", "backup": "ledger verify"}
        own = verbs.pop(kind)
        for verb in verbs.values():
            said = trunkline(*verb.split(), str(file), "--home", str(signed))
            assert (said.code, said.out) == (2, ""), said
            assert said.err.startswith(f"usage.invalid: {file} is a")
            assert said.err.endswith(f"; `trunkline {own} '{file}' --home {signed}` is for it\n")
        assert "usage.invalid" not in trunkline(*own.split(), str(file), "--home", str(signed)).err


def test_a_copy_is_proved_by_its_name(signed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    run(signed, "backup", str(copy))
    said = run(signed, "verify", str(copy))
    assert (said.code, said.out.startswith("whole: 7 entries, ")) == (0, True)
    assert "signed up to 7" in said.out
    change(copy, "UPDATE entries SET data = CAST(replace(data, 'bob', 'eve') AS BLOB) WHERE n = 5")
    assert run(signed, "verify", str(copy)).err.startswith("ledger.corrupt: entry 5: ")
    assert run(signed, "verify").code == 0, "the home's own was not meant"


def test_everything_is_exported_one_entry_a_line(home: Path) -> None:
    lines = run(home, "export", "--all").out.splitlines()
    assert [json.loads(line)["n"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]


def test_a_time_range_is_exported_from_its_first_moment_up_to_its_last(short_path: Path) -> None:
    with in_process(short_path) as made:
        made.add(*(noticed(n, at=AT + 60_000 * n) for n in range(1, 6)))

    def exported(*options: str) -> list[int]:
        said = run(short_path, "export", *options)
        assert said.code == 0, said.err
        return [json.loads(line)["n"] for line in said.out.splitlines()]

    second, fourth = (
        dt.datetime.fromtimestamp((AT + 60_000 * n) / 1000, dt.UTC).isoformat() for n in (2, 4)
    )  # fmt: skip
    assert exported("--since", second, "--until", fourth) == [2, 3]
    assert exported("--since", fourth) == [4, 5]
    assert exported("--until", second) == [1]
    assert exported("--since", "1min") == []


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--all", "--since", "1h"),
        ("--all", "--correlation", "chat:1"),
        ("--all", "--format", "bundle"),
        ("--since", "yesterday"),
    ],
    ids=" ".join,
)
def test_an_export_of_nothing_or_of_two_things_is_bad_usage(home: Path, options: tuple[str, ...]) -> None:
    assert run(home, "export", *options).code == 2


def test_a_file_that_is_there_is_written_over_only_when_that_was_said(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.jsonl"
    out.write_text("precious")
    said = run(home, "export", "--all", "--output", str(out))
    assert (said.code, "--force" in said.err) == (2, True)
    assert out.read_text() == "precious"
    assert run(home, "export", "--all", "--output", str(out), "--force").code == 0
    assert len(out.read_text().splitlines()) == 7


def test_the_words_for_a_file_that_scripts_have_from_before_are_taken_too(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.jsonl"
    assert [run(home, "export", "--all", "--out", str(out)).code for _ in "12"] == [0, 2]
    assert run(home, "export", "--all", "--out", str(out), "--overwrite").code == 0
