"""Push to callback URLs: a peer that listens gets its messages by POST instead of asking for them.

Loopback only (``client.loopback_place``). A message that cannot be handed to an agent is a failed attempt (5002); the
hub decides whether it is sent again. An orchestrator that misses an answer repeats its request.
"""

from __future__ import annotations

from typing import Final

from trunkline.edges import client
from trunkline.edges.background import Background
from trunkline.edges.chiffon.peers import AnyConversation
from trunkline.edges.chiffon.session import Probe

PUSH_TIMEOUT_S: Final = 10.0
HEALTH_PATH: Final = "/health"


class Callback:
    """Sends what one peer has to be sent, in order. ``token`` is the one that this peer knows us by."""

    def __init__(self, background: Background, conversation: AnyConversation, url: str, token: str) -> None:
        self._background = background
        self._conversation = conversation
        self._url = url
        self._token = token

    def start(self) -> None:
        """From here on the peer's messages go to this URL."""
        task = self._background.spawn(self._run(), self._conversation.number)
        self._conversation.carry(self, task)
        self._conversation.probe_by(Probe.BY_TRANSPORT, self._look)

    async def _run(self) -> None:
        conversation = self._conversation
        async for message in conversation.outgoing():
            problem = await self._ask("POST", message.data)
            if problem is None:
                conversation.step(conversation.session.heard)
            else:
                conversation.not_sent(message, problem)

    def _look(self) -> None:
        self._background.spawn(self._get_health(), self._conversation.number)

    async def _get_health(self) -> None:
        """``GET /health`` beside the callback (silent point 15)."""
        self._conversation.looked(is_well=await self._ask("GET", path=HEALTH_PATH) is None)

    async def _ask(self, method: str, body: bytes = b"", path: str | None = None) -> str | None:
        """What is wrong with the callback, if something is."""
        try:
            answer = await client.request(
                self._url, method, path=path, body=body, token=self._token, timeout_s=PUSH_TIMEOUT_S
            )
        except client.Unreachable as error:
            return f"the callback did not answer: {error}"
        return f"the callback answered {answer.status}" if answer.status >= 300 else None
