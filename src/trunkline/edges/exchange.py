"""The seam between edges and host: what an edge may ask of the exchange, and what the exchange asks of an edge.

Edges never import the hub or the host; the host hands these in. Three protocols, because three kinds of code need
them: ``Feed`` is for whoever holds a conversation, ``Views`` for whoever shows something, ``Operator`` for whoever
acts for the person who runs the exchange. ``Sink`` is the one protocol in the other direction.

Owns these protocols. Does not own what stands behind them (``host``, ``testing.memory``).

Invariant: an effect that reaches a ``Sink`` has waited for its entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Raw, Struct
from msgspec.structs import replace

from trunkline.edges.edge import TokenKind
from trunkline.effects import ToSession
from trunkline.entries import ProcessStep
from trunkline.events import Event
from trunkline.model import NOBODY, Behalf, Fault, Guard, Now, Peer, Policy, Principal, Router, Verdict
from trunkline.shown import AgentView, CallSearch, CallView, Question, SubscriptionView, TokenView, ToolView
from trunkline.standing_rules import StandingRule


class Sink(Protocol):
    """One conversation's way out. ``send`` gathers; the runner calls ``flush`` when a turn or a few frames are done.

    What any of these raises is a defect of that conversation and ends it alone (decision 47): it gets nothing more,
    its calls are settled as for one that left, and ``abort`` is called.
    """

    def send(self, effect: ToSession, now: Now) -> None:
        """Say this (its entry is on disk if it had to be)."""

    def flush(self) -> None:
        """Write what was gathered."""

    def pause_reading(self) -> None:
        """The disk is behind: take nothing more in. A rim whose requests wait for answers has nothing to do here."""

    def resume_reading(self) -> None:
        """Go on."""

    def abort(self) -> None:
        """Let go of the connection: a defect of ours ended this conversation, and nothing more is sent to it."""


class Timer(Protocol):
    """Something that will be done later."""

    def cancel(self) -> None:
        """Do not do it."""


class ReceiptView(Struct, frozen=True, omit_defaults=True):
    """A receipt as it is shown: itself, its place on record, the call that was paid for, and whether it holds.

    ``whole`` means that all ``links`` hold, but for what ``unproved`` names; ``broken`` that ``link`` is the first that
    does not, for this ``reason``.
    """

    receipt: Raw
    receipt_hash: str
    entry: int
    at: str
    status: Literal["whole", "broken"]
    call_id: str | None = None
    links: tuple[str, ...] = ()
    unproved: tuple[str, ...] = ()
    link: str = ""
    reason: str = ""

    def with_links(self, links: tuple[str, ...], unproved: tuple[str, ...]) -> ReceiptView:
        """The same, and it holds."""
        return replace(self, status="whole", links=links, unproved=unproved)

    def with_broken(self, link: str, reason: str) -> ReceiptView:
        """The same, and it does not."""
        return replace(self, status="broken", link=link, reason=reason)


# What a person may have done to an agent's process.
AgentAction = Literal["start", "stop", "restart"]


class SignInAddress(Struct, frozen=True):
    """What a person opens to sign in for an agent, who signs him in, and for how long that is waited for."""

    url: str
    issuer: str
    expires_s: float


class Feed(Protocol):
    """What a conversation needs: time, a number, a way to say what happened."""

    def now(self) -> Now:
        """Both clocks."""

    def open_session(self, sink: Sink) -> int:
        """A number for a new conversation; effects for it go to ``sink`` until ``close_session``."""

    def close_session(self, session: int) -> None:
        """Forget the conversation. Effects for it are dropped from here on."""

    def feed(self, events: Sequence[Event]) -> None:
        """These happened, in this order. Effects may be sent before this returns."""

    def failed(self, session: int, error: BaseException) -> None:
        """A defect of ours, met while this conversation was served; 0 if it was none's. It ends alone."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call this in so many seconds. A defect in it is on record, and nothing else happens."""

    def when_stored(self, told: Callable[[], None]) -> None:
        """Call ``told`` once everything that was fed up to now is on disk; at once if it is."""

    def identify(self, edge: str, token_sha256: str) -> Principal | None:
        """Whose standing token this is (for edges without a handshake of their own)."""

    def offer_refused(self, agent: str, tools: int) -> Fault | None:
        """Why a list of so many tools of this agent (``edge:id``) would be refused unseen, if it would.

        Asked by whoever judges tools before the hub hears of them; ``ToolsOffered`` is what counts.
        """

    def write_refused(self, identity: str) -> Fault | None:
        """Why nothing more may be begun for an identity for which so much was written on record within an hour.

        Asked by whoever writes steps of a subject that many share: the hub refuses only what begins a subject.
        """

    def peer_of(self, pid: int, uid: int) -> Peer:
        """Who a connecting local process is: its start time, and the launched run whose session it belongs to."""

    def guard(self, agent_id: str, guard: Guard | None) -> None:
        """Ask this before a tool of an agent that is part of the exchange is called; None takes it away.

        What was asked of a person before a restart is judged again at the start: guards have to be there before it.
        """

    def route(self, agent_id: str, router: Router | None) -> None:
        """Let other tools serve calls of the tools of an agent that is part of the exchange; None takes it away.

        What was taken on and not sent before a restart is sent after the start: routers have to be there before it.
        """


