from __future__ import annotations

import pytest

from tests.fuzz.rails import judge, scene


@pytest.mark.parametrize("seed", range(4))
def test_no_bytes_stop_a_reader_of_proofs_and_none_that_were_changed_pay(seed: int) -> None:
    assert 0 < judge(seed, 1000) < 1000


def test_every_reader_takes_what_is_not_changed() -> None:
    here = scene()
    for good, reader in [*here.texts, *here.json, *here.binary]:
        if b'"states"' not in good:
            assert reader(good)
