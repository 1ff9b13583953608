"""A mint of Cashu for tests, over HTTP: it signs, remembers what was spent, enforces locks, and sells ecash.

What it is asked can be answered otherwise (``instead``), or done and not answered (``is_deaf``), or done and its answer
changed on the way (``garbled``).
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from tests.unit.money.cashu.toy_mint import ToyMint
from trunkline.money import bolt11
from trunkline.money.cashu.curve import hash_to_curve, is_schnorr_signed
from trunkline.money.cashu.locks import read_lock, read_witness

NUTS = {name: {"supported": True} for name in ("7", "9", "10", "11", "12", "14")}
SPENT, NOT_OPENED, UNBALANCED, NOT_PAID, ISSUED = 11001, 10001, 11005, 20001, 20002
INACTIVE = 12002


class MintServer:
    """A mint over HTTP. ``wall`` is what it takes for the time."""

    def __init__(self, mint: ToyMint) -> None:
        self.mint = mint
        self.url = ""
        self.asked: list[str] = []
        self.instead: dict[str, tuple[int, bytes] | None] = {}
        # Told of each request, before and after it is carried out.
        self.before: Callable[[str, Any], None] = _nothing
        self.after: Callable[[str, Any], None] = _nothing
        # Whether an answer is lost on its way, after what was asked for was done.
        self.is_deaf: set[str] = set()
        # What becomes of the next answer on its way.
        self.garbled: dict[str, Callable[[int, bytes], tuple[int, bytes]]] = {}
        # Keys that it signed with before: what they signed can be spent, and is signed no more.
        self.old: dict[str, ToyMint] = {}
        self.wall = time.time
        # By the point of a proof: what opened its lock.
        self.spent: dict[str, str | None] = {}
        self._signed: dict[str, dict[str, Any]] = {}
        # By the name of a quote: so much, and how it stands.
        self.quotes: dict[str, tuple[int, str]] = {}
        # Invoices are paid as soon as they are asked for.
        self.is_generous = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        size = next((int(line[16:]) for line in head.split("\r\n") if line.lower().startswith("content-length")), 0)
        body = json.loads(await reader.readexactly(size) or b"{}")
        self.asked.append(path)
        answer = self.instead.get(path, (0, b""))
        try:
            self.before(path, body)
        except ConnectionError:
            answer = None
        if answer is not None:
            status, data = answer if answer[0] else self._answer(path, body)
            self.after(path, body)
            if path in self.garbled:
                status, data = self.garbled.pop(path)(status, data)
            if path not in self.is_deaf:
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
        match path.removeprefix("/v1/").split("/"):
            case ["info"]:
                return {"nuts": NUTS}
            case ["keysets"]:
                old = [line | {"id": name, "active": False} for name in ("00" * 8, *self.old)]
                return {"keysets": [line, *old]}
            case ["keys", name]:
                found = self._of(name).keyset
                keys = {str(amount): key.hex() for amount, key in found.keys.items()}
                return {"keysets": [line | {"id": found.id, "keys": keys}]}
            case ["checkstate"]:
                return {"states": [self._state(y) for y in body["Ys"]]}
            case ["restore"]:
                known = [one for one in body["outputs"] if one["B_"] in self._signed]
                return {"outputs": known, "signatures": [self._signed[one["B_"]] for one in known]}
            case ["mint", "quote", "bolt11"]:
                name = secrets.token_hex(16)
                self.quotes[name] = (body["amount"], "PAID" if self.is_generous else "UNPAID")
                return self._quote(name)
            case ["mint", "quote", "bolt11", name]:
                return self._quote(name)
            case ["mint", "bolt11"]:
                return self._minted(body)
        return self._swapped(body)

    def _quote(self, name: str) -> dict[str, Any]:
        amount, state = self.quotes[name]
        invoice = bolt11.written(b"\x05" * 32, amount * 1000, "ab" * 32, "", 1_700_000_000, 600)
        return {"quote": name, "request": invoice, "state": state, "expiry": int(self.wall()) + 600}

    def pay_all(self) -> None:
        """Somebody pays every invoice that is open."""
        self.quotes = {
            name: (amount, "PAID" if state == "UNPAID" else state) for name, (amount, state) in self.quotes.items()
        }

    def rotate(self, mint: ToyMint) -> None:
        """Sign with other keys from here on."""
        self.old[self.mint.keyset.id] = self.mint
        self.mint = mint

    def _of(self, keyset_id: str) -> ToyMint:
        return self.old.get(keyset_id, self.mint)

    def _minted(self, body: Any) -> Any:
        amount, state = self.quotes[body["quote"]]
        if state != "PAID":
            return ISSUED if state == "ISSUED" else NOT_PAID
        if sum(one["amount"] for one in body["outputs"]) != amount:
            return UNBALANCED
        self.quotes[body["quote"]] = (amount, "ISSUED")
        return {"signatures": [self._sign(one) for one in body["outputs"]]}

    def _swapped(self, body: Any) -> Any:
        inputs, outputs = body["inputs"], body["outputs"]
        ys = [hash_to_curve(one["secret"].encode()).hex() for one in inputs]
        if any(y in self.spent for y in ys):
            return SPENT
        fee = -(-len(inputs) * self.mint.keyset.input_fee_ppk // 1000)
        if sum(one["amount"] for one in inputs) - fee != sum(one["amount"] for one in outputs):
            return UNBALANCED
        if not all(self._is_ours(one) and self._is_open(one) for one in inputs):
            return NOT_OPENED
        if any(one["id"] in self.old for one in outputs):
            return INACTIVE
        self.spent |= {y: one.get("witness") for y, one in zip(ys, inputs, strict=True)}
        return {"signatures": [self._sign(one) for one in outputs]}

    def _is_ours(self, proof: Any) -> bool:
        return proof["C"] == self._of(proof["id"]).signature_of(proof["amount"], proof["secret"]).hex()

    def _is_open(self, proof: Any) -> bool:
        lock = read_lock(proof["secret"])
        if lock is None:
            return True
        keys = [*lock.keys]
        if lock.locktime and self.wall() >= lock.locktime:
            keys += lock.refund_keys
        shown = read_witness(proof.get("witness") or "").signatures
        return any(is_schnorr_signed(key, proof["secret"].encode(), one) for key in keys for one in shown)

    def _state(self, y: str) -> dict[str, Any]:
        return {"Y": y, "state": "SPENT" if y in self.spent else "UNSPENT", "witness": self.spent.get(y)}

    def _sign(self, output: Any) -> dict[str, Any]:
        made = self.mint.promise(output["id"], output["amount"], bytes.fromhex(output["B_"]))
        dleq = {"e": made.e.hex(), "s": made.s.hex()}
        answer = {"id": made.keyset_id, "amount": made.amount, "C_": made.signature.hex(), "dleq": dleq}
        self._signed[output["B_"]] = answer
        return answer


def _nothing(_path: str, _body: Any) -> None:
    """Nobody listens."""


@asynccontextmanager
async def listening(mint: MintServer) -> AsyncIterator[MintServer]:
    """Such a mint on the loop that runs, for the length of a block."""
    server = await asyncio.start_server(mint.serve, "127.0.0.1", 0)
    mint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield mint
    server.close()


@contextmanager
def running_mint(name: str = "mint", *, fee_ppk: int = 0) -> Iterator[MintServer]:
    """Such a mint in a thread of its own, for exchanges that are processes."""
    server = MintServer(ToyMint(name, fee_ppk=fee_ppk))
    loop = asyncio.new_event_loop()

    async def listen() -> asyncio.Server:
        return await asyncio.start_server(server.serve, "127.0.0.1", 0)

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    listening = asyncio.run_coroutine_threadsafe(listen(), loop).result(10)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"

    async def end() -> None:
        listening.close()
        left = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
        for one in left:
            one.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
