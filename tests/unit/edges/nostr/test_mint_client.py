"""The client of a mint at a mint of a few lines, which answers over a real socket what a test tells it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.money.cashu.toy_mint import ToyMint
from trunkline.edges.nostr.mint_client import MintClient
from trunkline.errors import ConfigError
from trunkline.money.cashu.checking import check_signatures
from trunkline.money.cashu.curve import hash_to_curve
from trunkline.money.cashu.swaps import outputs_of
from trunkline.money.cashu.tokens import Token
from trunkline.money.rail import RailFailed
from trunkline.money.refusals import ProofRefused

LOCKS = {name: {"supported": True} for name in ("10", "11", "14")}


class Server:
    """A mint over HTTP: signs what it is asked, remembers what was spent."""

    def __init__(self, mint: ToyMint) -> None:
        self.mint = mint
        self.url = ""
        self.asked: list[str] = []
        self.instead: dict[str, tuple[int, bytes] | None] = {}
        # By the point of a proof: what opened its lock.
        self._spent: dict[str, str | None] = {}
        self._signed: dict[str, dict[str, Any]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        size = next(int(line[16:]) for line in head.split("\r\n") if line.lower().startswith("content-length"))
        body = json.loads(await reader.readexactly(size) or b"{}")
        self.asked.append(path)
        answer = self.instead.get(path, (0, b""))
        if answer is not None:
            status, data = answer if answer[0] else self._answer(path, body)
            writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data)
        writer.close()

    def _answer(self, path: str, body: Any) -> tuple[int, bytes]:
        status, value = 200, self._value(path, body)
        if isinstance(value, int):
            status, value = 400, {"detail": "no", "code": value}
        return status, json.dumps(value).encode()

    def _value(self, path: str, body: Any) -> Any:
        keyset = self.mint.keyset
        line = {"id": keyset.id, "unit": "sat", "active": True, "input_fee_ppk": keyset.input_fee_ppk}
        keys = {str(amount): key.hex() for amount, key in keyset.keys.items()}
        match path.removeprefix("/v1/").split("/"):
            case ["info"]:
                return {"nuts": LOCKS}
            case ["keysets"]:
                return {"keysets": [line, line | {"id": "00" * 8, "active": False}]}
            case ["keys", _]:
                return {"keysets": [line | {"keys": keys}]}
            case ["checkstate"]:
                return {"states": [self._state(y) for y in body["Ys"]]}
            case ["restore"]:
                known = [one for one in body["outputs"] if one["B_"] in self._signed]
                return {"outputs": known, "signatures": [self._signed[one["B_"]] for one in known]}
        ys = [hash_to_curve(one["secret"].encode()).hex() for one in body["inputs"]]
        if any(y in self._spent for y in ys):
            return 11001
        self._spent |= {y: one.get("witness") for y, one in zip(ys, body["inputs"], strict=True)}
        return {"signatures": [self._sign(one) for one in body["outputs"]]}

    def _state(self, y: str) -> dict[str, Any]:
        return {"Y": y, "state": "SPENT" if y in self._spent else "UNSPENT", "witness": self._spent.get(y)}

    def _sign(self, output: Any) -> dict[str, Any]:
        made = self.mint.promise(output["id"], output["amount"], bytes.fromhex(output["B_"]))
        dleq = {"e": made.e.hex(), "s": made.s.hex()}
        answer = {"id": made.keyset_id, "amount": made.amount, "C_": made.signature.hex(), "dleq": dleq}
        self._signed[output["B_"]] = answer
        return answer


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server(ToyMint())
    listening = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    yield found
    listening.close()


def client(server: Server) -> MintClient:
    return MintClient(f"{server.url}/", timeout_s=5)


async def test_keysets_are_fetched_once_and_checked(server: Server) -> None:
    mint = client(server)
    assert await mint.active_keyset("sat") == server.mint.keyset
    proofs = server.mint.proofs(3)
    assert await mint.keysets_of(proofs) == [server.mint.keyset]
    assert len([path for path in server.asked if path.startswith("/v1/keys/")]) == 1
    with pytest.raises(RailFailed, match="usd"):
        await mint.active_keyset("usd")
    with pytest.raises(ProofRefused) as refused:
        await mint.keysets_of(ToyMint("another").proofs(3))
    assert refused.value.reason == "unknown_keyset"


async def test_a_swap_gives_proofs_that_the_mint_signed_and_what_was_spent_is_refused(server: Server) -> None:
    mint, keyset = client(server), server.mint.keyset
    old = server.mint.proofs(5)
    new = await mint.swap(old, outputs_of(5, keyset, str, server.mint.chance), keyset)
    check_signatures(Token(mint.url, "sat", new), [keyset])
    assert [state.state for state in await mint.states(old)] == ["SPENT", "SPENT"]
    assert [state.state for state in await mint.states(new)] == ["UNSPENT", "UNSPENT"]
    with pytest.raises(ProofRefused) as refused:
        await mint.swap(old, outputs_of(5, keyset, str, server.mint.chance), keyset)
    assert refused.value.reason == "spent"


async def test_a_swap_whose_answer_is_lost_is_unknown_until_it_is_asked_for_again(server: Server) -> None:
    mint, keyset = client(server), server.mint.keyset
    outputs = outputs_of(5, keyset, str, server.mint.chance)
    assert await mint.restored(outputs, keyset) == ()
    proofs = await mint.swap(server.mint.proofs(5), outputs, keyset)
    assert await mint.restored(outputs, keyset) == proofs
    server.instead["/v1/swap"] = None
    with pytest.raises(RailFailed) as failed:
        await mint.swap(server.mint.proofs(5), outputs, keyset)
    assert failed.value.is_unknown


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((200, b"<html>"), ProofRefused),
        ((200, b'{"signatures":[]}'), ProofRefused),
        ((400, b"{}"), ProofRefused),
        ((422, b"x"), ProofRefused),
        ((500, b'{"signatures":[]}'), RailFailed),
        ((302, b""), RailFailed),
    ],
)
async def test_whatever_a_mint_answers_to_a_swap_is_proofs_a_refusal_or_unknown(
    server: Server, answer: tuple[int, bytes], error: type[Exception]
) -> None:
    server.instead["/v1/swap"] = answer
    keyset = server.mint.keyset
    with pytest.raises(error):
        await client(server).swap(server.mint.proofs(1), outputs_of(1, keyset, str, server.mint.chance), keyset)


async def test_a_mint_that_has_trouble_is_none_that_enforces_locks(server: Server) -> None:
    assert await client(server).enforces_locks()
    server.instead["/v1/info"] = (500, b"")
    for asked in (client(server).enforces_locks(), MintClient("http://127.0.0.1:9").enforces_locks()):
        with pytest.raises(RailFailed):
            await asked


@pytest.mark.parametrize("url", ["http://mint.example", "https://user@mint.example", "https://mint.example/#x"])
def test_an_address_that_others_could_read_along_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="mint"):
        MintClient(url)
