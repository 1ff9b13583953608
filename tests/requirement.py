"""The marker that ties a test to the rows of ``docs/protocols/*.md`` it proves.

``make requirements`` finds it by reading the source, so ids must be written out: ``@requirement("OS-022", "OS-023")``.
"""

from __future__ import annotations

import pytest


def requirement(*ids: str) -> pytest.MarkDecorator:
    """Mark a test, or a class of tests, as the proof of these rows."""
    if not ids:
        raise ValueError("name at least one row")
    return pytest.mark.requirement(*ids)