class Views(Protocol):
    """What can be looked at. Nothing here changes anything."""

    def storage_trouble(self) -> str:
        """Why nothing can be put on record; empty while everything can."""

    def closed(self) -> Fault | None:
        """Why nothing new is taken on (the exchange stops, the disk is full); None while it is."""

    def agents(self) -> list[AgentView]:
        """All agents, launched or attached."""

    def agent(self, agent_id: str) -> AgentView | None:
        """One agent that is attached."""

    def tools(self, limit: int | None = None, after: str = "") -> list[ToolView]:
        """Tools by name, also those that cannot be called now: all, or the first so many after a name."""

    def tools_version(self) -> int:
        """A number that changes whenever ``tools`` would show another list of definitions."""

    def tool(self, tool_id: str) -> ToolView | None:
        """One tool."""

    def tools_named(self, name: str) -> list[ToolView]:
        """The tools whose part after the slash is this."""

    def call(self, call_id: str) -> CallView | None:
        """One call, open or settled, whoever made it: who hands it to a peer that named it compares ``caller``."""

    def keyed(self, caller: str, key: str) -> CallView | None:
        """The call that a repeat with this key of this caller would join, open or settled."""

    def awaited(self, session: int, ref: str) -> CallView | None:
        """The call on record whose outcome this conversation waits for under ``ref``."""

    def calls(
        self, limit: int, before: int | None, correlation_id: str | None = None, caller: str | None = None
    ) -> tuple[list[CallView], int | None]:
        """Calls, newest first, and where the next page starts: those of one correlation or caller, if it is given.

        A page may be short, or empty, while there is a next one: what is looked through for it is bounded. Outputs that
        are not small are left out.
        """

    async def search(self, wanted: CallSearch) -> tuple[list[CallView], int | None]:
        """Calls that are on disk and are looked for, as ``calls`` shows them, and where the next page starts.

        ``LedgerError`` if nothing can be searched here. A page may be short while there is a next one.
        """

    def questions(self) -> list[Question]:
        """The open questions."""

    def question(self, approval_id: str) -> Question | None:
        """One open question."""

    def check(self, caller: str, tool_id: str, body: Raw | None, on_behalf_of: Behalf = NOBODY) -> Verdict:
        """What would happen to such a call. Nothing is recorded."""

    def behalf(self, caller: str) -> Behalf:
        """For whom this caller asks at this moment.

        An edge whose work goes on after the caller was answered asks this when it takes the work on, keeps it on record
        with the work, and says it in each ``CallRequested`` that the work leads to.
        """

    def judged(self, caller: str, name: str) -> Verdict:
        """What the rules say to a name that is no tool (a stream, a topic), for this caller and those for whom he asks
        at this moment: the strictest counts, under the circumstances that a call of his would have.
        """

    def denied(self, call_id: str) -> Fault | None:
        """Why an open call may not go on, by the rules and tokens of now; None if it may.

        The hub asks this before it delivers; an edge that was given a call and has not begun asks it before it begins.
        """

    def blob(self, sha256: str, by: Principal) -> bytes | None:
        """A large body by its hash, for the operator and for whoever may see a call that it belongs to.

        To everybody else it is not there. A call that is looked at (``call``) makes its output known as its caller's.
        """

    def entries(self, *, call_id: str | None = None, correlation_id: str | None = None) -> list[bytes]:
        """The masked entries of a call or a correlation, as JSON."""

    def last_entry(self) -> int:
        """The number of the latest entry, which may be on its way to the disk."""

    def recorded(self, first: int, last: int) -> list[bytes]:
        """The masked entries from one number to another that are on disk, as JSON; without those of closed parts."""

    def has_correlation(self, correlation_id: str, last: int) -> bool:
        """Whether something is recorded under a correlation up to this entry: one look into an index."""

    def trajectory(self, correlation_id: str, *, call_id: str = "", caller: str = "") -> Iterator[bytes]:
        """A correlation as REPLAY.jsonl v1, line by line as it is read; none if nothing is recorded under it.

        Anybody may name a correlation, so who asks for somebody says whose part of it he wants: of one call, once that
        has ended, with what it caused before; or of one caller.
        """

    def receipts(self, limit: int, before: int | None) -> tuple[list[Raw], int | None]:
        """Receipts on record as JSON, newest first, and where the next page starts."""

    async def receipt(self, receipt_id: str) -> ReceiptView | None:
        """One receipt with its links followed, as far as they hold; None if there is none of this id."""

    def credential(self, edge: str, token_sha256: str) -> TokenView | None:
        """The standing credential that is known by this hash and good for this edge; None also for a revoked one.

        One look-up, for edges that ask with each message. A pair of keys is known by the SHA-256 of its key's name.
        """

    def credentials(self, edge: str, agent: str) -> list[TokenView]:
        """The standing credentials of one agent that are good for this edge, newest first."""

    def revoked(self, edge: str, token_sha256: str) -> TokenView | None:
        """The credential that was known by this hash on this edge and was revoked.

        For whoever proves that he has its private part: nobody else is told that it existed.
        """

    def was_offered(self, tool_id: str) -> bool:
        """Whether a definition of this tool is in force, also if nobody offers the tool now."""

    def open_steps(self, process: str) -> dict[str, list[ProcessStep]]:
        """What is on record of the subjects of a process that are not done, each in order, as it was written."""

    def steps(self, process: str, subject: str) -> list[ProcessStep]:
        """What is on record of one subject, done or not; secrets masked."""


