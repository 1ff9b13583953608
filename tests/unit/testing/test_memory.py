"""The exchange in memory does what the real one does: here where an edge relies on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trunkline.config import LISTENERS, Config, Http
from trunkline.edges.exchange import BaseSink
from trunkline.edges.known import EDGES
from trunkline.effects import Reply, ToSession
from trunkline.entries import Noticed
from trunkline.events import Noticed as SomethingNoticed
from trunkline.events import TokenIssued
from trunkline.model import Limits, Now, Policy, Principal
from trunkline.testing.memory import MemoryExchange


class NotesEachReply(BaseSink):
    """A conversation that has something recorded when it is told something, and wants to know when that is on disk."""

    def __init__(self, exchange: MemoryExchange) -> None:
        self.exchange = exchange
        self.stored: list[bool] = []

    def send(self, effect: ToSession, now: Now) -> None:
        assert isinstance(effect, Reply)
        self.exchange.feed.feed([SomethingNoticed("noted", "test")])
        self.exchange.feed.when_stored(lambda: self.stored.append(self._is_on_disk()))

    def _is_on_disk(self) -> bool:
        noted = [entry.n for entry in self.exchange.recorded(Noticed)]
        return bool(noted) and noted[-1] <= self.exchange.ledger.durable


def test_what_is_fed_in_the_middle_of_a_turn_is_on_disk_when_that_is_told() -> None:
    exchange = MemoryExchange()
    sink = NotesEachReply(exchange)
    session = exchange.feed.open_session(sink)
    # A refusal waits for no entry: it is told while the turn goes on.
    exchange.feed.feed([TokenIssued(session, "t", Principal("http:mallory"), "http", "alice", "0" * 64)])
    assert sink.stored == [True]


@pytest.mark.parametrize(("section", "key"), LISTENERS)
def test_no_default_port_is_taken_so_that_two_exchanges_can_run_at_a_time(section: str, key: str) -> None:
    usual = getattr(getattr(Config(), section), key)
    assert getattr(getattr(MemoryExchange().config, section), key) == (usual and "127.0.0.1:0")


def test_a_port_that_was_chosen_is_the_one_that_is_taken() -> None:
    assert MemoryExchange(config=Config(http=Http(listen="127.0.0.1:7"))).config.http.listen == "127.0.0.1:7"


def test_an_exchange_that_was_restarted_has_the_same_home_edges_and_record() -> None:
    policy, config, home = Policy((), "p1"), Config(limits=Limits(open_calls=7)), Path("/elsewhere")
    edges = [edge for edge in EDGES if edge.name == "http"]
    exchange = MemoryExchange(policy, edges=edges, config=config, home=home)
    exchange.token("http", "alice")
    again = exchange.restarted()
    assert (again.home, again.policy, again.config) == (home, policy, exchange.config)
    assert again.hub.in_force.settings.limits.open_calls == 7
    assert again.edges.status() == exchange.edges.status()
    assert again.edges.status()["edges"]
    assert [token.agent for token in again.operator.tokens()] == ["alice"]
