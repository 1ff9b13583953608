"""Outcomes in the words of MCP, held against the official SDK's types."""

from __future__ import annotations

import json
from typing import Any

import mcp_types as types
import pytest
from mcp_types import methods
from msgspec import Raw

from trunkline.edges.mcp.catalogue import Listed
from trunkline.edges.mcp.translate import Asked, Outcome, Wording, progress_params
from trunkline.effects import Progress
from trunkline.model import LargeOutput, Status, fault

PLAIN = Listed("com.example.a/b", "com_example_a__b", Raw(b"{}"), has_output_schema=False)
MOUNTED = Listed("mcp.server/tool", "mcp_server__tool", Raw(b"{}"), has_output_schema=False)
ERAS = {"2025-11-25": Wording("1.0", is_modern=False), "2026-07-28": Wording("1.0", is_modern=True)}


@pytest.fixture(params=list(ERAS))
def era(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def result(era: str, data: bytes) -> dict[str, Any]:
    """A result that the SDK takes for one of ``tools/call``."""
    found: dict[str, Any] = json.loads(data)
    methods.validate_server_result("tools/call", era, found)
    return found


def succeeded(output: bytes) -> Outcome:
    return Outcome("c1", Status.SUCCEEDED, Raw(output))


def test_a_failure_that_a_mounted_server_told_itself_is_given_back_in_its_words(era: str) -> None:
    said = {"content": [{"type": "text", "text": "no such file"}], "structuredContent": {"n": 1}, "isError": True}
    why = fault("tool.failed", "no such file", details={"result": said})
    found = result(era, ERAS[era].outcome(Outcome("c1", Status.FAILED, fault=why), MOUNTED))
    assert {name: found[name] for name in said} == said
    # Of anybody else's tool these are only details.
    plain = result(era, ERAS[era].outcome(Outcome("c1", Status.FAILED, fault=why), PLAIN))
    assert plain["content"][0]["text"] == "tool.failed: no such file"
    for details in ({"result": {"content": []}}, {"result": 7}, {"error": {"code": 1}}):
        other = fault("tool.failed", "why", details=details)
        found = result(era, ERAS[era].outcome(Outcome("c1", Status.FAILED, fault=other), MOUNTED))
        assert found["content"][0]["text"] == "tool.failed: why"


@pytest.mark.parametrize("output", [b'{"a":1}', b'"text"', b"[1]", b"null", b"1.5"])
def test_every_output_is_a_valid_result(era: str, output: bytes) -> None:
    found = result(era, ERAS[era].outcome(succeeded(output), PLAIN))
    assert ("structuredContent" in found) == (output == b'{"a":1}' or (era == "2026-07-28" and output != b"null"))
    text = found["content"][0]["text"]
    assert text == "text" if output == b'"text"' else json.loads(text) == json.loads(output)


def test_what_a_mounted_server_said_is_given_back_as_it_is(era: str) -> None:
    said = {
        "content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}],
        "structuredContent": {"n": 12345678901234567890},
        "isError": True,
    }
    found = result(era, ERAS[era].outcome(succeeded(json.dumps(said).encode()), MOUNTED))
    assert {name: found[name] for name in said} == said
    # Any other output is data.
    found = result(era, ERAS[era].outcome(succeeded(b'{"content":"x"}'), MOUNTED))
    assert found["structuredContent"] == {"content": "x"}


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELED, Status.UNKNOWN])
def test_a_call_that_did_not_succeed_says_how_it_ended(era: str, status: Status) -> None:
    found = result(era, ERAS[era].outcome(Outcome("c1", status, fault=fault("agent.lost")), PLAIN))
    assert found["isError"] is True
    assert "agent.lost" in found["content"][0]["text"]
    assert (status.value in found["content"][0]["text"]) == (status is not Status.FAILED)


def test_a_large_output_is_a_link(era: str) -> None:
    output = Raw(b'"' + b"x" * 2_000_000 + b'"')
    large = LargeOutput.of(output)
    assert large is not None
    found = result(era, ERAS[era].outcome(Outcome("c1", Status.SUCCEEDED, output, large=large), PLAIN))
    assert found["content"][1]["uri"] == f"trunkline://blobs/sha256:{large.sha256}"
    assert len(json.dumps(found)) < 10_000


def test_questions_have_the_protocols_form(era: str) -> None:
    asked = Asked("c1", "ap-1")
    waiting = result(era, ERAS[era].told_to_wait(asked, "http://127.0.0.1:1/#/approvals/ap-1"))
    assert waiting["isError"] is True
    required = json.loads(ERAS["2026-07-28"].input_required(asked, "http://127.0.0.1:1/"))
    read = types.InputRequiredResult.model_validate(required)
    assert read.input_requests is not None
    (elicitation,) = ERAS[era].elicitations(asked, "http://127.0.0.1:1/")["elicitations"]  # type: ignore[misc]
    types.ElicitRequestURLParams.model_validate(elicitation)


def test_a_command_in_an_answer_names_the_home_where_it_is_not_the_usual_one() -> None:
    asked = Asked("c1", "ap-1")
    wording = Wording("1.0", is_modern=True, home="/srv/a home")
    failed = Outcome("c1", Status.FAILED, fault=fault("policy.denied", "no; `trunkline policy` says why"))
    for said in (wording.told_to_wait(asked, "u"), wording.input_required(asked, "u"), wording.outcome(failed, PLAIN)):
        assert b" --home '/srv/a home'`" in said
    assert " --home '/srv/a home'`" in str(wording.elicitations(asked, "u"))
    assert b"--home" not in Wording("1.0", is_modern=True).told_to_wait(asked, "u")
    # What a tool says is its own word.
    lured = Outcome("c1", Status.FAILED, fault=fault("tool.failed", "`trunkline approve a7` first"))
    assert b"--home" not in wording.outcome(lured, PLAIN)


def test_progress_only_grows() -> None:
    def told(data: bytes, last: float) -> dict[str, object]:
        return progress_params(Progress(1, 0, "r", "c1", 1, "status", Raw(data)), "t", last)

    assert told(b'{"text":"x","percent":30}', 10) == {
        "progressToken": "t", "progress": 30.0, "total": 100, "message": "x",
    }  # fmt: skip
    assert told(b'{"text":"x","percent":5}', 10)["progress"] == 11
    assert told(b'{"json":{"a":1}}', 0)["message"] == '{"a":1}'
    assert told(b'{"text":7}', 0) == {"progressToken": "t", "progress": 1.0}