class Operator(Protocol):
    """What only the person who runs the exchange may see and do."""

    def tokens(self) -> list[TokenView]:
        """The standing credentials."""

    def subscriptions(self, limit: int, after: int = 0) -> list[SubscriptionView]:
        """Who is told of which topics: the first so many after the one with this number, oldest first."""

    def token_kinds(self) -> Mapping[str, TokenKind]:
        """By edge: which credentials can be made there."""

    def policy(self) -> Policy:
        """The rules in force."""

    def rule_warnings(self) -> list[str]:
        """Which of them decide nothing, and why."""

    def status(self) -> dict[str, object]:
        """Figures for a person and for ``/metrics``."""

    def check_rule(self, rule: StandingRule) -> None:
        """``NoStandingRule`` if these rules cannot be put into the configuration's file."""

    def put_in_force(self, rule: StandingRule) -> None:
        """Write rules into the configuration's file and read it again. ``NoStandingRule`` or ``ConfigError`` if that
        cannot be done: then nothing changed.
        """

    def reload(self) -> dict[str, list[str]]:
        """Read the configuration again; which agents were started, restarted and stopped for it,
        which cannot start, with the reason, which tools are not held back any more, and what else changed.

        ``ConfigError`` if it cannot be used, and then nothing changed.
        """

    def verify_record(self) -> bool:
        """Begin to walk through the whole record beside the work; ``status`` says how far it was proved.

        False if a walk is under way, or the record cannot be walked here.
        """

    def steer(self, agent_id: str, action: AgentAction) -> bool:
        """Start, stop or restart an agent that the exchange launches; False if there is none of this id."""

    async def sign_in(self, agent_id: str, base: str) -> SignInAddress | None:
        """Where a person signs in for an agent that wants it; None if there is none of this id.

        ``base`` is where his browser finds us, without a path. ``SignInRefused`` says why it cannot be done.
        """

    def sign_in_state(self, agent_id: str) -> str | None:
        """How that is going: ``waiting``, ``done`` or why not; empty if nobody has begun."""

    async def sign_out(self, agent_id: str) -> bool:
        """Forget it; False if there is none of this id."""

    def known_tools(self, agent_id: str) -> list[str]:
        """The tools that an agent offers or has ever offered, here or away, by their ids."""

    def agent_log(self, agent_id: str, count: int) -> list[str] | None:
        """The last lines that an agent printed, secrets masked; None if there is no log of such an agent."""

    def watch(self, watcher: Watcher) -> None:
        """Hand every entry and progress to ``watcher`` as it happens, until ``unwatch``."""

    def unwatch(self, watcher: Watcher) -> None:
        """Stop handing them over."""


class Watcher(Protocol):
    """Somebody who looks on. Must not block; a slow one drops lines and says how many."""

    def __call__(self, line: bytes) -> None:
        """One masked JSON line."""


class BaseSink:
    """A sink that gathers nothing and reads nothing: children override what they need, ``send`` at least."""

    __slots__ = ()

    def flush(self) -> None:
        """Nothing is gathered."""

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing was paused."""

    def abort(self) -> None:
        """No connection belongs to it."""
