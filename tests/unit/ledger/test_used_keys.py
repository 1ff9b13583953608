"""Which keys may be on record: none that is there is ever missed."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from trunkline.ledger.used_keys import MORE, UsedKeys


def key(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


class OnRecord:
    """Keys on record, in order."""

    def __init__(self, count: int) -> None:
        self.keys = sorted(key(number) for number in range(count))

    def following(self, after: str, count: int) -> list[str]:
        return [one for one in self.keys if one > after][:count]


def test_before_all_was_read_every_key_may_be_on_record() -> None:
    used = UsedKeys(OnRecord(MORE + 10).following)
    assert used.may_have(key(-1))
    assert used.read_more()
    assert used.may_have(key(-1))
    assert not used.read_more()
    assert not used.may_have(key(-1))
    assert all(used.may_have(key(number)) for number in range(MORE + 10))


def test_of_an_empty_record_no_key_is_known_until_it_is_used() -> None:
    used = UsedKeys(OnRecord(0).following)
    assert not used.read_more()
    assert not used.may_have(key(1))
    used.add(key(1))
    assert used.may_have(key(1))


def test_few_keys_that_are_new_look_as_if_they_were_on_record() -> None:
    used = UsedKeys(OnRecord(0).following)
    used.read_more()
    for number in range(20_000):
        used.add(key(number))
    assert sum(used.may_have(key(-number)) for number in range(1, 20_001)) < 60


@given(st.sets(st.text(max_size=70), max_size=50))
def test_whatever_was_used_or_read_is_known(names: set[str]) -> None:
    keys = sorted(names)
    found = keys[::2]
    used = UsedKeys(lambda after, count: [one for one in found if one > after][:count])
    while used.read_more():
        pass
    for one in keys[1::2]:
        used.add(one)
    # The empty text comes before all others, so that nobody is given it; no key is empty.
    assert all(used.may_have(one) for one in keys if one)
