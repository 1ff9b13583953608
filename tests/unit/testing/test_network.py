from __future__ import annotations

import asyncio
from random import Random

import pytest

from trunkline.testing.clock import ManualLoop
from trunkline.testing.network import MAX_SLICES, Network


class Server(asyncio.Protocol):
    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        assert not self.is_lost, "told twice"
        self.is_lost = True


class Peer:
    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.is_lost = False

    def received(self, data: bytes) -> None:
        self.heard.append(data)

    def lost(self) -> None:
        assert not self.is_lost, "told twice"
        self.is_lost = True


class Ends:
    """A connection and both its ends."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = ManualLoop()
        self.writes = 0
        self.network = Network(self.loop, Random(seed), self._wrote)
        self.server, self.client = Server(), Peer()
        self.network.listener = lambda: self.server
        wire = self.network.connect(self.client, 77)
        assert wire is not None
        self.wire = wire

    def _wrote(self) -> None:
        self.writes += 1

    def said(self) -> tuple[bytes, bytes]:
        return b"".join(self.server.received), b"".join(self.client.heard)


@pytest.mark.parametrize("seed", range(30))
def test_bytes_arrive_later_in_order_and_whole(seed: int) -> None:
    ends = Ends(seed)
    ends.wire.send(b"abc" * 400)
    ends.wire.send(b"def")
    ends.server.transport.write(b"xyz")
    assert ends.said() == (b"", b"")
    ends.loop.run_for(5.0)
    assert ends.said() == (b"abc" * 400 + b"def", b"xyz")
    assert len(ends.server.received) <= 2 * MAX_SLICES
    assert ends.writes == 1


def test_some_connections_cut_what_they_carry_into_slices() -> None:
    counts = set()
    for seed in range(30):
        ends = Ends(seed)
        ends.wire.send(b"abc" * 400)
        ends.loop.run_for(5.0)
        counts.add(len(ends.server.received))
    assert min(counts) == 1
    assert max(counts) > 3


def test_the_same_seed_carries_in_the_same_way() -> None:
    runs = []
    for _ in range(2):
        ends = Ends(5)
        ends.wire.send(b"abc" * 400)
        ends.loop.run_for(5.0)
        runs.append(ends.server.received)
    assert runs[0] == runs[1]


def test_a_client_that_closes_is_heard_to_the_end() -> None:
    ends = Ends()
    ends.wire.send(b"last words")
    ends.wire.close()
    ends.loop.run_for(1.0)
    assert ends.said()[0] == b"last words"
    assert ends.server.is_lost
    assert not ends.client.is_lost


def test_one_that_dies_abruptly_is_not() -> None:
    ends = Ends()
    ends.wire.send(b"last words")
    ends.wire.close(abruptly=True)
    ends.loop.run_for(1.0)
    assert ends.said()[0] == b""
    assert ends.server.is_lost


def test_a_server_that_closes_is_heard_to_the_end_and_one_that_aborts_is_not() -> None:
    for close, heard in ((asyncio.Transport.close, b"goodbye"), (asyncio.Transport.abort, b"")):
        ends = Ends()
        ends.server.transport.write(b"goodbye")
        getattr(ends.server.transport, close.__name__)()
        assert ends.server.transport.is_closing()
        ends.wire.send(b"too late")
        ends.loop.run_for(1.0)
        assert ends.said() == (b"", heard)
        assert ends.server.is_lost
        assert ends.client.is_lost


def test_a_reset_loses_what_was_under_way_and_both_are_told() -> None:
    ends = Ends()
    ends.wire.send(b"up")
    ends.server.transport.write(b"down")
    ends.wire.reset()
    ends.loop.run_for(1.0)
    assert ends.said() == (b"", b"")
    assert ends.server.is_lost
    assert ends.client.is_lost


def test_a_half_open_connection_tells_nobody() -> None:
    ends = Ends()
    ends.wire.vanish(down=False)
    ends.wire.send(b"up")
    ends.server.transport.write(b"down")
    ends.wire.close()
    ends.loop.run_for(100.0)
    assert ends.said() == (b"", b"")
    assert not ends.server.is_lost


def test_what_arrives_while_reading_is_paused_waits() -> None:
    ends = Ends()
    ends.server.transport.pause_reading()
    ends.wire.send(b"one")
    ends.wire.send(b"two")
    ends.loop.run_for(1.0)
    assert ends.said()[0] == b""
    ends.server.transport.resume_reading()
    assert ends.said()[0] == b"", "not within the call"
    ends.loop.run_for(0.0)
    assert ends.said()[0] == b"onetwo"


def test_a_killed_server_hears_nothing_more_and_its_clients_are_told() -> None:
    heard = set()
    for seed in range(20):
        ends = Ends(seed)
        ends.wire.send(b"up")
        ends.server.transport.write(b"down")
        ends.network.server_died()
        ends.loop.run_for(5.0)
        assert ends.said()[0] == b""
        assert not ends.server.is_lost
        assert ends.client.is_lost
        assert ends.network.connect(Peer(), 78) is None
        heard.add(ends.said()[1])
    assert heard == {b"", b"down"}, "the kernel may or may not deliver what was written"
