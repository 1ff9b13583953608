"""The way to one agent, and the conversation in which the exchange gives it work.

Drives a ``Provider``: feeds what it says happened, and hands what is to be sent to the way, signed and sealed. There is
one while the agent can be reached, and a new one each time it comes back.

Invariant: what it opened at the exchange is closed there once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trunkline.edges.exchange import BaseSink
from trunkline.edges.ossa.messages import (
    Refused,
)
from trunkline.edges.ossa.providing import Provider, Sending
from trunkline.edges.ossa.translate import EDGE
from trunkline.effects import ToSession
from trunkline.model import (
    Now,
    ToolDefinition,
)

if TYPE_CHECKING:
    from trunkline.edges.ossa.peer import OssaPeer


class Way(Protocol):
    """How an agent is reached. ``send`` does not wait; what could not be handed over comes back by ``not_sent``."""

    def send(self, data: bytes, sending: Sending) -> None:
        """Send this."""

    @property
    def has_room(self) -> bool:
        """Whether more may be sent now; ``OssaPeer.flush`` is called when there is room again."""


class Attachment(BaseSink):
    """The way to an agent, and the conversation in which the exchange gives it work."""

    def __init__(self, peer: OssaPeer, way: Way, origin: str) -> None:
        self._peer = peer
        self._peers = peer._peers  # noqa: SLF001  (one part of the same thing)
        self._feed = self._peers.feed
        self.way = way
        self._number = self._feed.open_session(self)
        self.provider = Provider(
            self._number,
            peer.principal,
            peer.token_sha256,
            self._peers.key,
            origin,
            on_registered=peer.on_registered,
            is_open=self._peers.is_open,
            may_answer=self._peers.may_answer,
            used=peer.used,
            late=peer.late,
            now=self._feed.now(),
        )

    def begin(self, tools: tuple[ToolDefinition, ...]) -> None:
        """It can be reached: what it subscribed to and what it offered before hold again."""
        self._feed.feed(self.provider.attach())
        if tools:
            self._feed.feed(self.provider.register("again", tools, replace=True))

    def end(self, reason: str) -> None:
        """It cannot be reached any more."""
        self._feed.feed(self.provider.leave(reason))
        self._feed.close_session(self._number)

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange gives it work."""
        events = self.provider.send(effect, now)
        if events:
            self._feed.feed(events)
        if self.provider.is_over:
            self._peer.detach(self.way, "sent away")
            self._peers.sent_away(self.way)

    def flush(self) -> None:
        """Something may be different, also for what the agent asked for."""
        self._peer.flush()

    def drain(self) -> None:
        """Send what may leave now."""
        if self.provider.is_over:
            return
        if len(self.provider) and self._feed.identify(EDGE, self._peer.token_sha256) is None:
            # Its key was revoked, and nothing more is for it.
            self._peer.detach(self.way, "sent away")
            self._peers.sent_away(self.way)
            return
        now = self._feed.now()
        while self.way.has_room:
            sending = self.provider.next(now)
            if sending is None:
                return
            if sending.expires_ms is not None and sending.expires_ms <= now.ms:
                self._feed.feed(self.provider.expired(sending))
                continue
            self._send(sending)

    def _send(self, sending: Sending) -> None:
        seals = self._peer.keys if sending.is_sealed else None
        try:
            if sending.is_owed:  # it stays owed until it is acknowledged, whatever can be said of it
                _, data = self._peers.encoded(sending.message, seals)
            else:
                data = self._peers.encode(sending.message, seals)
        except Refused as refused:
            self._feed.feed(self.provider.unfit(sending, refused.text))
            return
        self.way.send(data, sending)

    def not_sent(self, sending: Sending, why: str) -> None:
        """The way could not hand this over."""
        self._peer.step(self.provider.not_sent(sending, why))

    def wake(self, now: Now) -> None:
        """Tell again what was not acknowledged."""
        events, again = self.provider.wake(now)
        if again and self._feed.identify(EDGE, self._peer.token_sha256) is None:
            again = []
        if events:
            self._feed.feed(events)
        for sending in again:
            if self.way.has_room:
                self._send(sending)

    def abort(self) -> None:
        """A defect of ours ended this conversation, and the exchange knows."""
        self.provider.is_over = True
        if self._peer.attachment is self:
            self._peer.attachment = None
        self._peers.sent_away(self.way)
