"""Each defect that the suite must find, in a server that is right but for that: the case that names it fails, and why.

Together the rows fail every case of the suite once: a case that no server can fail would prove nothing.
"""

from __future__ import annotations

import pytest

from tests.unit.check.ossa.honest_server import DEFECTS, HonestServer
from trunkline.check.ossa.bench import BOOK
from trunkline.check.ossa.checking import check_endpoint
from trunkline.check.ossa.endpoint import Endpoint
from trunkline.check.ossa.wire import read_identity
from trunkline.check.report import Report

pytestmark = pytest.mark.slow

# The server's own timeout, and how long the suite waits for what does not come.
TIMEOUT_S = 2.0
PATIENCE_S = 1.5
# As many times that where all is to be found good: a busy machine may take its time.
LENIENT = 3.0

# A defect, what is seen of it in the first of these cases, and the cases that fail: these and no other of those run.
BROKEN = [
    # messages
    ("fails_at_missing_parts", "error 500", "messages.parts"),
    ("needs_no_recipient", "a header without recipient", "messages.header-fields"),
    ("takes_any_uuid", "version 1", "messages.id-is-uuid-v4"),
    ("takes_any_type", "'query'", "messages.unknown-type"),
    ("takes_any_version_form", "version '1.0'", "messages.version-form"),
    ("takes_any_version", "version '2.0.0'", "messages.other-major-version errors.supported-versions"),
    ("ignores_formats", "'yesterday'", "messages.timestamp-form"),
    ("ignores_agent_type", "without agentType", "messages.sender-identity messages.recipient-identity"),
    ("takes_any_priority", "priority -1", "messages.priority-range messages.every-message-is-valid"),
    ("ignores_optional_fields", "correlationId 7", "messages.optional-fields"),
    ("ignores_error_info", "without code", "messages.error-info messages.body-fields"),
    ("wants_objects", "[1, 'two']", "messages.any-payload"),
    ("wants_exact_version", "1.7.3", "messages.minor-version"),
    ("knows_no_zero", "priority 0", "messages.priorities"),
    ("forgets_instance", "is addressed to", "messages.identity-fields"),
    ("drops_unknown_fields", "arrived as None", "messages.unknown-fields"),
    ("signs_known_parts", "error 401", "messages.unknown-fields-signed"),
    ("answers_heartbeats", "a heartbeat was answered by HTTP 200", "messages.heartbeat"),
    ("acknowledges_acks", "an ack was answered", "messages.acknowledgments-end-it"),
    ("drops_broken_json", "HTTP 202", "messages.no-json"),
    ("takes_duplicate_keys", "a key twice", "messages.duplicate-keys"),
    ("takes_nan", "NaN", "messages.no-numbers-beyond-json"),
    ("takes_lone_surrogates", "a lone surrogate", "messages.lone-surrogates"),
    ("takes_any_depth", "70 levels", "messages.depth"),
    ("takes_little_depth", "40 levels", "messages.depth-taken"),
    ("takes_large_integers", "2^53 + 1", "messages.large-integers"),
    ("echoes_input", "came back", "messages.nothing-is-echoed"),
    ("guesses_sender", "'trunkline'", "messages.unknown-sender-is-unknown"),
    ("makes_ids_v1", "messageId is not a UUID of version 4", "messages.every-message-is-valid"),
    ("loses_thread", "the response has correlationId", "messages.example-request identity.correlation"),
    # identity
    ("shows_private_key", "a private key", "identity.keys-are-shown"),
    ("signs_nothing", "it has no signature", "identity.every-message-is-signed"),
    ("signs_no_errors", "error: it has no signature", "identity.every-message-is-signed"),
    ("does_not_swap", "not addressed to who asked", "identity.replies-are-addressed"),
    ("forgets_missing_thread", "None, not its messageId", "identity.correlation patterns.request-by-socket"),
    ("errors_without_thread", "correlationId None", "identity.error-correlation identity.replies-are-addressed"),
    ("hides_caller", "'trunkline' asks", "identity.provider-sees-caller"),
    ("long_actions", "the action 'agent-1/echo'", "identity.provider-sees-caller"),
    ("keeps_oldest_socket", "the older of two", "identity.newest-socket"),
    # security
    ("takes_unsigned", "HTTP 200", "security.unsigned"),
    ("takes_empty_signature", "HTTP 200", "security.empty-signature"),
    ("takes_alg_none", "HTTP 200", "security.alg-none"),
    ("takes_hmac", "HTTP 200", "security.alg-hmac"),
    ("ignores_signatures", "HTTP 200", "security.tampered-body security.tampered-header security.unknown-key"),
    ("ignores_signatures", "HTTP 200", "security.other-agents-kid security.forged-by-socket"),
    ("guesses_key", "HTTP 200", "security.unknown-kid"),
    ("ignores_key_owner", "HTTP 200", "security.other-agents-name"),
    ("takes_attached", "HTTP 200", "security.attached-jws"),
    ("fails_at_odd_signature", "error 500", "security.signature-type"),
    ("signs_what_was_written", "error 401", "security.canonical-form"),
    ("knows_one_name", "alg Ed25519", "security.both-names-of-the-algorithm"),
    ("ignores_age", "25 hours ago", "security.old-messages"),
    ("forgives_nothing", "an hour ago", "security.clock-skew"),
    ("takes_any_answer", "never asked", "security.foreign-answer"),
    ("takes_tls_1_2", "TLS 1.2 succeeded", "security.tls-1.3"),
    ("serves_plain_too", "without TLS", "security.no-plain-http"),
    ("registers_for_others", "registered for another", "security.sender-decides-nothing"),
    # patterns
    ("denies_calls", "error 403", "patterns.request"),
    ("rounds_numbers", "[1, 2]", "patterns.request"),
    ("has_no_command_result", "no command_result", "patterns.command"),
    ("acknowledges_no_commands", "HTTP 202, an empty body", "patterns.command-by-post patterns.command"),
    ("serves_first_recipient", "not a list of two", "patterns.several-recipients"),
    ("unwraps_lists_of_one", "the answer is HTTP 200, response", "patterns.one-in-a-list"),
    ("overlooks_error_in_response", "the caller was told HTTP 200", "patterns.failure-in-response"),
    ("tells_one_subscriber", "was not told", "patterns.publish"),
    ("acknowledges_no_events", "with QoS 1", "patterns.event-without-reply"),
    ("compares_prefixes", "was told of an event on", "patterns.topics-are-apart patterns.wildcards"),
    ("star_is_everything", "two segments", "patterns.wildcards"),
    ("ignores_unsubscribe", "after the subscription had ended", "patterns.unsubscribe"),
    ("takes_any_topic", "no topic", "patterns.topic-form"),
    # errors
    ("says_codes_as_text", "not a number", "errors.form messages.status-fits"),
    ("keeps_action_in_errors", "body.action is 'request'", "errors.form"),
    ("says_503_for_unknown", "error 503", "errors.unknown-agent"),
    ("says_500_for_unknown", "error 500", "errors.unknown-action"),
    ("says_no_versions", "'supported': []", "errors.supported-versions"),
    ("retries_500", "408", "errors.provider-failed"),
    ("says_404_for_away", "error 404", "errors.away"),
    ("never_times_out", "nothing came within", "errors.timeout"),
    ("times_out_early", "408 came after", "errors.timeout"),
    ("denies_with_500", "error 500", "errors.denied"),
    ("answers_errors", "an error was answered", "errors.never-answered-by-errors"),
    ("never_retries", "asked 1 times", "errors.retries"),
    ("retries_at_once", "0.1 s and 0.1 s", "errors.retries"),
    ("retries_with_new_id", "different messageIds", "errors.retries"),
    ("bears_everything", "still open", "errors.bad-json-closes-socket"),
    ("closes_at_once", "could not be used", "errors.one-bad-message-is-forgiven"),
    ("has_an_old_clock", "minutes away", "errors.details-say-when"),
    # guarantees
    ("never_dedupes", "another message", "guarantees.repeat guarantees.repeat-at-once"),
    ("makes_new_replies", "another message", "guarantees.repeat"),
    ("dedupes_late", "5 different requests", "guarantees.repeat-at-once"),
    ("dedupes_by_transport", "by WebSocket", "guarantees.repeat-on-other-transport"),
    ("ignores_other_content", "HTTP 200", "guarantees.same-id-other-content"),
    ("dedupes_across_senders", "another agent", "guarantees.ids-belong-to-senders"),
    ("publishes_repeats", "2 different events", "guarantees.repeated-event"),
    ("redelivers_everything", "delivered 2 times", "guarantees.at-most-once"),
    ("never_redelivers", "not delivered again", "guarantees.at-least-once guarantees.exactly-once"),
    ("redelivers_with_new_id", "another messageId", "guarantees.exactly-once"),
    ("ignores_acks", "after it had been acknowledged", "guarantees.at-least-once"),
    ("takes_higher_level", "delivered with QoS 2", "guarantees.lower-level-holds"),
    ("forgets_durable", "was not told", "guarantees.durable-subscription"),
    ("keeps_no_order", "before the first", "guarantees.order-in-correlation"),
    ("orders_everything", "waited for the slow one", "guarantees.no-global-order"),
    ("ignores_expiry", "HTTP 200", "guarantees.expired-request guarantees.expired-event"),
    ("compares_times_as_texts", "error 408", "guarantees.not-yet-expired"),
    # limits
    ("has_no_limit", "request 101", "limits.rate"),
    ("limits_too_early", "50 of the first 100", "limits.rate"),
    ("says_no_wait", "the details are None", "limits.retry-after"),
    ("one_limit_for_all", "a request of another agent", "limits.for-each-agent"),
    ("trusts_claimed_type", "HTTP 200", "limits.type-is-registered"),
    ("counts_everything", "a heartbeat over the limit", "limits.what-is-counted"),
    ("takes_too_little", "1048576 bytes", "limits.largest-message"),
    ("takes_any_size", "1048577 bytes", "limits.too-large"),
    # streams
    ("loses_a_piece", "[0, 2, 3]", "streams.whole streams.by-socket"),
    ("ignores_gaps", "piece 2 after piece 0", "streams.gap"),
    ("drops_silently", "an empty body", "streams.gap"),
    ("names_nothing", "payload {}", "streams.gap"),
    ("streams_on_after_end", "after the end", "streams.after-the-end"),
    ("ignores_stream_fields", "without streamId", "streams.fields"),
    ("shows_no_progress", "had arrived: []", "streams.progress"),
    # encryption
    ("shows_no_sealing_key", "no X25519 key", "encryption.key-is-shown"),
    ("forwards_plain", "plain text", "encryption.request"),
    ("replies_plain", "plain text", "encryption.reply encryption.by-socket"),
    ("seals_unbound", "does not name its message", "encryption.reply encryption.request"),
    ("takes_sensitive_plain", "HTTP 200", "encryption.sensitive-must-be"),
    (
        "takes_broken_ciphertext",
        "HTTP 200",
        "encryption.flipped-bit encryption.wrong-key encryption.malformed encryption.moved-ciphertext",
    ),
    ("takes_moved_ciphertext", "HTTP 200", "encryption.moved-ciphertext"),
    ("takes_any_cipher", "HTTP 200", "encryption.other-cipher"),
]


