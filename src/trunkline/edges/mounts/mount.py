"""One mounted server as an agent of the exchange: it comes in when the server is ready, and leaves with it.

Owns the way between calls and requests, coming and going, and whether the server is well. Does not own what is said to
the server (``session``), how that travels (``piped``, ``remote``), nor whether it is started or connected to again.

A server has no heartbeat: how it is shows in its calls. When one runs out of time the server is pinged, and while it
does not answer it counts as silent; what follows is decided by whoever keeps it.

Invariant: a call that was delivered is finished once, or is left to the hub by leaving. A defect of ours ends this
agent's conversation alone; it comes in again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Raw, Struct

from trunkline.config import McpServer
from trunkline.edges.edge import Surroundings
from trunkline.edges.exchange import BaseSink, Timer
from trunkline.edges.mounts import header_arguments, translate
from trunkline.edges.mounts.names import AGENT_EDGE
from trunkline.edges.mounts.session import (
    Answered,
    Broken,
    Outgoing,
    Pong,
    Progressed,
    Ready,
    Said,
    Session,
    ToolsChanged,
    ToolsListed,
)
from trunkline.edges.mounts.translate import Bound, Offer
from trunkline.edges.offers import LEAST_TOOL_BYTES, JudgingBudget
from trunkline.effects import Admit, Cancel, ConfirmTools, Deliver, Refuse, ToSession
from trunkline.events import (
    AgentArrived,
    AgentExited,
    AgentLaunched,
    AgentLeft,
    CallFinished,
    CallProgressed,
    CancelAcknowledged,
    Event,
    HealthReported,
    ToolsOffered,
)
from trunkline.model import Fault, Health, Now, Peer, ProcessIdentity, Status, fault

log = logging.getLogger("trunkline")

# What a server may be given at once; more calls wait here.
MAX_INFLIGHT: Final = 256
# Two readings of a list are so far apart: a server that says all the time that it changed costs one a second.
RELIST_S: Final = 1.0
# Shows of one call are so far apart: nobody reads faster.
SHOW_S: Final = 0.05
# From a ping to its answer, as long as for a local agent's heartbeat.
PONG_S: Final = 10.0
# How long a canceled request may still be answered.
LATE_ANSWER_S: Final = 10.0
# After a defect of ours, and after not having been let in.
RETURN_S: Final = 1.0
REFUSED_S: Final = 30.0
# Of why it left, on record.
MAX_NOTE_CHARS: Final = 500


class Link(Protocol):
    """How a server is reached, while it is."""

    def send(self, messages: list[Outgoing]) -> None:
        """Send these, in order."""

    def give_up(self, reason: str) -> None:
        """It cannot be used: end it, and let whoever keeps it decide what follows."""


class Launch(Struct, frozen=True):
    """By what the agent comes in: the run that the host launched for it."""

    run_id: str
    process: ProcessIdentity
    token_sha256: str


class _Call(Struct):
    bound: Bound
    is_canceled: bool = False
    shown: int = 0
    shown_at: float = 0.0


class Mount(BaseSink):
    """One of them, over all its runs. ``connected`` and ``disconnected`` in turns."""

    def __init__(self, given: Surroundings, server: McpServer, judging: JudgingBudget) -> None:
        self._given = given
        self._feed = given.feed
        self.server = server
        self.agent_id = server.agent_id
        self._judging = judging
        self.session: Session | None = None
        self._link: Link | None = None
        self._launch: Launch | None = None
        self._offer: Offer | None = None
        self._ready: Ready | None = None
        # Its conversation; 0 while it is not here.
        self.number = 0
        self._calls: dict[str, _Call] = {}
        self._timers: dict[str, Timer] = {}
        self._relisted_at = float("-inf")
        self.is_silent = False

    @property
    def is_ready(self) -> bool:
        """Whether its tools are here."""
        return self.number != 0

    # -- the server ----------------------------------------------------------------------------------------------------

    def connected(self, link: Link, launch: Launch | None) -> None:
        """There is a server to speak with. Without a ``launch`` of the host the agent makes its own."""
        self._link, self._launch = link, launch
        self.session = Session(self._given.version)
        self.is_silent = False
        self.session.begin()
        self._flush()

    def heard(self, data: bytes) -> None:
        """One message of its."""
        self._guarded(lambda: self._hear(data))

    def lost(self, number: int) -> None:
        """One request gets no answer."""
        if self.session is not None:
            self._guarded(lambda: self._heard([] if self.session is None else self.session.lost(number)))

    def not_sent(self, number: int) -> None:
        """One request did not leave: whatever it asks for was not done."""
        for one in () if self.session is None else self.session.lost(number):
            if isinstance(one, Answered) and self._calls.pop(one.ref, None) is not None:
                self._finish(one.ref, Status.FAILED, problem=fault("tool.unavailable", "the server cannot be reached"))

    def disconnected(self, reason: str) -> None:
        """It is gone. The hub settles what it had not finished."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self.session is not None:
            self.session.end()
        self.session, self._link, self._offer, self._ready = None, None, None, None
        self._calls.clear()
        self._leave(reason)
        self._launch = None

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
            if self.number:
                self._feed.failed(self.number, error)
            else:
                self._feed.failed(0, error)
                self._give_up("a defect of the exchange ended it; it is on record")

    def _hear(self, data: bytes) -> None:
        if self.session is None:
            return
        if self.is_silent:
            self._well(Health.OK)
        self._heard(self.session.hear(data))

    def _heard(self, said: list[Said]) -> None:
        for one in said:
            self._take(one)
        self._flush()

    def _take(self, said: Said) -> None:
        match said:
            case Answered():
                self._answered(said)
            case Progressed():
                self._progressed(said)
            case Ready():
                self._ready = said
                self._offer = self._offered(said.tools)
                self._arrive()
            case ToolsListed():
                self._offer = self._offered(said.tools)
                self._put_offer()
            case ToolsChanged():
                self._relist()
            case Pong():
                self._stop_timer("pong")
            case Broken():
                self._give_up(said.reason)

    def _give_up(self, reason: str) -> None:
        if self._link is not None:
            self._link.give_up(reason)

    def _flush(self) -> None:
        if self.session is not None and self._link is not None and (output := self.session.take_output()):
            self._link.send(output)

    def _after(self, name: str, delay_s: float, act: Callable[[], None]) -> None:
        """Do this later, in this run of the server; another one of this name is forgotten."""
        self._stop_timer(name)
        self._timers[name] = self._feed.call_later(delay_s, lambda: self._due(name, act))

    def _due(self, name: str, act: Callable[[], None]) -> None:
        self._timers.pop(name, None)
        self._guarded(act)

    def _stop_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    # -- its tools -----------------------------------------------------------------------------------------------------

    def _offered(self, tools: tuple[Raw, ...]) -> Offer:
        assert self._ready is not None
        now = self._feed.now()
        refused = self._judging.refused(self.agent_id, len(tools))

        def too_often(size: int) -> Fault | None:
            return refused or self._judging.try_take(self.agent_id, max(size, LEAST_TOOL_BYTES), now)

        return translate.offer(
            self.server,
            tools,
            has_resources=self._ready.has_resources,
            has_prompts=self._ready.has_prompts,
            has_headers=self.server.url is not None and self.session is not None and self.session.is_stateless,
            too_often=too_often,
        )

    def _put_offer(self) -> None:
        if self._offer is not None and self.number:
            offered = ToolsOffered(self.number, "offer", self._offer.definitions, self._offer.rejected, replace=True)
            self._feed.feed([offered])

    def _relist(self) -> None:
        now = self._feed.now().mono
        if "relist" in self._timers:
            return
        wait_s = max(0.0, self._relisted_at + RELIST_S - now)
        self._after("relist", wait_s, self._relist_now)

    def _relist_now(self) -> None:
        if self.session is not None:
            self._relisted_at = self._feed.now().mono
            self.session.relist()
            self._flush()

    # -- coming and going ----------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        if self.session is None or self.number:
            return
        events: list[Event] = []
        launch = self._launch
        if launch is None:
            entropy = self._given.entropy
            digest = hashlib.sha256(entropy(32)).hexdigest()
            launch = self._launch = Launch(entropy(8).hex(), self._given.process, digest)
            events.append(AgentLaunched(self.agent_id, launch.run_id, launch.process, digest))
        self.number = self._feed.open_session(self)
        events.append(
            AgentArrived(
                session=self.number,
                ref="arrive",
                edge=AGENT_EDGE,
                agent_id=self.agent_id,
                version=self.session.server_version,
                token_sha256=launch.token_sha256,
                peer=Peer(f"process:{launch.process.pid}", launch.process, launch.run_id),
                max_inflight=MAX_INFLIGHT,
                timeout_s=self.server.timeout_s,
                is_mounted=True,
            )
        )
        self._feed.feed(events)

    def _leave(self, reason: str) -> None:
        if self.number:
            number, self.number = self.number, 0
            self._feed.feed([AgentLeft(number, reason)])
            self._feed.close_session(number)
        if self._launch is not None and self._launch.process == self._given.process:
            self._feed.feed(
                [AgentExited(self.agent_id, self._launch.run_id, exit_code=0, note=reason[:MAX_NOTE_CHARS])]
            )

    def abort(self) -> None:
        """A defect ended its conversation, which the hub knows, and with it its calls: come in again."""
        self.number = 0
        if self.session is not None:
            for call_id in self._calls:
                self.session.cancel(call_id, "the exchange lost this call")
                self.session.forget(call_id)
        self._calls.clear()
        self._after("return", RETURN_S, self._arrive)

    # -- the sink ------------------------------------------------------------------------------------------------------

    def send(self, effect: ToSession, now: Now) -> None:
        """The exchange says something to this agent."""
        match effect:
            case Deliver():
                self._deliver(effect)
            case Cancel():
                self._cancel(effect)
            case Admit():
                self._put_offer()
            case ConfirmTools():
                if effect.rejected:
                    tool_id, problem = effect.rejected[0]
                    text = "%s: %d tools were not taken, the first is %s: %s"
                    log.warning(text, self.agent_id, len(effect.rejected), tool_id, problem.message)
            case Refuse():
                number, self.number = self.number, 0
                self._feed.close_session(number)
                log.warning("%s was not let in; it tries again in %g s", self.agent_id, REFUSED_S)
                self._after("return", REFUSED_S, self._arrive)
            case _:
                pass
        del now

    def flush(self) -> None:
        """Write what was gathered."""
        self._flush()

    def _deliver(self, call: Deliver) -> None:
        bound = None if self._offer is None else self._offer.bound.get(call.tool_id.partition("/")[2])
        if bound is None or self.session is None:
            problem = fault("tool.unavailable", "the server is not connected, or does not offer it any more")
            self._finish(call.call_id, Status.FAILED, problem=problem)
            return
        repeated = header_arguments.headers(bound.places, call.input)
        if repeated is None:
            longest = f"an argument that goes into a header has more than {header_arguments.MAX_VALUE_BYTES} bytes"
            self._finish(call.call_id, Status.FAILED, problem=fault("tool.invalid_input", longest))
            return
        self._calls[call.call_id] = _Call(bound)
        params, name = translate.parameters(bound, call.input)
        self.session.request(call.call_id, bound.method, params, name=name, headers=repeated)

    def _cancel(self, effect: Cancel) -> None:
        call = self._calls.get(effect.call_id)
        if call is None or self.session is None:
            return
        call.is_canceled = True
        self.session.cancel(effect.call_id, effect.reason)
        self._feed.feed([CancelAcknowledged(self.number, effect.call_id, accepted=True)])
        if effect.reason == "timeout":
            self._ping()
        if call.bound.side_effects:
            # Whether it was stopped in time only the server could say: it has the hub's grace for that.
            self._after(effect.call_id, LATE_ANSWER_S, lambda: self._forget(effect.call_id))
        else:
            self._forget(effect.call_id)
            self._finish(effect.call_id, Status.CANCELED)

    def _forget(self, call_id: str) -> None:
        self._calls.pop(call_id, None)
        if self.session is not None:
            self.session.forget(call_id)

    def _answered(self, said: Answered) -> None:
        call = self._calls.pop(said.ref, None)
        if call is None:
            return
        self._stop_timer(said.ref)
        if call.is_canceled and said.error is not None:
            # How servers say that they stopped.
            self._finish(said.ref, Status.CANCELED)
            return
        ended = translate.outcome(call.bound, said.result, said.error)
        self._finish(said.ref, ended.status, output=ended.output, problem=ended.fault)

    def _finish(self, call_id: str, status: Status, *, output: Raw | None = None, problem: Fault | None = None) -> None:
        if self.number:
            self._feed.feed([CallFinished(self.number, call_id, status, output, problem)])

    def _progressed(self, said: Progressed) -> None:
        call, now = self._calls.get(said.ref), self._feed.now().mono
        if call is None or not self.number or now - call.shown_at < SHOW_S:
            return
        call.shown += 1
        call.shown_at = now
        self._feed.feed([CallProgressed(self.number, said.ref, call.shown, "status", said.data)])

    # -- how it is -----------------------------------------------------------------------------------------------------

    def _ping(self) -> None:
        if self.session is not None and "pong" not in self._timers:
            self.session.ping()
            self._after("pong", PONG_S, self._no_pong)

    def _no_pong(self) -> None:
        self._well(Health.SILENT)

    def _well(self, health: Health) -> None:
        self.is_silent = health is Health.SILENT
        if self.number:
            self._feed.feed([HealthReported(self.number, health)])
