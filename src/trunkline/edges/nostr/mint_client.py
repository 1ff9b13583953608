"""A mint of Cashu over HTTP: its keysets, swaps, and whether proofs are spent.

Owns the connection to one mint and what its refusals mean. Does not own the words (``money.cashu.mint``), whose money
it is, nor what is kept of it. A mint is a stranger: its answers are bounded, and checked wherever they can be.

Invariant: ``swap`` gives proofs that the mint signed; or says that it refused, if the mint named a reason for which it
does nothing; or that nobody knows. Then the same outputs are asked for again (``restored``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trunkline.edges import client, tls
from trunkline.errors import ConfigError
from trunkline.money.cashu import mint
from trunkline.money.cashu.keysets import Keyset, find_keyset
from trunkline.money.cashu.swaps import Output, proofs_of
from trunkline.money.cashu.tokens import Proof, mint_url
from trunkline.money.rail import RailFailed
from trunkline.money.refusals import ProofRefused

TIMEOUT_S: Final = 30.0


class NoAnswer(RailFailed):
    """The mint does not answer at all: there is no point in asking it anything else now."""


class MintClient:
    """One mint, by its address: https, or http on this machine."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self.url = mint_url(url)
        try:
            client.endpoint_of(self.url)
        except ValueError as error:
            raise ConfigError(f"the address of a mint: {error}") from None
        self._timeout_s = timeout_s
        self._trust = tls.client_context() if self.url.startswith("https:") else None
        # A keyset never changes but for whether it is active: its id is the hash of it.
        self._known: dict[str, Keyset] = {}

    async def missing_nuts(self) -> list[str]:
        """What the mint does not do, of all that is needed."""
        return mint.missing_nuts(await self._get(mint.INFO_PATH))

    async def active_keyset(self, unit: str) -> Keyset:
        """The keyset of a unit that new proofs are signed with; of several the cheapest."""
        lines = [line for line in await self._lines() if line.active and line.unit == unit]
        if not lines:
            raise RailFailed(f"the mint has no active keyset in {unit}")
        return await self._keys(min(lines, key=lambda line: (line.input_fee_ppk or 0, line.id)))

    async def keysets_of(self, proofs: Sequence[Proof]) -> list[Keyset]:
        """The keysets that proofs name; refused if the mint has none of that name, or two."""
        lines = await self._lines()
        named = {
            find_keyset(proof.keyset_id, [Keyset(line.id, line.unit, {}) for line in lines]).id for proof in proofs
        }
        return [await self._keys(line) for line in lines if line.id in named]

    async def swap(self, inputs: Sequence[Proof], outputs: Sequence[Output], keyset: Keyset) -> tuple[Proof, ...]:
        """New proofs for old ones. ``ProofRefused`` if the mint refuses, ``RailFailed`` if nobody knows."""
        return self._promised(await self._ask("POST", mint.SWAP_PATH, mint.swap_body(inputs, outputs)), outputs, keyset)

    @staticmethod
    def _promised(answer: client.Answer, outputs: Sequence[Output], keyset: Keyset) -> tuple[Proof, ...]:
        if answer.status == 200:
            try:
                return proofs_of(outputs, mint.read_promises(answer.body), keyset)
            except ProofRefused as refused:
                # Cut off, or somebody else's: the mint may well have done it.
                raise RailFailed(f"the mint's answer is not usable: {refused}", is_unknown=True) from None
        code = mint.refusal_code(answer.body) if 400 <= answer.status < 500 else 0
        if code in mint.NOT_DONE:
            reason = {mint.SPENT: "spent", mint.PENDING: "pending"}.get(code, "refused_by_mint")
            raise ProofRefused(reason, f"code {code}")
        raise RailFailed(f"the mint answered with {answer.status}", is_unknown=True)

    async def quote(self, amount: int, unit: str) -> mint.MintQuote:
        """An invoice of the mint over so much. ``RailFailed`` if it gives none."""
        return self._read_quote(await self._ask("POST", mint.QUOTE_PATH, mint.quote_body(amount, unit)))

    async def quote_state(self, quote: str) -> mint.MintQuote:
        """Whether such an invoice was paid."""
        return self._read_quote(await self._ask("GET", f"{mint.QUOTE_PATH}/{quote}"))

    @staticmethod
    def _read_quote(answer: client.Answer) -> mint.MintQuote:
        if answer.status != 200:
            raise RailFailed(f"the mint answered with {answer.status}")
        return mint.read_quote(answer.body)

    async def minted(self, quote: str, outputs: Sequence[Output], keyset: Keyset) -> tuple[Proof, ...]:
        """What was paid for. ``ProofRefused`` if the mint refuses, ``RailFailed`` if nobody knows."""
        return self._promised(await self._ask("POST", mint.MINT_PATH, mint.mint_body(quote, outputs)), outputs, keyset)

    async def restored(self, outputs: Sequence[Output], keyset: Keyset) -> tuple[Proof, ...]:
        """The proofs of a swap whose answer was lost; empty if the mint never signed these outputs."""
        body = await self._ask("POST", mint.RESTORE_PATH, mint.restore_body(outputs))
        if body.status != 200:
            raise RailFailed(f"the mint answered with {body.status}", is_unknown=True)
        promises = mint.read_restored(body.body, outputs)
        return proofs_of(outputs, promises, keyset) if promises else ()

    async def states(self, proofs: Sequence[Proof]) -> list[mint.ProofState]:
        """Whether proofs are spent, and what opened their locks then."""
        answer = await self._ask("POST", mint.STATES_PATH, mint.states_body(proofs))
        if answer.status != 200:
            raise RailFailed(f"the mint answered with {answer.status}")
        return mint.read_states(answer.body, proofs)

    async def _lines(self) -> list[mint.KeysetLine]:
        return mint.read_keyset_lines(await self._get(mint.KEYSETS_PATH))

    async def _keys(self, line: mint.KeysetLine) -> Keyset:
        if line.id not in self._known:
            self._known[line.id] = mint.read_keys(await self._get(mint.KEYS_PATH + line.id), line)
        return self._known[line.id]

    async def _get(self, path: str) -> bytes:
        answer = await self._ask("GET", path)
        if answer.status != 200:
            raise RailFailed(f"the mint answered with {answer.status}")
        return answer.body

    async def _ask(self, method: str, path: str, body: bytes = b"") -> client.Answer:
        try:
            return await client.request(self.url + path, method, body=body, timeout_s=self._timeout_s, tls=self._trust)
        except client.Unreachable:
            raise NoAnswer("the mint does not answer", is_unknown=bool(body)) from None
