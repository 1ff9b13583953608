"""The whole record proved beside a running exchange, by a process of its own at the lowest priority.

``python -m trunkline.ledger.proving LEDGER [PUBLIC_KEY]`` walks everything (``verify``) and says what it found. A start
proves only what it folds: the entries that the last snapshot names and all after it. What is older is proved here.

Invariant: the record is only read, and a walk that could not be made is not taken for damage.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Final

from trunkline import children
from trunkline.errors import LedgerCorrupt, LedgerError
from trunkline.ledger.verify import verify

__all__ = ["prove"]

_LOWEST: Final = 19


async def prove(path: Path, public_key: bytes | None) -> int:
    """The last entry of a record that is whole up to there. ``LedgerCorrupt`` names the first damage, any other
    ``LedgerError`` says why the record could not be walked.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "trunkline.ledger.proving", str(path)),
        *(() if public_key is None else (public_key.hex(),)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        # What a terminal sends to our group is not for it.
        start_new_session=True,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        said, _ = await process.communicate()
    except asyncio.CancelledError:
        await children.end(process)
        raise
    try:
        found = json.loads(said)
    except ValueError:
        raise LedgerError(f"the walk through the record ended with {process.returncode}") from None
    if "error" in found:
        raise LedgerError(str(found["error"]))
    if "number" in found:
        raise LedgerCorrupt(found["number"], found["reason"])
    return int(found["last"])


def main() -> None:
    """Walk, and say what was found as one JSON value."""
    os.nice(_LOWEST)
    key = bytes.fromhex(sys.argv[2]) if len(sys.argv) > 2 else None
    found: dict[str, object] = {}
    try:
        found["last"] = verify(Path(sys.argv[1]), public_key=key).last
    except LedgerCorrupt as damage:
        found.update(number=damage.number, reason=damage.reason)
    except LedgerError as error:
        found["error"] = str(error)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
