"""The connection of an OSSA agent: whom it believes, what it says first, and how it comes back."""

from __future__ import annotations

import asyncio
import ssl
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.ossa_messages import new_identity
from tests.unit.sdk.ossa_kit import ScriptedExchange, in_no_time, until, world
from trunkline.edges import tls
from trunkline.edges.ossa import messages, signing
from trunkline.edges.ossa.keys import keys_of
from trunkline.errors import NotAdmitted
from trunkline.sdk import OssaAgent, OssaMessage

REQUEST = messages.REQUEST


def test_a_message_that_the_exchange_did_not_sign_or_that_is_for_another_reaches_no_handler() -> None:
    exchange, seen = ScriptedExchange(), []

    async def main() -> None:
        alice = exchange.agent()

        @alice.handle("work")
        async def _work(request: OssaMessage) -> None:
            seen.append(request.payload)

        async with alice.connected():
            made = exchange.send(REQUEST, "work", "good")
            coming = exchange.sockets[-1].coming

            def with_payload(text: str) -> messages.Message:
                fields = {"message_id": str(uuid.uuid4()), "payload": msgspec.Raw(text.encode())}
                return msgspec.structs.replace(made, **fields)

            exchange.say(with_payload('"of another"'), key=keys_of(b"x" * 64).signs)
            coming.put_nowait(messages.encode(with_payload('"not signed"')).decode())
            signed = signing.sign(with_payload('"signed"'), exchange.own.signs)
            coming.put_nowait(signed.replace(b'"signed"', b'"changed"').decode())
            other = messages.Identity("carol", "worker")
            exchange.say(msgspec.structs.replace(with_payload('"carols"'), recipients=(other,)))
            coming.put_nowait("no JSON")
            exchange.send(REQUEST, "work", "last")
            await asyncio.sleep(1)

    in_no_time(main())
    assert seen == ["good", "last"]


def test_a_key_that_is_new_is_asked_for_but_not_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, seen, asked = ScriptedExchange(), [], []

    async def main() -> None:
        alice = exchange.agent()
        keys = exchange.keys

        async def counted() -> Any:
            asked.append(1)
            return await keys()

        exchange.keys = counted  # type: ignore[method-assign]

        @alice.handle("work")
        async def _work(request: OssaMessage) -> None:
            seen.append(request.payload)

        async with alice.connected():
            exchange.own = keys_of(b"n" * 64)
            exchange.send(REQUEST, "work", "too early")
            await asyncio.sleep(1)
            monkeypatch.setattr("trunkline.sdk.ossa_connection.KEYS_S", 0.0)
            exchange.send(REQUEST, "work", "new")
            await asyncio.sleep(1)

    in_no_time(main())
    assert (seen, len(asked)) == (["new"], 2)


def test_after_the_connection_ended_it_comes_back_registers_and_subscribes_again() -> None:
    exchange, heard = ScriptedExchange(), []

    async def main() -> None:
        alice = exchange.agent()
        alice.handle("work", description="does it", side_effects=False)(lambda _: None)

        async def hear(event: OssaMessage) -> None:
            heard.append(event.payload)

        alice.subscribe("t", hear, qos=1)
        async with alice.connected():
            exchange.hang_up()
            await asyncio.sleep(5)
            exchange.send(messages.EVENT, "event", "later", topic="t", qos=1)
            await asyncio.sleep(1)

    in_no_time(main())
    said = [message.action for _, message in exchange.received if message.type == REQUEST]
    assert said == ["register", "subscribe", "register", "subscribe"]
    offer = msgspec.json.decode(exchange.received[0][1].payload)
    assert offer["replace"] is True
    assert offer["actions"] == [
        {"name": "work", "description": "does it", "input_schema": {"type": "object"}, "side_effects": False}
    ]
    assert heard == ["later"]


def test_an_event_that_is_quicker_than_the_name_of_its_subscription_is_handled() -> None:
    exchange, heard = ScriptedExchange(), []

    def script(exchange: ScriptedExchange, message: messages.Message) -> None:
        if message.action == "subscribe":
            name = {"subscription": msgspec.Raw(b'"new"')}
            exchange.send(messages.EVENT, "event", "quick", topic="t", qos=1, others=name)
            exchange.reply(message, {"subscription": "new"})

    async def main() -> None:
        alice = exchange.agent()

        async def hear(event: OssaMessage) -> None:
            heard.append(event.payload)

        alice.subscribe("t", hear, qos=1)
        async with alice.connected():
            exchange.taken, exchange.script = False, script
            exchange.hang_up()
            await asyncio.sleep(5)

    in_no_time(main())
    assert heard == ["quick"]
    assert len(exchange.of(messages.ACK)) == 1


def test_who_is_not_let_in_is_told_so_and_does_not_try_again() -> None:
    def script(exchange: ScriptedExchange, message: messages.Message) -> None:
        exchange.fail(message, 401)

    exchange = ScriptedExchange(script, taken=False)

    async def main() -> None:
        alice = exchange.agent()
        alice.handle("work")(lambda _: None)
        with pytest.raises(NotAdmitted, match="401"):
            async with alice.connected():
                raise AssertionError("it is not connected")

    in_no_time(main())
    assert len(exchange.sockets) == 1


@pytest.mark.parametrize("offers", [True, False])
async def test_a_key_that_was_revoked_is_not_let_in(tmp_path: Path, offers: bool) -> None:
    async with world(tmp_path) as here:
        alice = here.agent("alice")
        if offers:
            alice.handle("work")(lambda _: None)
        here.exchange.revoke("ossa", "alice")
        with pytest.raises(NotAdmitted, match="401"):
            await alice.serve()


async def test_an_exchange_that_restarts_is_found_again_and_what_was_asked_meanwhile_is_answered(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as here:
        bob = here.agent("bob")

        @bob.handle("echo", side_effects=False)
        async def _echo(request: OssaMessage) -> Any:
            return request.payload

        async with bob.connected(), here.agent("alice").connected() as alice:
            for agent in (alice, bob):
                socket: Any = agent._running().connection._socket
                socket.transport.abort()
            assert (await alice.request("bob", "echo", {"n": 1})).payload == {"n": 1}


# --- whom it trusts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", ["pin", "home", "ca", "wrong pin", "system"])
async def test_it_talks_only_to_an_exchange_that_somebody_vouches_for(tmp_path: Path, trust: str) -> None:
    async with world(tmp_path) as here:
        pem = tls.shown_certificate(tmp_path / "keys" / "tls.pem")
        (tmp_path / "ca.pem").write_bytes(pem)
        pin = tls.pin_of(ssl.PEM_cert_to_DER_cert(pem.decode()))
        options: dict[str, dict[str, Any]] = {
            "pin": {"pin": pin},
            "home": {"home": tmp_path},
            "ca": {"ca": tmp_path / "ca.pem"},
            "wrong pin": {"pin": "A" * 43 + "="},
            "system": {},
        }
        alice = OssaAgent(new_identity(here.exchange, "alice"), url=here.url, **options[trust])
        serving = asyncio.create_task(alice.serve())
        try:
            if trust in {"pin", "home", "ca"}:
                await until(lambda: alice._parts and alice._parts.connection.is_ready.is_set(), "it is connected")
            else:
                await asyncio.wait({serving}, timeout=0.5)
                assert not alice._running().connection.is_ready.is_set()
        finally:
            alice.stop()
            await serving
