from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.jobs import JobsWorld, jobs_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[JobsWorld]:
    async with jobs_world(tmp_path / "home") as made:
        yield made
