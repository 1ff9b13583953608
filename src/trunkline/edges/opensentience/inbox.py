"""What an agent says: frames become messages here, several at once.

Owns the order of the judgements: strict JSON first, then the type, then envelope and payload together. It does not own
what is done about a message that cannot be read (``session``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from trunkline import strictjson
from trunkline.edges.opensentience.messages import (
    FROM_AGENT,
    EnvelopeError,
    Message,
    PayloadError,
    envelope,
    is_timestamp,
    not_a_time,
    payload,
)

Read = tuple[Message[Any], Any]
Unread = strictjson.NotStrictJson | EnvelopeError | PayloadError


class Reader:
    """Reads the messages of one direction, envelope and payload at once: half the time of one after the other."""

    def __init__(self, kinds: dict[str, type[Struct]]) -> None:
        self._kinds = kinds
        self._decoders: dict[Any, Callable[[bytes], Message[Any]]] = {
            type_: msgspec.json.Decoder(Message[kind]).decode  # type: ignore[valid-type]
            for type_, kind in kinds.items()
        }

    def read_all(self, bodies: list[bytes]) -> Sequence[Read | Unread]:
        """The messages in these frames and the same as plain JSON, or what is wrong with one.

        One of a type that is not of this direction keeps its payload unread.
        Several at once take three quarters of the time: what is strict JSON as an array of them is so each by itself.
        """
        if len(bodies) > 1:
            decoders = self._decoders
            try:
                values = strictjson.load_all(bodies)
                messages = [decoders[value["type"]](body) for value, body in zip(values, bodies, strict=True)]
            except (strictjson.NotStrictJson, KeyError, TypeError, msgspec.DecodeError):
                pass
            else:
                if all(map(is_timestamp, [message.ts for message in messages])):
                    return list(zip(messages, values, strict=True))
        return [self._try_read(body) for body in bodies]

    def _try_read(self, body: bytes) -> Read | Unread:
        try:
            return self._read(body)
        except (strictjson.NotStrictJson, EnvelopeError, PayloadError) as exc:
            return exc

    def _read(self, body: bytes) -> Read:
        value = strictjson.load(body)
        try:
            message = self._decoders[value["type"]](body)
        except (KeyError, TypeError, msgspec.DecodeError):
            return self._read_with_care(body), value
        if not is_timestamp(message.ts):
            raise not_a_time()
        return message, value

    def _read_with_care(self, body: bytes) -> Message[Any]:
        """With the place of the fault, and whose it is."""
        unread = envelope(body)
        kind = self._kinds.get(unread.type)
        return unread if kind is None else msgspec.structs.replace(unread, payload=payload(kind, unread))


read_agents: Final = Reader(FROM_AGENT).read_all
