"""The kit as a fixture: a started hub under rules that allow everything."""

from __future__ import annotations

import pytest

from tests.unit.hub.kit import Kit


@pytest.fixture
def kit() -> Kit:
    return Kit()
