"""The tools of ``nostr.wallet`` that take ecash out and in: ``send``, ``token`` and ``receive``.

A token is money to whoever reads it, and what a call is given and gives is on record: so it travels sealed, with a key
that only the exchange and the command line of the same home have (``money.cashu.sealing``). ``send`` puts ecash aside
under a name and shows nothing; ``token`` shows it, as often as it is asked until somebody has received it. So a crash
between the two costs nothing. Does not own ecash (``ecash``) or how calls come in (``wallet_agent``).

Invariant: no output, fault or log line of these tools has a token, or a part of one, that is not sealed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from trunkline.edges.nostr.ecash import Ecash
from trunkline.effects import Deliver
from trunkline.model import ToolDefinition
from trunkline.money.cashu import sealing
from trunkline.money.rail import MAX_MSATS, Msats, RailFailed

AGENT: Final = "nostr.wallet"
SEND, TOKEN, RECEIVE = f"{AGENT}/send", f"{AGENT}/token", f"{AGENT}/receive"
NAME_BYTES: Final = 6


class _Send(Struct, frozen=True, forbid_unknown_fields=True):
    msats: Msats
    mint: Annotated[str, Meta(max_length=2048)] = ""


class _Token(Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, Meta(max_length=64)]


class _Receive(Struct, frozen=True, forbid_unknown_fields=True):
    sealed: Annotated[str, Meta(max_length=sealing.MAX_SEALED_CHARS)]


def _tool(tool_id: str, text: str, properties: dict[str, Any], required: tuple[str, ...]) -> ToolDefinition:
    shape = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return ToolDefinition(
        tool_id,
        text,
        Raw(msgspec.json.encode(shape)),
        Raw(b'{"type":"object"}'),
        side_effects=True,
        tags=("money", "nostr"),
        max_input_bytes=2 * sealing.MAX_SEALED_CHARS,
    )


DEFINITIONS: Final = (
    _tool(
        SEND,
        "Put ecash of a listed mint aside as a token, to be given to anybody; `token` shows it.",
        {
            "msats": {"type": "integer", "minimum": 1, "maximum": MAX_MSATS},
            "mint": {
                "type": "string",
                "maxLength": 2048,
                "description": "Whose ecash; else that of which there is most.",
            },
        },
        ("msats",),
    ),
    _tool(
        TOKEN,
        "A token that was made by `send` and that nobody has received yet, sealed with the key of this home's wallet.",
        {"id": {"type": "string", "maxLength": 64}},
        ("id",),
    ),
    _tool(
        RECEIVE,
        "Take ecash of a listed mint in: a token, sealed with the key of this home's wallet.",
        {"sealed": {"type": "string", "maxLength": sealing.MAX_SEALED_CHARS}},
        ("sealed",),
    ),
)
TOOLS: Final = frozenset(one.tool_id for one in DEFINITIONS)


class WalletTokens:
    """Carries calls of these tools out. ``secret`` is the wallet's own."""

    def __init__(self, ecash: Ecash, secret: bytes, entropy: Callable[[int], bytes]) -> None:
        self._ecash = ecash
        self._secret = secret
        self._entropy = entropy

    async def carried_out(self, effect: Deliver) -> dict[str, Any]:
        """The output. ``RailFailed`` says why it was not done, or that nobody knows; ``msgspec.DecodeError`` for an
        input that is none.
        """
        body = bytes(effect.input)
        if effect.tool_id == SEND:
            return await self._send(msgspec.json.decode(body, type=_Send))
        if effect.tool_id == TOKEN:
            text = self._ecash.token(msgspec.json.decode(body, type=_Token).id)
            return {"sealed": sealing.sealed(self._secret, text, self._entropy(sealing.NONCE_BYTES))}
        return await self._receive(msgspec.json.decode(body, type=_Receive))

    async def _send(self, wish: _Send) -> dict[str, Any]:
        name = self._entropy(NAME_BYTES).hex()
        try:
            mint = await self._ecash.send(name, wish.msats, wish.mint)
        except RailFailed as failed:
            if not failed.is_unknown:
                raise
            text = f"{failed.why}; if the mint did it, the token is {name} (`trunkline wallet send --again {name}`)"
            raise RailFailed(text, is_unknown=True) from None
        return {"id": name, "mint": mint, "msats": wish.msats}

    async def _receive(self, wish: _Receive) -> dict[str, Any]:
        try:
            text = sealing.unsealed(self._secret, wish.sealed)
        except ValueError:
            raise RailFailed("it is not sealed with the key of this home's wallet") from None
        mint, sats = await self._ecash.receive(text)
        return {"mint": mint, "msats": sats * 1000}
