"""The raw ends with the bare relay between them, and with the pure path of the exchange: the same code."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bench import wire
from bench.ends import Broken, Caller, Provider
from bench.loads import LARGE, SMALL, Attach, Identity, Load, Run
from bench.pure_path import PurePath
from bench.relay import FLUSH_EVERY, Side
from trunkline.entries import CallAccepted, CallSettled


class Written:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)


def joined() -> tuple[Side, Written]:
    """The caller's side of a relay, and what the provider gets."""
    sides: list[Side] = []
    provider, caller = Side(sides), Side(sides)
    out = Written()
    transports: list[Any] = [out, Written()]
    provider.connection_made(transports[0])
    caller.connection_made(transports[1])
    return caller, out


@pytest.mark.parametrize("cut", [1, 3, 7, 1000])
def test_the_relay_passes_every_frame_whole_however_the_bytes_arrive(cut: int) -> None:
    caller, out = joined()
    frames = [wire.frame(b"x" * size) for size in (0, 1, 5, 300, 2)]
    stream = b"".join(frames)
    for at in range(0, len(stream), cut):
        caller.data_received(stream[at : at + cut])
    assert b"".join(out.writes) == stream
    ends = {sum(map(len, frames[:count])) for count in range(len(frames) + 1)}
    written = 0
    for data in out.writes:
        written += len(data)
        assert written in ends


def test_the_relay_writes_every_few_frames() -> None:
    caller, out = joined()
    caller.data_received(wire.frame(b"x") * (2 * FLUSH_EVERY + 1))
    assert [len(data) // 5 for data in out.writes] == [FLUSH_EVERY, FLUSH_EVERY, 1]


async def test_the_ends_speak_with_each_other_through_the_relay(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    path = str(tmp_path / "s")
    sides: list[Side] = []
    server = await loop.create_unix_server(lambda: Side(sides), path)
    to_provider, _ = await loop.create_unix_connection(lambda: Provider(None, Attach(path)), path)
    to_caller, caller = await loop.create_unix_connection(lambda: Caller(None), path)
    async with asyncio.timeout(20):
        for load in (Load(1, SMALL), Load(64, LARGE, fresh=False), Load(64, SMALL)):
            measured = await caller.run(Run(load, 0.0, 0.01, ("any/tool",)))
            assert measured.calls > 0
            assert measured.total >= load.in_flight
    # An end takes a lost connection for a failure of what is measured.
    lost: asyncio.Queue[Exception] = asyncio.Queue()
    loop.set_exception_handler(lambda _, context: lost.put_nowait(context["exception"]))
    for transport in (to_caller, to_provider, *(side.transport for side in sides)):
        transport.abort()
    server.close()
    async with asyncio.timeout(20):
        assert {type(await lost.get()) for _ in range(2)} == {Broken}


def test_a_call_that_did_not_succeed_is_a_failure_of_the_run() -> None:
    async def hear() -> None:
        caller = Caller(None)
        caller.heard(wire.envelope(b'{"type":"core.tool.result","payload":{"call_id":"c1","status":"failed"}}'))

    with pytest.raises(Broken, match="a call ended as failed"):
        asyncio.run(hear())


@pytest.mark.parametrize("side_effects", [False, True])
def test_the_pure_path_takes_the_same_messages_and_records_two_entries_a_call(
    tmp_path: Path, side_effects: bool
) -> None:
    path = PurePath(tmp_path / "home", side_effects=side_effects)
    path.use(Load(64, SMALL))
    before = path.ledger.last
    for _ in range(3):
        path.turn()
    assert path.ledger.last - before == 3 * 2 * FLUSH_EVERY
    accepted = [entry for entry in path.written if isinstance(entry, CallAccepted)]
    assert [entry.side_effects for entry in accepted] == [side_effects] * FLUSH_EVERY
    assert len([entry for entry in path.written if isinstance(entry, CallSettled)]) == FLUSH_EVERY
    assert set(path.laps) == {"decode", "hub", "ledger", "encode"}
    path.close()


def test_a_token_is_in_no_message_but_the_hello() -> None:
    identity = Identity("bench.agent", "secret-token")
    assert b"secret-token" in wire.hello(identity)
    others = (wire.register(identity.agent, "echo", side_effects=True), wire.heartbeat("s"), wire.call(1, b"t", b"{}"))
    assert not any(b"secret-token" in message for message in others)
