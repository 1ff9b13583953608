"""An agent that lives in the exchange: it comes in, offers tools and leaves like any other, but has no process.

Owns coming and going. What it does with a call is its child's business (``deliver``, ``cancel``). The token it comes in
with is made here and lives as long as the conversation.

Invariant: after ``attach`` returns, its tools are registered, or the log says that it was not let in or which tools
were not taken; why an agent was refused is on record (``agent.refused``). A defect of ours that ends its conversation
costs it the calls it had, not its place: it comes in again.
"""

from __future__ import annotations

import abc
import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import Final

from msgspec import Raw

from trunkline.edges.exchange import BaseSink, Feed, Timer
from trunkline.effects import Admit, Cancel, Close, ConfirmTools, Deliver, Refuse, ToSession
from trunkline.events import AgentArrived, AgentExited, AgentLaunched, AgentLeft, CallFinished, ToolsOffered
from trunkline.model import Fault, Now, Peer, ProcessIdentity, Status, ToolDefinition

log = logging.getLogger("trunkline")

# The exchange answers as soon as its entry is on disk; a disk that takes longer is broken.
READY_S: Final = 30.0
# After a defect of ours: soon enough that few miss it, and never a loop that does nothing else.
RETURN_S: Final = 1.0


class Resident(BaseSink, abc.ABC):
    """One such agent. Children say what it offers, and carry out what is delivered."""

    # What the edge's agents may run at once; each has timers of its own, so the exchange has none for them.
    max_inflight = 256
    # Whether all it does are entries of the record.
    only_records = False

    def __init__(
        self,
        feed: Feed,
        edge: str,
        agent_id: str,
        version: str,
        process: ProcessIdentity,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._feed = feed
        self._edge = edge
        self.agent_id = agent_id
        self._version = version
        self._process = process
        self._entropy = entropy
        self._run_id = ""
        self._ready = asyncio.Event()
        self._return: Timer | None = None
        # Its conversation; 0 while it is not here.
        self.number = 0

    @abc.abstractmethod
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What it offers now."""

    @abc.abstractmethod
    def deliver(self, effect: Deliver, now: Now) -> None:
        """Carry out a call."""

    @abc.abstractmethod
    def cancel(self, effect: Cancel, now: Now) -> None:
        """Stop a call if it can be stopped."""

    # -- coming and going ----------------------------------------------------------------------------------------------

    def arrive(self) -> None:
        """Come in, and offer the tools as soon as that is admitted."""
        self.number = self._feed.open_session(self)
        self._run_id = self._entropy(8).hex()
        digest = hashlib.sha256(self._entropy(32)).hexdigest()
        arrived = AgentArrived(
            session=self.number,
            ref="arrive",
            edge=self._edge,
            agent_id=self.agent_id,
            version=self._version,
            token_sha256=digest,
            peer=Peer(f"process:{self._process.pid}", self._process, self._run_id),
            max_inflight=self.max_inflight,
            timeout_s=None,
            is_resident=True,
            only_records=self.only_records,
        )
        self._feed.feed([AgentLaunched(self.agent_id, self._run_id, self._process, digest), arrived])

    async def attach(self) -> None:
        """Come in, and wait until the tools are registered."""
        self.arrive()
        await self.wait_ready()

    async def wait_ready(self) -> None:
        """Until the tools that it came in with are registered, or the log says that they are not."""
        async with asyncio.timeout(READY_S):
            await self._ready.wait()

    def offer(self) -> None:
        """Offer what it has now, and no more."""
        self._feed.feed([ToolsOffered(self.number, "offer", self.definitions(), replace=True)])

    def leave(self, reason: str) -> None:
        """Go. What it had not finished, the hub settles."""
        if self._return is not None:
            self._return.cancel()
        if self.number:
            gone = AgentExited(self.agent_id, self._run_id, exit_code=0, note=reason)
            self._feed.feed([AgentLeft(self.number, reason), gone])
            self._feed.close_session(self.number)
            self.number = 0

    def abort(self) -> None:
        """A defect ended its conversation, which the hub knows: come in again, as a process is started again."""
        self.number = 0
        self._feed.feed([AgentExited(self.agent_id, self._run_id, exit_code=1, restart_in_s=RETURN_S, note="defect")])
        self._return = self._feed.call_later(RETURN_S, self.arrive)

    def finish(
        self,
        call_id: str,
        status: Status,
        fault: Fault | None = None,
        *,
        output: Raw | None = None,
        metrics: Raw | None = None,
    ) -> None:
        """A call ended; ``metrics`` is for the record only."""
        self._feed.feed([CallFinished(self.number, call_id, status, output, fault, metrics=metrics)])

    # -- the sink ------------------------------------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange says something to this agent."""
        match effect:
            case Deliver():
                self.deliver(effect, now)
            case Cancel():
                self.cancel(effect, now)
            case Admit():
                self.offer()
            case ConfirmTools():
                if effect.rejected:
                    count, (tool_id, problem) = len(effect.rejected), effect.rejected[0]
                    text = "%s: %d tools were not taken, the first is %s: %s: %s"
                    log.error(text, self.agent_id, count, tool_id, problem.code, problem.message)
                self._ready.set()
            case Refuse():
                log.error("%s could not be attached", self.agent_id)
                self._ready.set()
            case Close():
                log.error("%s was sent away: %s", self.agent_id, effect.reason)
                self._ready.set()
            case _:
                pass
