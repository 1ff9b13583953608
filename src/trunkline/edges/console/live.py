"""The live line: WebSockets of pages at ``/console/live``, and when they are told what.

Owns which pages are connected and the three rounds: batches of entries, changes of the registry, figures; each runs
only while a page listens. Does not own what a batch holds (``feed``), a connection's own life and protocol
(``edges.pusher``), nor who is signed in (``routes``).

Invariant: a defect met in one connection ends that one alone; a page that does not read costs nobody else anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from trunkline.edges.answers import refusal
from trunkline.edges.background import Background
from trunkline.edges.console import feed as feeds
from trunkline.edges.console import messages
from trunkline.edges.console.feed import Follower, Recent
from trunkline.edges.console.messages import BadFollow
from trunkline.edges.console.registry import Registry
from trunkline.edges.console.routes import APP_KEY
from trunkline.edges.console.signing_in import SignIn
from trunkline.edges.edge import Surroundings
from trunkline.edges.exchange import Feed, Timer
from trunkline.edges.pusher import frames
from trunkline.edges.pusher.connection import PusherClient, PusherConnections, turn_away
from trunkline.edges.pusher.frames import Code
from trunkline.edges.pusher.session import ClientEvent, PusherSession, Subscribed
from trunkline.edges.shares import SHARE, Share, Shares
from trunkline.effects import ToSession
from trunkline.model import Now, fault

PATH: Final = "/console/live"
# Pages of one person, with room for screens on a wall.
MAX_PAGES: Final = 128
# How often pages are told of entries: what a person takes for at once, in far fewer messages than there are entries.
BATCH_S: Final = 0.025
# A look at 500 agents and 1,000 tools takes 4 ms.
LOOK_S: Final = 0.5
FIGURES_S: Final = 1.0
# What may wait for a page that does not read, all in all; from half of it on no batches are added.
MAX_WAITING_BYTES: Final = 8_388_608
ENOUGH_WAITING_BYTES: Final = MAX_WAITING_BYTES // 2
# Of the figures of ``status``, those that a page draws.
FIGURES: Final = (
    *("entries", "entries_on_disk", "entries_verified", "verifying", "entries_signed", "entries_anchored"),
    "backlog",
)


class Doorkeeper(Protocol):
    """What is asked about whoever connects."""

    def cookie_of(self, scope: Scope) -> SignIn | None:
        """Whose cookie a request shows."""

    def channel_secret(self, sign_in: SignIn) -> bytes:
        """What subscriptions of its pages are signed with."""

    def is_open(self, sign_in: SignIn) -> bool:
        """Whether it is still good."""


class Page(PusherClient):
    """One page that is connected."""

    def __init__(
        self, line: LiveLine, feed: Feed, session: PusherSession, sign_in: SignIn, on_output: Callable[[], None]
    ) -> None:
        super().__init__(feed, session, on_output)
        self._line = line
        self.sign_in = sign_in
        self.follower = Follower()
        self.number = feed.open_session(self)

    def send(self, effect: ToSession, now: Now) -> None:
        """Nothing is asked of the exchange in this conversation."""

    def receive(self, data: bytes) -> None:
        """One message."""
        self._line.hear(self, data)
        self._on_output()

    def wake(self) -> None:
        """See whether it is still there, and still signed in."""
        if self._line.is_open(self.sign_in):
            super().wake()
        else:
            self.end(Code.NOT_AUTHORIZED, "the sign-in has expired: `trunkline console`")

    def tell(self, channel: str, frame: bytes) -> None:
        """Something on one channel, if the page listens to it."""
        if channel in self.session.channels:
            self.session.say_frame(frame)
            self._on_output()


class LiveLine:
    """The application, and the pages that are connected."""

    def __init__(self, given: Surroundings, keeper: Doorkeeper, background: Background) -> None:
        self._feed = given.feed
        self._views = given.views
        self._operator = given.operator
        self._keeper = keeper
        self._connections = PusherConnections(given.feed, background, given.entropy)
        self._incoming = Shares()
        self.pages: dict[str, Page] = {}
        self._recent = Recent()
        self._registry = Registry(given.views)
        self._is_watching = False
        self._batch: Timer | None = None
        self._look: Timer | None = None
        self._figures: Timer | None = None
        self._is_stopping = False

    # -- one connection ------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection; Host and Origin were judged by the listener's gate, which lets programs come without one."""
        if scope["type"] != "websocket":
            await refusal(fault("not_found", "connect a WebSocket here"))(scope, receive, send)
            return
        socket = WebSocket(scope, receive, send)
        sign_in = self._keeper.cookie_of(scope)
        if sign_in is None or not any(name == b"origin" for name, _ in scope["headers"]):
            await socket.send_denial_response(refusal(fault("auth.failed")))
            return
        scope[SHARE] = Share(self._incoming, messages.EDGE)
        await socket.accept()
        problem = self._unwelcome()
        if problem is not None:
            await turn_away(socket, *problem)
            return
        secret = self._keeper.channel_secret(sign_in)
        socket_id, now = self._connections.new_socket_id(), self._feed.now()
        session = PusherSession(messages.CHANNELS, socket_id, APP_KEY, secret, now, MAX_WAITING_BYTES)
        await self._connections.converse(socket, session, partial(self._came, session, sign_in), self._left)

    def _unwelcome(self) -> tuple[Code, str] | None:
        if len(self.pages) >= MAX_PAGES:
            return Code.OVER_CAPACITY, f"{MAX_PAGES} pages are connected"
        if self._is_stopping:
            return Code.STOPPING, "the exchange is stopping"
        return None

    def _came(self, session: PusherSession, sign_in: SignIn, on_output: Callable[[], None]) -> Page:
        page = Page(self, self._feed, session, sign_in, on_output)
        self.pages[session.socket_id] = page
        return page

    def _left(self, page: Page) -> None:
        del self.pages[page.session.socket_id]
        if page.number:
            self._feed.close_session(page.number)

    def is_open(self, sign_in: SignIn) -> bool:
        """Whether a sign-in is still good."""
        return self._keeper.is_open(sign_in)

    def hear(self, page: Page, data: bytes) -> None:
        """One message of a page."""
        match page.session.receive(data, self._feed.now()):
            case Subscribed() as wanted:
                self._joined(page, wanted.channel)
            case ClientEvent() as event:
                try:
                    wanted_entries = messages.read_follow(event.data)
                except BadFollow as problem:
                    page.session.refuse(str(problem))
                else:
                    self._follow(page, wanted_entries)
            case _:
                pass

    def _joined(self, page: Page, channel: str) -> None:
        page.session.confirm(channel, {"last": self._views.last_entry()} if channel == messages.FEED_CHANNEL else {})
        if channel == messages.REGISTRY_CHANNEL:
            page.tell(channel, self._registry.whole())
            if self._look is None:
                self._look = self._feed.call_later(LOOK_S, self._look_again)
        elif channel == messages.FIGURES_CHANNEL and self._figures is None:
            self._tell_figures()

    # -- entries -------------------------------------------------------------------------------------------------------

    def _follow(self, page: Page, wanted: messages.Follow) -> None:
        last = self._views.last_entry()
        page.follower.follow(wanted, last)
        if wanted.after is not None and wanted.after > last:
            # Of another record, or of one that lost its end.
            page.follower.is_following = False
            page.tell(messages.FEED_CHANNEL, feeds.behind(last, last))
            return
        if not self._is_watching:
            self._is_watching = True
            self._operator.watch(self._recent.take)
        if self._batch is None:
            self._batch = self._feed.call_later(BATCH_S, self._next_batches)

    def _followers(self) -> list[Page]:
        return [
            page
            for page in self.pages.values()
            if page.follower.is_following and messages.FEED_CHANNEL in page.session.channels
        ]

    def _next_batches(self) -> None:
        """Have the latest entries on disk, then tell of them. While nobody follows, nothing is watched."""
        self._batch = None
        if not self._followers():
            self._unwatch()
            return
        upto = self._views.last_entry()
        self._feed.when_stored(lambda: self._tell_batches(upto))

    def _tell_batches(self, upto: int) -> None:
        for page in self._followers():
            # A page that reads slowly stays where it is.
            if page.session.waiting_bytes < ENOUGH_WAITING_BYTES:
                self._guarded(page, partial(self._tell_batch, page, upto))
        self._recent.end_round()
        if self._is_watching and self._batch is None and not self._is_stopping:
            self._batch = self._feed.call_later(BATCH_S, self._next_batches)

    def _tell_batch(self, page: Page, upto: int) -> None:
        follower = page.follower
        if self._recent.has(follower.at, upto):
            follower.is_reading = False
            frame = self._recent.frame(follower, upto)
            if frame is not None:
                page.tell(messages.FEED_CHANNEL, frame)
            follower.at = max(follower.at, upto)
        elif follower.is_reading or not self._recent.first:
            follower.hold(self._recent.output)
            self._tell_recorded(page, upto)
        else:
            # It was told live, and what comes next for it is not kept any more.
            follower.is_following = False
            page.tell(messages.FEED_CHANNEL, feeds.behind(follower.at, upto))

    def _tell_recorded(self, page: Page, upto: int) -> None:
        follower = page.follower
        until = min(upto, follower.at + feeds.MAX_READ)
        lines = feeds.read_lines(self._views.recorded(follower.at + 1, until))
        page.tell(messages.FEED_CHANNEL, feeds.batch(follower.wanted, follower.at, until, lines))
        follower.at = until

    def _unwatch(self) -> None:
        if self._is_watching:
            self._is_watching = False
            self._operator.unwatch(self._recent.take)
            self._recent.clear()

    def _tell_all(self, pages: list[Page], channel: str, frame: bytes) -> None:
        for page in pages:
            self._guarded(page, partial(page.tell, channel, frame))

    def _guarded(self, page: Page, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001  (the boundary of a conversation)
            self._feed.failed(page.number, error)

    # -- who is here, and figures --------------------------------------------------------------------------------------

    def _listening(self, channel: str) -> list[Page]:
        return [page for page in self.pages.values() if channel in page.session.channels]

    def _look_again(self) -> None:
        self._look = None
        listening = self._listening(messages.REGISTRY_CHANNEL)
        if not listening:
            self._registry.forget()
            return
        self._look = self._feed.call_later(LOOK_S, self._look_again)
        frame = self._registry.changes()
        if frame is not None:
            self._tell_all(listening, messages.REGISTRY_CHANNEL, frame)

    def _tell_figures(self) -> None:
        self._figures = None
        listening = self._listening(messages.FIGURES_CHANNEL)
        if not listening:
            return
        self._figures = self._feed.call_later(FIGURES_S, self._tell_figures)
        found = self._operator.status()
        figures: dict[str, object] = {name: found.get(name, 0) for name in FIGURES}
        figures |= {"at": self._feed.now().ms, "questions": len(self._views.questions()), "pages": len(self.pages)}
        by_status = found.get("open_calls")
        figures["open_calls"] = sum(by_status.values()) if isinstance(by_status, Mapping) else 0
        frame = frames.frame(messages.FIGURES_TOLD, figures, messages.FIGURES_CHANNEL)
        self._tell_all(listening, messages.FIGURES_CHANNEL, frame)

    # -- the end -------------------------------------------------------------------------------------------------------

    def sign_in_ended(self, sign_in: SignIn) -> None:
        """Somebody signed out: his pages are told nothing more."""
        for page in list(self.pages.values()):
            if page.sign_in.sha256 == sign_in.sha256:
                page.end(Code.NOT_AUTHORIZED, "signed out")

    async def stop(self) -> None:
        """Say goodbye to all pages."""
        self._is_stopping = True
        for timer in (self._batch, self._look, self._figures):
            if timer is not None:
                timer.cancel()
        self._unwatch()
        for page in list(self.pages.values()):
            page.end(Code.STOPPING, "the exchange is stopping")
        await self._connections.wait_closed()
