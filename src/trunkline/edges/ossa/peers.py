"""Everybody who speaks OSSA with us: who waits for which reply, and how everything we say leaves.

Start reading here. Bytes come from a transport (``serve``, ``push``); ``identity`` says whose message they are; then it
goes to its sender's ``OssaPeer``, which has an ``Asker`` for what the agent asks for and, while it can be reached, an
``Attachment`` with a ``Provider`` for what it is asked.

Owns the peers, tickets (who waits for which reply) and the way out: everything is signed here, with our key, and sealed
for its recipient where it has to be. Does not own sockets.

Invariant: nothing of a message changes anything before its signature was checked.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec
from msgspec import Raw, Struct

from trunkline.config import Ossa
from trunkline.edges.exchange import Feed, Views
from trunkline.edges.offers import LEAST_TOOL_BYTES, JudgingBudget
from trunkline.edges.ossa import messages, sealing, signing, translate
from trunkline.edges.ossa.asked import Command
from trunkline.edges.ossa.asking import COMMANDS
from trunkline.edges.ossa.attachment import Way
from trunkline.edges.ossa.earlier import EarlierCalls
from trunkline.edges.ossa.identity import Identities, Known
from trunkline.edges.ossa.keys import AgentKeys, OwnKeys
from trunkline.edges.ossa.messages import (
    ERROR,
    INSUFFICIENT,
    INTERNAL_ERROR,
    MAX_MESSAGE_BYTES,
    RATE_LIMITED,
    ErrorInfo,
    Message,
    Refused,
)
from trunkline.edges.ossa.openings import Openings
from trunkline.edges.ossa.peer import DISCONNECTED, OFFERS, STREAMS, Offers, OssaPeer
from trunkline.edges.ossa.refusals import Refusals
from trunkline.edges.ossa.replies import Saying
from trunkline.edges.ossa.translate import EDGE, US
from trunkline.events import Event, ProcessStepped
from trunkline.model import (
    EMPTY_OBJECT,
    Fault,
    Now,
    ToolDefinition,
    fault,
    stamp,
    tool_agent,
    uuid_4,
)

# Who has said nothing for so long, waits for nothing and is not connected is forgotten.
FORGET_S: Final = 600.0
# What an agent that was here before a restart hears of, and how soon it has mostly said again what it does.
NOT_REGISTERED: Final = "its agent is connected, and has not said again yet what it does"
REGISTERS_MS: Final = 1000
DEFECT: Final = "a defect of the exchange; it is on record"


class Ticket(Struct, eq=False):
    """Somebody who waits for replies: ``on_replies`` hears them, all together, once there are as many as expected."""

    to: Message
    expected: int
    on_replies: Callable[[list[tuple[Message, bytes]]], None]
    got: list[tuple[Message, bytes]] = []
    count: int = 0


class Ways(Protocol):
    """What the transports do for the agents: whoever makes ``OssaPeers`` gives it."""

    def reach(self, peer: OssaPeer, keys: AgentKeys) -> None:
        """Attach an agent by the URL of its key."""

    def send_away(self, way: Way) -> None:
        """End this way, if it is a connection: its agent has no right to it any more."""


class OssaPeers:
    """All agents. ``key`` makes ids that can be told again."""

    def __init__(
        self,
        feed: Feed,
        views: Views,
        config: Ossa,
        own: OwnKeys,
        key: bytes,
        entropy: Callable[[int], bytes],
        ways: Ways,
    ) -> None:
        self.feed = feed
        self.views = views
        self.config = config
        self.own = own
        self.key = key
        self._entropy = entropy
        self.by_agent: dict[str, OssaPeer] = {}
        self._tickets: dict[int, Ticket] = {}
        self.identities = Identities(feed, views, config, own)
        self._numbers = itertools.count(1)
        self._judging = JudgingBudget(EDGE, feed.offer_refused)
        self._ways = ways
        self.refusals = Refusals(feed)
        self.openings = Openings()
        self._earlier: EarlierCalls | None = None
        self.is_over = False

    def new_id(self) -> str:
        """A UUID that nobody can foresee."""
        return uuid_4(self._entropy(16))

    # -- after a restart -----------------------------------------------------------------------------------------------

    def take_up(self) -> None:
        """Go on with what is on record: results of commands that are owed, and agents that are reached by a URL."""
        now = self.feed.now()
        self._earlier = EarlierCalls(self.views, now)
        for subject, steps in self.views.open_steps(COMMANDS).items():
            agent_id, _, ref = subject.partition("/")
            peer = self._peer_of(agent_id)
            if peer is not None:
                command = msgspec.json.decode(steps[-1].data, type=Command)
                peer.asker.take_up(ref, command, now)
        for subject in self.views.open_steps(STREAMS):  # nobody remembers how far they were
            self.feed.feed([ProcessStepped(0, "", STREAMS, subject, "lost", EMPTY_OBJECT, done=True)])
        for subject, steps in self.views.open_steps(OFFERS).items():
            peer = self._peer_of(subject.partition("/")[0])
            if peer is not None:
                peer.take_up_offers(subject, msgspec.json.decode(steps[-1].data, type=Offers))
        for peer in self.by_agent.values():
            if peer.keys.url:
                self._ways.reach(peer, peer.keys)
            peer.flush()

    def _peer_of(self, agent_id: str) -> OssaPeer | None:
        """The peer that has this id, if it still has a key."""
        known = self.identities.of_agent(agent_id)
        return None if known is None else self.peer(known)

    # -- messages ------------------------------------------------------------------------------------------------------

    def peer(self, known: Known) -> OssaPeer:
        """The sender of a message, who may be new."""
        agent_id = known.principal.identity.partition(":")[2]
        found = self.by_agent.get(agent_id)
        if found is None:
            self._forget_idle()
            found = self.by_agent[agent_id] = OssaPeer(self, known)
        else:
            found.recognize(known)  # before anything is attached by what it was known by
        if known.keys.url and found.attachment is None:
            self._ways.reach(found, known.keys)
        return found

    def _forget_idle(self) -> None:
        before = self.feed.now().mono - FORGET_S
        for peer in [one for one in self.by_agent.values() if one.heard_at < before and one.is_idle]:
            peer.stop()
            self.feed.close_session(peer.number)
            self.forget(peer)

    def forget(self, peer: OssaPeer) -> None:
        """A peer is over."""
        if self.by_agent.get(peer.agent_id) is peer:
            del self.by_agent[peer.agent_id]

    def reached(self, agent_id: str) -> OssaPeer | None:
        """An agent, if it can be reached now."""
        found = self.by_agent.get(agent_id)
        return found if found is not None and found.attachment is not None else None

    def detached(self, peer: OssaPeer, reason: str) -> None:
        """A way ended. Who went and has a URL is reached by that from here on, if his key still counts."""
        keys = peer.keys
        if not keys.url or peer.is_over or self.is_over or reason != DISCONNECTED:
            return
        if self.feed.identify(EDGE, peer.token_sha256) is not None:
            self._ways.reach(peer, keys)

    def is_open(self, call_id: str) -> bool:
        """Whether a call has no outcome yet."""
        view = self.views.call(call_id)
        return view is not None and not view.status.is_outcome

    def may_answer(self, agent_id: str, call_id: str, correlation: str, now: Now) -> bool:
        """Whether an answer of before a restart may be taken for that of this call."""
        return self._earlier is not None and self._earlier.may_answer(agent_id, call_id, correlation, now)

    def check_offer(self, agent_id: str, tools: tuple[ToolDefinition, ...], now: Now) -> None:
        """``Refused`` with 429 unless the exchange would look at these tools, and may so soon."""
        size = sum(max(LEAST_TOOL_BYTES, len(one.input_schema) + len(one.output_schema or b"")) for one in tools)
        refused = self._judging.refused(agent_id, len(tools)) or self._judging.try_take(agent_id, size, now)
        if refused is not None:
            wait_ms = (refused.details or {}).get("retry_after_ms", 1000)
            raise Refused(RATE_LIMITED, refused.message, retryAfterMs=wait_ms)

    def absence(self, tool_id: str) -> Fault | None:
        """Why a tool that nobody offers now may be there later: its agent is one of ours, and is away or just back."""
        agent_id = tool_agent(tool_id)
        peer = self.reached(agent_id)
        if peer is None or peer.attachment is None:
            return fault("tool.unavailable") if self.views.credentials(EDGE, agent_id) else None
        if peer.attachment.provider.is_ready or not self.views.was_offered(tool_id):
            return None
        return fault("tool.unavailable", NOT_REGISTERED, details={"retry_after_ms": REGISTERS_MS})

    def receive(self, known: Known, on_replies: Callable[[list[tuple[Message, bytes]]], None]) -> int:
        """Hand a message to its sender's conversation. The ticket whose replies ``on_replies`` hears; 0 if none come.

        ``Refused`` if the message is not taken, and then nothing happened.
        """
        peer = self.peer(known)
        ticket = next(self._numbers)
        self._tickets[ticket] = Ticket(known.message, len(known.message.recipients), on_replies)
        try:
            if peer.receive(known, ticket, self.feed.now()):
                return ticket
        except Refused as refused:
            self._tickets.pop(ticket, None)
            refused.to = refused.to or known.message.sender
            refused.correlation = refused.correlation or known.message.correlation
            refused.is_of_error = known.message.type == ERROR
            refused.proven = known.principal.identity
            raise
        except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
            self._tickets.pop(ticket, None)
            self.feed.failed(peer.number, error)
            raise Refused(INTERNAL_ERROR, DEFECT) from None
        self._tickets.pop(ticket, None)
        return 0

    def stream_step(self, peer: OssaPeer, stream_id: str, step: str, data: Raw, *, done: bool = False) -> Event:
        """What is on record of a stream from one agent to others: that it began, and how it ended."""
        subject = f"{peer.agent_id}/{stream_id}"
        return ProcessStepped(peer.number, "", STREAMS, subject, step, data, done, peer.principal.identity)

    def drop(self, ticket: int) -> None:
        """Who waited is gone."""
        self._tickets.pop(ticket, None)

    def answer(self, peer: OssaPeer, saying: Saying) -> None:
        """Tell those who wait."""
        told = None if saying.message is None else self._encoded(peer, saying)
        for number in saying.tickets:
            ticket = self._tickets.get(number)
            if ticket is None:
                continue
            ticket.count += 1
            if told is not None:
                ticket.got.append(told)
            if ticket.count == ticket.expected:
                del self._tickets[number]
                ticket.on_replies(ticket.got)

    def give_up(self, tickets: tuple[int, ...]) -> None:
        """A defect of ours ended a conversation: who waits in it is told so."""
        for number in tickets:
            ticket = self._tickets.pop(number, None)
            if ticket is not None:
                info = ErrorInfo(INTERNAL_ERROR, DEFECT, stamp(self.feed.now().ms))
                made = translate.failed(ticket.to, info, self.new_id(), US)
                ticket.on_replies([*ticket.got, (made, self.encode(made, None))])

    def _encoded(self, peer: OssaPeer, saying: Saying) -> tuple[Message, bytes]:
        assert saying.message is not None
        return self.encoded(saying.message, peer.keys if saying.is_sealed else None)

    def encoded(self, message: Message, seals: AgentKeys | None) -> tuple[Message, bytes]:
        """An answer as it leaves; one that cannot be said on this wire is an error that says so."""
        try:
            return message, self.encode(message, seals)
        except Refused as refused:
            info = ErrorInfo(INTERNAL_ERROR, f"the answer cannot be sent: {refused.text}", message.timestamp)
            made = msgspec.structs.replace(message, type=ERROR, action="error", payload=EMPTY_OBJECT, error=info)
            return made, self.encode(made, None)

    def encode(self, message: Message, seals: AgentKeys | None) -> bytes:
        """A message of ours as it leaves: sealed for its recipient if ``seals`` is given, and signed.

        ``Refused`` if it is too large for this wire, or has numbers that cannot be signed.
        """
        if seals is not None:
            payload = sealing.seal(message.payload, message.message_id, [seals.seals])
            message = msgspec.structs.replace(message, payload=payload, sensitive=True)
        data = signing.sign(message, self.own.signs)
        if len(data) > MAX_MESSAGE_BYTES:
            raise Refused(INSUFFICIENT, f"larger than {MAX_MESSAGE_BYTES} bytes")
        return data

    def refusal(self, refused: Refused, origin: str) -> bytes:
        """What the sender of a message that was not taken is told; ``origin`` is the address it came from."""
        self.refusals.note(refused, origin)
        return self.encode(messages.error_reply(refused, US, self.new_id(), self.feed.now().ms), None)

    def sent_away(self, way: Way) -> None:
        """An agent's key was revoked, or a defect ended its conversation."""
        self._ways.send_away(way)

    def stop(self) -> None:
        """Say nothing more."""
        self.is_over = True
        for peer in self.by_agent.values():
            peer.stop()

    def status(self) -> Mapping[str, object]:
        """Figures."""
        return {
            "agents": len(self.by_agent),
            "reached": sum(1 for peer in self.by_agent.values() if peer.attachment is not None),
            "open": sum(len(peer.asker) for peer in self.by_agent.values()),
            **self.refusals.figures(),
        }
