"""What every message of the endpoint has in common, looked at as it comes: shape, signature, form of errors, ids.

The cases that judge it run last, so one run looks at hundreds of messages. Does not decide what passes.

Invariant: each fault is kept once, with how often it was seen.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from trunkline.check.ossa import wire
from trunkline.check.ossa.endpoint import Answer, described
from trunkline.check.ossa.wire import EXCHANGE, Keys, Message


class Observer:
    """Faults of what the endpoint sent, by what they are about."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.shape: Counter[str] = Counter()
        self.signature: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.addressing: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.messages = 0
        self.error_messages = 0

    def received(self, message: Any) -> None:
        """A message that came, by whichever transport."""
        self.messages += 1
        fault = wire.shape_fault(message)
        header = message.get("header") if isinstance(message, dict) else None
        kind = header.get("type") if isinstance(header, dict) else None
        self.error_messages += kind == "error"
        if fault:
            self.shape[fault] += 1
            return
        if fault := self._keys.fault_of(message):
            self.signature[f"{kind}: {fault}"] += 1
        if kind == "error" and (fault := wire.error_fault(message)):
            self.errors[fault] += 1

    def answered(self, answer: Answer, question: Message | None) -> None:
        """An answer on an HTTP request, and the message that was sent if it was one."""
        if not answer.body.strip():
            if answer.status not in {200, 202, 204}:
                self.statuses[f"HTTP {answer.status} with an empty body"] += 1
            return
        if answer.value is None:
            self.shape[f"HTTP {answer.status} whose body is not JSON"] += 1
            return
        for message in answer.messages:
            self.received(message)
            if not wire.shape_fault(message):
                self._compare(answer, message, question)

    def _compare(self, answer: Answer, message: Message, question: Message | None) -> None:
        header, body = message["header"], message["body"]
        kind = header["type"]
        if kind == "error" and isinstance(body.get("error"), dict) and not isinstance(answer.value, list):
            code = body["error"].get("code")
            if code != answer.status:
                self.statuses[f"HTTP {answer.status} with error {code}"] += 1
        if kind == "response" and answer.status != 200:
            self.statuses[f"HTTP {answer.status} with a response"] += 1
        if kind == "acknowledgment" and answer.status != 202:
            self.statuses[f"HTTP {answer.status} with an acknowledgment"] += 1
        if question is not None and kind in {"response", "error"}:
            self._address(message, question)

    def _address(self, message: Message, question: Message) -> None:
        """Sender and recipient change places and the correlation stays, where the question had them."""
        header, asked = message["header"], question.get("header")
        if wire.shape_fault(question) or not isinstance(asked, dict):
            return
        # A message that was not understood, or not proven to be of its sender, may be answered with less.
        error = message["body"].get("error")
        is_refused = isinstance(error, dict) and error.get("code") in {400, 401}
        to = header["recipient"].get("agentId") if isinstance(header["recipient"], dict) else None
        if to != asked["sender"]["agentId"] and not (is_refused and to == "unknown"):
            self.addressing[f"{described(message)} is not addressed to who asked"] += 1
        known = asked["recipient"] if isinstance(asked["recipient"], list) else [asked["recipient"]]
        by = header["sender"]["agentId"]
        if by not in {one["agentId"] for one in known} and not (error and by == EXCHANGE["agentId"]):
            self.addressing[f"{described(message)} comes from {by!r}, who was not asked"] += 1
        thread = asked.get("correlationId", asked["messageId"])
        if header.get("correlationId", thread if is_refused else None) != thread:
            self.addressing[f"{described(message)} has another correlationId"] += 1


def counted(faults: Counter[str]) -> str:
    """The most frequent faults, in one line."""
    return "; ".join(f"{text} ({times}×)" for text, times in faults.most_common(3))
