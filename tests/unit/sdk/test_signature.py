"""What a function's annotations become: schemas, a reader of inputs, a writer of results."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import math
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from tests.requirement import requirement
from trunkline import schemas
from trunkline.model import Fault
from trunkline.sdk.json_form import NotJson
from trunkline.sdk.signature import Signature, signature_of


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Measured:
    value: float


@dataclasses.dataclass
class Node:
    value: int
    children: list[Node] = dataclasses.field(default_factory=list)


class Row(TypedDict):
    name: str
    age: NotRequired[int]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Strict:
    """Has no JSON form."""


def forecast(city: str, days: int = 3) -> dict:  # type: ignore[type-arg]  # as an author writes it
    """Weather for the coming days."""


def everything(
    a: str,
    b: Annotated[int, Meta(ge=1, le=5, description="How many.")],
    c: float = 1.5,
    d: bool = False,
    e: Optional[str] = None,  # noqa: UP045
    f: Literal["x", "y"] = "x",
    g: Point | None = None,
    h: list[Point] = [],  # noqa: B006
    i: dict[str, int] = {},  # noqa: B006
    j: Colour = Colour.RED,
    k: Row | None = None,
    m: Annotated[str, Meta(pattern="^[a-z]+$", max_length=9)] = "abc",
    n: Node | None = None,
    o: uuid.UUID | None = None,
    p: dt.datetime | None = None,
    q: Point = Point(1, 2),  # noqa: B008
    r: tuple[int, str] | None = None,
    s: set[int] = {3},  # noqa: B006
    t: Any = None,
    u: object = None,
    v: list[object] | None = None,
) -> None:
    """Everything.

    Over two paragraphs.

    Args:
        a: The first,
            on two lines.
        b: Not shown: the annotation wins.
        zz (int): Not a parameter.

    Returns:
        Nothing.
    """


def read(signature: Signature, value: object) -> dict[str, Any] | Fault:
    return signature.read(json.dumps(value).encode())


# --- input ------------------------------------------------------------------------------------------------------------


def test_the_schema_of_an_ordinary_function() -> None:
    signature = signature_of(forecast, "forecast")
    assert signature.description == "Weather for the coming days."
    assert signature.input_schema == {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}},
        "required": ["city"],
        "additionalProperties": False,
    }
    assert signature.output_schema is None


def test_a_function_without_parameters_or_docstring() -> None:
    def list_all() -> Any: ...

    signature = signature_of(list_all, "list_all")
    assert signature.description == "list all"
    assert signature.input_schema == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }
    assert read(signature, {}) == {}


def test_descriptions_come_from_the_docstring_and_the_annotation_wins() -> None:
    signature = signature_of(everything, "everything")
    assert signature.description == "Everything.\n\nOver two paragraphs."
    properties = signature.input_schema["properties"]
    assert properties["a"]["description"] == "The first, on two lines."
    assert properties["b"]["description"] == "How many."
    assert "description" not in properties["c"]


def test_each_kind_of_annotation_is_read_into_what_it_says() -> None:
    signature = signature_of(everything, "everything")
    body = {
        "a": "x",
        "b": 2,
        "g": {"x": 1},
        "h": [{"x": 1, "y": 2}],
        "i": {"k": 1},
        "j": "blue",
        "k": {"name": "n"},
        "n": {"value": 1, "children": [{"value": 2}]},
        "o": "9b1a2c3d-4e5f-6789-abcd-ef0123456789",
        "p": "2026-01-16T12:00:00Z",
        "r": [1, "two"],
        "t": [None, {"free": 1.5}],
        "v": [1, {"x": None}],
    }
    arguments = read(signature, body)
    assert isinstance(arguments, dict)
    assert arguments == {
        "a": "x",
        "b": 2,
        "c": 1.5,
        "d": False,
        "e": None,
        "f": "x",
        "g": Point(1, 0),
        "h": [Point(1, 2)],
        "i": {"k": 1},
        "j": Colour.BLUE,
        "k": {"name": "n"},
        "m": "abc",
        "n": Node(1, [Node(2)]),
        "o": uuid.UUID("9b1a2c3d-4e5f-6789-abcd-ef0123456789"),
        "p": dt.datetime(2026, 1, 16, 12, tzinfo=dt.UTC),
        "q": Point(1, 2),
        "r": (1, "two"),
        "s": {3},
        "t": [None, {"free": 1.5}],
        "u": None,
        "v": [1, {"x": None}],
    }


def test_a_mutable_default_is_not_shared_between_calls() -> None:
    def collect(into: list[int] = [1]) -> None: ...  # noqa: B006

    signature = signature_of(collect, "collect")
    first, second = read(signature, {}), read(signature, {})
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    first["into"].append(2)
    assert second["into"] == [1]


@requirement("OS-105")
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "Object missing required field `city`"),
        ({"city": 1}, "Expected `str`, got `int` at `$.city`"),
        ({"city": "x", "days": "many"}, "Expected `int`, got `str` at `$.days`"),
        ({"city": "x", "days": None}, "Expected `int`, got `null` at `$.days`"),
        ({"city": "x", "day": 1}, "there is no parameter `day`; did you mean `days`?"),
        ({"city": "x", "qqq": 1}, "there is no parameter `qqq`; it takes `city`, `days`"),
        ([], "Expected `object`, got `array`"),
    ],
)
def test_a_wrong_input_is_refused_with_a_text_that_names_the_place(value: object, message: str) -> None:
    refusal = read(signature_of(forecast, "forecast"), value)
    assert refusal == Fault("tool.invalid_input", message)


def test_a_parameter_without_an_annotation_takes_anything() -> None:
    def loose(a, b=2) -> None: ...  # type: ignore[no-untyped-def]

    signature = signature_of(loose, "loose")
    assert signature.input_schema["properties"] == {"a": {}, "b": {"default": 2}}
    assert read(signature, {"a": [1, "x"]}) == {"a": [1, "x"], "b": 2}


def test_a_path_is_read_shown_and_written_as_text() -> None:
    def open_it(file: Path, root: Path = Path("/srv"), more: list[Path] | None = None) -> Path:
        return root / file

    signature = signature_of(open_it, "open_it")
    assert signature.input_schema["properties"]["file"] == {"type": "string"}
    assert signature.input_schema["properties"]["root"] == {"type": "string", "default": "/srv"}
    expected = {"file": Path("a"), "root": Path("/srv"), "more": [Path("b")]}
    assert read(signature, {"file": "a", "more": ["b"]}) == expected
    assert read(signature, {"file": 7}) == Fault("tool.invalid_input", "Expected `str` at `$.file`")
    assert signature.write(Path("/x")) == b'{"result":"/x"}'


@pytest.mark.parametrize(
    "body",
    [
        {"point": {"x": 1, "z": 2}},
        {"points": [{"x": 1}, {"x": 1, "z": 2}]},
        {"row": {"name": "n", "z": 1}},
        {"node": {"value": 1, "children": [{"value": 2, "z": 3}]}},
    ],
)
def test_a_field_that_nobody_declared_is_refused_at_every_depth(body: dict[str, Any]) -> None:
    def draw(
        point: Point | None = None,
        points: list[Point] = [],  # noqa: B006
        row: Row | None = None,
        node: Node | None = None,
        free: dict[str, Any] = {},  # noqa: B006
    ) -> None: ...

    signature = signature_of(draw, "draw")
    refusal = read(signature, body)
    assert isinstance(refusal, Fault), refusal
    assert refusal.code == "tool.invalid_input"
    # The exchange, which has the schema alone, says the same.
    assert schemas.compile(msgspec.json.encode(signature.input_schema)).error(msgspec.json.encode(body)) is not None
    assert isinstance(read(signature, {"free": {"z": {"anything": 1}}}), dict)


def test_a_value_that_is_none_of_a_few_is_answered_with_all_of_them() -> None:
    def sort(order: Literal["title", "pages", "year"], colour: Colour = Colour.RED) -> None: ...

    signature = signature_of(sort, "sort")
    refusal = read(signature, {"order": "size"})
    assert refusal == Fault("tool.invalid_input", '$.order: the value is not one of "pages", "title" or "year"')
    refusal = read(signature, {"order": "pages", "colour": "green"})
    assert refusal == Fault("tool.invalid_input", '$.colour: the value is not one of "blue" or "red"')


def test_models_of_pydantic_are_read_and_written_by_their_own_rules() -> None:
    pydantic = pytest.importorskip("pydantic")
    item = pydantic.create_model("Item", name=(str, ...), count=(pydantic.conint(ge=1), 1))
    order = pydantic.create_model("Order", items=(list[item], ...), note=(str | None, None))

    def place(wanted: Any, second: Any = None) -> Any: ...

    place.__annotations__.update(wanted=order, second=item | None)
    place.__annotations__["return"] = order
    signature = signature_of(place, "place")
    validator = schemas.compile(msgspec.json.encode(signature.input_schema))
    good = {"wanted": {"items": [{"name": "a"}]}, "second": {"name": "b", "count": 2}}
    assert validator.error(msgspec.json.encode(good)) is None
    arguments = read(signature, good)
    assert isinstance(arguments, dict)
    assert arguments["wanted"] == order(items=[item(name="a", count=1)])
    # Fields with a default come back.
    written = signature.write(arguments["wanted"])
    assert json.loads(written) == {"items": [{"name": "a", "count": 1}], "note": None}
    for bad in ({"items": [{"name": "a", "count": 0}]}, {"items": [{"name": 7}]}, {"items": "hunter2"}):
        assert validator.error(msgspec.json.encode({"wanted": bad})) is not None
        refusal = read(signature, {"wanted": bad})
        assert isinstance(refusal, Fault)
        assert "items" in refusal.message
        assert "hunter2" not in refusal.message


def test_two_models_with_an_inner_one_of_the_same_name_keep_theirs() -> None:
    pydantic = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", a=(int, ...)), pydantic.create_model("Inner", b=(str, ...))
    first = pydantic.create_model("First", inner=(inner[0], ...))
    second = pydantic.create_model("Second", inner=(inner[1], ...))

    def both(one: Any, two: Any) -> None: ...

    both.__annotations__.update(one=first, two=second)
    validator = schemas.compile(msgspec.json.encode(signature_of(both, "both").input_schema))
    good = {"one": {"inner": {"a": 1}}, "two": {"inner": {"b": "x"}}}
    assert validator.error(msgspec.json.encode(good)) is None
    swapped = {"one": good["two"], "two": good["one"]}
    assert validator.error(msgspec.json.encode(swapped)) is not None


def test_a_refusal_never_quotes_a_value() -> None:
    @dataclasses.dataclass
    class Picky:
        secret: str

        def __post_init__(self) -> None:
            raise ValueError(f"what is {self.secret}?")

    def choose(word: Literal["a", "b"] = "a", picky: Any = None) -> None: ...

    choose.__annotations__["picky"] = Picky
    signature = signature_of(choose, "choose")
    for body in ({"word": "hunter2"}, {"picky": {"secret": "hunter2"}}, {"hunter2 is the password": 1}):
        refusal = read(signature, body)
        assert isinstance(refusal, Fault)
        assert "hunter2" not in refusal.message


# --- output -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, {"a": [math.inf]}, [None, {"b": -math.inf}], Measured(math.nan)])
def test_a_number_that_json_does_not_have_is_an_error_and_not_null(value: object) -> None:
    with pytest.raises(NotJson, match="NaN"):
        returns(Any).write(value)
    assert returns(Any).write({"a": None, "b": "NaN"}) == b'{"a":null,"b":"NaN"}'


def returns(kind: Any) -> Signature:
    def tool() -> Any: ...

    tool.__annotations__["return"] = kind
    return signature_of(tool, "tool")


@pytest.mark.parametrize("kind", [Any, object, None, dict, dict[str, Any], dict[str, object]])
def test_an_annotation_that_says_only_object_gives_no_schema_and_each_value_decides(kind: Any) -> None:
    signature = returns(kind)
    assert signature.output_schema is None
    assert signature.write({"n": 1}) == b'{"n":1}'
    assert signature.write(Point(1)) == b'{"x":1,"y":0}'
    assert signature.write(None) == b"{}"
    assert signature.write("text") == b'{"result":"text"}'
    assert signature.write([1]) == b'{"result":[1]}'


@pytest.mark.parametrize(
    ("kind", "value", "output"),
    [
        (str, "x", {"result": "x"}),
        (list[Point], [Point(1)], {"result": [{"x": 1, "y": 0}]}),
        (bool, True, {"result": True}),
        (Point | None, Point(1), {"result": {"x": 1, "y": 0}}),
        (Point | None, None, {"result": None}),
        (Point, Point(1), {"x": 1, "y": 0}),
        (Row, {"name": "n"}, {"name": "n"}),
        (dict[str, int], {"n": 1}, {"n": 1}),
        (Node, Node(1, [Node(2)]), {"value": 1, "children": [{"value": 2, "children": []}]}),
    ],
)
def test_a_precise_annotation_gives_a_schema_that_the_results_match(kind: Any, value: object, output: object) -> None:
    signature = returns(kind)
    assert json.loads(signature.write(value)) == output
    assert signature.output_schema is not None
    assert signature.output_schema["type"] == "object"
    assert schemas.compile(msgspec.json.encode(signature.output_schema)).error(signature.write(value)) is None


# --- the exchange takes what we make ----------------------------------------------------------------------------------


@requirement("OS-081", "OS-082")
def test_the_schemas_are_within_the_exchanges_safe_subset() -> None:
    for signature in (signature_of(everything, "everything"), returns(list[Node]), returns(Node)):
        for schema in (signature.input_schema, signature.output_schema):
            assert schema is None or schemas.judge(msgspec.json.encode(schema)) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.sampled_from(["x", "abc", "red", "ABC"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["x", "y", "name", "value", "children"]), inner, max_size=2)
    ),
    max_leaves=5,
)


@requirement("OS-105")
@given(st.dictionaries(st.sampled_from("abcdefghijkmnr"), values, max_size=4))
def test_what_the_schema_allows_is_what_the_reader_takes(body: dict[str, Any]) -> None:
    signature = signature_of(everything, "everything")
    body = {"a": "x", "b": 3, **body}
    allowed = jsonschema_rs.validator_for(signature.input_schema).is_valid(body)
    assert isinstance(read(signature, body), dict) is allowed


# --- functions that cannot be tools -----------------------------------------------------------------------------------


def star(*a: int) -> None: ...


def double_star(**a: int) -> None: ...


def positional(a: int, /) -> None: ...


def strange_parameter(a: Strict) -> None: ...


def strange_result() -> Strict: ...


def unknown_name(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def generator() -> Any:
    yield 1


async def async_generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (star, "parameter `a` must be one that can be given by name"),
        (double_star, "parameter `a` must be one that can be given by name"),
        (positional, "parameter `a` must be one that can be given by name"),
        (strange_parameter, "parameter `a` has the type `Strict`, which has no JSON form"),
        (strange_result, "the result has the type `Strict`, which has no JSON form"),
        (unknown_name, "the annotation `Nowhere` is not known at module level"),
        (generator, "is a generator"),
        (async_generator, "is a generator"),
    ],
)
def test_the_author_is_told_which_tool_and_what_to_change(function: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message) as refused:
        signature_of(function, "the_tool")
    assert "the_tool" in str(refused.value)
