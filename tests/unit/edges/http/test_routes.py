"""Every route: right, without a token, with a wrong one, by somebody who may not, with a bad body."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

import pytest
from msgspec import Raw

from tests.inhabited import ALICE, BOB, ECHO, LARGE_BYTES, MAIL, SLOW, Inhabited
from tests.unit.edges.http.conftest import Server
from trunkline import entries
from trunkline.edges.edge import Edge, RunningEdge
from trunkline.edges.http.routes import MAX_PAGE_BYTES
from trunkline.edges.ossa.keys import OSSA_KEYS
from trunkline.effects import Reply
from trunkline.errors import ConfigError
from trunkline.events import (
    ApprovalAnswered,
    CancelRequested,
    DirectiveStated,
    SubscriptionRequested,
    TokenIssued,
)
from trunkline.hub.state import RECENT_CALLS
from trunkline.model import FAULTS, LargeOutput, Principal, fault
from trunkline.shown import LISTED_OUTPUT_BYTES
from trunkline.testing.memory import OPERATOR_TOKEN

# An edge whose credentials are pairs of keys; it does nothing else here.
OSSA: Final = Edge(name="ossa", make=lambda _: RunningEdge(), tokens=OSSA_KEYS)
PIN: Final = "A" * 43 + "="
A_CALL: dict[str, Any] = {"tool_id": "com.example.echo/say", "input": {"text": "hi"}}


class Way(NamedTuple):
    """One route and a request that succeeds on it; what stands in braces is in the exchange."""

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
    Way("GET", "/v1/calls/{call_id}", None, 200, ""),
    Way("POST", "/v1/calls/{call_id}/cancel", {"reason": "enough"}, 200, ""),
    Way("GET", "/v1/approvals", None, 200, "approve"),
    Way("GET", "/v1/approvals/{approval_id}", None, 200, "approve"),
    Way("POST", "/v1/approvals/{approval_id}", {"decision": "approved"}, 200, "approve"),
    Way("POST", "/v1/directives", {"tool_id": "com.example.echo/say", "reason": "as agreed"}, 201, "operator"),
    Way("GET", "/v1/blobs/{sha256}", None, 200, ""),
    Way("GET", "/v1/tokens", None, 200, "operator"),
    Way("POST", "/v1/tokens", {"edge": "http", "agent": "dave"}, 201, "operator"),
    Way("DELETE", "/v1/tokens/{token_id}", None, 200, "operator"),
    Way("GET", "/v1/subscriptions", None, 200, "operator"),
    Way("DELETE", "/v1/subscriptions/{subscription_id}", None, 200, "operator"),
    Way("GET", "/v1/receipts", None, 200, "operator"),
    # Nothing was paid here.
    Way("GET", "/v1/receipts/{call_id}", None, 404, "operator"),
    Way("GET", "/v1/policy", None, 200, "operator"),
    Way("POST", "/v1/policy/check", {"caller": "http:x", "tool_id": "com.example.echo/say"}, 200, "operator"),
    Way("POST", "/v1/reload", None, 200, "operator"),
    Way("POST", "/v1/agents/{agent_id}/start", None, 202, "operator"),
    Way("POST", "/v1/agents/{agent_id}/stop", None, 202, "operator"),
    Way("POST", "/v1/agents/{agent_id}/restart", None, 202, "operator"),
    # There is no file of rules here.
    Way("GET", "/v1/approvals/{approval_id}/rule", None, 200, "operator"),
    Way("POST", "/v1/approvals/{approval_id}/rule", {"rule": "x"}, 409, "operator"),
    Way("GET", "/v1/agents/{agent_id}/tools", None, 200, "operator"),
    # Nothing was launched here, so nothing has a log.
    Way("GET", "/v1/agents/{agent_id}/logs", None, 404, "operator"),
    # Nor does anybody sign in for one.
    Way("POST", "/v1/agents/{agent_id}/sign-in", None, 404, "operator"),
    Way("GET", "/v1/agents/{agent_id}/sign-in", None, 404, "operator"),
    Way("DELETE", "/v1/agents/{agent_id}/sign-in", None, 404, "operator"),
    Way("GET", "/v1/status", None, 200, "operator"),
    Way("GET", "/v1/ledger?call_id={call_id}", None, 200, "operator"),
    Way("POST", "/v1/ledger/verify", None, 202, "operator"),
    Way("GET", "/v1/ledger/{correlation_id}/replay.jsonl", None, 200, "operator"),
]
# Streams, so it is used in test_stream.
WATCH = Way("GET", "/v1/watch", None, 200, "operator")
WITH_BODY = [way for way in WAYS if way.body is not None]


def by_path(way: Way) -> str:
    return f"{way.method} {way.path.split('?')[0]}"


async def use(server: Server, way: Way, **more: Any) -> Any:
    """Ask what a way says, of what is in this exchange."""
    return await server.ask(way.method, server.exchange.path(way.path), **{"json": way.body, **more})


def is_error(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert list(error) == ["code", "message", "retryable", "details"]
    assert error["code"] == code
    return error


@pytest.mark.parametrize("way", WAYS, ids=by_path)
async def test_the_operator_may_use_every_route(server: Server, way: Way) -> None:
    answer = await use(server, way)
    assert answer.status_code == way.status, answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert not [name for name in answer.headers if name in {"server", "date"} or name.startswith("access-control")]


@pytest.mark.parametrize("way", [*WAYS, WATCH, Way("GET", "/v1/nothing", None, 404, "")], ids=by_path)
async def test_without_a_valid_token_every_route_answers_equal_bytes(server: Server, way: Way) -> None:
    tokens = (None, "tlk_wrong")
    answers = [await use(server, way, token=token) for token in tokens]
    is_error(answers[0], 401, "auth.failed")
    assert answers[0].content == answers[1].content
    assert answers[0].headers == answers[1].headers
    assert {type(entry) for entry in server.exchange.news} <= {entries.Noticed}


@pytest.mark.parametrize("way", [*WAYS, WATCH], ids=by_path)
async def test_somebody_without_permissions_may_only_use_the_open_routes(server: Server, way: Way) -> None:
    answer = await use(server, way, token=server.exchange.alice)
    if way.needs:
        error = is_error(answer, 403, "not_allowed")
        assert way.needs in error["message"]
        assert not server.exchange.news
    else:
        assert answer.status_code == way.status, answer.text


@pytest.mark.parametrize("way", [*WAYS, WATCH], ids=by_path)
async def test_who_holds_approve_may_answer_questions_and_nothing_else(server: Server, way: Way) -> None:
    answer = await use(server, way, token=server.exchange.approver)
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
    answer = await use(server, way, json=None, content=data, headers={"content-type": "application/json"})
    error = is_error(answer, 400, "message.malformed")
    # msgspec reads fields in order, so a missing one may be named before a superfluous one.
    assert says in error["message"] or error["message"].startswith(("missing", "unknown")), error
    assert not server.exchange.news


@pytest.mark.parametrize("way", WITH_BODY, ids=by_path)
async def test_a_body_of_another_media_type_is_415(server: Server, way: Way) -> None:
    answer = await use(server, way, json=None, content=b"{}", headers={"content-type": "text/plain"})
    is_error(answer, 415, "message.malformed")
    assert not server.exchange.news


async def test_an_error_does_not_echo_more_than_a_little_of_what_was_wrong(server: Server) -> None:
    path = f"/v1/approvals/{server.exchange.approval_id}"
    answer = await server.ask("POST", path, json={"decision": "x" * 100_000})
    assert len(answer.content) < 1000


# --- calls ------------------------------------------------------------------------------------------------------------


async def test_somebody_elses_call_is_not_there(server: Server) -> None:
    """It runs, so that a cancel that went through would be on record."""
    running_id = server.exchange.running_id
    for method, path in (("GET", f"/v1/calls/{running_id}"), ("POST", f"/v1/calls/{running_id}/cancel")):
        foreign = await server.ask(method, path, token=server.exchange.alice)
        unknown = await server.ask(method, path.replace(running_id, "nope"), token=server.exchange.alice)
        is_error(foreign, 404, "not_found")
        assert foreign.content == unknown.content
    assert not server.exchange.news


async def test_calls_are_listed_in_pages_and_only_ones_own(server: Server) -> None:
    assert server.exchange.blob
    for n in range(30):
        server.exchange.call(SLOW, by=ALICE if n % 3 == 0 else Principal("http:bob"))
    # Beside those three that alice has before.
    first = (await server.ask("GET", "/v1/calls?limit=4", token=server.exchange.alice)).json()
    assert [call["caller"] for call in first["calls"]] == ["http:alice"] * 4
    path = f"/v1/calls?limit=100&before={first['next']}"
    second = (await server.ask("GET", path, token=server.exchange.alice)).json()
    assert [call["caller"] for call in second["calls"]] == ["http:alice"] * 9
    assert len({call["call_id"] for call in first["calls"] + second["calls"]}) == 13
    assert second["next"] is None
    everything = (await server.ask("GET", "/v1/calls")).json()
    assert len(everything["calls"]) == 34


async def test_lists_leave_out_what_is_not_small_and_the_call_itself_has_it(server: Server) -> None:
    made = server.exchange.call(ECHO, {"text": "x" * LISTED_OUTPUT_BYTES}, by=ALICE)
    small = server.exchange.call(ECHO, {"text": "x"}, by=ALICE)
    listed = (await server.ask("GET", "/v1/calls?limit=2", token=server.exchange.alice)).json()["calls"]
    assert [call["call_id"] for call in listed] == [small.call_id, made.call_id]
    assert listed[0]["output"] == {"text": "x"}
    assert "output" not in listed[1]
    assert listed[1]["output_bytes"] > LISTED_OUTPUT_BYTES
    whole = (await server.ask("GET", f"/v1/calls/{made.call_id}", token=server.exchange.alice)).json()
    assert whole["output"] == {"text": "x" * LISTED_OUTPUT_BYTES}


async def test_a_page_of_calls_is_bounded_in_bytes_and_says_where_to_go_on(server: Server) -> None:
    count = 400
    made = [server.exchange.call(ECHO, {"text": "x" * 4000}, by=BOB).call_id for _ in range(count)]
    bob = server.exchange.token("http", "bob")
    found, before = [], ""
    while True:
        answer = await server.ask("GET", f"/v1/calls?limit=500{before}", token=bob)
        assert len(answer.content) < 1.5 * MAX_PAGE_BYTES
        page = answer.json()
        found += [call["call_id"] for call in page["calls"]]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    # Behind them one that bob has from the beginning.
    assert found[:-1] == made[::-1]


async def test_a_hash_that_nobody_has_is_looked_for_without_hashing_all_outputs_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []
    real = LargeOutput.of

    def counted(output: Raw | None) -> LargeOutput | None:
        hashed.append(1)
        return real(output)

    server.exchange.call(BIG["tool_id"], by=BOB)
    bob = server.exchange.token("http", "bob")
    monkeypatch.setattr(LargeOutput, "of", counted)
    for _ in range(3):
        assert (await server.ask("GET", f"/v1/blobs/{'00' * 32}", token=bob)).status_code == 404
    assert len(hashed) == 1


async def test_tools_are_listed_in_pages_by_name(server: Server) -> None:
    whole = (await server.ask("GET", "/v1/tools")).json()
    assert whole["next"] is None
    named = [tool["tool_id"] for tool in whole["tools"]]
    assert named == sorted(named)
    found, after = [], ""
    for _ in named:
        page = (await server.ask("GET", f"/v1/tools?limit=1&after={after}")).json()
        found += [tool["tool_id"] for tool in page["tools"]]
        after = page["next"]
    assert (found, after) == (named, None)
    for query in ("limit=0", "limit=1001", "before=x"):
        is_error(await server.ask("GET", f"/v1/tools?{query}"), 400, "message.malformed")


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
    server.exchange.call(ECHO, by=ALICE, correlation_id="chat:1")
    assert (await server.ask("GET", "/v1/calls?correlation_id=other")).json() == {"calls": [], "next": None}
    found = (await server.ask("GET", "/v1/calls?correlation_id=chat:1")).json()["calls"]
    assert [call["correlation_id"] for call in found] == ["chat:1", "chat:1"]


async def test_cancel_is_202_while_the_call_still_runs(server: Server) -> None:
    call_id = server.exchange.call(SLOW, by=ALICE).call_id
    answer = await server.ask("POST", f"/v1/calls/{call_id}/cancel", token=server.exchange.alice)
    assert answer.status_code == 202
    assert answer.json()["status"] == "running"
    [asked] = server.exchange.answering.fed
    assert isinstance(asked, CancelRequested)
    assert (asked.call_id, asked.by.identity) == (call_id, "http:alice")
    [noted] = server.exchange.recorded(entries.CallNoted)
    assert (noted.call_id, noted.note, noted.by) == (call_id, "cancel.requested", "http:alice")


async def test_a_call_that_had_ended_is_not_asked_to_stop(server: Server) -> None:
    answer = await server.ask("POST", f"/v1/calls/{server.exchange.call_id}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (200, "succeeded")
    assert not server.exchange.answering.fed


async def test_a_refused_cancel_says_why(server: Server) -> None:
    """The call ended between the look at it and the wish to stop it."""
    refusal = fault("not_found", "there is no such open call of yours")
    server.exchange.answering.script[CancelRequested] = lambda event: [
        Reply(event.session, 0, event.ref, fault=refusal)
    ]
    is_error(await server.ask("POST", f"/v1/calls/{server.exchange.running_id}/cancel"), 404, "not_found")


# --- people and the operator ------------------------------------------------------------------------------------------


async def test_an_answer_reaches_the_exchange_with_who_gave_it(server: Server) -> None:
    body = {"decision": "denied", "reason": "not today"}
    asked = server.exchange.views.question(server.exchange.approval_id)
    assert asked is not None
    path = f"/v1/approvals/{asked.approval_id}"
    answer = await server.ask("POST", path, token=server.exchange.approver, json=body)
    shape = {"approval_id": asked.approval_id, "decision": "denied", "subject": "call", "call_id": asked.call_id}
    assert answer.json() == shape
    [given] = server.exchange.recorded(entries.QuestionClosed)
    assert (given.by, given.how, given.reason) == ("http:carol", "denied", "not today")


async def test_a_question_that_is_gone_is_404(server: Server) -> None:
    body = {"decision": "approved"}
    is_error(await server.ask("POST", "/v1/approvals/a1", json=body), 404, "not_found")
    is_error(await server.ask("GET", "/v1/approvals/a1"), 404, "not_found")
    assert not server.exchange.news


async def test_an_answer_that_the_exchange_refuses_says_why(server: Server) -> None:
    own = fault("not_allowed", "the one who asks may not answer")
    server.exchange.answering.script[ApprovalAnswered] = lambda event: [Reply(event.session, 0, event.ref, fault=own)]
    path = f"/v1/approvals/{server.exchange.approval_id}"
    is_error(await server.ask("POST", path, json={"decision": "approved"}), 403, "not_allowed")


async def test_who_asks_may_not_answer(server: Server) -> None:
    asker = Principal("http:eve", ("approve",))
    eve = server.exchange.token("http", "eve", permissions=("approve",))
    path = f"/v1/approvals/{server.exchange.call(MAIL, by=asker).approval_id}"
    is_error(await server.ask("POST", path, token=eve, json={"decision": "approved"}), 403, "not_allowed")
    assert not server.exchange.recorded(entries.QuestionClosed)


async def test_a_directive_is_stated_for_a_tool_and_perhaps_an_input(server: Server) -> None:
    body = {"tool_id": ECHO, "reason": "r", "input": {"a": 1}}
    named = (await server.ask("POST", "/v1/directives", json=body)).json()
    await server.ask("POST", "/v1/directives", json={**body, "input": None})
    stated = server.exchange.recorded(entries.DirectiveStated)
    assert named == {"directive_id": stated[0].directive_id}
    assert [(entry.tool_id, entry.reason, entry.by) for entry in stated] == [(ECHO, "r", "operator")] * 2
    with_input, without = server.exchange.answering.fed
    assert isinstance(with_input, DirectiveStated)
    assert isinstance(without, DirectiveStated)
    assert with_input.input == Raw(b'{"a":1}')
    assert without.input is None


async def test_a_new_token_is_shown_once_and_only_its_hash_goes_further(server: Server) -> None:
    body = {"edge": "opensentience", "agent": "com.example.x", "permissions": ["net:*"]}
    shape = (await server.ask("POST", "/v1/tokens", json=body)).json()
    assert list(shape) == ["id", "edge", "agent", "token", "permissions"]
    [issued] = [entry for entry in server.exchange.news if isinstance(entry, entries.TokenIssued)]
    assert shape["id"] == issued.token_id
    assert shape["token"].startswith("tlk_")
    assert len(shape["token"]) == 47
    [made] = server.exchange.answering.fed
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


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"edge": "pigeon"}, "edge: expected opensentience, chiffon, ossa, mcp or http"),
        ({"type": "infra"}, "type: agents of this edge have none"),
        ({"edge": "chiffon"}, "type: expected orchestrator, infra, desktop, code or research"),
        ({"edge": "chiffon", "type": "gardener"}, "type: expected orchestrator, infra, desktop, code or research"),
        ({"edge": "chiffon", "type": "infra", "agent": "space.demo"}, "agent: ids of space. are the exchange's own"),
        ({"edge": "opensentience", "agent": "space.demo"}, "agent: ids of space. are the exchange's own"),
        ({"agent": "Chiffon.infra"}, "agent: ids of chiffon. are the exchange's own"),
    ],
)
async def test_what_a_token_of_an_edge_needs_is_said_in_words(
    server: Server, change: dict[str, Any], says: str
) -> None:
    answer = await server.ask("POST", "/v1/tokens", json={"edge": "http", "agent": "dave", **change})
    assert is_error(answer, 400, "message.malformed")["message"] == says
    assert not server.exchange.news


async def test_a_token_has_the_form_and_the_type_of_its_edge(server: Server) -> None:
    body = {"edge": "chiffon", "agent": "infra-1", "type": "infra"}
    shape = (await server.ask("POST", "/v1/tokens", json=body)).json()
    assert (len(shape["token"]), shape["type"]) == (32, "infra")
    [issued] = server.exchange.news
    assert isinstance(issued, entries.TokenIssued)
    assert (issued.edge, issued.type) == ("chiffon", "infra")


@pytest.fixture
async def with_keys() -> AsyncIterator[Server]:
    async with Server(Inhabited(OSSA)) as running:
        yield running


async def test_a_pair_of_keys_is_shown_once_and_listed_without_its_private_parts(with_keys: Server) -> None:
    body = {"edge": "ossa", "agent": "worker-7", "type": "worker", "url": "https://w.example:8443/m?x=1", "pin": PIN}
    answer = await with_keys.ask("POST", "/v1/tokens", json=body)
    assert answer.status_code == 201
    shape = answer.json()
    assert list(shape) == ["id", "edge", "agent", "jwk", "enc_jwk", "type"]
    assert [(shape[name]["crv"], "d" in shape[name]) for name in ("jwk", "enc_jwk")] == [
        ("Ed25519", True),
        ("X25519", True),
    ]
    digest = hashlib.sha256(shape["jwk"]["kid"].encode()).hexdigest()
    assert with_keys.exchange.feed.identify("ossa", digest) == Principal("ossa:worker-7", (), "worker")
    known = with_keys.exchange.views.credential("ossa", digest)
    assert known is not None
    assert known.public is not None
    listed = (await with_keys.ask("GET", "/v1/tokens")).json()["tokens"][-1]
    assert listed["public"] == json.loads(bytes(known.public))
    assert (listed["public"]["kid"], listed["public"]["url"], listed["public"]["pin"]) == (
        shape["jwk"]["kid"],
        body["url"],
        PIN,
    )
    for name in ("jwk", "enc_jwk"):
        private = shape.pop(name).pop("d")
        assert private not in json.dumps(listed)
        assert private not in repr(with_keys.exchange.log)
        assert private not in repr(with_keys.exchange.answering.fed)


async def test_a_third_key_is_refused_and_says_which_to_revoke(with_keys: Server) -> None:
    body = {"edge": "ossa", "agent": "worker-7"}
    first, second = [(await with_keys.ask("POST", "/v1/tokens", json=body)).json()["id"] for _ in range(2)]
    refused = is_error(await with_keys.ask("POST", "/v1/tokens", json=body), 409, "state.conflict")
    assert f"{first} and {second}" in refused["message"]
    await with_keys.ask("DELETE", f"/v1/tokens/{first}")
    assert (await with_keys.ask("POST", "/v1/tokens", json=body)).status_code == 201


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"type": "Worker"}, "type: expected [a-z][a-z0-9_-]{0,63}"),
        ({"url": "http://w.example/m"}, "url: expected https://HOST[:PORT]/PATH, or http:// on this machine"),
        ({"url": "ftp://w.example/m"}, "url: expected https"),
        ({"url": "https://me:secret@w.example/m"}, "url: expected https"),
        ({"url": "https://w.example/m m"}, "url: expected https"),
        ({"url": "https://w.example:99999/"}, "url: expected https"),
        ({"url": "https://[::1/"}, "url: expected https"),
        ({"url": "https://"}, "url: expected https"),
        ({"url": "https://w.example/", "pin": "A" * 44}, "pin: expected the SHA-256"),
        ({"url": "https://w.example/", "pin": "A" * 42 + "="}, "pin: expected the SHA-256"),
        ({"pin": "A" * 43 + "="}, "pin: it says which server answers at url"),
        ({"agent": "trunkline"}, "agent: trunkline is the exchange itself"),
        ({"agent": "space.x"}, "agent: ids of space. are the exchange's own"),
        ({"agent": "../x"}, "agent: expected letters"),
        ({"edge": "http", "url": "https://w.example/"}, "url: credentials of this edge have none"),
        ({"edge": "http", "pin": "A" * 43 + "="}, "pin: credentials of this edge have none"),
    ],
)
async def test_what_a_pair_of_keys_needs_is_said_in_words(with_keys: Server, change: dict[str, Any], says: str) -> None:
    answer = await with_keys.ask("POST", "/v1/tokens", json={"edge": "ossa", "agent": "worker-7", **change})
    assert is_error(answer, 400, "message.malformed")["message"].startswith(says)
    assert not with_keys.exchange.news


async def test_a_pair_may_be_reached_by_plain_http_on_this_machine(with_keys: Server) -> None:
    for url in ("http://127.0.0.1:1/x", "http://[::1]:1/x", "http://localhost"):
        body = {"edge": "ossa", "agent": f"a{len(url)}", "url": url}
        assert (await with_keys.ask("POST", "/v1/tokens", json=body)).status_code == 201


async def test_an_unknown_token_cannot_be_revoked(server: Server) -> None:
    is_error(await server.ask("DELETE", "/v1/tokens/t1"), 404, "not_found")


async def test_subscriptions_are_listed_in_pages_and_ended_once(server: Server) -> None:
    mine = server.exchange.subscription_id
    server.exchange.feed.feed([SubscriptionRequested(0, "", BOB, "news", 0, durable=True)])
    whole = (await server.ask("GET", "/v1/subscriptions")).json()
    assert [one["subscriber"] for one in whole["subscriptions"]] == ["http:alice", "http:bob"]
    assert whole["next"] is None
    first = whole["subscriptions"][0]
    assert {name: first[name] for name in ("subscription", "topic", "qos", "durable", "owed_events", "connected")} == {
        "subscription": mine,
        "topic": "build.#",
        "qos": 1,
        "durable": True,
        "owed_events": 0,
        "connected": False,
    }
    page = (await server.ask("GET", "/v1/subscriptions?limit=1")).json()
    assert page["subscriptions"] == [first]
    page = (await server.ask("GET", f"/v1/subscriptions?limit=1&after={page['next']}")).json()
    assert page == {"subscriptions": whole["subscriptions"][1:], "next": None}
    assert (await server.ask("DELETE", f"/v1/subscriptions/{mine}")).json() == {"subscription": mine, "ended": True}
    is_error(await server.ask("DELETE", f"/v1/subscriptions/{mine}"), 404, "not_found")


async def test_a_bad_configuration_says_where_and_that_nothing_changed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad() -> None:
        raise ConfigError("unknown key 'lisen'", "trunkline.toml:3")

    monkeypatch.setattr(server.exchange.operator, "reload", bad)
    error = is_error(await server.ask("POST", "/v1/reload"), 400, "config.invalid")
    assert error["message"] == "nothing changed: trunkline.toml:3: unknown key 'lisen'"


@pytest.mark.parametrize("query", ["", "?call_id=a&correlation_id=b", "?call=a"])
async def test_the_ledger_wants_exactly_one_name(server: Server, query: str) -> None:
    is_error(await server.ask("GET", f"/v1/ledger{query}"), 400, "message.malformed")


async def test_the_ledger_shows_entries_as_they_are_stored(server: Server) -> None:
    answer = await server.ask("GET", "/v1/ledger?correlation_id=chat:1")
    stored = server.exchange.views.entries(correlation_id="chat:1")
    assert [entry["kind"] for entry in answer.json()["entries"]] == ["call.accepted", "call.settled"]
    assert answer.content == b'{"entries":[%b]}' % b",".join(stored)


@pytest.mark.parametrize("correlation", ["chat:1", "a/b", "a%2Fb"])
async def test_a_trajectory_is_one_object_a_line(server: Server, correlation: str) -> None:
    answer = await server.ask("GET", f"/v1/ledger/{correlation}/replay.jsonl")
    assert answer.headers["content-type"] == "application/jsonl"
    lines = server.exchange.views.trajectory(correlation.replace("%2F", "/"))
    assert answer.content == b"".join(line + b"\n" for line in lines)
    found = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["id"] for line in found if line["event"] == "ToolCall"] == [
        server.exchange.call_id if correlation == "chat:1" else server.exchange.running_id
    ]
    # A session in which a call is open has no end.
    assert (found[-1]["event"] == "SessionEnd") is (correlation == "chat:1")
    is_error(await server.ask("GET", "/v1/ledger/none/replay.jsonl"), 404, "not_found")


async def test_a_blob_is_found_by_its_hash_in_both_spellings(server: Server) -> None:
    sha256 = server.exchange.blob
    plain = await server.ask("GET", f"/v1/blobs/{sha256}")
    assert plain.content == b'"' + b"x" * LARGE_BYTES + b'"'
    assert (await server.ask("GET", f"/v1/blobs/sha256:{sha256}")).content == plain.content
    for wrong in ("00" * 32, "..%2f..%2fetc", sha256.upper(), "x"):
        is_error(await server.ask("GET", f"/v1/blobs/{wrong}"), 404, "not_found")


BIG: dict[str, Any] = {"tool_id": "com.example.echo/big", "input": {}}


async def test_a_blob_is_there_for_those_only_who_may_see_a_call_that_it_belongs_to(server: Server) -> None:
    exchange = server.exchange
    bob = exchange.token("http", "bob")
    path = f"/v1/blobs/{exchange.blob}"
    nothing = await server.ask("GET", f"/v1/blobs/{'00' * 32}", token=bob)
    for stranger in (bob, exchange.approver):
        answer = await server.ask("GET", path, token=stranger)
        assert (answer.status_code, answer.content) == (404, nothing.content)
        assert {**answer.headers, "date": ""} == {**nothing.headers, "date": ""}
    # The same output for two more: it is theirs as well, and nobody else's.
    for token in (bob, exchange.alice):
        reference = (await server.ask("POST", "/v1/calls", token=token, json=BIG)).json()["output"]
        assert reference["$ref"] == f"sha256:{exchange.blob}"
    for token in (bob, exchange.alice, OPERATOR_TOKEN):
        assert (await server.ask("GET", path, token=token)).status_code == 200
    assert (await server.ask("GET", path, token=exchange.approver)).content == nothing.content


async def test_a_blob_is_still_its_callers_when_memory_has_forgotten_the_call(server: Server) -> None:
    exchange = server.exchange
    bob = exchange.token("http", "bob")
    path = f"/v1/blobs/{exchange.blob}"
    bobs = exchange.call(BIG["tool_id"], by=BOB)
    exchange.call(BIG["tool_id"], by=ALICE)
    for _ in range(RECENT_CALLS + 1):
        exchange.call(ECHO)
    assert exchange.hub.state.recent.get(bobs.call_id) is None
    # The newest call with this output is hers; his is found as soon as it is looked at.
    assert (await server.ask("GET", path, token=exchange.alice)).status_code == 200
    assert (await server.ask("GET", path, token=exchange.approver)).status_code == 404
    assert (await server.ask("GET", f"/v1/calls/{bobs.call_id}", token=bob)).json()["output"]["bytes"] > LARGE_BYTES
    assert (await server.ask("GET", path, token=bob)).status_code == 200


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


async def test_a_defect_of_ours_tells_nothing_of_itself_and_is_on_record(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("canary-in-the-exception")

    monkeypatch.setattr(server.exchange.views, "agents", broken)
    answer = await server.ask("GET", "/v1/agents")
    error = is_error(answer, 500, "hub.unavailable")
    assert error["message"] == FAULTS["hub.unavailable"].text
    assert error["retryable"] is False
    assert b"canary" not in answer.content
    assert (await server.ask("GET", "/v1/tools")).status_code == 200
    [noticed] = server.exchange.recorded(entries.Noticed)
    assert (noticed.code, noticed.detail) == ("defect", "RuntimeError, 1 so far")
    assert noticed.place.startswith("test_routes.py:")
    assert server.exchange.operator.status()["defects"] == 1
