"""OSSA messages as tests write them, and identities for who says them: the one place for all tests that speak OSSA.

``message`` is plain JSON, so that a test can write wrong ones too; ``signed`` signs any JSON object, with whatever
stands in the signature's header; ``new_identity`` is what ``trunkline token new ossa --json`` would print, on record.
``tests/ossa.py`` signs by itself, with none of the edge's code, since the requirements are tested against that.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from trunkline.edges.edge import KeyTerms
from trunkline.edges.ossa import signing
from trunkline.edges.ossa.keys import new_pair
from trunkline.events import TokenIssued
from trunkline.testing.memory import BOSS, MemoryExchange

JSON = dict[str, Any]


def identity(agent_id: str, agent_type: str = "worker") -> JSON:
    """Somebody as he stands in a header."""
    return {"agentId": agent_id, "agentType": agent_type}


def message(
    sender: JSON,
    kind: str,
    to: str | list[str],
    action: str,
    payload: Any,
    /,
    *,
    message_id: str,
    timestamp: str,
    body: JSON | None = None,
    **header: Any,
) -> JSON:
    """A message without a signature. ``header`` and ``body`` are more fields, in the wire's spelling."""
    fields = {
        "messageId": message_id,
        "type": kind,
        "version": "1.0.0",
        "timestamp": timestamp,
        "sender": sender,
        "recipient": identity(to) if isinstance(to, str) else [identity(one) for one in to],
    }
    return {"header": {**fields, **header}, "body": {"action": action, "payload": payload, **(body or {})}}


def signed(unsigned: JSON, key: signing.Key, **header: Any) -> bytes:
    """Any JSON object with a signature. ``header`` replaces members of the signature's header; None removes one."""
    bare = {name: value for name, value in unsigned.items() if name != "signature"}
    form = signing.signed_form(json.dumps(bare).encode())
    given = {"alg": "EdDSA", "kid": key.kid, "typ": signing.TYPE, **header}
    first = signing.encoded(json.dumps({name: value for name, value in given.items() if value is not None}).encode())
    last = signing.encoded(key.private.sign(f"{first}.{signing.encoded(form)}".encode()).signature)
    return json.dumps({**bare, "signature": f"{first}..{last}"}).encode()


def new_identity(exchange: MemoryExchange, agent: str, kind: str = "worker", url: str = "", pin: str = "") -> JSON:
    """A new pair of keys for an agent, made by the operator and on record."""
    pair = new_pair(KeyTerms(agent, kind, url, pin))
    digest = hashlib.sha256(pair.kid.encode()).hexdigest()
    exchange.feed.feed([TokenIssued(0, "key", BOSS, "ossa", agent, digest, (), kind, pair.public)])
    return {"agent": agent, "type": kind, **pair.shown}
