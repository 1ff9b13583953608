from __future__ import annotations

import pytest

from trunkline.sizes import shown_size


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (67_108_864, "64.0 MiB"), (2**50, "1024.0 TiB")]
)
def test_sizes_have_a_unit_that_people_read(count: int, text: str) -> None:
    assert shown_size(count) == text
