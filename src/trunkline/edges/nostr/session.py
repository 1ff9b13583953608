"""One relay as we talk to it (NIP-01, NIP-42): subscriptions and what we publish, whatever becomes of the connection.

Theory of operation::

    made ──connected──> talking ──lost──> made
                           └── AUTH asked ──> our answer, then what it refused is said again

What is wanted (subscriptions) and owed (events without an OK) outlives a connection: all of it is said again on the
next one. An event is repeated until the relay took it, refused it for good, or it was tried for too long. Sans-IO: time
comes in, frames are taken out. Does not judge events (``client``), and keeps none that came.

Invariant: whatever a relay sends, nothing raises, and what is kept is bounded by what we asked for and published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct, field

from trunkline.edges.nostr.events import MAX_EVENT_BYTES, Draft, Event, encoded
from trunkline.model import Now

# An event and the words around it.
MAX_FRAME_BYTES: Final = MAX_EVENT_BYTES + 1024
# What a relay may say to people; more is cut.
MAX_NOTICE_CHARS: Final = 200
MAX_CHALLENGE_CHARS: Final = 512
# On one connection: each is a signature, and a frame that waits until the relay reads.
MAX_AUTHS: Final = 8
MAX_SUBSCRIPTIONS: Final = 64
# Events without an OK: of one relay that does not answer. The oldest go first.
MAX_OWED: Final = 1024
MAX_OWED_BYTES: Final = 16_777_216
# An event is said again after these waits, then every so often, for so long.
FIRST_AGAIN_S: Final = 5.0
MAX_AGAIN_S: Final = 60.0
GIVE_UP_S: Final = 3600.0
# A subscription that the relay ended is asked for again so much later.
RESUBSCRIBE_S: Final = 30.0
AUTH_KIND: Final = 22_242

# Beginnings of a relay's reasons (NIP-01) after which the same event may be taken later.
_LATER: Final = ("rate-limited:", "error:", "auth-required:")
_TAKEN: Final = "duplicate:"


class Filter(Struct, frozen=True, omit_defaults=True):
    """Which events are wanted: those that fit all of what is given."""

    ids: tuple[str, ...] | None = None
    authors: tuple[str, ...] | None = None
    kinds: tuple[int, ...] | None = None
    e: tuple[str, ...] | None = field(default=None, name="#e")
    p: tuple[str, ...] | None = field(default=None, name="#p")
    k: tuple[str, ...] | None = field(default=None, name="#k")
    since: int | None = None
    until: int | None = None
    limit: int | None = None


class Came(Struct, frozen=True):
    """An event for a subscription, unread."""

    subscription: str
    data: bytes


class Stored(Struct, frozen=True):
    """All that the relay had for a subscription is here; what follows is new."""

    subscription: str


class Taken(Struct, frozen=True):
    """The relay has an event of ours."""

    event_id: str


class Refused(Struct, frozen=True):
    """The relay will not have an event of ours, or did not say so in time."""

    event_id: str
    reason: str


class Remarked(Struct, frozen=True):
    """The relay said something to people, or something that is no message."""

    text: str


Said = Came | Stored | Taken | Refused | Remarked


class _Owed(Struct):
    event_id: str
    frame: bytes
    since: float
    again_at: float
    wait_s: float = FIRST_AGAIN_S


_frame: Final = msgspec.json.Decoder(list[Raw]).decode
_text: Final = msgspec.json.Decoder(str).decode
_bool: Final = msgspec.json.Decoder(bool).decode


class RelaySession:
    """Our side of the conversation with one relay. ``sign`` answers a relay that wants to know who we are."""

    def __init__(self, url: str, sign: Callable[[Draft], Event]) -> None:
        self.url = url
        self.is_connected = False
        self._sign = sign
        self._wanted: dict[str, Callable[[Now], Sequence[Filter]]] = {}
        # Subscriptions that the relay ended, and when they are asked for again.
        self._ended: dict[str, float] = {}
        self._owed: dict[str, _Owed] = {}
        self._owed_bytes = 0
        self._out: list[bytes] = []
        self._given_up: list[Refused] = []
        self._auth_id = ""
        self._auths = 0

    # -- what we want --------------------------------------------------------------------------------------------------

    def subscribe(self, name: str, filters: Callable[[Now], Sequence[Filter]], now: Now) -> None:
        """Want these events from here on. ``filters`` is asked again on each new connection."""
        if len(self._wanted) >= MAX_SUBSCRIPTIONS and name not in self._wanted:
            raise ValueError(f"more than {MAX_SUBSCRIPTIONS} subscriptions")
        self._wanted[name] = filters
        self._request(name, now)

    def unsubscribe(self, name: str) -> None:
        """Want them no more."""
        if self._wanted.pop(name, None) is not None and self.is_connected:
            self._say("CLOSE", name)
        self._ended.pop(name, None)

    def publish(self, event: Event, now: Now) -> None:
        """Tell this event, and tell it again until it was taken."""
        data = encoded(event)
        frame = b'["EVENT",%b]' % data
        if event.id in self._owed:
            return
        self._owed[event.id] = _Owed(event.id, frame, now.mono, now.mono + FIRST_AGAIN_S)
        self._owed_bytes += len(frame)
        if self.is_connected:
            self._out.append(frame)
        while len(self._owed) > MAX_OWED or self._owed_bytes > MAX_OWED_BYTES:
            oldest = next(iter(self._owed))
            self._settle(oldest)
            self._given_up.append(Refused(oldest, "too many events wait for this relay"))

    def forget(self, event_id: str) -> None:
        """It need not be told here any more."""
        self._settle(event_id)

    # -- the connection ------------------------------------------------------------------------------------------------

    def connected(self, now: Now) -> None:
        """There is a connection: say all that is wanted and owed."""
        self.is_connected = True
        self._out.clear()
        self._ended.clear()
        self._auth_id = ""
        self._auths = 0
        for name in self._wanted:
            self._request(name, now)
        for owed in self._owed.values():
            self._out.append(owed.frame)
            owed.again_at, owed.wait_s = now.mono + FIRST_AGAIN_S, FIRST_AGAIN_S

    def lost(self) -> None:
        """It is gone; nothing is said until there is another."""
        self.is_connected = False
        self._out.clear()

    def take_output(self) -> list[bytes]:
        """Frames to send, in order."""
        out, self._out = self._out, []
        return out

    def wake_at(self) -> float | None:
        """When there is something to say again, or to give up."""
        moments = [owed.again_at for owed in self._owed.values()] + list(self._ended.values())
        return min(moments) if moments else None

    def wake(self, now: Now) -> list[Said]:
        """Say again what is due; give up what was tried for too long."""
        given_up, self._given_up = self._given_up, []
        for owed in list(self._owed.values()):
            if owed.again_at > now.mono:
                continue
            if now.mono - owed.since >= GIVE_UP_S:
                self._settle(owed.event_id)
                given_up.append(Refused(owed.event_id, "the relay did not take it in time"))
                continue
            if self.is_connected:
                self._out.append(owed.frame)
            owed.wait_s = min(2 * owed.wait_s, MAX_AGAIN_S)
            owed.again_at = now.mono + owed.wait_s
        for name, at in list(self._ended.items()):
            if at <= now.mono:
                self._request(name, now)
        return list(given_up)

    # -- what the relay says -------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: Now) -> list[Said]:
        """One frame."""
        given_up: list[Said] = [*self._given_up]
        self._given_up = []
        if len(data) > MAX_FRAME_BYTES:
            return [*given_up, Remarked(f"a frame of {len(data)} bytes")]
        try:
            # What an event is, its reader judges: here only the outermost list is looked at.
            parts = _frame(data)
            return given_up + list(self._heard(_text(parts[0]), parts[1:], now))
        except (msgspec.DecodeError, IndexError, UnicodeDecodeError, RecursionError):
            return [*given_up, Remarked("a frame that is no message of a relay")]

    def _heard(self, verb: str, parts: list[Raw], now: Now) -> Iterator[Said]:
        match verb:
            case "EVENT":
                if (name := _text(parts[0])) in self._wanted:
                    yield Came(name, bytes(parts[1]))
            case "EOSE":
                if (name := _text(parts[0])) in self._wanted:
                    yield Stored(name)
            case "OK":
                yield from self._answered(_text(parts[0]), _bool(parts[1]), _text(parts[2]) if parts[2:] else "", now)
            case "CLOSED":
                self._closed(_text(parts[0]), now)
                yield Remarked(f"closed: {_text(parts[1]) if parts[1:] else ''}"[:MAX_NOTICE_CHARS])
            case "NOTICE":
                yield Remarked(_text(parts[0])[:MAX_NOTICE_CHARS])
            case "AUTH":
                self._authenticate(_text(parts[0]), now)
            case _:
                yield Remarked("a message that is not in NIP-01")

    def _answered(self, event_id: str, is_taken: bool, reason: str, now: Now) -> Iterator[Said]:
        if event_id and event_id == self._auth_id:
            self._auth_id = ""
            if is_taken:
                self._say_again(now)
            return
        owed = self._owed.get(event_id)
        if owed is None:
            return
        if is_taken or reason.startswith(_TAKEN):
            self._settle(event_id)
            yield Taken(event_id)
        elif not reason.startswith(_LATER):
            self._settle(event_id)
            yield Refused(event_id, reason[:MAX_NOTICE_CHARS])

    def _closed(self, name: str, now: Now) -> None:
        if name in self._wanted:
            self._ended[name] = now.mono + RESUBSCRIBE_S

    def _authenticate(self, challenge: str, now: Now) -> None:
        """Say who we are (NIP-42). The signed words name this relay, so that no other can use them."""
        if not 0 < len(challenge) <= MAX_CHALLENGE_CHARS or self._auths >= MAX_AUTHS:
            return
        self._auths += 1
        event = self._sign(Draft(AUTH_KIND, "", (("relay", self.url), ("challenge", challenge)), int(now.wall)))
        self._auth_id = event.id
        self._out.append(b'["AUTH",%b]' % encoded(event))

    def _say_again(self, now: Now) -> None:
        """We are known now: what was refused for that is asked again."""
        for name in list(self._ended):
            self._request(name, now)
        self._out += [owed.frame for owed in self._owed.values()]

    # -- words ---------------------------------------------------------------------------------------------------------

    def _request(self, name: str, now: Now) -> None:
        self._ended.pop(name, None)
        if not self.is_connected:
            return
        filters = self._wanted[name](now)
        if filters:
            self._say("REQ", name, *filters)
        else:
            # Nobody can say now what is wanted: a request without filters is none.
            self._ended[name] = now.mono + RESUBSCRIBE_S

    def _say(self, *words: object) -> None:
        self._out.append(msgspec.json.encode(words))

    def _settle(self, event_id: str) -> None:
        owed = self._owed.pop(event_id, None)
        if owed is not None:
            self._owed_bytes -= len(owed.frame)

    def __len__(self) -> int:
        """Events that this relay has not taken yet."""
        return len(self._owed)
