"""The agent ``trunkline``: tools of the exchange itself that every protocol can call.

They publish, subscribe, and read large outputs piece by piece.

Its tools are called like any other, so policy, keys, questions and the record hold for them as for all calls. Owns the
way from a call to the hub's topics and back. Does not own topics (the hub), nor how a subscriber is told (his edge).

Invariant: a call that publishes with quality 1 or 2 succeeds only when its event is on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from trunkline.edges.exchange import Feed, Timer, Views
from trunkline.edges.resident import Resident
from trunkline.edges.topics import messages
from trunkline.effects import Cancel, Deliver, Reply, ToSession
from trunkline.events import CancelAcknowledged, Event, EventPublished, SubscriptionEnded, SubscriptionRequested
from trunkline.model import EVENT_TOOL, EXCHANGE, Fault, Now, Principal, ProcessIdentity, Status, ToolDefinition, fault

# What an answer's one field is called.
ANSWERED: Final = {messages.PUBLISH: "event", messages.SUBSCRIBE: "subscription", messages.UNSUBSCRIBE: ""}
# Agents of these edges are told of an event by a call of one of their tools.
TOLD_BY_CALL: Final = frozenset({"opensentience"})
# A large output is read from the disk once for all its pieces, and kept so long after the last that was asked for.
KEPT_S: Final = 5.0


class TopicsAgent(Resident):
    """The agent. Each call is one question to the hub, which answers at once or when what has to be on disk is."""

    only_records = True

    def __init__(
        self,
        feed: Feed,
        views: Views,
        process: ProcessIdentity,
        version: str,
        entropy: Callable[[int], bytes],
    ) -> None:
        super().__init__(feed, EXCHANGE, EXCHANGE, version, process, entropy)
        self._views = views
        # The tool of each call that waits for the hub's reply.
        self._open: dict[str, str] = {}
        # The large output that is being read: its hash, who reads it, and all of it.
        self._read: tuple[str, str, bytes] | None = None
        self._forgetting: Timer | None = None

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What it offers."""
        return messages.definitions()

    def deliver(self, effect: Deliver, now: Now) -> None:  # noqa: ARG002  (the hub looks at the clock)
        """Ask the hub for what a call wants."""
        if effect.tool_id == messages.READ_OUTPUT:
            self._read_output(effect)
            return
        asked = self._asked(effect)
        if isinstance(asked, Fault):
            self.finish(effect.call_id, Status.FAILED, asked)
        else:
            self._open[effect.call_id] = effect.tool_id
            self._feed.feed([asked])

    def cancel(self, effect: Cancel, now: Now) -> None:  # noqa: ARG002  (it is done in a moment)
        """What was asked of the hub has happened; only its answer may still wait for the disk."""
        self._feed.feed([CancelAcknowledged(self.number, effect.call_id, accepted=False)])

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange says something to this agent."""
        if not isinstance(effect, Reply):
            super().send(effect, now)
        elif (tool_id := self._open.pop(effect.ref, None)) is not None:
            self._answer(effect, tool_id)

    def arrive(self) -> None:
        """Come in. What an earlier conversation had open, the hub has settled."""
        self._open.clear()
        super().arrive()

    def _answer(self, reply: Reply, tool_id: str) -> None:
        if reply.fault is not None:
            self.finish(reply.ref, Status.FAILED, reply.fault)
            return
        name = ANSWERED[tool_id]
        output = Raw(msgspec.json.encode({name: reply.id} if name else {}))
        self.finish(reply.ref, Status.SUCCEEDED, output=output)

    def _asked(self, call: Deliver) -> Event | Fault:
        """What the hub is told for a call, or why it is not."""
        caller, ref = Principal(call.caller), call.call_id
        match call.tool_id:
            case messages.PUBLISH:
                event = messages.read(messages.Publish, call.input)
                if event is not None:
                    return EventPublished(
                        self.number,
                        ref,
                        call.caller,
                        event.topic,
                        event.payload,
                        event.qos,
                        call.correlation_id,
                        event.expires_ms,
                        call.context,
                        ref,
                        call.sensitive,
                    )
            case messages.SUBSCRIBE:
                wanted = messages.read(messages.Subscribe, call.input)
                if wanted is not None:
                    problem = self._cannot_be_told(call.caller)
                    return problem or SubscriptionRequested(
                        self.number, ref, caller, wanted.topic, wanted.qos, wanted.durable, ref
                    )
            case messages.UNSUBSCRIBE:
                ended = messages.read(messages.Unsubscribe, call.input)
                if ended is not None:
                    return SubscriptionEnded(self.number, ref, caller, ended.subscription)
        return fault("tool.invalid_input")

    # -- large outputs -------------------------------------------------------------------------------------------------

    def _read_output(self, call: Deliver) -> None:
        wanted = messages.read(messages.ReadOutput, call.input)
        if wanted is None:
            self.finish(call.call_id, Status.FAILED, fault("tool.invalid_input"))
            return
        data = self._large_output(wanted.ref.removeprefix("sha256:"), call.caller)
        if data is None:
            problem = fault("not_found", "no call of yours has a large output with this hash")
            self.finish(call.call_id, Status.FAILED, problem)
            return
        end = _end_of_piece(data, wanted.offset)
        is_last = end >= len(data)
        if is_last:
            self._forget_read()
        piece = data[wanted.offset : end].decode("utf-8", "replace")
        answer = {"text": piece, "next": None if is_last else end}
        self.finish(call.call_id, Status.SUCCEEDED, output=Raw(msgspec.json.encode(answer)))

    def _large_output(self, sha256: str, caller: str) -> bytes | None:
        if self._forgetting is not None:
            self._forgetting.cancel()
        if self._read is None or self._read[:2] != (sha256, caller):
            data = self._views.blob(sha256, Principal(caller))
            self._read = None if data is None else (sha256, caller, data)
        self._forgetting = self._feed.call_later(KEPT_S, self._forget_read)
        return None if self._read is None else self._read[2]

    def _forget_read(self) -> None:
        self._read = None
        if self._forgetting is not None:
            self._forgetting.cancel()
            self._forgetting = None

    def leave(self, reason: str) -> None:
        """Go."""
        self._forget_read()
        super().leave(reason)

    def _cannot_be_told(self, identity: str) -> Fault | None:
        edge, _, agent_id = identity.partition(":")
        if edge not in TOLD_BY_CALL or self._views.tool(f"{agent_id}/{EVENT_TOOL}") is not None:
            return None
        text = f"you are told of events by a call of your tool `{EVENT_TOOL}`: offer it, then subscribe"
        return fault("state.conflict", text)


def _end_of_piece(data: bytes, begin: int) -> int:
    """Where a piece ends: not inside a character."""
    end = min(begin + messages.PIECE_BYTES, len(data))
    while begin < end < len(data) and data[end] & 0xC0 == 0x80:
        end -= 1
    return end
