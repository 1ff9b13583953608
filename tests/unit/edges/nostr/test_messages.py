"""The words of OpenAgents: built, read, and refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.requirement import requirement
from trunkline.config import NostrKinds
from trunkline.edges.nostr import events, messages
from trunkline.edges.nostr.events import Draft, Event
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.messages import Announced, Announcement, BadMessage, Provenance, Status, TooLarge

KINDS = NostrKinds()
BUYER, PROVIDER = Signer(bytes(31) + b"\x01"), Signer(bytes(31) + b"\x02")
HASH = "sha256:" + "ab" * 32
INPUTS = Raw(b'{"texts":["a"],"model":"m"}')
SCHEMA = "oa.embedding.v1"
# The specification's own example.
ANNOUNCEMENT: dict[str, Any] = {
    "supply_class": "SingleNode",
    "capabilities": {
        "supported_jobs": ["oa.code_chunk_analysis.v1", "oa.sandbox_run.v1"],
        "models": ["gpt-4", "codex-3-sonnet"],
        "hardware": {"memory_gb": 64, "gpu_type": "M4 Max", "vram_gb": 128},
    },
    "pricing": {"input_tokens_per_1k_msats": 10, "output_tokens_per_1k_msats": 30, "sandbox_per_minute_msats": 100},
    "capacity": {"max_concurrent_jobs": 4, "max_context_tokens": 128000},
    "stability": {"success_rate": 0.95, "avg_latency_ms": 250, "jobs_completed": 1523},
}


def requested(**options: Any) -> Event:
    draft = messages.request_draft(KINDS, SCHEMA, INPUTS, HASH, created_at=5, nonce="n", **options)
    return events.signed(draft, BUYER)


def by_hand(content: str, *tags: tuple[str, ...], kind: int = 5050) -> Event:
    return events.signed(Draft(kind, content, tags, 5), BUYER)


def envelope(**changes: Any) -> str:
    return json.dumps({"job_type": SCHEMA, "schema_version": 1, "job_hash": HASH, "payload": {"a": 1}, **changes})


# --- requests ---------------------------------------------------------------------------------------------------------


@requirement("OA-001")
def test_a_request_has_its_kind_and_its_schema_id_and_is_read_as_it_was_built() -> None:
    event = requested(provider=PROVIDER.public, bid_msats=5000, relays=("wss://a.example", "wss://b.example"))
    assert event.kind == 5050
    assert event.tag("param") == ("param", "schema_id", SCHEMA)
    assert event.tag("output") == ("output", "application/json")
    assert json.loads(event.value("i")) == json.loads(event.content)["payload"] == json.loads(bytes(INPUTS))
    request = messages.read_request(event)
    assert (request.schema_id, bytes(request.inputs), request.job_hash) == (SCHEMA, bytes(INPUTS), HASH)
    assert (request.buyer, request.bid_msats, request.providers) == (BUYER.public, 5000, (PROVIDER.public,))
    assert request.relays == ("wss://a.example", "wss://b.example")
    assert not request.is_private


@requirement("OA-006", "OA-007")
def test_another_kind_of_requests_changes_that_of_results_and_no_schema_id() -> None:
    kinds = NostrKinds(request=5999)
    request = events.signed(messages.request_draft(kinds, SCHEMA, INPUTS, HASH, created_at=5, nonce="n"), BUYER)
    result = messages.result_draft(kinds, request, Raw(b"{}"), Provenance("m", PROVIDER.npub), HASH, created_at=6)
    assert (request.kind, result.kind) == (5999, 6999)
    assert messages.read_request(request).schema_id == SCHEMA


def test_the_envelope_wins_over_the_tags() -> None:
    event = by_hand(envelope(), ("param", "schema_id", "oa.other.v1"), ("i", '{"b":2}', "text"))
    request = messages.read_request(event)
    assert (request.schema_id, json.loads(bytes(request.inputs))) == (SCHEMA, {"a": 1})


def test_a_request_of_tags_alone_is_read_without_a_hash() -> None:
    event = by_hand("", ("i", "x", "url"), ("i", '{"b":2}', "text"), ("param", "schema_id", "oa.my.own_thing.v2"))
    request = messages.read_request(event)
    assert (request.schema_id, json.loads(bytes(request.inputs)), request.job_hash) == (
        "oa.my.own_thing.v2",
        {"b": 2},
        "",
    )


def test_two_equal_requests_of_one_second_are_two_by_their_nonce() -> None:
    one, two = (messages.request_draft(KINDS, SCHEMA, INPUTS, HASH, created_at=5, nonce=nonce) for nonce in ("a", "b"))
    assert events.signed(one, BUYER).id != events.signed(two, BUYER).id


@pytest.mark.parametrize(
    "content",
    [
        "hello",
        "[]",
        "{}",
        envelope(job_type="embedding"),
        envelope(job_type="oa.Embedding.v1"),
        envelope(job_type="oa.a.b.c.v1"),
        envelope(job_type="oa.embedding.v01"),
        envelope(job_type="oa.embedding.v1\n"),
        envelope(job_type=f"oa.{'a' * 128}.v1"),
        envelope(schema_version=2),
        envelope(job_hash="ab" * 32),
        envelope(job_hash=HASH.upper()),
        envelope(job_hash=None),
        envelope(payload=[1]),
        envelope(payload="x"),
        envelope()[:-1] + ',"payload":{}}',
    ],
)
def test_a_content_that_is_no_envelope_is_refused(content: str) -> None:
    with pytest.raises(BadMessage):
        messages.read_request(by_hand(content))


@pytest.mark.parametrize(
    "tags",
    [
        (),
        (("param", "schema_id"),),
        (("param", "schema_id", SCHEMA), ("i", "no json", "text")),
        (("param", "schema_id", SCHEMA), ("i", "[1]")),
    ],
)
def test_tags_that_name_no_job_are_refused(tags: tuple[tuple[str, ...], ...]) -> None:
    with pytest.raises(BadMessage):
        messages.read_request(by_hand("", *tags))


def test_a_private_request_is_for_its_provider_only_and_shows_nothing() -> None:
    event = requested(provider=PROVIDER.public, encrypt=BUYER.encrypt)
    assert "texts" not in bytes(events.encoded(event)).decode()
    assert SCHEMA not in bytes(events.encoded(event)).decode()
    request = messages.read_request(event, PROVIDER.decrypt)
    assert (request.schema_id, bytes(request.inputs), request.is_private) == (SCHEMA, bytes(INPUTS), True)
    for decrypt in (None, Signer(bytes(31) + b"\x03").decrypt):
        with pytest.raises(BadMessage):
            messages.read_request(event, decrypt)


def test_nip_90s_private_tags_are_read_too() -> None:
    tags = [["i", '{"b":2}', "text"], ["param", "schema_id", SCHEMA]]
    event = by_hand(BUYER.encrypt(json.dumps(tags), PROVIDER.public), ("p", PROVIDER.public), ("encrypted",))
    request = messages.read_request(event, PROVIDER.decrypt)
    assert (request.schema_id, json.loads(bytes(request.inputs)), request.is_private) == (SCHEMA, {"b": 2}, True)


@pytest.mark.parametrize(
    ("text", "msats"), [("5", 5), ("", None), ("-1", None), ("1e3", None), ("９", None), ("9" * 30, None)]
)
def test_a_bid_is_a_whole_number_or_none(text: str, msats: int | None) -> None:
    assert messages.read_request(by_hand(envelope(), ("bid", text))).bid_msats == msats


# --- results and feedback ---------------------------------------------------------------------------------------------


@requirement("OA-002")
def test_a_result_has_its_kind_and_provenance_and_is_read_as_it_was_built() -> None:
    request = requested()
    provenance = Provenance("m", PROVIDER.npub, Raw(b'{"input":1}'))
    draft = messages.result_draft(
        KINDS, request, Raw(b'{"x":[1.0]}'), provenance, HASH, created_at=7, amount_msats=3, invoice="lnbcrt1"
    )
    event = events.read(events.encoded(events.signed(draft, PROVIDER)))
    assert event.kind == 6050
    assert events.read(event.value("request").encode()) == request
    assert event.tag("i") == request.tag("i")
    result = messages.read_result(event)
    assert (result.request_id, result.buyer, result.provider) == (request.id, BUYER.public, PROVIDER.public)
    assert bytes(result.outputs) == b'{"x":[1.0]}'
    assert (result.provenance.model, result.provenance.provider_id) == ("m", PROVIDER.npub)
    assert (result.output_hash, result.amount_msats, result.invoice) == (HASH, 3, "lnbcrt1")


@pytest.mark.parametrize(
    "changes",
    [
        {"provenance": {"model": "m"}},
        {"provenance": {"provider_id": PROVIDER.npub}},
        {"provenance": {"model": "", "provider_id": PROVIDER.npub}},
        {"provenance": {"model": "m", "provider_id": PROVIDER.public}},
        {"output_hash": "x"},
        {"outputs": [1]},
    ],
)
def test_a_result_without_provenance_hash_or_outputs_is_refused(changes: dict[str, Any]) -> None:
    good = {"outputs": {}, "provenance": {"model": "m", "provider_id": PROVIDER.npub}, "output_hash": HASH}
    tags = (("e", "ab" * 32), ("p", BUYER.public))
    messages.read_result(by_hand(json.dumps(good), *tags, kind=6050))
    with pytest.raises(BadMessage):
        messages.read_result(by_hand(json.dumps({**good, **changes}), *tags, kind=6050))
    with pytest.raises(BadMessage):
        messages.read_result(by_hand(json.dumps(good), kind=6050))


def test_a_result_that_is_too_large_leaves_out_what_it_repeats_and_then_is_none() -> None:
    request = requested()
    whole = messages.result_draft(KINDS, request, Raw(b"{}"), Provenance("m", PROVIDER.npub), HASH, created_at=1)
    size = len(msgspec.json.encode(whole)) + messages.SIGNED_BYTES

    def made(most: int) -> set[str]:
        draft = messages.result_draft(
            KINDS, request, Raw(b"{}"), Provenance("m", PROVIDER.npub), HASH, created_at=1, max_bytes=most
        )
        assert len(events.encoded(events.signed(draft, PROVIDER))) <= most
        return {tag[0] for tag in draft.tags}

    assert made(size) == {"request", "i", "e", "p"}
    assert made(size - 1) == {"request", "e", "p"}
    assert made(size - 500) == {"e", "p"}
    with pytest.raises(TooLarge):
        made(600)


@requirement("OA-003", "OA-004", "OA-005")
@pytest.mark.parametrize("status", list(Status))
def test_feedback_carries_invoices_steps_and_the_end(status: Status) -> None:
    draft = messages.feedback_draft(
        KINDS, requested(), status, "how it is", created_at=7, content="piece", amount_msats=10, invoice="lnbcrt1"
    )
    event = events.signed(draft, PROVIDER)
    assert event.kind == 7000
    feedback = messages.read_feedback(event)
    assert (feedback.status, feedback.text, feedback.content) == (status, "how it is", "piece")
    assert (feedback.amount_msats, feedback.invoice, feedback.request_id) == (10, "lnbcrt1", requested().id)


@pytest.mark.parametrize("tags", [(), (("status",),), (("status", "done"),), (("status", "success"),)])
def test_feedback_without_a_status_or_a_request_is_refused(tags: tuple[tuple[str, ...], ...]) -> None:
    with pytest.raises(BadMessage):
        messages.read_feedback(by_hand("", *tags, kind=7000))


def test_of_a_private_job_only_the_status_stands_in_the_clear() -> None:
    request = requested(provider=PROVIDER.public, encrypt=BUYER.encrypt)
    draft = messages.feedback_draft(
        KINDS, request, Status.ERROR, "secret words", created_at=7, encrypt=PROVIDER.encrypt
    )
    event = events.signed(draft, PROVIDER)
    assert "secret" not in events.encoded(event).decode()
    feedback = messages.read_feedback(event, BUYER.decrypt)
    assert (feedback.status, feedback.content, feedback.is_private) == (Status.ERROR, "secret words", True)
    result = events.signed(
        messages.result_draft(
            KINDS, request, Raw(b'{"secret":1}'), Provenance("m", PROVIDER.npub), HASH,
            created_at=7, encrypt=PROVIDER.encrypt,
        ),
        PROVIDER,
    )  # fmt: skip
    assert "secret" not in events.encoded(result).decode()
    assert bytes(messages.read_result(result, BUYER.decrypt).outputs) == b'{"secret":1}'
    with pytest.raises(BadMessage):
        messages.read_result(result)


# --- announcements ----------------------------------------------------------------------------------------------------


def announced(content: object) -> Announced:
    text = json.dumps(content)
    return messages.read_announcement(by_hand(text, ("d", "x"), ("k", "5050"), ("k", "no"), kind=31_990))


@requirement("OA-014", "OA-107", "OA-115")
def test_the_specifications_announcement_is_read_and_built_again_as_it_is() -> None:
    found = announced(ANNOUNCEMENT)
    assert json.loads(msgspec.json.encode(found.announcement)) == ANNOUNCEMENT
    draft = messages.announcement_draft(KINDS, "x", found.announcement, created_at=1)
    assert draft.kind == 31_990
    assert draft.tags == (("d", "x"), ("k", "5050"))
    assert json.loads(draft.content) == ANNOUNCEMENT
    assert (found.name, found.kinds, found.provider) == ("x", (5050,), BUYER.public)


def with_changed(path: str, value: object) -> dict[str, Any]:
    copy = json.loads(json.dumps(ANNOUNCEMENT))
    *way, last = path.split(".")
    place = copy
    for name in way:
        place = place[name]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return copy


@requirement("OA-108", "OA-109", "OA-110", "OA-111", "OA-112", "OA-113", "OA-114")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("supply_class", "singlenode"),
        ("supply_class", None),
        ("capabilities.supported_jobs", ["embedding"]),
        ("capabilities.supported_jobs", "oa.embedding.v1"),
        ("capabilities.models", [1]),
        ("capabilities.hardware.memory_gb", "64"),
        ("capabilities.hardware.gpu_type", 1),
        ("capabilities.hardware.vram_gb", None),
        ("pricing.input_tokens_per_1k_msats", -1),
        ("pricing.output_tokens_per_1k_msats", "30"),
        ("pricing.sandbox_per_minute_msats", None),
        ("capacity.max_concurrent_jobs", 1.5),
        ("capacity.max_context_tokens", None),
        ("stability.success_rate", 1.2),
        ("stability.success_rate", -0.1),
        ("stability.avg_latency_ms", None),
        ("stability.jobs_completed", "1523"),
    ],
)
def test_an_announcement_with_a_part_of_another_form_is_refused(path: str, value: object) -> None:
    with pytest.raises(BadMessage):
        announced(with_changed(path, value))


@pytest.mark.parametrize("path", ["capabilities.hardware", "stability"])
def test_hardware_and_stability_may_be_absent(path: str) -> None:
    found = announced(with_changed(path, None)).announcement
    assert isinstance(found, Announcement)
    assert json.loads(msgspec.json.encode(found)) == with_changed(path, None)


def test_of_two_announcements_the_newer_holds_and_of_equals_the_lower_id() -> None:
    one = announced(ANNOUNCEMENT)
    newer = msgspec.structs.replace(one, created_at=one.created_at + 1, id="ff" * 32)
    lower = msgspec.structs.replace(one, id="00" * 32)
    assert newer.replaces(one)
    assert lower.replaces(one)
    assert not one.replaces(lower)
    assert not one.replaces(newer)
    assert not one.replaces(one)


def test_a_deletion_names_the_events_that_it_takes_back() -> None:
    draft = messages.deletion_draft(["ab" * 32, "cd" * 32], 5050, "no more", created_at=1)
    event = events.signed(draft, BUYER)
    assert event.kind == 5
    assert messages.deleted_by(event) == ("ab" * 32, "cd" * 32)
    assert messages.deleted_by(by_hand("", ("e", "x"), ("e",), kind=5)) == ()


# --- anything ---------------------------------------------------------------------------------------------------------

TAG = st.lists(
    st.sampled_from(["i", "p", "e", "param", "schema_id", SCHEMA, "encrypted", "status", "success", "amount", "{}"])
    | st.text(max_size=5),
    max_size=4,
).map(tuple)


@given(st.text(max_size=30) | st.just(envelope()), st.lists(TAG, max_size=6), st.booleans())
def test_whatever_an_event_holds_a_reader_reads_or_refuses_it(
    content: str, tags: list[tuple[str, ...]], key: bool
) -> None:
    event = by_hand(content, *tags)
    decrypt = PROVIDER.decrypt if key else None
    for read in (messages.read_request, messages.read_result, messages.read_feedback):
        with contextlib.suppress(BadMessage):
            read(event, decrypt)
    with pytest.raises(BadMessage):
        messages.read_announcement(event)
    messages.deleted_by(event)
