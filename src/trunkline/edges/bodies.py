"""What an HTTP request carries, read within bounds: the same for every edge behind the listener.

Owns size, time and media type of a body, its way into a typed shape, and numbers in a query. Each edge says a refusal
(``BadRequest``) in its own form.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.types import Receive, Scope

from trunkline import strictjson
from trunkline.edges.shares import FREE_BYTES, MAX_SHARE_BYTES, SHARE, Share

# An error quotes at most this much of what it complains about.
MAX_MESSAGE_CHARS: Final = 300
TOO_SLOW: Final = "the body did not arrive in time"
TOO_MUCH: Final = f"bodies of one caller that are on their way may have {MAX_SHARE_BYTES} bytes together"


# Set by the listener in the scope's extensions when the rest of a body did not come in time.
LATE: Final = "trunkline.late"

T = TypeVar("T", bound=Struct)


class BadRequest(ValueError):
    """A request that is not taken: the HTTP status that says so, and why."""

    def __init__(self, status: int, text: str, code: str = "message.malformed") -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.code = code


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """A request's body of at most ``limit`` bytes of JSON. Its size is judged before it is read, and again while it is.

    An empty body has no media type to judge.
    """
    is_json = says_json(scope, limit)
    pieces: list[bytes] = []
    size = 0
    # Counted from the first byte on that is not free; an ordinary body has none.
    share: Share | None = None
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BadRequest(400, "the connection ended inside the body")
            piece: bytes = message.get("body", b"")
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            if size > FREE_BYTES and SHARE in scope:
                share = share or scope[SHARE].beside()
                if not share.try_set_size(size):
                    raise BadRequest(429, TOO_MUCH, "limit.inflight")
            pieces.append(piece)
            if not message.get("more_body", False):
                break
            if LATE in scope.get("extensions", ()):
                raise BadRequest(408, TOO_SLOW)
    finally:
        if share is not None:
            share.end()
    if size and not is_json:
        raise BadRequest(415, "the body must be application/json")
    return piece if len(pieces) == 1 else b"".join(pieces)


async def read_as(request: Request, kind: type[T], limit: int, *, optional: bool = False) -> T:
    """A request's body of this kind. If it is ``optional``, none is one whose fields have their defaults."""
    data = await read_body(request.scope, request.receive, limit)
    return kind() if optional and not data else decode(kind, data)


def says_json(scope: Scope, limit: int) -> bool:
    """Whether the head says that the body is JSON; ``BadRequest`` if it says that it is too large."""
    declared = media_type = b""
    for name, value in scope["headers"]:
        if name == b"content-length":
            declared = value
        elif name == b"content-type":
            media_type = value
    # The server has seen to it that this is a number.
    if declared and int(declared) > limit:
        raise _too_large(limit)
    return is_json((media_type,))


def is_json(media_types: Sequence[bytes]) -> bool:
    """Whether what a head says of its body's media type, the last of them, is JSON."""
    said = media_types[-1] if media_types else b""
    return said == b"application/json" or said.partition(b";")[0].strip().lower() == b"application/json"


def _too_large(limit: int) -> BadRequest:
    return BadRequest(413, f"the body is larger than {limit} bytes")


_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<place>[^`]*)`)?", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<field>.*)`", re.DOTALL)


def decode(kind: type[T], data: bytes) -> T:
    """A body of this kind; an error names the field and says what would be right."""
    return decode_both(kind, data)[0]


def decode_both(kind: type[T], data: bytes) -> tuple[T, Any]:
    """A body of this kind, and the same as plain JSON."""
    try:
        value = strictjson.load(data)
    except ValueError as error:
        raise BadRequest(400, clip(f"the body is not strict JSON: {error}")) from None
    try:
        return cast("T", _decoder(kind)(data)), value
    except msgspec.ValidationError as error:
        raise BadRequest(400, clip(_say(kind, str(error)))) from None


@functools.cache
def _decoder(kind: type[Struct]) -> Callable[[bytes], Struct]:
    return msgspec.json.Decoder(kind).decode


def number_of(request: Request, name: str, least: int, most: int) -> int | None:
    """A number in the query; None if it is not there."""
    text = request.query_params.get(name)
    if text is None:
        return None
    # isdecimal accepts digits of every script; int of a long text is slow.
    if not (text.isascii() and text.isdecimal() and len(text) <= 16 and least <= int(text) <= most):
        raise BadRequest(400, f"{name}: expected a number from {least} to {most}")
    return int(text)


def known_parameters(request: Request, *known: str) -> None:
    """A query may name nothing else."""
    for name in request.query_params:
        if name not in known:
            raise BadRequest(400, f"unknown parameter {clip(name)!r}; known are {', '.join(known)}")


def clip(text: str) -> str:
    """At most ``MAX_MESSAGE_CHARS`` of a text."""
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def _say(kind: type[Struct], text: str) -> str:
    """The complaint of msgspec with the place in front, and what would be right where that is not obvious."""
    found = _PLACE.fullmatch(text)
    assert found is not None
    what, place = found["what"], found["place"] or ""
    if (unknown := _UNKNOWN.fullmatch(what)) is not None:
        known = next((part.__struct_encode_fields__ for part in _structs(_type_at(kind, place))), ())
        what = f"unknown field {unknown['field']!r}; known are {', '.join(known)}"
    elif what.startswith("Object missing"):
        what = what.replace("`", "").removeprefix("Object ")
    elif what.startswith("Invalid enum value"):
        what = "expected " + " or ".join(", ".join(_choices(_type_at(kind, place))).rsplit(", ", 1))
    elif "matching regex" in what:
        what = f"expected {_in_words(_type_at(kind, place))}"
    else:
        what = f"{what[:1].lower()}{what[1:]}".replace("`", "")
        place = place or "the body"
    return f"{place}: {what}" if place else what


def _type_at(kind: type[Struct], place: str) -> object:
    """The type of what stands at a place of a body: ``approval.decision``, ``permissions[1]``; all of it is ``""``.

    None if there is no such place: the name of a field that somebody made up may look like one.
    """
    found: object = kind
    for name in place.split(".") if place else ():
        holder = next(_structs(found), None)
        if holder is None:
            return None
        fields = dict(zip(holder.__struct_encode_fields__, holder.__struct_fields__, strict=True))
        found = get_type_hints(holder, include_extras=True).get(fields.get(name.partition("[")[0], ""))
    return found


def _parts(kind: object) -> Iterator[object]:
    """A type, and what it is made of."""
    waiting = [kind]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += get_args(part)


def _structs(kind: object) -> Iterator[type[Struct]]:
    """The shapes in a type."""
    for part in _parts(kind):
        if isinstance(part, type) and issubclass(part, Struct):
            yield part


def _choices(kind: object) -> Iterator[str]:
    """The words that a field may be."""
    for part in _parts(kind):
        if get_origin(part) is Literal:
            yield from get_args(part)


def _in_words(kind: object) -> str:
    """What the pattern of a field asks for; every pattern has words."""
    # A field that the request made up has none.
    found = (part.description for part in _parts(kind) if isinstance(part, Meta) and part.description)
    return next(found, "another value")
