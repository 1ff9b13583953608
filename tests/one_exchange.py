"""One exchange for a module of tests that use agents of their own names; a ``conftest`` imports the fixture."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import Running, running

CONFIG = """
[opensentience]
tcp = "127.0.0.1:0"
"""


@pytest.fixture(scope="module")
def exchange() -> Iterator[Running]:
    """A running exchange with both listeners and no agents."""
    folder = Path(tempfile.mkdtemp(prefix="tl-"))
    try:
        with running(folder / "home", CONFIG) as found:
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)
