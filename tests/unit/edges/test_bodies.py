"""``edges.bodies``: size, time and media type of a body, its way into a typed shape, numbers in a query."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct
from starlette.requests import Request

from trunkline.edges import bodies
from trunkline.edges.bodies import BadRequest, clip, decode, known_parameters, number_of, read_body

LIMIT = 10


class Shape(Struct, frozen=True, forbid_unknown_fields=True):
    """Some edge's body."""

    name: Annotated[str, Meta(pattern="^[a-z]*$", description="small letters")]
    count: int = 0
    kind: Literal["one", "two", "three"] = "one"
    words: tuple[Annotated[str, Meta(pattern="^[a-z]*$", description="small letters")], ...] = ()


def scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http", "headers": list(headers)}


def arriving(*pieces: bytes, lost: bool = False) -> Any:
    """What an ASGI server hands over, piece by piece."""
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": "http.disconnect"} if lost else {"type": "http.request"})
    waiting = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(waiting)

    return receive


JSON = (b"content-type", b"application/json")


async def refused(*headers: tuple[bytes, bytes], receive: Any) -> tuple[int, str]:
    with pytest.raises(BadRequest) as bad:
        await read_body(scope(*headers), receive, LIMIT)
    return bad.value.status, bad.value.text


@pytest.mark.parametrize("pieces", [(b"[1,2,3]",), (b"[1,", b"2,", b"3]"), (b"", b"[1,2,3]", b"")])
async def test_a_body_is_joined_from_its_pieces(pieces: tuple[bytes, ...]) -> None:
    assert await read_body(scope(JSON), arriving(*pieces), LIMIT) == b"[1,2,3]"


@pytest.mark.parametrize(
    "media_type",
    [b"application/json", b"Application/JSON", b"application/json; charset=utf-8", b" application/json ;x"],
)
async def test_json_may_be_named_in_all_its_spellings(media_type: bytes) -> None:
    assert await read_body(scope((b"content-type", media_type)), arriving(b"{}"), LIMIT) == b"{}"


@pytest.mark.parametrize("headers", [(), ((b"content-type", b"text/plain"),), ((b"content-type", b"application/jso"),)])
async def test_another_media_type_is_415_unless_there_is_no_body(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    assert await refused(*headers, receive=arriving(b"{}")) == (415, "the body must be application/json")
    assert await read_body(scope(*headers), arriving(), LIMIT) == b""


async def test_a_declared_size_is_judged_before_anything_is_read() -> None:
    async def nobody_reads() -> Any:
        raise AssertionError

    declared = (b"content-length", b"11")
    assert await refused(JSON, declared, receive=nobody_reads) == (413, "the body is larger than 10 bytes")


async def test_a_body_without_a_declared_size_is_judged_while_it_is_read() -> None:
    assert await read_body(scope(JSON), arriving(b"12345", b"67890"), LIMIT) == b"1234567890"
    read: list[bytes] = []
    pieces = arriving(*[b"12345"] * 100)

    async def counted() -> Any:
        message = await pieces()
        read.append(message["body"])
        return message

    assert (await refused(JSON, receive=counted))[0] == 413
    assert len(read) == 3


async def test_a_connection_that_ends_inside_a_body_is_400() -> None:
    assert await refused(JSON, receive=arriving(b"{", lost=True)) == (400, "the connection ended inside the body")


async def test_a_body_of_which_the_listener_says_that_it_is_late_is_408() -> None:
    late = {**scope(JSON), "extensions": {bodies.LATE: True}}
    with pytest.raises(BadRequest) as bad:
        await read_body(late, arriving(b"{", b""), LIMIT)
    assert (bad.value.status, bad.value.text) == (408, "the body did not arrive in time")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"name": "A"}', "name: expected small letters"),
        (b'{"name": "a", "words": ["a", "B"]}', "words[1]: expected small letters"),
        (b'{"name": "a", "kind": "four"}', "kind: expected one, two or three"),
        (b'{"name": "a", "count": "1"}', "count: expected int, got str"),
        (b'{"name": "a", "cuont": 1}', "unknown field 'cuont'; known are name, count, kind, words"),
        (b"{}", "missing required field name"),
        (b"[]", "the body: expected object, got array"),
        (b'{"name": 5}', "name: expected str, got int"),
    ],
)
def test_an_error_names_the_field_and_what_would_be_right(data: bytes, says: str) -> None:
    with pytest.raises(BadRequest) as bad:
        decode(Shape, data)
    assert (bad.value.status, bad.value.text) == (400, says)


@pytest.mark.parametrize("data", [b"", b"{", b'{"name": NaN}', b"\xff\xfe", b'{"name": "a", "name": "b"}'])
def test_what_is_not_strict_json_is_said_to_be_that(data: bytes) -> None:
    with pytest.raises(BadRequest) as bad:
        decode(Shape, data)
    assert bad.value.status == 400
    assert bad.value.text.startswith("the body is not strict JSON: ")


def test_an_error_quotes_only_a_little() -> None:
    with pytest.raises(BadRequest) as bad:
        decode(Shape, b'{"name": "a", "' + b"x" * 5000 + b'": 1}')
    assert len(bad.value.text) == bodies.MAX_MESSAGE_CHARS
    assert bad.value.text.endswith("…")
    assert clip("x" * bodies.MAX_MESSAGE_CHARS) == "x" * bodies.MAX_MESSAGE_CHARS


def query(text: str) -> Request:
    return Request({"type": "http", "headers": [], "query_string": text.encode()})


@pytest.mark.parametrize(("text", "number"), [("n=1", 1), ("n=20", 20), ("n=007", 7), ("", None), ("m=1", None)])
def test_a_number_of_a_query_is_read_within_its_bounds(text: str, number: int | None) -> None:
    assert number_of(query(text), "n", 1, 20) == number


@pytest.mark.parametrize("text", ["0", "21", "-1", "+1", "1.0", "", "x", "%D9%A3", "1_0", "%201", "9" * 5000])
def test_another_number_of_a_query_is_refused(text: str) -> None:
    with pytest.raises(BadRequest) as bad:
        number_of(query(f"n={text}"), "n", 1, 20)
    assert (bad.value.status, bad.value.text) == (400, "n: expected a number from 1 to 20")


def test_a_query_may_name_nothing_else() -> None:
    known_parameters(query("a=1&b=2&a=3"), "a", "b")
    with pytest.raises(BadRequest, match="unknown parameter 'c'; known are a, b"):
        known_parameters(query("a=1&c=2"), "a", "b")
    with pytest.raises(BadRequest) as bad:
        known_parameters(query("x" * 5000 + "=1"), "a")
    assert len(bad.value.text) < 400


def test_a_field_whose_name_reads_like_a_complaint_is_an_unknown_field_all_the_same() -> None:
    with pytest.raises(BadRequest) as bad:
        decode(Shape, b'{"name": "a", "matching regex - at `$.zz": 1}')
    assert bad.value.status == 400
