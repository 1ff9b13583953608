"""Agents that are reached by a URL: what they are sent goes out by POST, and the answer to it is their answer.

Owns the requests that are on their way. An agent that cannot be reached is a failed attempt, which the hub repeats; an
event is told again by its timer. With a pin, only a server with that key is spoken to (OSSA-075).
"""

from __future__ import annotations

from typing import Final

from trunkline.edges import client, tls
from trunkline.edges.background import Background
from trunkline.edges.ossa.identity import Known
from trunkline.edges.ossa.keys import AgentKeys
from trunkline.edges.ossa.messages import Refused
from trunkline.edges.ossa.peer import OssaPeer
from trunkline.edges.ossa.peers import OssaPeers
from trunkline.edges.ossa.providing import Sending

# A tool's own time ends before this.
PUSH_TIMEOUT_S: Final = 60.0
MAX_PUSHES: Final = 64


class UrlWay:
    """The way to one agent."""

    def __init__(self, peers: OssaPeers, background: Background, peer: OssaPeer, keys: AgentKeys) -> None:
        self._peers = peers
        self._background = background
        self._peer = peer
        self.url = keys.url
        self._trust = tls.client_context(keys.pin) if keys.url.startswith("https:") else None
        self._running = 0

    @property
    def has_room(self) -> bool:
        """Whether more may be on its way."""
        return self._running < MAX_PUSHES

    def send(self, data: bytes, sending: Sending) -> None:
        """Send this, and take its answer as the agent's."""
        self._running += 1
        self._background.spawn(self._post(data, sending), self._peer.number)

    async def _post(self, data: bytes, sending: Sending) -> None:
        try:
            answer = await client.request(self.url, "POST", body=data, timeout_s=PUSH_TIMEOUT_S, tls=self._trust)
        except client.Unreachable as error:
            self._failed(sending, f"its URL did not answer: {error}")
        else:
            await self._answered(answer, sending)
        finally:
            self._running -= 1
            self._peer.flush()

    def _failed(self, sending: Sending, why: str) -> None:
        if self._peer.attachment is not None and self._peer.attachment.way is self:
            self._peer.attachment.not_sent(sending, why)

    async def _answered(self, answer: client.Answer, sending: Sending) -> None:
        reply = await self._reply(answer)
        attachment = self._peer.attachment
        if attachment is None or attachment.way is not self:
            return
        if reply is not None:
            self._peer.answered(reply)
        elif answer.status >= 300:
            self._failed(sending, f"its URL answered {answer.status}")
        elif not sending.call_id:
            self._peer.took(sending)

    async def _reply(self, answer: client.Answer) -> Known | None:
        """The message in an answer, if it is a signed one of this agent."""
        try:
            known = await self._peers.identities.read(answer.body) if answer.body else None
        except Refused:
            return None
        return known if known is not None and known.message.sender.agent_id == self._peer.agent_id else None
