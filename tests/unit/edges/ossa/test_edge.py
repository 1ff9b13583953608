"""The edge as a whole, on a real socket with TLS: it listens, tells where, and lets go."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import pytest
import websockets

from trunkline.config import Config, Ossa
from trunkline.edges.edge import EdgeOff
from trunkline.edges.ossa.edge import OSSA
from trunkline.testing.memory import MemoryExchange


def exchange(home: Path, listen: str = "127.0.0.1:0") -> MemoryExchange:
    config = Config(ossa=Ossa(listen=listen))
    return MemoryExchange(edges=(OSSA,), config=config, home=home, live=asyncio.get_running_loop())


def trusting(highest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = highest
    return context


async def test_it_shows_its_keys_the_same_after_a_restart_and_says_goodbye_to_sockets(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):
        given = exchange(tmp_path).surroundings(tmp_path)
        edge = OSSA.make(given)
        await edge.start()
        url = edge.ready()["ossa"]
        assert url is not None
        host, _, port = url.partition("//")[2].partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=trusting())
        writer.write(b"GET /ossa/v1/keys HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        seen.append(json.loads(body))
        writer.close()
        async with websockets.connect(f"wss://{host}:{port}/ossa/v1/ws", ssl=trusting()) as socket:
            await edge.stop()
            with pytest.raises(websockets.ConnectionClosed):
                await asyncio.wait_for(socket.recv(), 10)
        assert edge.status()["agents"] == 0
    assert seen[0] == seen[1]
    assert [key["use"] for key in seen[0]["keys"]] == ["sig", "enc"]
    assert "d" not in {name for key in seen[0]["keys"] for name in key}


async def test_older_tls_is_refused(tmp_path: Path) -> None:
    edge = OSSA.make(exchange(tmp_path).surroundings(tmp_path))
    await edge.start()
    try:
        port = int(str(edge.ready()["ossa"]).rpartition(":")[2])
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=trusting(ssl.TLSVersion.TLSv1_2))
    finally:
        await edge.stop()


async def test_without_an_address_it_is_off(tmp_path: Path) -> None:
    edge = OSSA.make(exchange(tmp_path, "").surroundings(tmp_path))
    with pytest.raises(EdgeOff):
        await edge.start()
    await edge.stop()
