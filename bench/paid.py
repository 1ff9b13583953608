"""A job that is paid, beside the same one for nothing: ``python -m bench.paid [JOBS]``.

A buyer with a connection of its own to the embedded relay asks for a job and has its result; of a priced one it gets an
invoice first and has its wallet, over NIP-47 on the same relay, pay it. Two exchanges, one of them with prices, take
turns, so that whatever else the machine does meets both. A job is the smallest that there is: what is measured is what
money adds to it, which is two more messages each way, money held and released, and a receipt, all on disk.

Invariant: a job whose result does not come, or whose payment leaves no receipt in it, fails the run.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from msgspec import Raw, Struct

from bench.children import Children
from bench.exchange import Exchange
from bench.loads import percentile
from tests.nostr import OnRelay
from trunkline.config import NostrKinds
from trunkline.edges.nostr import messages, nip47
from trunkline.edges.nostr.events import Event
from trunkline.edges.nostr.keys import Signer
from trunkline.jobs.embedding import HASHING
from trunkline.jobs.schemas import EMBEDDING, job_types

JOBS: Final = 100
# What is used once is used before the first job that counts.
WARM: Final = 5
WITHIN_S: Final = 60.0
KINDS: Final = NostrKinds()
BUYER: Final = Signer(bytes(31) + b"\x09")
FUNDED: Final = 1_000_000_000
CONFIG: Final = (
    f'\n[ossa]\nlisten = ""\n[pylon]\nlisten = ""\n[nostr]\nrelay = "127.0.0.1:0"\noffer = ["{EMBEDDING}"]\n'
)
PRICES: Final = "[nostr.pricing]\ninput_tokens_per_1k_msats = 1000000\n"


class Paid(Struct, frozen=True):
    """Milliseconds from request to result, of each job."""

    free_ms: tuple[float, ...]
    paid_ms: tuple[float, ...]

    @property
    def times(self) -> float:
        """How many times as long a paid job takes, at the median."""
        return statistics.median(self.paid_ms) / statistics.median(self.free_ms)


class Customer(OnRelay):
    """A buyer at one exchange's relay. Use it in an ``async with``."""

    def __init__(self, url: str, wallet: str = "") -> None:
        super().__init__(url, BUYER, {"kinds": [KINDS.announcement, KINDS.result, KINDS.feedback, nip47.RESPONSE]})
        # The wallet's public key; empty: nothing is paid.
        self._wallet = wallet
        self._provider = ""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        announced = await self._first(lambda event: event.kind == KINDS.announcement, "an announcement")
        self._provider = announced.pubkey
        return self

    async def _first(self, is_wanted: Callable[[Event], bool], what: str) -> Event:
        found: Event = await self.until(lambda: next(filter(is_wanted, self.seen), None), what)
        return found

    async def job(self, number: int) -> float:
        """Have a job done, and pay for it if it costs something; milliseconds until its result is here."""
        self.seen.clear()
        inputs = {"texts": [f"job {number}"], "model": HASHING, "dimensions": 4}
        draft = messages.request_draft(
            KINDS, EMBEDDING, Raw(msgspec.json.encode(inputs)), job_types()[EMBEDDING].job_hash(inputs),
            created_at=int(time.time()), nonce=str(number), provider=self._provider,
        )  # fmt: skip
        begun = time.perf_counter()
        request = await self.say(draft)

        def is_about(event: Event, kind: int) -> bool:
            return event.kind == kind and event.value("e") == request.id

        if self._wallet:
            asked = await self._first(lambda event: is_about(event, KINDS.feedback), "an invoice")
            now = int(time.time())
            params = {"invoice": asked.tag("amount")[2]}
            await self.say(nip47.request_draft(BUYER, self._wallet, "pay_invoice", params, now, now + 600))
        result = await self._first(lambda event: is_about(event, KINDS.result), "a result")
        took_ms = (time.perf_counter() - begun) * 1000
        if bool(self._wallet) != bool(result.tag("receipt")):
            raise RuntimeError(f"job {number}: its result has another receipt than it should")
        return took_ms


def opened(exchange: Exchange) -> str:
    """An account for the buyer; the wallet's public key."""
    with exchange.operator(WITHIN_S) as operator:

        def call(tool: str, value: dict[str, Any]) -> dict[str, Any]:
            answer = operator.ask("POST", "/v1/calls", {"tool_id": f"nostr.wallet/{tool}", "input": value})
            return dict(answer["output"])

        wallet = str(call("new", {"name": "buyer", "client": BUYER.public})["wallet"])
        call("fund", {"name": "buyer", "msats": FUNDED})
        return wallet


async def measured(free: Exchange, priced: Exchange, jobs: int) -> Paid:
    """So many jobs at each, in turns."""
    free_ms: list[float] = []
    paid_ms: list[float] = []
    async with Customer(free.ready("relay")) as one, Customer(priced.ready("relay"), opened(priced)) as other:
        for number in range(WARM + jobs):
            free_ms.append(await one.job(number))
            paid_ms.append(await other.job(number))
    return Paid(tuple(free_ms[WARM:]), tuple(paid_ms[WARM:]))


def lines(found: Paid) -> Sequence[str]:
    """The table."""

    def row(title: str, times_ms: tuple[float, ...], ratio: float) -> str:
        shown = " | ".join(f"{percentile(times_ms, percent):.0f} ms" for percent in (50, 90, 99))
        return f"| {title} | {shown} | {ratio:.1f} |"

    return (
        "| a job | median | 90 of 100 | 99 of 100 | beside one for nothing |",
        "|---|---:|---:|---:|---:|",
        row("for nothing", found.free_ms, 1.0),
        row("paid", found.paid_ms, found.times),
    )


def main() -> None:
    """Run, and print the table."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, Children(Path(folder)) as children:
        free = Exchange(children, children.folder / "free", "free", CONFIG)
        priced = Exchange(children, children.folder / "priced", "priced", CONFIG + PRICES)
        found = asyncio.run(measured(free, priced, jobs))
    print(*lines(found), sep="\n")


if __name__ == "__main__":
    main()
