"""``ledger.indexes``: a damaged index is found, named and made anew; what was done is not done again."""

from __future__ import annotations

import logging

import apsw
import pytest

from trunkline.errors import LedgerCorrupt
from trunkline.ledger.indexes import INDEXES, counted, recorded
from trunkline.ledger.verify import verify
from trunkline.model import Decision, Policy, Rule
from trunkline.testing.memory import MemoryExchange

ASK = Policy((Rule("ask", "*", "*/slow", Decision.ASK), Rule("all", "*", "*", Decision.ALLOW)), "ask")
# One row each, changed as a flipped bit would: the text that is looked up, or the number it leads to.
DAMAGES = {
    "a key": "UPDATE keys SET key_id = 'x' || substr(key_id, 2) WHERE call = (SELECT min(call) FROM keys)",
    "a key's call": "UPDATE keys SET call = call + 1024 WHERE call = (SELECT min(call) FROM keys)",
    "a missing key": "DELETE FROM keys WHERE call = (SELECT min(call) FROM keys)",
    "an outcome's call": "UPDATE settled SET call = call + 4096 WHERE n = (SELECT min(n) FROM settled)",
    "an outcome's number": "UPDATE settled SET n = n + 1 WHERE n = (SELECT min(n) FROM settled)",
    "a missing outcome": "DELETE FROM settled WHERE n = (SELECT min(n) FROM settled)",
    "a correlation": "UPDATE correlations SET correlation = 'd' WHERE n = (SELECT min(n) FROM correlations)",
    "a step": "UPDATE steps SET subject = '7' WHERE n = (SELECT max(n) FROM steps)",
    "a step more": "INSERT INTO steps VALUES ('7', 1)",
    "a key that is no text": "UPDATE keys SET key_id = x'00ff' WHERE call = (SELECT min(call) FROM keys)",
}


def busy() -> MemoryExchange:
    """An exchange that has something in every index."""
    exchange = MemoryExchange(ASK)
    agent = exchange.attach("com.a", "pay", "slow")
    for number in range(3):
        exchange.call("com.a/pay", {"n": number}, key=f"k{number}", correlation_id="c")
        agent.finish({"paid": number})
    exchange.answer(exchange.call("com.a/slow").approval_id)
    agent.finish({})
    return exchange


def damage(exchange: MemoryExchange, sql: str) -> None:
    exchange.ledger.close()
    connection = apsw.Connection(str(exchange.disk.path("ledger.sqlite")), vfs=exchange.disk.vfs)
    connection.execute(sql)
    assert connection.changes() == 1
    connection.close()


@pytest.mark.parametrize("sql", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_index_is_named_by_verify(sql: str) -> None:
    exchange = busy()
    path, vfs = exchange.disk.path("ledger.sqlite"), exchange.disk.vfs
    assert verify(path, vfs=vfs).entries == len(exchange.log)
    damage(exchange, sql)
    with pytest.raises(LedgerCorrupt, match="index of"):
        verify(path, vfs=vfs)


@pytest.mark.parametrize("sql", DAMAGES.values(), ids=DAMAGES)
def test_after_damage_to_an_index_nothing_is_done_a_second_time(sql: str, caplog: pytest.LogCaptureFixture) -> None:
    exchange = busy()
    damage(exchange, sql)
    with caplog.at_level(logging.WARNING):
        again = exchange.restarted()
    assert "was damaged and is made anew" in caplog.text
    agent = again.attach("com.a", "pay", "slow")
    for number in range(3):
        assert again.call("com.a/pay", {"n": number}, key=f"k{number}").output == {"paid": number}
    assert agent.delivered == []
    again.store()
    assert verify(again.disk.path("ledger.sqlite"), vfs=again.disk.vfs)


def test_the_sums_follow_every_commit_and_a_replaced_key() -> None:
    exchange = busy()
    agent = exchange.attach("com.b", "x")
    exchange.call("com.b/x", key="again")
    agent.finish({})
    exchange.advance(86_400 * 1.5)
    exchange.call("com.b/x", {"other": 1}, key="again")
    agent.finish({})
    assert len(agent.delivered) == 2
    connection = apsw.Connection(str(exchange.disk.path("ledger.sqlite")), vfs=exchange.disk.vfs)
    assert recorded(connection) == counted(connection)
    assert all(connection.execute(f"SELECT count(*) FROM {table}").get for table in INDEXES)  # noqa: S608
    connection.close()


def test_a_record_of_an_earlier_release_gets_its_sums() -> None:
    exchange = busy()
    damage(exchange, "DELETE FROM meta WHERE name = 'indexes'")
    again = exchange.restarted()
    connection = apsw.Connection(str(again.disk.path("ledger.sqlite")), vfs=again.disk.vfs)
    assert recorded(connection) == counted(connection)
    connection.close()
