"""Parts of the record for others: all about a call or a correlation, as values or lines, as a proof, as a trajectory.

Everything here is the masked form. It does not own the order or the content: entries come as they are stored, and what
a trajectory makes of them is ``trajectory.build``.

A proof is a zip: ``entries/<number>.json``, each as it is stored; ``chain.jsonl`` with each one's hash and the hash
before it; ``blobs/<sha256>``; ``MANIFEST.json`` with the hash of each file. By itself it proves that its parts fit
together; compared with a ledger's own hashes (``known``) also that the entries are that ledger's.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from msgspec import Struct

from trunkline.entries import AnyEntry, CallAccepted, CallRefused, ProcessStep, QuestionJoined, QuestionOpened
from trunkline.errors import LedgerCorrupt, LedgerError
from trunkline.ledger.chain import link
from trunkline.ledger.reader import Reader, call_number
from trunkline.trajectory import build
from trunkline.trajectory.plan import is_run, loaded, member

__all__ = ["Proof", "entry_lines", "on_one_line", "part", "proof", "story", "trajectory", "verify_proof"]

FORMAT: Final = "trunkline-bundle-1"
_REFERENCE: Final = re.compile(rb'"\$(?:blob|ref)":"sha256:([0-9a-f]{64})"')
# Same content, same bytes: the time of making a proof is no part of it.
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def _of_call(reader: Reader, number: int) -> set[int]:
    """Everything recorded of one call: itself, its steps, its questions and their answers, its outcome."""
    numbers = {number}
    entry = reader.entry(number)
    if not isinstance(entry, CallAccepted):
        return numbers
    for step in reader.steps(str(number)):
        numbers.add(step)
        question = reader.entry(step)
        if isinstance(question, QuestionOpened | QuestionJoined):
            numbers.update(reader.steps(question.approval_id))
    settled = reader.settled(number)
    if settled is not None:
        numbers.add(settled)
    return numbers


def numbers(reader: Reader, *, call_id: str | None = None, correlation: str | None = None) -> list[int]:
    """The entries of a call or of a correlation, in order; none if there is no such thing."""
    if call_id is not None:
        own = call_number(call_id)
        entry = reader.entry(own) if own is not None else None
        if own is None or not isinstance(entry, CallAccepted | CallRefused) or entry.call_id != call_id:
            return []
        return sorted(_of_call(reader, own))
    found: set[int] = set()
    for number in reader.by_correlation(correlation or ""):
        found |= _of_call(reader, number)
    return sorted(found)


def part(reader: Reader, call_id: str) -> list[int]:
    """The entries of a call that has ended, and of those that it caused and that ended before it; none while it is
    open. Anybody may name the same correlation, also before it: what he calls is no part of it.
    """
    root = call_number(call_id)
    entry = None if root is None else reader.entry(root)
    end = None if root is None else reader.settled(root)
    if root is None or end is None or not isinstance(entry, CallAccepted) or entry.call_id != call_id:
        return []
    callers = {call_id: entry.caller}
    members, found = {root}, _of_call(reader, root)
    for number in reader.by_correlation(entry.correlation_id or call_id):
        ended = reader.settled(number) if root < number < end else None
        caused = reader.entry(number) if ended is not None and ended < end else None
        # By who works on it (``cause``), or by its own caller, who names it; anybody else's word counts for nothing.
        if isinstance(caused, CallAccepted) and (
            caused.cause in members or callers.get(caused.causation_id or "") == caused.caller
        ):
            callers[caused.call_id] = caused.caller
            members.add(number)
            found |= _of_call(reader, number)
    return sorted(number for number in found if number <= end)


def entry_lines(reader: Reader, *, call_id: str | None = None, correlation: str | None = None) -> Iterator[bytes]:
    """The entries as JSON lines, without line ends: each is one, since JSON needs none inside."""
    for number in numbers(reader, call_id=call_id, correlation=correlation):
        line = reader.line(number)
        if line is not None:
            yield on_one_line(line)


def story(reader: Reader, *, call_id: str | None = None, correlation: str | None = None) -> list[dict[str, Any]]:
    """The entries as values, for whoever draws them."""
    return [json.loads(line) for line in entry_lines(reader, call_id=call_id, correlation=correlation)]


def trajectory(
    reader: Reader, correlation: str, before: int | None = None, *, call_id: str = "", caller: str = ""
) -> Iterator[bytes]:
    """A correlation as REPLAY.jsonl v1, line by line, without line ends; none if nothing is recorded under it.

    Of its entries those before one, if that is given: what a receipt pointed to when it was made. Only one call's
    ``part``, or one caller's own calls and runs, if that is given: a correlation is a name that anybody may use.
    """
    if call_id:
        found = part(reader, call_id)
    else:
        # A run of a space is on record under its own name, which is the correlation of its operations.
        steps = [step for step in map(reader.entry, reader.steps(correlation)) if _is_step_of(step, correlation)]
        runs = [step.n for step in steps if step is not None and (not caller or _is_run_by(steps[0], caller))]
        calls: set[int] = set()
        for number in reader.by_correlation(correlation):
            if not caller or _is_by(reader.entry(number), caller):
                calls |= _of_call(reader, number)
        found = sorted(number for number in {*calls, *runs} if before is None or number < before)
    if not found:
        return iter(())
    return build.lines(correlation, lambda: _recorded(reader, found), reader.origin(found[0]))


def _is_step_of(entry: AnyEntry | None, subject: str) -> bool:
    return isinstance(entry, ProcessStep) and entry.subject == subject


def _is_by(entry: AnyEntry | None, caller: str) -> bool:
    return isinstance(entry, CallAccepted | CallRefused) and entry.caller == caller


def _is_run_by(entry: AnyEntry | None, caller: str) -> bool:
    return isinstance(entry, ProcessStep) and is_run(entry) and member(loaded(entry.data), "caller") == caller


def _recorded(reader: Reader, found: Iterable[int]) -> Iterator[build.Recorded]:
    for number in found:
        entry = reader.entry(number)
        if entry is not None:
            yield build.Recorded(entry, masked=reader.is_masked(number))


def on_one_line(line: bytes) -> bytes:
    """An entry without line ends between its parts."""
    # A body keeps the white space it arrived with. Outside strings a line end is only that; inside there is none.
    return line.replace(b"\r", b" ").replace(b"\n", b" ")


def proof(reader: Reader, correlation: str, out: IO[bytes] | Path) -> int:
    """Write the proof of a correlation; the number of entries in it. ``LedgerError`` if there are none."""
    files: dict[str, bytes] = {}
    chain = b""
    found = numbers(reader, correlation=correlation)
    if not found:
        raise LedgerError(f"nothing is recorded under the correlation {correlation}")
    for number in found:
        line, before, own = reader.line(number), reader.hash(number - 1), reader.hash(number)
        if line is None or before is None or own is None:
            raise LedgerCorrupt(number, "missing")
        files[f"entries/{number}.json"] = line
        chain += json.dumps({"n": number, "before": before.hex(), "hash": own.hex()}).encode() + b"\n"
        for digest in _REFERENCE.findall(line):
            body = reader.blob(digest.decode())
            if body is not None:
                files[f"blobs/{digest.decode()}"] = body
    files["chain.jsonl"] = chain
    manifest = {
        "format": FORMAT,
        "correlation": correlation,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())},
    }
    files["MANIFEST.json"] = json.dumps(manifest, indent=1).encode()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return len(found)


class Proof(Struct, frozen=True):
    """The content of a proof that was verified."""

    correlation: str
    entries: tuple[dict[str, Any], ...]
    blobs: tuple[str, ...]


def verify_proof(source: IO[bytes] | Path, known: Callable[[int], bytes | None] | None = None) -> Proof:
    """Verify a proof. ``known`` gives a ledger's own hashes by number (``Reader.hash``): that proves where it is from.

    ``LedgerCorrupt`` names the first entry that is not as it was, 0 if it is the proof itself.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        manifest = json.loads(files.pop("MANIFEST.json"))
        places = [_place(line) for line in files["chain.jsonl"].splitlines()]
        lines = {number: files[f"entries/{number}.json"] for number, _, _ in places}
        hashes: dict[str, str] = dict(manifest["sha256"])
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, TypeError, EOFError, NotImplementedError) as exc:
        what = "a part of it is missing or cannot be read" if zipfile.is_zipfile(source) else "it is no whole zip"
        raise LedgerCorrupt(0, f"this is no proof, or a damaged one: {what}") from exc
    if manifest.get("format") != FORMAT:
        raise LedgerCorrupt(0, f"the proof's format is not {FORMAT}")
    last = (0, b"")
    for number, before, own in places:
        if number <= last[0] or (number == last[0] + 1 and last[1] and before != last[1]):
            raise LedgerCorrupt(number, "does not follow the entry before it")
        if link(before, lines[number]) != own or json.loads(lines[number]).get("n") != number:
            raise LedgerCorrupt(number, "does not match its hash")
        if known is not None and (known(number) != own or known(number - 1) != before):
            raise LedgerCorrupt(number, "is not what this ledger has there")
        last = (number, own)
    for name in sorted(files.keys() | hashes.keys()):
        if name not in files or hashlib.sha256(files[name]).hexdigest() != hashes.get(name):
            raise LedgerCorrupt(0, f"{name} does not match the manifest")
        if name.startswith("blobs/") and name.removeprefix("blobs/") != hashes[name]:
            raise LedgerCorrupt(0, f"{name} does not match its name")
    return Proof(
        correlation=manifest["correlation"],
        entries=tuple(json.loads(line) for line in lines.values()),
        blobs=tuple(sorted(name.removeprefix("blobs/") for name in files if name.startswith("blobs/"))),
    )


def _place(line: bytes) -> tuple[int, bytes, bytes]:
    place = json.loads(line)
    return int(place["n"]), bytes.fromhex(place["before"]), bytes.fromhex(place["hash"])
