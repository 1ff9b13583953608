"""Our thin client of several relays at once: one connection to each, kept up; events judged before anybody sees them.

Owns connections, their waits (1 s doubling to 30 s, with jitter), which events were seen, and the window of time in
which an event counts. Does not own what is said to a relay (``session``) or what an event means.

Invariant: ``told`` hears of each event once for each subscription, and only of such whose id computes, that its author
signed, and that is neither too old nor from the future. What a relay sends is bounded in size, number and pace. What a
callback raises is a defect on record and costs that one event; neither the subscription nor the relay is lost by it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from trunkline.edges.background import Background
from trunkline.edges.exchange import Feed
from trunkline.edges.nostr import events
from trunkline.edges.nostr.events import Draft, Event, NotAnEvent
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.session import MAX_FRAME_BYTES, Came, Filter, Refused, RelaySession, Said, Taken
from trunkline.error_words import in_words
from trunkline.model import Now

log = logging.getLogger("trunkline")

FIRST_WAIT_S: Final = 1.0
MAX_WAIT_S: Final = 30.0
OPEN_S: Final = 10.0
CLOSE_S: Final = 1.0
# A relay that says nothing to a ping for so long is gone.
PING_S: Final = 20.0
# Wire of OpenAgents: a request counts for an hour, and clocks differ by a quarter of one at most.
OLDEST_S: Final = 3600
NEWEST_S: Final = 900
# Ids that are remembered for each subscription: at the pace below half a minute of nothing but new events, and at what
# public relays carry many hours. What was forgotten and comes again is found on record.
MAX_SEEN: Final = 16_384
# To check an event takes about 0.12 ms, most of it its signature: one relay costs the loop 6 % at most.
EVENTS_PER_S: Final = 500

Told = Callable[[Event, str], None]
Filters = Callable[[Now], Sequence[Filter]]


class Bad(Struct, frozen=True):
    """An event that was not let in. ``code`` is one of four words, for the record."""

    code: str
    reason: str
    relay: str


class _Subscription(Struct, eq=False):
    filters: Filters
    told: Told
    # Old events count too: announcements stay good for as long as their relay has them.
    has_window: bool
    seen: dict[str, None]


class Client:
    """All our relays. ``on_bad`` hears of events that were not let in."""

    def __init__(self, feed: Feed, background: Background, signer: Signer) -> None:
        self._feed = feed
        self._background = background
        self._signer = signer
        self._relays: dict[str, _Relay] = {}
        self._subscriptions: dict[str, _Subscription] = {}
        # Events of ours that no relay has taken yet: how many may still, and who waits for it.
        self._unsettled: dict[str, tuple[set[str], asyncio.Future[bool]]] = {}
        self.on_bad: Callable[[Bad], None] = lambda bad: None  # noqa: ARG005  (nobody listens yet)

    # -- relays --------------------------------------------------------------------------------------------------------

    def add(
        self,
        url: str,
        reached: Callable[[], Awaitable[str]] | None = None,
        on_up: Callable[[], object] = lambda: None,
    ) -> None:
        """Keep up a connection to this relay from here on. ``reached`` is awaited for each connection, where the relay
        is to be reached at another address than the one it is known by; ``on_up`` hears that it was told what we want.
        """
        if url not in self._relays:
            relay = self._relays[url] = _Relay(self, url, self._sign, reached, on_up)
            for name, subscription in self._subscriptions.items():
                relay.session.subscribe(name, subscription.filters, self._feed.now())
            relay.task = self._background.spawn(relay.run())

    def remove(self, url: str) -> None:
        """Leave this relay."""
        relay = self._relays.pop(url, None)
        if relay is not None:
            relay.task.cancel()
            self._settle_all(url)

    def _settle_all(self, url: str) -> None:
        for event_id in [name for name, (left, _) in self._unsettled.items() if url in left]:
            self._refused(url, Refused(event_id, "the relay was left"))

    def status(self) -> Mapping[str, object]:
        """How many relays there are, and how many can be reached."""
        return {
            "relays": len(self._relays),
            "connected": sum(relay.session.is_connected for relay in self._relays.values()),
            "unsent": len(self._unsettled),
        }

    @property
    def relays(self) -> tuple[str, ...]:
        """The addresses of all."""
        return tuple(self._relays)

    async def wait_any_connected(self, timeout_s: float) -> bool:
        """Until one relay at least can be reached, or the time is over."""
        waiting = {asyncio.ensure_future(relay.is_up.wait()) for relay in self._relays.values()}
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
        return any(relay.session.is_connected for relay in self._relays.values())

    async def wait_quiet(self) -> None:
        """Until each event of ours was taken by a relay, or none will take it."""
        while self._unsettled:
            await asyncio.wait([told for _, told in self._unsettled.values()])

    # -- what we want, and what we say ---------------------------------------------------------------------------------

    def subscribe(self, name: str, filters: Filters, told: Told, *, has_window: bool = True) -> None:
        """Be told of events that fit, of all relays, until ``unsubscribe``.

        ``filters`` is asked anew for each connection, so that ``since`` can follow the time.
        """
        asked = self._guarded(filters)
        self._subscriptions[name] = _Subscription(asked, told, has_window, {})
        for relay in self._relays.values():
            relay.session.subscribe(name, asked, self._feed.now())
            relay.flush()

    def _guarded(self, filters: Filters) -> Filters:
        """The same, but a defect in it gives no filters: the session asks again later, and others are asked for now."""

        def asked(now: Now) -> Sequence[Filter]:
            try:
                return filters(now)
            except Exception as error:  # noqa: BLE001  (a callback's defect is its own)
                self.failed(error)
                return ()

        return asked

    def unsubscribe(self, name: str) -> None:
        """Be told no more."""
        if self._subscriptions.pop(name, None) is not None:
            for relay in self._relays.values():
                relay.session.unsubscribe(name)
                relay.flush()

    def publish(self, draft: Draft) -> tuple[Event, asyncio.Future[bool]]:
        """Sign this and tell it to all relays; the future says whether one of them took it, once that is known."""
        event = self._sign(draft)
        return event, self.say(event)

    def say(self, event: Event) -> asyncio.Future[bool]:
        """Tell a signed event to all relays. Each is told again until it took it or will not (``session``)."""
        known = self._unsettled.get(event.id)
        if known is not None:
            return known[1]
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if not self._relays:
            told.set_result(False)
            return told
        self._unsettled[event.id] = (set(self._relays), told)
        for relay in self._relays.values():
            relay.session.publish(event, self._feed.now())
            relay.flush()
        return told

    def forget(self, event_id: str) -> None:
        """Tell an event of ours to no relay any more that has not taken it yet."""
        for relay in self._relays.values():
            relay.session.forget(event_id)
        _, told = self._unsettled.pop(event_id, (None, None))
        if told is not None and not told.done():
            told.set_result(False)

    def _sign(self, draft: Draft) -> Event:
        return events.signed(draft, self._signer)

    # -- what relays say -----------------------------------------------------------------------------------------------

    def heard(self, url: str, said: Sequence[Said]) -> int:
        """What a relay said, judged. How many events there were among it: the pace is counted by them."""
        count = 0
        for one in said:
            match one:
                case Came():
                    count += 1
                    try:
                        self._came(url, one)
                    except Exception as error:  # noqa: BLE001  (whoever is told of an event fails alone, decision 47)
                        self.failed(error)
                case Taken():
                    self._taken(one.event_id)
                case Refused():
                    self._refused(url, one)
                case _:
                    pass
        return count

    def _came(self, url: str, came: Came) -> None:
        subscription = self._subscriptions.get(came.subscription)
        if subscription is None:
            return
        try:
            event = events.read_unchecked(came.data)
        except NotAnEvent as error:
            self.on_bad(Bad("nostr.malformed", str(error), url))
            return
        if event.id in subscription.seen:
            self.on_bad(Bad("nostr.repeated", "it was here before", url))
            return
        if subscription.has_window and (why := _outside(event, self._feed.now())):
            self.on_bad(Bad("nostr.old", why, url))
            return
        try:
            event = events.checked(event)
        except NotAnEvent as error:
            self.on_bad(Bad("nostr.forged", str(error), url))
            return
        # Only now: whoever makes up an event with another's id must not keep that one out.
        subscription.seen[event.id] = None
        if len(subscription.seen) > MAX_SEEN:
            del subscription.seen[next(iter(subscription.seen))]
        subscription.told(event, url)

    def _taken(self, event_id: str) -> None:
        left, told = self._unsettled.pop(event_id, (None, None))
        if left is not None and told is not None and not told.done():
            told.set_result(True)

    def _refused(self, url: str, refused: Refused) -> None:
        left, told = self._unsettled.get(refused.event_id, (None, None))
        if left is None or told is None:
            return
        left.discard(url)
        if not left:
            del self._unsettled[refused.event_id]
            if not told.done():
                told.set_result(False)
            log.warning("nostr: no relay took an event of ours: %s", refused.reason)

    def now(self) -> Now:
        """Both clocks."""
        return self._feed.now()

    def failed(self, error: BaseException) -> None:
        """A defect of ours, met while a relay was listened to."""
        self._feed.failed(0, error)


def _outside(event: Event, now: Now) -> str:
    if event.created_at < now.wall - OLDEST_S:
        return f"it is more than {OLDEST_S} s old"
    if event.created_at > now.wall + NEWEST_S:
        return f"it is more than {NEWEST_S} s ahead of our clock"
    return ""


class _Relay:
    """The connection to one relay, for as long as we want one."""

    def __init__(
        self,
        client: Client,
        url: str,
        sign: Callable[[Draft], Event],
        reached: Callable[[], Awaitable[str]] | None,
        on_up: Callable[[], object],
    ) -> None:
        self.session = RelaySession(url, sign)
        self.is_up = asyncio.Event()
        self.task: asyncio.Task[None]
        self._client = client
        self._url = url
        self._reached = reached
        self._on_up = on_up
        self._has_output = asyncio.Event()

    def flush(self) -> None:
        """There may be something to send."""
        self._has_output.set()

    async def run(self) -> None:
        """Connect, talk, and begin again."""
        wait_s = FIRST_WAIT_S
        while True:
            began = self._client.now().mono
            try:
                await self._talk()
            except (OSError, TimeoutError, WebSocketException) as error:
                log.info("nostr: no relay at %s (%s)", shown(self._url), in_words(error))
            except Exception as error:  # noqa: BLE001  (a defect costs this connection; there will be another)
                if isinstance(error, ValueError) and not self.session.is_connected:
                    log.info("nostr: %s is no address of a relay", shown(self._url))
                else:
                    self._client.failed(error)
            self.session.lost()
            self.is_up.clear()
            self._client.heard(self._url, self.session.wake(self._client.now()))
            if self._client.now().mono - began > MAX_WAIT_S:
                wait_s = FIRST_WAIT_S
            # Half of it is chance, so that all clients of a relay that fell do not come back in the same moment.
            await asyncio.sleep(wait_s * (0.5 + random.random() / 2))
            wait_s = min(2 * wait_s, MAX_WAIT_S)

    async def _talk(self) -> None:
        async with connect(
            self._url if self._reached is None else await self._reached(),
            max_size=MAX_FRAME_BYTES,
            max_queue=16,
            open_timeout=OPEN_S,
            close_timeout=CLOSE_S,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            compression=None,
            user_agent_header=None,
        ) as socket:
            self.session.connected(self._client.now())
            self.flush()
            sender, listener = asyncio.ensure_future(self._send(socket)), asyncio.ensure_future(self._listen(socket))
            try:
                # A sender that failed is no connection any more, though there is still something to hear.
                await asyncio.wait({sender, listener}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                sender.cancel()
                listener.cancel()
                ended = await asyncio.gather(listener, sender, return_exceptions=True)
            for error in ended:
                if isinstance(error, Exception):
                    raise error

    async def _listen(self, socket: ClientConnection) -> None:
        room, at = float(EVENTS_PER_S), self._client.now().mono
        async for frame in socket:
            data = frame.encode() if isinstance(frame, str) else frame
            count = self._client.heard(self._url, self.session.receive(data, self._client.now()))
            self.flush()
            now = self._client.now().mono
            room, at = min(EVENTS_PER_S, room + (now - at) * EVENTS_PER_S) - count, now
            # A relay that pours is read no faster than this; a turn for the others after each event in any case.
            await asyncio.sleep(0 if room > 0 else -room / EVENTS_PER_S + 0.01)

    async def _send(self, socket: ClientConnection) -> None:
        while True:
            wake_at = self.session.wake_at()
            timeout_s = None if wake_at is None else max(0.0, wake_at - self._client.now().mono)
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._has_output.wait()
            self._has_output.clear()
            self._client.heard(self._url, self.session.wake(self._client.now()))
            for frame in self.session.take_output():
                await socket.send(frame, text=True)
            if not self.is_up.is_set():
                self.is_up.set()
                self._on_up()


def shown(url: str) -> str:
    """An address without a password that it may hold."""
    scheme, _, rest = url.partition("//")
    return f"{scheme}//{rest.rpartition('@')[2]}"
