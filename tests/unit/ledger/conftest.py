"""What every test of the ledger needs: that it leaves no 16 MiB reserves behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_reserves_left(tmp_path: Path) -> Iterator[None]:
    yield
    for reserve in tmp_path.rglob("ledger.reserve"):
        reserve.unlink()
