"""The rim runs on uvloop, and must not depend on it: tests with a loop run on both."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    """The loops that asynchronous tests of this folder run on."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
