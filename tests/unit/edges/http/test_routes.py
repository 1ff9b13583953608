"""Every route: right, without a token, with a wrong one, by somebody who may not, with a bad body."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from msgspec import Raw

from tests.unit.edges.http.conftest import Server
from tests.unit.edges.http.scripted import (
    ALICE_TOKEN,
    APPROVER_TOKEN,
    BOBS_CALL_ID,
    CALL_ID,
    SHA256,
    accepted,
    answered,
    asks,
    refused,
    view,
)
from trunkline.edges.http.messages import MAX_BODY_BYTES
from trunkline.effects import Reply
from trunkline.errors import ConfigError
from trunkline.events import (
    ApprovalAnswered,
    CallRequested,
    CancelRequested,
    DirectiveStated,
    TokenIssued,
    TokenRevoked,
)
from trunkline.model import FAULTS, Status, fault

A_CALL: dict[str, Any] = {"tool_id": "com.example.echo/say", "input": {"text": "hi"}}


class Way(NamedTuple):
    """One route and a request that succeeds on it."""

    method: str
    path: str
    body: dict[str, Any] | None
    status: int
    # The permission a stranger would need; "" for everybody.
    needs: str


WAYS = [
    Way("GET", "/metrics", None, 200, "metrics"),
    Way("GET", "/v1/agents", None, 200, ""),
    Way("GET", "/v1/tools", None, 200, ""),
    Way("GET", "/v1/calls", None, 200, ""),
    Way("POST", "/v1/calls", A_CALL, 200, ""),
    Way("GET", f"/v1/calls/{CALL_ID}", None, 200, ""),
    Way("POST", f"/v1/calls/{CALL_ID}/cancel", {"reason": "enough"}, 200, ""),
    Way("GET", "/v1/approvals", None, 200, "approve"),
    Way("GET", "/v1/approvals/a42", None, 200, "approve"),
    Way("POST", "/v1/approvals/a42", {"decision": "approved"}, 200, "approve"),
    Way("POST", "/v1/directives", {"tool_id": "com.example.echo/say", "reason": "as agreed"}, 201, "operator"),
    Way("GET", f"/v1/blobs/{SHA256}", None, 200, ""),
    Way("GET", "/v1/tokens", None, 200, "operator"),
    Way("POST", "/v1/tokens", {"edge": "http", "agent": "dave"}, 201, "operator"),
    Way("DELETE", "/v1/tokens/t17", None, 200, "operator"),
    Way("GET", "/v1/policy", None, 200, "operator"),
    Way("POST", "/v1/policy/check", {"caller": "http:x", "tool_id": "com.example.echo/say"}, 200, "operator"),
    Way("POST", "/v1/reload", None, 200, "operator"),
    Way("GET", "/v1/status", None, 200, "operator"),
    Way("GET", f"/v1/ledger?call_id={CALL_ID}", None, 200, "operator"),
    Way("GET", "/v1/ledger/chat:1/replay.jsonl", None, 200, "operator"),
]
# Streams, so it is used in test_stream.
WATCH = Way("GET", "/v1/watch", None, 200, "operator")
WITH_BODY = [way for way in WAYS if way.body is not None]


def by_path(way: Way) -> str:
    return f"{way.method} {way.path.split('?')[0]}"


def is_error(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert list(error) == ["code", "message", "retryable", "details"]
    assert error["code"] == code
    return error


@pytest.mark.parametrize("way", WAYS, ids=by_path)
async def test_the_operator_may_use_every_route(server: Server, way: Way) -> None:
    answer = await server.ask(way.method, way.path, json=way.body)
    assert answer.status_code == way.status, answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert not [name for name in answer.headers if name in {"server", "date"} or name.startswith("access-control")]


@pytest.mark.parametrize("way", [*WAYS, WATCH, Way("GET", "/v1/nothing", None, 404, "")], ids=by_path)
async def test_without_a_valid_token_every_route_answers_equal_bytes(server: Server, way: Way) -> None:
    tokens = (None, "tlk_wrong")
    answers = [await server.ask(way.method, way.path, token=token, json=way.body) for token in tokens]
    is_error(answers[0], 401, "auth.failed")
    assert answers[0].content == answers[1].content
    assert answers[0].headers == answers[1].headers
    assert not [event for event in server.exchange.fed if type(event).__name__ != "Noticed"]


@pytest.mark.parametrize("way", [*WAYS, WATCH], ids=by_path)
async def test_somebody_without_permissions_may_only_use_the_open_routes(server: Server, way: Way) -> None:
    answer = await server.ask(way.method, way.path, token=ALICE_TOKEN, json=way.body)
    if way.needs:
        error = is_error(answer, 403, "not_allowed")
        assert way.needs in error["message"]
        assert not server.exchange.fed
    else:
        assert answer.status_code == way.status, answer.text


@pytest.mark.parametrize("way", [*WAYS, WATCH], ids=by_path)
async def test_who_holds_approve_may_answer_questions_and_nothing_else(server: Server, way: Way) -> None:
    answer = await server.ask(way.method, way.path, token=APPROVER_TOKEN, json=way.body)
    if way.needs in {"operator", "metrics"}:
        is_error(answer, 403, "not_allowed")
    elif way.needs == "approve":
        assert answer.status_code == way.status


@pytest.mark.parametrize("way", WITH_BODY, ids=by_path)
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "strict JSON"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"tool_id": NaN}', "strict JSON"),
        (b"\xff\xfe", "UTF-"),
        (b"[]", "the body: expected object, got array"),
        (b'{"surprise": 1}', "surprise"),
    ],
    ids=["cut", "duplicate", "nan", "utf16", "array", "unknown"],
)
async def test_a_bad_body_changes_nothing_and_names_the_fault(server: Server, way: Way, data: bytes, says: str) -> None:
    answer = await server.ask(way.method, way.path, content=data, headers={"content-type": "application/json"})
    error = is_error(answer, 400, "message.malformed")
    # msgspec reads fields in order, so a missing one may be named before a superfluous one.
    assert says in error["message"] or error["message"].startswith(("missing", "unknown")), error
    assert not server.exchange.fed


@pytest.mark.parametrize("way", WITH_BODY, ids=by_path)
async def test_a_body_of_another_media_type_is_415(server: Server, way: Way) -> None:
    answer = await server.ask(way.method, way.path, content=b"{}", headers={"content-type": "text/plain"})
    is_error(answer, 415, "message.malformed")
    assert not server.exchange.fed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tool_id": 5}, "tool_id: expected str"),
        ({"tool_id": ""}, "tool_id"),
        ({"timeout_ms": "5"}, "timeout_ms: expected int"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"timeout_ms": True}, "timeout_ms"),
        ({"timeout_ms": 1.5}, "timeout_ms"),
        ({"timeout_ms": 2**60}, "timeout_ms"),
        ({"wait": "yes"}, "wait: expected bool"),
        ({"idempotency_key": "k" * 257}, "idempotency_key"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"correlation_id": "a\nb"}, "correlation_id"),
        ({"causation_id": []}, "causation_id"),
        ({"timeoutms": 5}, "unknown field 'timeoutms'; known are tool_id, input, timeout_ms"),
    ],
)
async def test_a_wrong_field_of_a_call_is_named(server: Server, change: dict[str, Any], says: str) -> None:
    answer = await server.ask("POST", "/v1/calls", json={**A_CALL, **change})
    assert says in is_error(answer, 400, "message.malformed")["message"]
    assert not server.exchange.fed


@pytest.mark.parametrize("missing", ["tool_id", "input"])
async def test_a_missing_field_of_a_call_is_named(server: Server, missing: str) -> None:
    body = {name: value for name, value in A_CALL.items() if name != missing}
    error = is_error(await server.ask("POST", "/v1/calls", json=body), 400, "message.malformed")
    assert error["message"] == f"missing required field {missing}"


async def test_null_in_an_optional_field_is_the_same_as_absent(server: Server) -> None:
    optional = ("timeout_ms", "idempotency_key", "correlation_id", "causation_id", "wait")
    answer = await server.ask("POST", "/v1/calls", json={**A_CALL, **dict.fromkeys(optional)})
    assert answer.status_code == 200
    [asked] = server.exchange.fed
    assert isinstance(asked, CallRequested)
    assert (asked.key, asked.timeout_ms, asked.correlation_id, asked.causation_id) == (None, None, None, None)


async def test_an_error_does_not_echo_more_than_a_little_of_what_was_wrong(server: Server) -> None:
    answer = await server.ask("POST", "/v1/approvals/a42", json={"decision": "x" * 100_000})
    assert len(answer.content) < 1000


# --- calls ------------------------------------------------------------------------------------------------------------


async def test_a_call_keeps_its_bodies_byte_for_byte_and_its_fields_in_order(server: Server) -> None:
    body = b'{"tool_id": "com.example.echo/say", "input": {"n": 12345678901234567890, "x" : 1.10}, "timeout_ms": 900}'
    answer = await server.ask("POST", "/v1/calls", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    assert b'"output":{"n": 12345678901234567890, "x" : 1.10}' in answer.content
    assert list(answer.json()) == [
        "call_id", "status", "output", "started_at", "finished_at", "tool_id", "caller", "correlation_id",
    ]  # fmt: skip
    assert answer.json()["started_at"] == "2026-11-15T10:00:00.000Z"
    assert answer.json()["finished_at"] == "2026-11-15T10:00:00.250Z"
    [asked] = server.exchange.fed
    assert isinstance(asked, CallRequested)
    assert asked.caller.is_operator
    assert asked.timeout_ms == 900


async def test_a_failed_call_is_still_200_and_carries_the_whole_fault(server: Server) -> None:
    def fails(event: CallRequested) -> list[Any]:
        return [answered(event, Status.FAILED, fault=fault("tool.failed", "no such city", details={"city": "X"}))]

    server.exchange.script[CallRequested] = fails
    answer = await server.ask("POST", "/v1/calls", json=A_CALL)
    assert answer.status_code == 200
    error = {"code": "tool.failed", "message": "no such city", "retryable": False, "details": {"city": "X"}}
    assert answer.json()["error"] == error
    assert answer.json()["status"] == "failed"


@pytest.mark.parametrize("code", [code for code, row in FAULTS.items() if row.http != 200])
async def test_a_refused_call_has_the_status_and_retryability_of_the_table(server: Server, code: str) -> None:
    server.exchange.script[CallRequested] = lambda event: [refused(event, code)]
    answer = await server.ask("POST", "/v1/calls", json=A_CALL)
    error = is_error(answer, FAULTS[code].http, code)
    assert error["retryable"] is FAULTS[code].retryable
    assert error["message"] == FAULTS[code].text
    assert ("retry-after" in answer.headers) is (answer.status_code in {429, 503})


async def test_retry_after_is_what_the_limit_says_rounded_up_to_seconds(server: Server) -> None:
    details = {"retry_after_ms": 1200}
    server.exchange.script[CallRequested] = lambda event: [refused(event, "limit.rate", details=details)]
    assert (await server.ask("POST", "/v1/calls", json=A_CALL)).headers["retry-after"] == "2"


async def test_a_call_that_needs_approval_is_202_at_once_and_holds_nothing(server: Server) -> None:
    server.exchange.script[CallRequested] = lambda event: [asks(event)]
    answer = await server.ask("POST", "/v1/calls", json=A_CALL)
    assert answer.status_code == 202
    shape = answer.json()
    assert (shape["call_id"], shape["status"], shape["approval_id"]) == (CALL_ID, "waiting_approval", "a42")
    assert shape["expires_at"] == "2026-11-15T11:40:00.000Z"
    # The outcome that comes later has nobody to go to, and that is fine.
    [asked] = server.exchange.fed
    assert isinstance(asked, CallRequested)
    server.exchange.say(answered(asked))


async def test_a_call_that_nobody_waits_for_is_202_with_its_id(server: Server) -> None:
    server.exchange.script[CallRequested] = lambda event: [accepted(event)]
    answer = await server.ask("POST", "/v1/calls", json={**A_CALL, "wait": False})
    assert answer.status_code == 202
    assert (answer.json()["call_id"], answer.json()["status"]) == (CALL_ID, "running")
    # Being content with the id is not leaving: nothing may be canceled for it.
    assert [type(event) for event in server.exchange.fed] == [CallRequested]


async def test_somebody_elses_call_is_not_there(server: Server) -> None:
    for method, path in (("GET", f"/v1/calls/{BOBS_CALL_ID}"), ("POST", f"/v1/calls/{BOBS_CALL_ID}/cancel")):
        foreign = await server.ask(method, path, token=ALICE_TOKEN)
        unknown = await server.ask(method, path.replace(BOBS_CALL_ID, "nope"), token=ALICE_TOKEN)
        is_error(foreign, 404, "not_found")
        assert foreign.content == unknown.content
    assert not server.exchange.fed


async def test_calls_are_listed_in_pages_and_only_ones_own(server: Server) -> None:
    server.exchange.known_calls = [
        view(f"{n:032x}", "http:alice" if n % 3 == 0 else "http:bob", Status.RUNNING) for n in range(30)
    ]
    first = (await server.ask("GET", "/v1/calls?limit=4", token=ALICE_TOKEN)).json()
    assert [call["caller"] for call in first["calls"]] == ["http:alice"] * 4
    second = (await server.ask("GET", f"/v1/calls?limit=100&before={first['next']}", token=ALICE_TOKEN)).json()
    assert len(first["calls"]) + len(second["calls"]) == 10
    assert second["next"] is None
    everything = (await server.ask("GET", "/v1/calls")).json()
    assert len(everything["calls"]) == 30


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("limit=0", "limit: expected a number from 1 to 500"),
        ("limit=501", "limit"),
        ("limit=-1", "limit"),
        ("limit=%D9%A3", "limit"),
        ("before=x", "before"),
        ("before=" + "9" * 5000, "before"),
        ("limits=5", "unknown parameter 'limits'; known are limit, before, correlation_id"),
    ],
)
async def test_a_bad_parameter_is_named(server: Server, query: str, says: str) -> None:
    answer = await server.ask("GET", f"/v1/calls?{query}")
    assert says in is_error(answer, 400, "message.malformed")["message"]


async def test_calls_of_one_correlation_can_be_asked_for(server: Server) -> None:
    assert (await server.ask("GET", "/v1/calls?correlation_id=other")).json() == {"calls": [], "next": None}
    assert len((await server.ask("GET", "/v1/calls?correlation_id=chat:1")).json()["calls"]) == 2


async def test_cancel_is_202_while_the_call_still_runs(server: Server) -> None:
    server.exchange.known_calls = [view(CALL_ID, "http:alice", Status.RUNNING)]
    answer = await server.ask("POST", f"/v1/calls/{CALL_ID}/cancel", token=ALICE_TOKEN)
    assert answer.status_code == 202
    assert answer.json()["status"] == "running"
    [asked] = server.exchange.fed
    assert isinstance(asked, CancelRequested)
    assert (asked.call_id, asked.by.identity) == (CALL_ID, "http:alice")


async def test_a_call_that_had_ended_is_not_asked_to_stop(server: Server) -> None:
    answer = await server.ask("POST", f"/v1/calls/{CALL_ID}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (200, "succeeded")
    assert not server.exchange.fed


async def test_a_refused_cancel_says_why(server: Server) -> None:
    server.exchange.known_calls = [view(CALL_ID, "http:alice", Status.RUNNING)]
    refusal = fault("not_found", "there is no such open call of yours")
    server.exchange.script[CancelRequested] = lambda event: [Reply(event.session, 0, event.ref, fault=refusal)]
    is_error(await server.ask("POST", f"/v1/calls/{CALL_ID}/cancel"), 404, "not_found")


# --- people and the operator ------------------------------------------------------------------------------------------


async def test_an_answer_reaches_the_exchange_with_who_gave_it(server: Server) -> None:
    body = {"decision": "denied", "reason": "not today"}
    answer = await server.ask("POST", "/v1/approvals/a42", token=APPROVER_TOKEN, json=body)
    assert answer.json() == {"approval_id": "a42", "decision": "denied", "subject": "call"}
    [given] = server.exchange.fed
    assert isinstance(given, ApprovalAnswered)
    assert (given.by.identity, given.approved, given.reason) == ("http:carol", False, "not today")


async def test_a_question_that_is_gone_is_404(server: Server) -> None:
    body = {"decision": "approved"}
    is_error(await server.ask("POST", "/v1/approvals/a1", json=body), 404, "not_found")
    is_error(await server.ask("GET", "/v1/approvals/a1"), 404, "not_found")
    assert not server.exchange.fed


async def test_an_answer_that_the_exchange_refuses_says_why(server: Server) -> None:
    own = fault("not_allowed", "the one who asks may not answer")
    server.exchange.script[ApprovalAnswered] = lambda event: [Reply(event.session, 0, event.ref, fault=own)]
    is_error(await server.ask("POST", "/v1/approvals/a42", json={"decision": "approved"}), 403, "not_allowed")


async def test_a_directive_is_stated_for_a_tool_and_perhaps_an_input(server: Server) -> None:
    body = {"tool_id": "x/y", "reason": "r", "input": {"a": 1}}
    assert (await server.ask("POST", "/v1/directives", json=body)).json() == {"directive_id": "d-1"}
    await server.ask("POST", "/v1/directives", json={**body, "input": None})
    with_input, without = server.exchange.fed
    assert isinstance(with_input, DirectiveStated)
    assert isinstance(without, DirectiveStated)
    assert with_input.input == Raw(b'{"a":1}')
    assert without.input is None


async def test_a_new_token_is_shown_once_and_only_its_hash_goes_further(server: Server) -> None:
    body = {"edge": "opensentience", "agent": "com.example.x", "permissions": ["net:*"]}
    shape = (await server.ask("POST", "/v1/tokens", json=body)).json()
    assert list(shape) == ["id", "edge", "agent", "token", "permissions"]
    assert shape["id"] == "t17"
    assert shape["token"].startswith("tlk_")
    assert len(shape["token"]) == 47
    [made] = server.exchange.fed
    assert isinstance(made, TokenIssued)
    assert shape["token"] not in repr(made)
    assert made.permissions == ("net:*",)


@pytest.mark.parametrize(
    "change",
    [{"edge": "carrier-pigeon"}, {"agent": "../x"}, {"agent": ""}, {"permissions": ["a b"]}, {"permissions": "net"}],
)
async def test_a_token_for_nobody_is_refused(server: Server, change: dict[str, Any]) -> None:
    answer = await server.ask("POST", "/v1/tokens", json={"edge": "http", "agent": "dave", **change})
    assert next(iter(change)) in is_error(answer, 400, "message.malformed")["message"]


async def test_an_unknown_token_cannot_be_revoked(server: Server) -> None:
    gone = fault("not_found")
    server.exchange.script[TokenRevoked] = lambda event: [Reply(event.session, 0, event.ref, fault=gone)]
    is_error(await server.ask("DELETE", "/v1/tokens/t1"), 404, "not_found")


async def test_a_bad_configuration_says_where_and_that_nothing_changed(server: Server) -> None:
    server.exchange.reload_error = ConfigError("unknown key 'lisen'", "trunkline.toml:3")
    error = is_error(await server.ask("POST", "/v1/reload"), 400, "config.invalid")
    assert error["message"] == "nothing changed: trunkline.toml:3: unknown key 'lisen'"


@pytest.mark.parametrize("query", ["", "?call_id=a&correlation_id=b", "?call=a"])
async def test_the_ledger_wants_exactly_one_name(server: Server, query: str) -> None:
    is_error(await server.ask("GET", f"/v1/ledger{query}"), 400, "message.malformed")


async def test_the_ledger_shows_entries_as_they_are_stored(server: Server) -> None:
    answer = await server.ask("GET", "/v1/ledger?correlation_id=chat:1")
    assert [entry["n"] for entry in answer.json()["entries"]] == [42, 43]


@pytest.mark.parametrize("correlation", ["chat:1", "a/b", "a%2Fb"])
async def test_a_trajectory_is_one_object_a_line(server: Server, correlation: str) -> None:
    answer = await server.ask("GET", f"/v1/ledger/{correlation}/replay.jsonl")
    assert answer.text == '{"kind":"call.accepted","n":42}\n{"kind":"call.settled","n":43}\n'
    is_error(await server.ask("GET", "/v1/ledger/none/replay.jsonl"), 404, "not_found")


async def test_a_blob_is_found_by_its_hash_in_both_spellings(server: Server) -> None:
    plain = await server.ask("GET", f"/v1/blobs/{SHA256}", token=ALICE_TOKEN)
    assert plain.content == server.exchange.blobs[SHA256]
    assert (await server.ask("GET", f"/v1/blobs/sha256:{SHA256}")).content == plain.content
    for wrong in ("00" * 32, "..%2f..%2fetc", SHA256.upper(), "x"):
        is_error(await server.ask("GET", f"/v1/blobs/{wrong}"), 404, "not_found")


# --- the rest ---------------------------------------------------------------------------------------------------------


async def test_health_and_the_front_page_need_no_token(server: Server) -> None:
    assert (await server.ask("GET", "/healthz", token=None)).json() == {"status": "ok"}
    page = await server.ask("GET", "/", token=None)
    assert "Trunkline" in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


async def test_unknown_routes_and_methods_answer_in_the_same_shape(server: Server) -> None:
    is_error(await server.ask("GET", "/v1/nothing"), 404, "not_found")
    is_error(await server.ask("GET", "/v1/calls/"), 404, "not_found")
    answer = await server.ask("PUT", "/v1/calls")
    is_error(answer, 405, "message.malformed")
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
    is_error(
        await server.ask("OPTIONS", "/v1/calls", headers={"access-control-request-method": "POST"}),
        405,
        "message.malformed",
    )


async def test_head_is_get_without_a_body(server: Server) -> None:
    answer = await server.ask("HEAD", "/v1/agents")
    assert answer.status_code == 200
    assert answer.content == b""


async def test_a_defect_of_ours_tells_nothing_of_itself(server: Server) -> None:
    server.exchange.break_down = True
    answer = await server.ask("GET", "/v1/agents")
    error = is_error(answer, 500, "hub.unavailable")
    assert error["message"] == FAULTS["hub.unavailable"].text
    assert error["retryable"] is False
    assert b"canary" not in answer.content
    assert (await server.ask("GET", "/v1/tools")).status_code == 200


async def test_the_largest_body_passes_and_one_byte_more_does_not(server: Server) -> None:
    head = b'{"tool_id": "com.example.echo/say", "input": {"text": "'
    body = head + b"x" * (MAX_BODY_BYTES - len(head) - 3) + b'"}}'
    headers = {"content-type": "application/json"}
    assert (await server.ask("POST", "/v1/calls", content=body, headers=headers)).status_code == 200
    is_error(await server.ask("POST", "/v1/calls", content=body + b" ", headers=headers), 413, "message.malformed")
    assert len(server.exchange.fed) == 1


async def test_a_chunked_body_is_judged_while_it_is_read(server: Server) -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b" " * 65_536

    answer = await server.ask("POST", "/v1/calls", content=endless(), headers={"content-type": "application/json"})
    is_error(answer, 413, "message.malformed")
    assert not server.exchange.fed
