"""Tests with a loop run on the one that the exchange runs on."""

from __future__ import annotations

from typing import Any

import pytest
import uvloop


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    """The loop that the exchange runs on."""
    return {"uvloop": uvloop.new_event_loop}
