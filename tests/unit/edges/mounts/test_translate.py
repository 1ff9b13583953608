"""``edges.mounts.translate``: tools, calls and outcomes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from tests.unit.edges.mounts.kit import ECHO, line
from trunkline.config import McpServer
from trunkline.edges.mounts import messages, translate
from trunkline.edges.mounts.translate import Bound, Offer
from trunkline.model import TOOL_NAME, Fault, Status

SERVER = McpServer(id="x", command=("x",))
TOOL = Bound("tools/call", "echo")
ASKS = {"resultType": "input_required", "inputRequests": {"a": {"method": "elicitation/create"}}}


def offered(*tools: object, server: McpServer = SERVER, **has: bool) -> Offer:
    parts = {"has_resources": False, "has_prompts": False, "has_headers": False, **has}
    return translate.offer(server, [Raw(line(tool)) for tool in tools], too_often=lambda _: None, **parts)


@given(st.text(min_size=1, max_size=200))
def test_every_name_has_a_name_here_that_follows_from_it(name: str) -> None:
    local = translate.local_name(name)
    assert TOOL_NAME.fullmatch(local)
    assert local == translate.local_name(name)


@given(st.lists(st.text(min_size=1, max_size=80), min_size=2, max_size=2, unique=True))
def test_different_names_stay_different(names: list[str]) -> None:
    first, second = map(translate.local_name, names)
    assert first != second


def test_a_name_that_would_do_is_kept_and_one_of_ours_is_not_taken() -> None:
    assert translate.local_name("read_file") == "read_file"
    assert translate.local_name("a/b").startswith("a_b_")
    assert translate.local_name("resources.list").startswith("resources.list_")
    assert translate.local_name(".hidden").startswith("hidden_")


def test_two_tools_of_one_name_do_not_hide_each_other() -> None:
    found = offered({**ECHO, "name": "a/b"}, {**ECHO, "name": translate.local_name("a/b")})
    [definition] = found.definitions
    assert found.bound[definition.name].name == "a/b"
    assert [problem.code for _, problem in found.rejected] == ["tool.name_conflict"]


@pytest.mark.parametrize(
    ("annotations", "trusted", "side_effects"),
    [
        ({"readOnlyHint": True}, True, False),
        ({"readOnlyHint": True}, False, True),
        ({"readOnlyHint": False}, True, True),
        ({"readOnlyHint": "true"}, True, True),
        ({}, True, True),
        (None, True, True),
    ],
)
def test_a_hint_is_a_claim(annotations: Any, trusted: bool, side_effects: bool) -> None:
    server = McpServer(id="x", command=("x",), trust_annotations=trusted)
    [definition] = offered({**ECHO, "annotations": annotations}, server=server).definitions
    assert definition.side_effects is side_effects


def test_what_a_server_claims_is_part_of_the_definition() -> None:
    said = {**ECHO, "title": "The Echo", "annotations": {"destructiveHint": False, "openWorldHint": True}}
    [definition] = offered(said).definitions
    assert definition.tags == ("title:The Echo", "destructiveHint:false", "openWorldHint:true")


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ({"name": "x"}, "message.malformed"),
        ({**ECHO, "name": ""}, "message.malformed"),
        ({**ECHO, "name": 7}, "message.malformed"),
        ("x", "message.malformed"),
        ({**ECHO, "description": "a" * 20_000}, "message.malformed"),
        ({**ECHO, "description": "do\u200b it"}, "message.malformed"),
        ({**ECHO, "title": "a\u202eb"}, "message.malformed"),
        ({**ECHO, "inputSchema": []}, "tool.schema_invalid"),
        ({**ECHO, "inputSchema": {"type": "nothing"}}, "tool.schema_invalid"),
        ({**ECHO, "inputSchema": {"$ref": "https://example.com/schema"}}, "tool.schema_invalid"),
        ({**ECHO, "inputSchema": {"description": "a" * 70_000}}, "tool.schema_too_large"),
        ({**ECHO, "outputSchema": {"description": "a" * 70_000}}, "tool.schema_too_large"),
        ({**ECHO, "outputSchema": {"type": "nothing"}}, "tool.schema_invalid"),
    ],
)
def test_a_tool_that_cannot_be_taken_is_rejected_and_hides_no_other(tool: object, code: str) -> None:
    found = offered(tool, {**ECHO, "name": "good"})
    assert [problem.code for _, problem in found.rejected] == [code]
    assert list(found.bound) == ["good"]


def test_tools_are_counted_before_they_are_looked_at() -> None:
    refused = Fault("limit.rate", "too many")
    parts = {"has_resources": False, "has_prompts": False, "has_headers": False}
    found = translate.offer(SERVER, [Raw(line(ECHO))], too_often=lambda _: refused, **parts)
    assert found.rejected == (("mcp.x/echo", refused),)


@pytest.mark.parametrize("is_trusted", [False, True])
def test_resources_and_prompts_are_tools_and_only_read_if_the_server_is_trusted(is_trusted: bool) -> None:
    found = offered(server=replace(SERVER, trust_annotations=is_trusted), has_resources=True, has_prompts=True)
    assert {one.name: one.side_effects for one in found.definitions} == dict.fromkeys(
        ["resources.list", "resources.templates", "resources.read", "prompts.list", "prompts.get"], not is_trusted
    )
    assert {bound.side_effects for bound in found.bound.values()} == {not is_trusted}
    assert translate.parameters(found.bound["resources.read"], Raw(b'{"uri":"a://b","_meta":{}}')) == (
        b'"uri":"a://b"',
        "a://b",
    )
    assert translate.parameters(found.bound["prompts.list"], Raw(b"{}")) == (b"", "")


def test_an_input_is_handed_on_unread() -> None:
    assert translate.parameters(TOOL, Raw(b'{"a":  1e3}')) == (b'"name":"echo","arguments":{"a":  1e3}', "echo")


@pytest.mark.parametrize(
    ("result", "status", "code"),
    [
        ({"content": []}, Status.SUCCEEDED, None),
        ({"content": [], "isError": False, "structuredContent": {"a": 1}, "_meta": {}}, Status.SUCCEEDED, None),
        ({"content": [{"type": "text", "text": "no"}], "isError": True}, Status.FAILED, "tool.failed"),
        ({"content": "x", "isError": True}, Status.FAILED, "tool.failed"),
        (
            {"resultType": "input_required", "inputRequests": {"a": {"method": "elicitation/create"}}},
            Status.FAILED,
            "tool.failed",
        ),
        ({"resultType": "task"}, Status.FAILED, "tool.failed"),
        ([], Status.FAILED, "tool.invalid_output"),
        (None, Status.FAILED, "tool.invalid_output"),
        ({"isError": 7}, Status.FAILED, "tool.invalid_output"),
    ],
)
def test_what_an_answer_means(result: object, status: Status, code: str | None) -> None:
    raw = Raw(line(result))
    ended = translate.outcome(TOOL, raw, None)
    assert (ended.status, None if ended.fault is None else ended.fault.code) == (status, code)
    if status is Status.SUCCEEDED:
        assert ended.output is raw, "as the server wrote it"


def test_a_failure_has_the_words_and_the_whole_result_of_its_server() -> None:
    result = {"content": [{"type": "text", "text": "no such\nfile"}, {"type": "image"}], "isError": True}
    ended = translate.outcome(TOOL, Raw(line(result)), None)
    assert ended.fault is not None
    assert (ended.fault.message, ended.fault.details) == ("no such file", {"result": result})
    long = {"content": [{"type": "text", "text": "a" * 100_000}], "isError": True}
    ended = translate.outcome(TOOL, Raw(line(long)), None)
    assert ended.fault is not None
    assert (len(ended.fault.message), ended.fault.details) == (500, None)


def test_an_error_is_a_failure_and_an_answer_that_never_comes_is_unknown_unless_it_only_read() -> None:
    ended = translate.outcome(TOOL, None, messages.Error(-32602, "bad\x1b[31m"))
    assert ended.fault is not None
    assert (ended.status, ended.fault.code, ended.fault.message) == (Status.FAILED, "tool.failed", "bad [31m")
    assert translate.outcome(TOOL, None, None).status is Status.UNKNOWN
    assert translate.outcome(Bound("prompts/list", side_effects=False), None, None).status is Status.FAILED


def test_the_output_schema_is_that_of_the_whole_result() -> None:
    own = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    [definition] = offered({**ECHO, "outputSchema": own}).definitions
    assert definition.output_schema is not None
    assert json.loads(bytes(definition.output_schema))["required"] == ["content"]
