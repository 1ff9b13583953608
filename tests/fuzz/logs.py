"""Fuzzing of what launched agents print: to a log by itself, and to a real keeper with an agent beside.

``runlog`` judges so many outputs, each whole and in pieces; ``keeper`` has a real keeper run so many agents that print
one each. Functions of their seed. ``test_logs`` does some, ``tools/soak.py`` goes on.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import tempfile
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.fuzz.masker import Maker, secret
from tests.fuzz.mutations import SPELLINGS, Mutator
from trunkline.host.keeper_link import KeeperLink, Report
from trunkline.host.log_mask import mask_log
from trunkline.host.runlog import MAX_LINE_BYTES, RunLog, spellings

TOKEN: Final = "tlk_" + "Zx9-_Qw7" * 5 + "abc"
CAPS: Final = (200, 1000, 20_000, 1_000_000)
# What a reader's terminal would act on; a line ends with the one, and a tab is seen.
UNSEEN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
# An agent that prints a file and an agent that waits.
PATIENCE_S: Final = 20.0


class Defective:
    """The exchange's own mask, which here and there raises, or loses its mind."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.raised = 0

    def __call__(self, data: bytes) -> bytes:
        if self._rng.random() < 0.3:
            self.raised += 1
            raise self._rng.choice((RecursionError, MemoryError, ValueError, AssertionError))
        return mask_log(data)


def printed(rng: Random) -> bytes:
    """What an agent prints: text, bytes, floods, halves of secrets."""
    parts: list[bytes] = []
    for _ in range(rng.randrange(1, 12)):
        maker = Maker(rng)
        kind = rng.randrange(12)
        if kind == 0:
            parts.append(rng.randbytes(rng.choice((1, 10, 300))))
        elif kind == 1:
            parts.append(rng.choice((b"[", b"{", b'{"a":', b"\\", b'"', b"(", b"\\u00")) * rng.choice((1, 300, 20_000)))
        elif kind == 2:
            parts.append(rng.choice(spellings(TOKEN.encode())))
        elif kind == 3:
            whole = secret(rng).encode()
            parts.append(whole[: rng.randrange(len(whole) + 1)])
        elif kind == 4:
            parts.append(base64.b64encode(rng.randbytes(rng.randrange(3)) + TOKEN.encode() + rng.randbytes(2)))
        elif kind == 5:
            parts.append(rng.choice(SPELLINGS))
        elif kind == 6:
            parts.append(b"\x1b[2J\x1b]0;x\x07\r\x08\xe2\x80\xae\xc2\x9b\xef\xbb\xbf")
        elif kind == 7:
            parts.append(b"x" * rng.choice((MAX_LINE_BYTES - 1, MAX_LINE_BYTES, MAX_LINE_BYTES + 1, 70_000)))
        elif kind == 8:
            parts.append(b"-----BEGIN RSA PRIVATE KEY-----\n" + b"MIIE\n" * rng.choice((1, 50)))
        elif kind == 9:
            parts.append(b"\n" * rng.choice((1, 2, 2000)))
        else:
            parts.append(maker.spelled(maker.value(3)))
        parts.append(rng.choice((b"\n", b"\r\n", b"\n", b"", b" ")))
    return b"".join(parts)


def judge(found: bytes, max_bytes: int, about: object) -> None:
    """A log is bounded, can be read, and holds no token."""
    assert len(found) <= max_bytes, f"{len(found)} bytes: {about}"
    text = found.decode()
    assert not found or found.endswith(b"\n"), about
    seen = UNSEEN.search(text)
    assert seen is None, f"{seen!r}: {about}"
    assert not any(spelling in found for spelling in spellings(TOKEN.encode())), about


def _log(folder: Path, pieces: list[bytes], max_bytes: int, mask: Any) -> bytes:
    path = folder / "log"
    path.unlink(missing_ok=True)
    log = RunLog(str(path), max_bytes, mask, [TOKEN])
    for piece in pieces:
        log.feed(piece)
        assert len(log._line) <= MAX_LINE_BYTES
    log.close()
    return path.read_bytes()


def runlog(seed: int, outputs: int) -> int:
    """So many outputs, each into a log of its own; how many."""
    mutator = Mutator(seed, [{"a": 1}])
    rng = mutator.rng
    with tempfile.TemporaryDirectory(prefix="tl-") as name:
        folder = Path(name)
        for number in range(outputs):
            data, max_bytes = printed(rng), rng.choice(CAPS)
            about = f"output {number} of seed {seed}"
            whole = _log(folder, [data], max_bytes, bytes)
            judge(whole, max_bytes, about)
            assert max_bytes < len(data) * 4 or _log(folder, mutator.pieces(data), max_bytes, bytes) == whole, about
            judge(_log(folder, mutator.pieces(data), max_bytes, mask_log), max_bytes, about)
            mask = Defective(rng)
            judge(_log(folder, mutator.pieces(data, 4), max_bytes, mask), max_bytes, about)
    return outputs


class Keeper:
    """A real keeper, and what it reports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reports: asyncio.Queue[Report] = asyncio.Queue()
        self.is_lost = False
        self.link = KeeperLink(self._reports.put_nowait, self._lost)

    def _lost(self) -> None:
        self.is_lost = True
        self._reports.put_nowait({"report": "lost"})

    async def next(self) -> Report:
        async with asyncio.timeout(PATIENCE_S):
            report = await self._reports.get()
        assert report["report"] != "lost", "the keeper is gone"
        return report

    async def launch(self, run_id: str, max_bytes: int, *argv: str) -> None:
        self.link.send(
            {
                "do": "launch", "run_id": run_id, "argv": argv, "env": {"PATH": os.defpath, "AGENT_RUN": run_id},
                "secrets": [TOKEN], "cwd": str(self._folder), "log": str(self._folder / f"{run_id}.log"),
                "max_log_bytes": max_bytes,
            }
        )  # fmt: skip
        assert (await self.next())["report"] == "launched"
        self.link.send({"do": "go", "run_id": run_id})

    async def stop(self, run_id: str) -> Report:
        self.link.send({"do": "stop", "run_id": run_id, "grace_s": 0})
        return await self.next()


async def _keeper(seed: int, agents: int) -> None:
    rng = Random(seed)
    with tempfile.TemporaryDirectory(prefix="tl-") as name:
        folder = Path(name)
        keeper = Keeper(folder)
        await keeper.link.open(mask_log, "AGENT_RUN")
        try:
            await keeper.launch("beside", 1000, "sleep", "600")
            for number in range(agents):
                (folder / "said").write_bytes(printed(rng))
                max_bytes = rng.choice(CAPS)
                await keeper.launch(f"r{number}", max_bytes, "cat", "said")
                report = await keeper.next()
                assert (report["report"], report["run_id"], report["reason"]) == ("exited", f"r{number}", ""), report
                judge((folder / f"r{number}.log").read_bytes(), max_bytes, f"agent {number} of seed {seed}")
                (folder / f"r{number}.log").unlink()
            assert (await keeper.stop("beside"))["run_id"] == "beside"
            assert not keeper.is_lost
        finally:
            await keeper.link.close()


def keeper(seed: int, agents: int) -> int:
    """So many agents of one keeper, each of which prints something; how many."""
    asyncio.run(_keeper(seed, agents))
    return agents
