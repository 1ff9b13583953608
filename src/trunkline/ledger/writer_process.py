"""The ledger writer as a process: commit groups come by a channel from the exchange, and what is on disk is answered.

``python -m trunkline.ledger.writer_process CHANNEL LEDGER KEYS``. Owns the frames of that channel and how the process
ends; the other end is ``link``. Does not own what becomes of a group (``writer``).

Invariant: after a failure of the ledger one answer says which, and the process is gone without another write.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Final

from trunkline.errors import InvariantBroken, LedgerCorrupt, LedgerError, LedgerFull
from trunkline.ledger.heads import HeadSigner
from trunkline.ledger.kept_masking import KeptMasking
from trunkline.ledger.keys import LedgerKeys
from trunkline.ledger.masking import Masker
from trunkline.ledger.writer import Writer
from trunkline.tracing import refuse_tracing

# Frames to the writer: kind, length. Answers: kind, number, length of the text.
FRAME: Final = struct.Struct(">cI")
# A blob's begins with its number.
BLOB_NUMBER: Final = struct.Struct(">Q")
ANSWER: Final = struct.Struct(">cQI")
GROUP, BLOB, SECRET = b"g", b"b", b"s"
DURABLE, FAILED, FULL, CORRUPT = b"d", b"f", b"n", b"c"


def _received(channel: socket.socket, size: int) -> bytes | None:
    """Exactly so many bytes; None if the exchange is gone."""
    data = channel.recv(size, socket.MSG_WAITALL) if size else b""
    if len(data) == size:
        return data
    parts = [data]
    missing = size - len(data)
    while missing:
        more = channel.recv(min(missing, 1 << 20))
        if not more:
            return None
        parts.append(more)
        missing -= len(more)
    return b"".join(parts)


def _answer(channel: socket.socket, kind: bytes, number: int, text: str = "") -> None:
    told = text.encode()
    # Nobody may be left to hear it; what was committed stays so.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        channel.sendall(ANSWER.pack(kind, number, len(told)) + told)


def serve(channel: socket.socket, writer: Writer, masker: Masker) -> None:
    """Commit what arrives until the exchange closes its end, however that came about."""
    _answer(channel, DURABLE, writer.last)
    # Before the first commit needs it, while the exchange goes on with its start.
    masker.prepare()
    blobs: list[tuple[int, bytes]] = []
    while (header := _received(channel, FRAME.size)) is not None:
        kind, size = FRAME.unpack(header)
        if kind == BLOB:
            number = _received(channel, BLOB_NUMBER.size)
            data = _received(channel, size - BLOB_NUMBER.size)
            if number is None or data is None:
                break
            blobs.append((*BLOB_NUMBER.unpack(number), data))
            continue
        payload = _received(channel, size)
        if payload is None:
            break
        if kind == SECRET:
            writer.add_secret(*marshal.loads(payload))  # noqa: S302 - from our own parent
            continue
        last = writer.commit(payload, blobs)
        blobs = []
        _answer(channel, DURABLE, last)
        writer.rest()
    writer.close()


def main() -> None:
    """CHANNEL is an inherited descriptor."""
    refuse_tracing()
    # The exchange decides when to stop and closes the channel; a Ctrl-C goes to the whole group.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    path = Path(sys.argv[2])
    try:
        folder = Path(sys.argv[3])
        keys = LedgerKeys.load(folder, create=False)
        signer = HeadSigner(path, keys.head_seed, folder, in_background=True)
        masker = Masker(kept=KeptMasking(path, keys.mac_key))
        serve(channel, Writer(path, keys, masker, signer=signer), masker)
    except LedgerCorrupt as exc:
        _answer(channel, CORRUPT, exc.number, exc.reason)
        os._exit(70)
    except (LedgerError, InvariantBroken) as exc:
        _answer(channel, FULL if isinstance(exc, LedgerFull) else FAILED, 0, str(exc))
        # Not even SQLite may try the failed sync once more on its way out.
        os._exit(70)


if __name__ == "__main__":
    main()
