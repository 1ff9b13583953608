"""What OSSA agents say encrypted is found by its recipients and in no file; nor is any agent's private key."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import OKPKey

from tests.attack.secrets import forms
from tests.attack.test_private_keys import files_with, private_parts
from tests.crash.ossa_agents import CONFIG, Speaker, address, speaking, trusting, until
from tests.running import Running, running
from trunkline.events import EventPublished

pytestmark = pytest.mark.timeout(120)
ASKED, ANSWERED, TOLD = ("canary-asked-5f0e71", "canary-answered-93b2aa", "canary-told-c01d77")


async def seals(exchange: Running) -> OKPKey:
    """The exchange's public key to encrypt to."""
    host, _, port = str(exchange.ready["ossa"]).partition("//")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=trusting())
    writer.write(b"GET /ossa/v1/keys HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")[2]
    writer.close()
    found: dict[str, Any] = next(key for key in json.loads(body)["keys"] if key["use"] == "enc")
    return OKPKey.import_key(found)


async def test_what_is_encrypted_reaches_its_recipient_and_no_file_even_across_kill_9(short_path: Path) -> None:
    planted = [form for canary in (ASKED, ANSWERED) for form in forms(canary)]
    with running(short_path / "home", CONFIG) as exchange:
        alice, bob = Speaker(exchange, "alice", address(exchange)), Speaker(exchange, "bob", address(exchange), "work")
        alice.seals = bob.seals = await seals(exchange)
        bob.handle = lambda _: None
        async with speaking(alice, bob):
            exchange.wait_tool("bob/work")
            command = alice.sealed(alice.message("command", "bob", "work", {"x": ASKED}, correlationId="c"))
            await alice.ask(command, wanted="acknowledgment")
            await until(lambda: {"x": ASKED} in bob.handled.values(), "the request at bob")
            assert files_with(exchange, planted) == [], "while the call is open"
            exchange.kill()
            assert files_with(exchange, planted) == [], "after a kill"
            bob.handle = lambda _: {"y": ANSWERED}
            exchange.start()
            await until(lambda: alice.replies["c"]["header"]["type"] == "command_result", "the result")
            assert alice.opened(alice.replies["c"]) == {"y": ANSWERED}
        everything = [*planted, *private_parts(alice.made), *private_parts(bob.made)]
        assert files_with(exchange, everything) == []
        assert exchange.stop() == 0
        assert files_with(exchange, everything) == []


@pytest.mark.skipif("sensitive" not in EventPublished.__struct_fields__, reason="events cannot be sensitive yet")
async def test_an_encrypted_event_reaches_who_subscribed_and_no_file(short_path: Path) -> None:
    with running(short_path / "home", CONFIG) as exchange:
        alice, bob = Speaker(exchange, "alice", address(exchange)), Speaker(exchange, "bob", address(exchange))
        alice.seals = bob.seals = await seals(exchange)
        async with speaking(alice, bob):
            wish = {"topic": "secret.*", "qos": 1, "durable": True}
            await bob.ask(bob.message("request", "trunkline", "subscribe", wish), wanted="response")
            event = alice.sealed(alice.message("event", "trunkline", "said", {"z": TOLD}, topic="secret.x", qos=1))
            await alice.ask(event, wanted="acknowledgment")
            told = lambda: [one for one in bob.got if one["header"]["type"] == "event"]  # noqa: E731
            await until(told, "the event")
            assert bob.opened(told()[0]) == {"z": TOLD}
        assert files_with(exchange, forms(TOLD)) == []
        assert exchange.stop() == 0
        assert files_with(exchange, forms(TOLD)) == []


async def test_only_tls_carries_it(short_path: Path) -> None:
    with running(short_path / "home", CONFIG) as exchange:
        host, _, port = str(exchange.ready["ossa"]).partition("//")[2].partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /ossa/v1/messages HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}")
        with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readuntil(b"HTTP/1.1"), 10)
        writer.close()
