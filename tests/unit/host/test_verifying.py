from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import apsw
import pytest

from tests.unit.ledger.made import in_process, noticed
from trunkline.errors import LedgerCorrupt
from trunkline.host.verifying import Verifying

WAIT_S = 60


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A ledger with three entries."""
    with in_process(tmp_path) as made:
        for _ in range(3):
            made.add(noticed)
    return tmp_path


class Heard:
    """What was found, in the order in which it was."""

    def __init__(self, home: Path) -> None:
        self.damage: list[LedgerCorrupt] = []
        self.defects: list[BaseException] = []
        self.verifying = Verifying(
            home / "ledger.sqlite", home / "keys", on_damage=self.damage.append, on_defect=self.defects.append
        )

    async def walked(self) -> None:
        assert self.verifying._walk is not None
        await asyncio.wait_for(self.verifying._walk, WAIT_S)


async def test_a_walk_says_up_to_which_entry_the_record_is_whole(home: Path) -> None:
    heard = Heard(home)
    assert heard.verifying.figures() == {"entries_verified": 0, "verified_at": None, "verifying": False}
    assert heard.verifying.walk()
    assert heard.verifying.figures()["verifying"]
    assert not heard.verifying.walk(), "one at a time"
    await heard.walked()
    figures = heard.verifying.figures()
    assert (figures["entries_verified"], figures["verifying"]) == (3, False)
    assert str(figures["verified_at"]).endswith("Z")
    assert (heard.damage, heard.defects) == ([], [])


async def test_a_record_that_was_changed_is_told_of_and_not_verified(home: Path) -> None:
    connection = apsw.Connection(str(home / "ledger.sqlite"))
    connection.execute("UPDATE entries SET data = replace(data, 'at', 'ta') WHERE n = 2")
    connection.close()
    heard = Heard(home)
    heard.verifying.start_proved(1)
    heard.verifying.walk()
    await heard.walked()
    assert [damage.number for damage in heard.damage] == [2]
    assert heard.verifying.verified == 1


async def test_a_record_that_cannot_be_walked_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard(tmp_path)
    with caplog.at_level(logging.WARNING, "trunkline"):
        heard.verifying.walk()
        await heard.walked()
    assert "was not proved as a whole" in caplog.text
    assert (heard.damage, heard.defects, heard.verifying.verified) == ([], [], 0)


async def test_a_walk_under_way_ends_when_the_exchange_stops(home: Path) -> None:
    heard = Heard(home)
    heard.verifying.walk()
    await heard.verifying.stop()
    assert not heard.verifying.is_walking
    assert (heard.damage, heard.defects, heard.verifying.verified) == ([], [], 0)
