"""Messages of OSSA as they are written, and their names in the specification."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from tests.unit.edges.ossa.examples import ERROR, MISSING, REQUEST, changed
from trunkline.edges.ossa import messages, reading
from trunkline.edges.ossa.messages import Identity, Refused

SENDER = Identity("agent-001", "worker")


@pytest.mark.parametrize("example", [REQUEST, ERROR], ids=["request", "error"])
def test_the_examples_of_the_specification_read_and_are_written_as_they_were(example: dict[str, Any]) -> None:
    message = reading.read(json.dumps(example).encode())
    assert json.loads(messages.encode(message)) == example


def test_the_schema_is_that_of_the_specification() -> None:
    assert messages.SCHEMA["$id"] == "https://ossa.org/schemas/message.json"
    assert messages.SCHEMA["title"] == "OSSA Message"
    assert messages.SCHEMA["properties"]["header"]["properties"]["type"]["enum"] == list(messages.TYPES)
    assert len(messages.TYPES) == 12


def test_a_refusal_swaps_sender_and_recipient_keeps_the_thread_and_echoes_nothing() -> None:
    with pytest.raises(Refused) as refused:
        reading.read(changed("header.priority", "canary"))
    reply = messages.error_reply(
        refused.value, Identity("trunkline", "orchestrator"), REQUEST["header"]["messageId"], 0
    )  # type: ignore[arg-type]
    written = messages.encode(reply)
    assert b"canary" not in written
    read = reading.read(written)
    assert (read.recipients, read.correlation_id) == ((SENDER,), "correlation-123")
    assert (read.action, bytes(read.payload)) == ("error", b"{}")
    assert read.error is not None
    assert read.error.code == messages.BAD_REQUEST


def test_a_reply_to_a_message_without_a_correlation_has_its_id_as_one() -> None:
    message = reading.read(changed("header.correlationId", MISSING))
    reply = messages.reply(message, "response", Identity("b", "worker"), message.message_id, 0, Raw(b"5"))
    assert (reply.correlation_id, reply.recipients) == (message.message_id, (SENDER,))
    assert messages.encode(reading.read(messages.encode(reply))) == messages.encode(reply)
