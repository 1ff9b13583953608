"""What the tools of the agent ``trunkline`` are called with, and what they answer: typed, and as JSON Schema.

Whether a topic or a pattern can be used is the hub's to say, and so is who may.

Owns the types and schemas of the tools. Does not own what they do (``agent``).

Invariant: ``read`` gives a value of the type that a tool takes, or None.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from trunkline.model import EXCHANGE, LATEST_MS, MAX_INPUT_BYTES, MAX_OUTPUT_BYTES, ToolDefinition

PUBLISH: Final = f"{EXCHANGE}/publish"
SUBSCRIBE: Final = f"{EXCHANGE}/subscribe"
UNSUBSCRIBE: Final = f"{EXCHANGE}/unsubscribe"
READ_OUTPUT: Final = f"{EXCHANGE}/read_output"
# Of a large output, in one answer. Written as JSON text it may be twice as long, and must not be a large one itself.
PIECE_BYTES: Final = 262_144

_REFERENCE: Final = "^sha256:[0-9a-f]{64}$"
Qos = Annotated[int, Meta(ge=0, le=2)]
# Longer ones are nobody's; the hub refuses those above 255 with what a topic is.
Topic = Annotated[str, Meta(min_length=1, max_length=1024)]


class Publish(Struct, frozen=True):
    """One event. ``expires_ms`` is when nobody wants it any more, in milliseconds since 1970."""

    topic: Topic
    payload: Raw
    qos: Qos = 0
    expires_ms: Annotated[int, Meta(ge=0, le=LATEST_MS)] | None = None


class Subscribe(Struct, frozen=True):
    """Be told of events whose topic matches."""

    topic: Topic
    qos: Qos = 0
    durable: bool = False


class Unsubscribe(Struct, frozen=True):
    """Hear no more."""

    subscription: Annotated[str, Meta(min_length=1, max_length=128)]


class ReadOutput(Struct, frozen=True):
    """A piece of a large output, by the hash in its reference."""

    ref: Annotated[str, Meta(pattern=_REFERENCE)]
    offset: Annotated[int, Meta(ge=0, le=MAX_OUTPUT_BYTES)] = 0


T = TypeVar("T", bound=Struct)

_PUBLISHED: Final = (
    "0: once, to who is there; 1, 2: until it was taken. The lower of publisher's and subscriber's holds"
)
_QOS: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "maximum": 2, "default": 0, "description": _PUBLISHED}


def _schema(required: tuple[str, ...], **properties: Any) -> Raw:
    shape = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return Raw(msgspec.json.encode(shape))


def definitions() -> tuple[ToolDefinition, ...]:
    """The tools. Who subscribes changes what he is told and nothing else; who publishes changes what others do."""
    text = {"type": "string", "minLength": 1, "maxLength": 1024}
    return (
        ToolDefinition(
            PUBLISH,
            "Publish an event on a topic (segments between dots); answers its id.",
            _schema(
                ("topic", "payload"),
                topic={**text, "description": "segments between dots, such as build.done"},
                payload={"description": "any JSON"},
                qos=_QOS,
                expires_ms={
                    "type": ["integer", "null"],
                    "minimum": 0,
                    "maximum": LATEST_MS,
                    "description": "when nobody wants it any more, in milliseconds since 1970",
                },
            ),
            _schema(("event",), event={"type": "string"}),
            tags=("topics",),
            max_input_bytes=MAX_INPUT_BYTES,
        ),
        ToolDefinition(
            SUBSCRIBE,
            "Be told of events on a topic; `*` stands for one segment, `#` at the end for all that follow.",
            _schema(
                ("topic",),
                topic={**text, "description": "segments between dots, such as build.*"},
                qos=_QOS,
                durable={
                    "type": "boolean",
                    "default": False,
                    "description": "it stays while you are away, and what is owed to you is kept",
                },
            ),
            _schema(("subscription",), subscription={"type": "string"}),
            side_effects=False,
            tags=("topics",),
        ),
        ToolDefinition(
            UNSUBSCRIBE,
            "End a subscription of yours, and with it what is owed to it.",
            _schema(("subscription",), subscription={"type": "string", "minLength": 1, "maxLength": 128}),
            _schema(()),
            side_effects=False,
            tags=("topics",),
        ),
        ToolDefinition(
            READ_OUTPUT,
            "Read a large output of a call of yours, which was answered with a `$ref`, piece by piece.",
            _schema(
                ("ref",),
                ref={"type": "string", "pattern": _REFERENCE, "description": "the `$ref` that stands for it"},
                offset={
                    "type": "integer",
                    "minimum": 0,
                    "maximum": MAX_OUTPUT_BYTES,
                    "default": 0,
                    "description": "the byte where the piece begins: `next` of the one before",
                },
            ),
            _schema(("text", "next"), text={"type": "string"}, next={"type": ["integer", "null"]}),
            side_effects=False,
        ),
    )


def read(shape: type[T], body: Raw) -> T | None:
    """An input; None if it is not one, which the hub lets through where schemas only warn."""
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.DecodeError:
        return None
