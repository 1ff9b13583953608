"""What the edges share is run on uvloop and must not depend on it: tests in this very folder run on both loops."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvloop


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    """The loops that asynchronous tests run on, here and in those folders below that name none."""
    loops: dict[str, Any] = {"asyncio": asyncio.new_event_loop}
    return {**loops, "uvloop": uvloop.new_event_loop} if item.path.parent == Path(__file__).parent else loops
