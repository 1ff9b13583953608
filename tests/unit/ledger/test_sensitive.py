"""``ledger.sensitive``, and how hub and writer treat a call whose content is not for the record."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
from msgspec import Raw

from trunkline.entries import CallAccepted, CallSettled
from trunkline.events import CallRequested
from trunkline.ledger.sensitive import hashed
from trunkline.model import INLINE_OUTPUT_BYTES, Decision, Fault, Policy, Principal, Rule, Status, fault
from trunkline.testing.memory import BOSS, MemoryExchange

WORD = "Alice Lidell 1865"
DAY_S = 86_400


def stand_in(data: bytes) -> dict[str, Any]:
    return {"$sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def lines(exchange: MemoryExchange) -> list[dict[str, Any]]:
    """The record, as it is stored."""
    return [json.loads(line) for line in exchange.ledger.reader.lines(1, exchange.ledger.last)]


def test_all_that_was_said_is_replaced_by_its_hash_and_size() -> None:
    line = msgspec.json.encode(
        {
            "kind": "call.settled",
            "n": 7,
            "at": 1,
            "call_id": "c",
            "output": Raw(b'{"a": "Alice"}'),
            "metrics": Raw(b'{"m":1}'),
            "fault": {"code": "tool.failed", "message": "Alice", "retryable": False, "details": Raw(b'{"d":"Alice"}')},
            "stream": {"chunks": 1, "bytes": 2, "sha256": "ab", "tail": "Alice"},
            "warning": "Alice",
        }
    )
    found = json.loads(hashed(line))
    assert list(found)[:4] == ["kind", "n", "at", "call_id"]
    assert found["output"] == stand_in(b'{"a": "Alice"}')
    assert found["metrics"] == stand_in(b'{"m":1}')
    assert found["fault"]["details"] == stand_in(b'{"d":"Alice"}')
    assert found["fault"]["message"] == f"sensitive: sha256 {hashlib.sha256(b'Alice').hexdigest()}, 5 bytes"
    assert (found["fault"]["code"], found["fault"]["retryable"]) == ("tool.failed", False)
    assert found["stream"] == {"chunks": 1, "bytes": 2, "sha256": "ab"}
    assert found["hashed"] is True
    assert b"Alice" not in hashed(line)


def test_both_ends_hear_everything_and_the_record_has_hashes() -> None:
    exchange = MemoryExchange()
    seen: list[bytes] = []
    exchange.operator.watch(seen.append)
    agent = exchange.attach("com.a", "x")
    call = exchange.call("com.a/x", {"who": WORD}, sensitive=True)
    assert (agent.delivered[0].sensitive, json.loads(bytes(agent.delivered[0].input))) == (True, {"who": WORD})
    agent.show("stdout", {"text": WORD})
    assert json.loads(bytes(call.progress[0].data)) == {"text": WORD}
    agent.finish({"found": WORD})
    assert call.output == {"found": WORD}
    view = exchange.views.call(call.call_id)
    assert view is not None
    assert view.output == Raw(msgspec.json.encode({"found": WORD})), "while it is in memory"
    assert WORD not in json.dumps(lines(exchange))
    assert not any(WORD.encode() in line for line in seen)
    assert any(b'"progress"' in line for line in seen)
    again = exchange.restarted()
    view = again.views.call(call.call_id)
    assert view is not None
    assert (view.status, view.output) == (Status.SUCCEEDED, None)
    again.close()


def test_a_call_that_is_not_sensitive_is_recorded_as_ever_also_beside_one_that_is() -> None:
    exchange = MemoryExchange()
    agent = exchange.attach("com.a", "x", deliver=lambda agent, effect: agent.finish(effect.input))
    for is_sensitive in (False, True, False, False, True):
        exchange.call("com.a/x", {"who": WORD}, sensitive=is_sensitive, announce=False)
    assert [effect.sensitive for effect in agent.delivered] == [False, True, False, False, True]
    stored = [line for line in lines(exchange) if line["kind"] in {"call.accepted", "call.settled"}]
    assert [WORD in json.dumps(line) for line in stored] == [
        True,
        True,
        False,
        False,
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    assert ["hashed" in line for line in stored] == [WORD not in json.dumps(line) for line in stored]
    exchange.close()


def test_the_original_is_held_until_the_call_is_settled_and_its_outcome_as_long_as_its_key_lives() -> None:
    exchange = MemoryExchange()
    agent = exchange.attach("com.a", "x")
    unkeyed = exchange.call("com.a/x", {"who": WORD}, sensitive=True)
    keyed = exchange.call("com.a/x", {"who": WORD}, sensitive=True, key="k")
    reader = exchange.ledger.reader
    accepted = [entry.n for entry in exchange.recorded(CallAccepted)]
    assert [reader.original(number, "input") for number in accepted] == [Raw(b'{"who":"%b"}' % WORD.encode())] * 2
    agent.finish({"found": WORD}, at=0)
    agent.finish({"found": WORD}, at=1)
    assert (unkeyed.output, keyed.output) == ({"found": WORD}, {"found": WORD})
    assert [reader.original(number, "input") for number in accepted] == [None, None]
    outcomes = [entry.n for entry in exchange.recorded(CallSettled)]
    held = [reader.original(number, "output") for number in outcomes]
    assert held == [None, Raw(b'{"found":"%b"}' % WORD.encode())]
    exchange.advance(DAY_S + 3600)
    exchange.ledger.erase_expired(exchange.clock.now().ms)
    assert reader.original(outcomes[1], "output") is None
    exchange.close()


def test_an_open_call_and_a_keyed_outcome_survive_a_restart() -> None:
    exchange = MemoryExchange()
    agent = exchange.attach("com.a", "x", dedupes=True)
    done = exchange.call("com.a/x", {"who": WORD}, sensitive=True, key="done")
    agent.finish({"found": WORD})
    assert done.output == {"found": WORD}
    exchange.call("com.a/x", {"who": WORD}, sensitive=True, key="open")
    exchange = exchange.restarted()
    agent = exchange.attach("com.a", "x", dedupes=True)
    exchange.advance(5)
    [sent] = agent.delivered
    assert (sent.sensitive, json.loads(bytes(sent.input))) == (True, {"who": WORD})
    assert exchange.call("com.a/x", {"who": WORD}, sensitive=True, key="done").output == {"found": WORD}
    assert exchange.call("com.a/x", {"who": "Bob"}, sensitive=True, key="done").code == "idempotency.conflict"
    joined = exchange.call("com.a/x", {"who": WORD}, sensitive=True, key="open")
    agent.finish({"found": WORD})
    assert joined.output == {"found": WORD}
    assert WORD not in json.dumps(lines(exchange))
    exchange.close()


def test_a_large_sensitive_output_is_refused_since_it_would_be_stored_to_be_fetched() -> None:
    exchange = MemoryExchange()
    agent = exchange.attach("com.a", "x")
    fits = exchange.call("com.a/x", sensitive=True)
    agent.finish({"x": "y" * (INLINE_OUTPUT_BYTES - 8)})
    assert fits.outcome.status is Status.SUCCEEDED
    call = exchange.call("com.a/x", sensitive=True)
    agent.finish({"x": "y" * INLINE_OUTPUT_BYTES})
    assert call.code == "tool.output_too_large"
    assert exchange.ledger.reader._value("SELECT count(*) FROM blobs") == 0
    exchange.close()


def test_what_an_agent_says_of_a_failure_is_for_its_caller_only() -> None:
    exchange = MemoryExchange()
    agent = exchange.attach("com.a", "x")
    call = exchange.call("com.a/x", sensitive=True)
    agent.finish(None, Status.FAILED, Fault("tool.failed", WORD, False, {"why": WORD}))
    assert call.outcome.fault == Fault("tool.failed", WORD, False, {"why": WORD})
    assert WORD not in json.dumps(lines(exchange))
    exchange.close()


def test_a_copy_of_the_record_without_the_originals_sends_no_hash_to_anybody() -> None:
    exchange = MemoryExchange()
    exchange.attach("com.a", "x").leave()
    waits = exchange.call("com.a/x", {"who": WORD}, sensitive=True)
    assert waits.answer is not None
    assert waits.code == "tool.unavailable"
    agent = exchange.attach("com.a", "x", max_inflight=1)
    for _ in range(2):
        exchange.call("com.a/x", {"who": WORD}, sensitive=True)
    assert len(agent.delivered) == 1
    exchange.ledger._link._writer._execute("DELETE FROM held")  # type: ignore[attr-defined]
    exchange = exchange.restarted()
    agent = exchange.attach("com.a", "x")
    assert agent.delivered == []
    ends = [entry.fault for entry in exchange.recorded(CallSettled)]
    assert fault("call.expired", "its input was sensitive and is not part of this copy of the record") in ends
    exchange.close()


def test_a_rule_makes_calls_sensitive_for_everybody_behind_them() -> None:
    rules = (
        Rule("r1", "http:alice", "com.a/*", Decision.ALLOW, sensitive=True),
        Rule("r2", "*", "*", Decision.ALLOW),
    )
    exchange = MemoryExchange(Policy(rules, "v"))
    agent = exchange.attach("com.a", "x", deliver=lambda agent, effect: agent.finish(effect.input))
    for caller in (Principal("http:alice"), BOSS, Principal("http:alice")):
        exchange.call("com.a/x", {"who": WORD}, by=caller, announce=False)
    assert [effect.sensitive for effect in agent.delivered] == [True, False, True]
    assert [entry.sensitive for entry in exchange.recorded(CallSettled)] == [True, False, True]
    assert not CallRequested(1, "r", BOSS, "com.a/x", Raw(b"{}")).sensitive
    exchange.close()


def test_who_is_asked_about_a_sensitive_call_sees_its_input_and_the_record_does_not() -> None:
    exchange = MemoryExchange(Policy((Rule("r1", "*", "*", Decision.ASK, sensitive=True),), "v"))
    agent = exchange.attach("com.a", "x")
    call = exchange.call("com.a/x", {"who": WORD}, by=Principal("http:alice"))
    [question] = exchange.views.questions()
    assert question.input == Raw(b'{"who":"%b"}' % WORD.encode())
    exchange = exchange.restarted()
    [question] = exchange.views.questions()
    assert question.input == Raw(b'{"who":"%b"}' % WORD.encode())
    agent = exchange.attach("com.a", "x")
    exchange.answer(call.approval_id)
    assert json.loads(bytes(agent.delivered[0].input)) == {"who": WORD}
    agent.finish({"found": WORD})
    assert WORD not in json.dumps(lines(exchange))
    exchange.close()
