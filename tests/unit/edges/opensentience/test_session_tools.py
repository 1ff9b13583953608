"""Tools: registered one by one, rejected with a reason, withdrawn."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest

from tests.requirement import requirement
from tests.unit.edges.opensentience.core_side import AGENT, SCHEMA, SESSION, Talk, envelope, frame, ready, tool
from trunkline.edges.offers import JUDGED_BYTES, JudgingBudget
from trunkline.effects import ConfirmTools, ConfirmWithdrawal
from trunkline.events import Noticed, ToolsOffered, ToolsWithdrawn
from trunkline.model import Fault, Now, ToolDefinition, fault


def offer(*tools: Any, talk: Talk | None = None, **fields: Any) -> ToolsOffered:
    (event,) = (talk or ready()).tell("agent.tools.register", {"tools": list(tools), **fields})
    assert isinstance(event, ToolsOffered)
    return event


@requirement("OS-078", "OS-080", "OS-081", "OS-082", "OS-083", "OS-084", "OS-085", "OS-086", "OS-088")
def test_a_tool_is_offered_with_everything_that_was_said_about_it() -> None:
    said = tool(
        output_schema={"type": "object"},
        capabilities=["streaming", "cancellation"],
        side_effects=False,
        requires_directive=True,
        tags=["fun"],
        required_permissions=["files:read"],
        unheard_of=1,
    )
    talk = ready(max_tool_input_bytes=1000, max_tool_output_bytes=2000)
    offered = offer(said, talk=talk)
    (definition,) = offered.tools
    assert definition == ToolDefinition(
        f"{AGENT}/echo",
        "says it again",
        definition.input_schema,
        definition.output_schema,
        ("streaming", "cancellation"),
        side_effects=False,
        requires_directive=True,
        tags=("fun",),
        required_permissions=("files:read",),
        max_input_bytes=1000,
        max_output_bytes=2000,
    )
    assert json.loads(bytes(definition.input_schema)) == SCHEMA
    assert definition.output_schema is not None
    assert json.loads(bytes(definition.output_schema)) == {"type": "object"}
    assert offered.rejected == ()
    assert offered.replace is False


@pytest.mark.parametrize("given", [..., None, True])
def test_a_tool_that_does_not_say_otherwise_has_side_effects(given: Any) -> None:
    assert offer(tool(side_effects=given)).tools[0].side_effects is True


@requirement("OS-087")
def test_replace_is_passed_on() -> None:
    assert offer(tool(), replace=True).replace is True
    assert offer(tool(), replace=False).replace is False


INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("bare id", {"tool_id": "echo"}, "tool.invalid_tool_id"),
    ("another agent's prefix", {"tool_id": "com.example.other/echo"}, "tool.invalid_tool_id"),
    ("two slashes", {"tool_id": f"{AGENT}/a/echo", "name": "a/echo"}, "tool.invalid_tool_id"),
    ("empty name", {"tool_id": f"{AGENT}/", "name": ""}, "tool.invalid_tool_id"),
    ("other case of the agent", {"tool_id": f"{AGENT.upper()}/echo"}, "tool.invalid_tool_id"),
    ("a look-alike letter", {"tool_id": f"{AGENT}/еcho", "name": "еcho"}, "tool.invalid_tool_id"),
    ("a line end", {"tool_id": f"{AGENT}/echo\n", "name": "echo\n"}, "tool.invalid_tool_id"),
    ("a long name", {"tool_id": f"{AGENT}/{'x' * 65}", "name": "x" * 65}, "tool.invalid_tool_id"),
    ("a name that differs", {"tool_id": f"{AGENT}/echo", "name": "other"}, "tool.invalid_tool_id"),
    ("a name with the prefix", {"tool_id": f"{AGENT}/echo", "name": f"{AGENT}/echo"}, "tool.invalid_tool_id"),
    ("no description", {"description": ...}, "message.malformed"),
    ("a description of another type", {"description": 1}, "message.malformed"),
    ("an endless description", {"description": "x" * 9000}, "message.malformed"),
    ("zero width in the description", {"description": "safe\u200bly"}, "message.malformed"),
    ("direction change in the description", {"description": "\u202eevil"}, "message.malformed"),
    ("tag characters in the description", {"description": "hi\U000e0041"}, "message.malformed"),
    ("an escape sequence in the description", {"description": "\x1b[2J"}, "message.malformed"),
    ("zero width in a label", {"tags": ["a\ufeff"]}, "message.malformed"),
    ("no input_schema", {"input_schema": ...}, "message.malformed"),
    ("null for input_schema", {"input_schema": None}, "tool.schema_invalid"),
    ("a list for input_schema", {"input_schema": []}, "tool.schema_invalid"),
    ("true for input_schema", {"input_schema": True}, "tool.schema_invalid"),
    ("a schema of no type", {"input_schema": {"type": "strng"}}, "tool.schema_invalid"),
    ("a remote reference", {"input_schema": {"$ref": "https://example.com/x"}}, "tool.schema_invalid"),
    ("a pattern that looks ahead", {"input_schema": {"pattern": "(?=a)"}}, "tool.schema_invalid"),
    ("a bad output_schema", {"output_schema": {"type": 1}}, "tool.schema_invalid"),
    ("a large schema", {"input_schema": {"description": "x" * 65_536}}, "tool.schema_too_large"),
    ("capabilities of numbers", {"capabilities": [1]}, "message.malformed"),
    ("side_effects as text", {"side_effects": "no"}, "message.malformed"),
    ("requires_directive as a number", {"requires_directive": 1}, "message.malformed"),
]


@requirement("OS-078", "OS-079", "OS-080", "OS-081", "OS-089", "OS-090", "OS-091")
@pytest.mark.parametrize(("fields", "code"), [row[1:] for row in INVALID], ids=[row[0] for row in INVALID])
def test_a_bad_tool_is_rejected_by_itself_and_the_rest_is_offered(fields: dict[str, Any], code: str) -> None:
    offered = offer(tool("first"), tool(**fields), tool("last"))
    assert [definition.name for definition in offered.tools] == ["first", "last"]
    ((tool_id, problem),) = offered.rejected
    assert tool_id == str(fields.get("tool_id", f"{AGENT}/echo"))
    assert problem.code == code
    assert problem.message


@requirement("OS-089")
@pytest.mark.parametrize("nonsense", [1, None, "echo", [], {}, {"tool_id": 5}])
def test_a_tool_that_is_no_tool_is_rejected_without_a_name(nonsense: Any) -> None:
    ((tool_id, problem),) = offer(nonsense).rejected
    assert (tool_id, problem.code) == ("", "message.malformed")


@requirement("OS-088", "OS-089", "OS-033")
def test_the_confirmation_lists_both_kinds() -> None:
    talk = ready()
    offer(tool(), talk=talk)
    rejected = (
        (f"{AGENT}/b", Fault("tool.name_conflict", "another tool has this name")),
        (f"{AGENT}/c", fault("message.malformed", "tool: no")),
    )
    (said,) = talk.send(ConfirmTools(SESSION, 0, "id-of-agent.tools.register", (f"{AGENT}/echo",), rejected))
    assert (said["type"], said["in_reply_to"]) == ("core.tools.registered", "id-of-agent.tools.register")
    assert said["payload"]["registered"] == [f"{AGENT}/echo"]
    codes = [(entry["tool_id"], entry["error"]["code"]) for entry in said["payload"]["rejected"]]
    assert codes == [(f"{AGENT}/b", "tool.name_conflict"), (f"{AGENT}/c", "protocol.invalid_message")]


@requirement("OS-088", "OS-089")
def test_without_rejections_the_list_is_left_out() -> None:
    talk = ready()
    offer(talk=talk)
    (said,) = talk.send(ConfirmTools(SESSION, 0, "r", ()))
    assert said["payload"] == {"registered": []}


@requirement("OS-077")
@pytest.mark.parametrize("payload", [{}, {"tools": None}, {"tools": "x"}, {"tools": {}}, {"tools": [], "replace": 1}])
def test_a_registration_without_a_list_is_refused(payload: dict[str, Any]) -> None:
    talk = ready()
    assert [type(event) for event in talk.tell("agent.tools.register", payload)] == [Noticed]
    assert talk.said()[0]["error"]["code"] == "protocol.invalid_message"
    assert talk.state == "ready"


def test_more_tools_than_the_hub_would_take_are_not_even_judged() -> None:
    talk = ready()
    assert [type(event) for event in talk.tell("agent.tools.register", {"tools": [{}] * 1001})] == [Noticed]
    assert talk.said()[0]["error"]["code"] == "protocol.invalid_message"


def test_who_has_had_too_much_judged_is_refused_before_a_schema_is_looked_at_and_may_come_back() -> None:
    talk = ready()
    large = [tool(f"t{n}", input_schema={**SCHEMA, "title": "x" * 60_000}) for n in range(20)]
    taken = 0
    while True:
        event = offer(*large, talk=talk)
        taken += len(event.tools)
        if event.rejected:
            break
    assert JUDGED_BYTES - 70_000 < taken * 60_000 <= JUDGED_BYTES
    assert {problem.code for _, problem in event.rejected} == {"limit.rate"}
    # Of what cannot be a schema as well: it is not looked at.
    ((_, problem),) = offer(tool(input_schema="x" * 60_000), talk=talk).rejected
    assert problem.code == "limit.rate"
    wait_ms = (problem.details or {})["retry_after_ms"]
    assert isinstance(wait_ms, int)
    talk.now = Now(talk.now.mono + wait_ms / 1000, talk.now.wall)
    assert not offer(tool(input_schema={**SCHEMA, "title": "x" * 60_000}), talk=talk).rejected


BAD = tool("bad", input_schema={"type": "strng"})


def test_of_who_has_changed_too_much_nothing_is_judged_and_nothing_changes() -> None:
    no_more = fault("limit.rate", "too many changes", details={"retry_after_ms": 100})
    asked: list[tuple[str, int]] = []

    def refused(agent: str, tools: int) -> Fault | None:
        asked.append((agent, tools))
        return no_more if tools > 2 else None

    talk = ready(judging=JudgingBudget("opensentience", refused))
    assert talk.tell("agent.tools.register", {"tools": [BAD, tool(), {}], "replace": True}) == []
    (said,) = talk.said()
    assert (said["type"], said["in_reply_to"]) == ("core.tools.registered", "id-of-agent.tools.register")
    assert said["payload"]["registered"] == []
    rejected = said["payload"]["rejected"]
    assert [entry["tool_id"] for entry in rejected] == [f"{AGENT}/bad", f"{AGENT}/echo", ""]
    assert {entry["error"]["code"] for entry in rejected} == {"protocol.throttled"}
    assert asked == [(f"opensentience:{AGENT}", 3)]
    assert len(offer(tool(), talk=talk).tools) == 1


def test_lists_that_the_exchange_has_not_heard_of_yet_count_with_the_next() -> None:
    asked: list[int] = []
    talk = ready(judging=JudgingBudget("opensentience", lambda _, tools: asked.append(tools)))
    one = frame(envelope("agent.tools.register", {"tools": [tool()]}))
    first, second = talk.receive(one + one)
    assert isinstance(first, ToolsOffered)
    # The second list has one tool, and the first is an entry for itself and one for its tool.
    assert asked == [1, 3]
    for event in (first, second):
        assert isinstance(event, ToolsOffered)
        talk.send(ConfirmTools(SESSION, 0, event.ref, (f"{AGENT}/echo",)))
    talk.receive(one)
    assert asked == [1, 3, 1]


@requirement("OS-093", "OS-094")
def test_tools_are_withdrawn_and_the_answer_says_which() -> None:
    talk = ready()
    ids = [f"{AGENT}/echo", "never/there"]
    (event,) = talk.tell("agent.tools.unregister", {"tool_ids": ids})
    assert event == ToolsWithdrawn(SESSION, "id-of-agent.tools.unregister", tuple(ids))
    gone = ConfirmWithdrawal(SESSION, 0, event.ref, (ids[0],), ((ids[1], fault("tool.not_found")),))
    (said,) = talk.send(gone)
    assert (said["type"], said["in_reply_to"]) == ("core.tools.unregistered", event.ref)
    assert said["payload"]["unregistered"] == [ids[0]]
    assert said["payload"]["rejected"][0]["error"]["code"] == "tool.not_found"


def test_a_definition_does_not_keep_its_whole_frame() -> None:
    (definition,) = offer(tool(), tool("bad", description=1)).tools
    assert not any(isinstance(held, bytes) and len(held) > 200 for held in gc.get_referents(definition.input_schema))


def test_what_a_call_may_take_unless_somebody_says_is_what_the_operator_chose() -> None:
    assert Talk(timeout_s=45.0).arrive().timeout_s == 45.0