async def checked(
    server: HonestServer, only: tuple[str, ...] = (), identities: int = 6, lenient: float = 1.0
) -> Report:
    known = [read_identity(server.identity(f"agent-{number}")) for number in range(identities)]
    return await check_endpoint(
        Endpoint(server.url),
        known,
        only=only,
        request_timeout_s=TIMEOUT_S * lenient,
        patience_s=PATIENCE_S * lenient,
        denied=("vault", "open"),
    )


@pytest.mark.parametrize(("defect", "seen", "cases"), BROKEN, ids=[row[0] for row in BROKEN])
async def test_a_defect_fails_the_cases_that_are_about_it(defect: str, seen: str, cases: str) -> None:
    wanted = tuple(cases.split())
    async with HonestServer(defect, timeout_s=TIMEOUT_S) as server:
        report = await checked(server, wanted)
    found = {one.id: one.seen for one in report.failures}
    assert found.keys() == set(wanted)
    assert seen in found[wanted[0]]
    assert all(one.mend for one in report.failures)


async def test_a_policy_that_denies_is_told_with_the_rule_that_would_allow() -> None:
    async with HonestServer("denies_calls", timeout_s=TIMEOUT_S) as server:
        report = await checked(server, ("patterns.request",))
    assert "[[policy.rule]]" in report.failures[0].mend


async def test_an_honest_server_passes_every_case() -> None:
    async with HonestServer(timeout_s=TIMEOUT_S * LENIENT) as server:
        report = await checked(server, lenient=LENIENT)
        sent = sorted(len(agent.requests) for agent in server.agents.values())
    assert [(one.id, one.status, one.seen) for one in report.results if one.status != "passed"] == []
    assert len(report.results) == len(BOOK.cases)
    # The one that uses up its limit, and the others, which stay far below theirs.
    assert sent[-1] == 100
    assert sent[-2] < 60


def test_every_case_can_fail_and_every_defect_is_found() -> None:
    assert {case for _, _, cases in BROKEN for case in cases.split()} == {case.id for case in BOOK.cases}
    assert {defect for defect, _, _ in BROKEN} == DEFECTS


async def test_with_two_identities_what_needs_more_is_skipped_and_says_so() -> None:
    async with HonestServer(timeout_s=TIMEOUT_S) as server:
        report = await checked(server, ("patterns.request", "patterns.publish", "limits.rate"), identities=2)
    assert {one.id: one.status for one in report.results} == {
        "patterns.request": "passed",
        "patterns.publish": "skipped",
        "limits.rate": "skipped",
    }
    assert all("identities" in one.seen for one in report.skipped)
