"""One connection in Pusher's protocol 7, on our side of it: sans-IO.

Owns what Pusher is: the welcome, pings, subscriptions and their signatures, how fast events may come, how much may wait
for a reader, and when a connection ends and with which code. Does not own which channels there are (``Channels``) and
what the events on them are about (the edge), nor the socket (``writer``). Time comes in; what has to be said is taken
with ``take_output``; what the client wants of the edge is returned.

States: open, then closed with a code.

Invariant: nothing that a client sends raises; what waits for it never has more than ``max_waiting_bytes``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import deque
from typing import Any, Final

from msgspec import Struct

from trunkline import strictjson
from trunkline.edges.pusher import frames
from trunkline.edges.pusher.frames import Channels, Code, Frame, NotAFrame
from trunkline.edges.pusher.presence import MAX_USER_ID_CHARS, MAX_USER_INFO_BYTES, Member
from trunkline.model import Now

# After so much silence of a client it is asked for a sign of life: Pusher's own default.
ACTIVITY_TIMEOUT_S: Final = 120
# How long that may take: what Pusher's documentation recommends.
PONG_S: Final = 30.0
# Client events of one connection: Pusher's bound, and a page that starts asks for a few things at once.
EVENTS_PER_S: Final = 10.0
EVENTS_AT_ONCE: Final = 30.0
# Of all other frames.
FRAMES_PER_S: Final = 50.0
FRAMES_AT_ONCE: Final = 200.0
# Messages in a row that are none of Pusher's: then it speaks something else.
MAX_BAD: Final = 8


class Subscribed(Struct, frozen=True):
    """The client listens to a channel from now on; a ``member`` of a presence channel came with it."""

    channel: str
    member: Member | None = None


class Unsubscribed(Struct, frozen=True):
    """It does not any more."""

    channel: str


class ClientEvent(Struct, frozen=True):
    """The client says something on one of the channels (``base``)."""

    base: str
    event: str
    data: Any


Wanted = Subscribed | Unsubscribed | ClientEvent


class Bucket:
    """So much at once, and so much a second."""

    __slots__ = ("_at", "_left", "_most", "_per_s")

    def __init__(self, per_s: float, most: float, now: float) -> None:
        self._per_s = per_s
        self._most = self._left = most
        self._at = now

    def try_take(self, now: float) -> bool:
        """Whether there is one more."""
        self._left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def signature(secret: bytes, app_key: str, socket_id: str, channel: str, channel_data: str = "") -> str:
    """What a client has to show for a private channel, and with ``channel_data`` for a presence channel."""
    signed = f"{socket_id}:{channel}" + (f":{channel_data}" if channel.startswith(frames.PRESENCE) else "")
    return f"{app_key}:{hmac.new(secret, signed.encode(), hashlib.sha256).hexdigest()}"


class PusherSession:
    """One connection. ``secret`` signs private channels; ``max_waiting_bytes`` is what may wait for the client."""

    def __init__(
        self,
        channels: Channels,
        socket_id: str,
        app_key: str,
        secret: bytes,
        now: Now,
        max_waiting_bytes: int,
    ) -> None:
        self._known = channels
        self._max_waiting_bytes = max_waiting_bytes
        self.socket_id = socket_id
        self._app_key = app_key
        self._secret = secret
        # Which of the channels it listens to, in the order in which it asked.
        self.channels: dict[str, None] = {}
        # Set when nothing more is said after what waits.
        self.code: Code | None = None
        self.reason = ""
        self._output: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._heard = now.mono
        self._pinged: float | None = None
        self._bad = 0
        self._events = Bucket(EVENTS_PER_S, EVENTS_AT_ONCE, now.mono)
        self._frames = Bucket(FRAMES_PER_S, FRAMES_AT_ONCE, now.mono)
        # When it was last told that it is too fast: once a second is enough.
        self._told_rate = float("-inf")
        self._say(frames.frame(frames.ESTABLISHED, {"socket_id": socket_id, "activity_timeout": ACTIVITY_TIMEOUT_S}))

    # -- what the client says ------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: Now) -> Wanted | None:
        """One message."""
        if self.code is not None:
            return None
        self._heard = now.mono
        self._pinged = None
        try:
            frame = frames.read_frame(data)
        except NotAFrame as problem:
            self._bad += 1
            if self._bad >= MAX_BAD:
                self.end(Code.NOT_PUSHER, f"{MAX_BAD} messages in a row were none of Pusher's: {problem}")
            else:
                self.refuse(str(problem))
            return None
        self._bad = 0
        is_client_event = frame.event.startswith(frames.CLIENT_PREFIX)
        if not (self._events if is_client_event else self._frames).try_take(now.mono):
            self._too_fast(now.mono)
            return None
        if is_client_event:
            return self._client_event(frame)
        match frame.event:
            case frames.PING:
                self._say(frames.frame(frames.PONG, {}))
            case frames.PONG:
                pass
            case frames.SUBSCRIBE:
                return self._subscribe(frame)
            case frames.UNSUBSCRIBE:
                channel = frame.data.get("channel") if isinstance(frame.data, dict) else None
                if isinstance(channel, str) and channel in self.channels:
                    del self.channels[channel]
                    return Unsubscribed(channel)
            case _:
                self.refuse("event: none that this server knows; those of a client begin with `client-`")
        return None

    def _client_event(self, frame: Frame) -> Wanted | None:
        base = self._known.base_of(frame.channel)
        if not base or frame.channel not in self.channels:
            self.refuse("channel: client events are taken on a channel that was subscribed to")
        elif frame.event not in self._known.events[base]:
            self.refuse(f"event: {base} takes {', '.join(sorted(self._known.events[base]))}")
        else:
            return ClientEvent(base, frame.event, frame.data)
        return None

    def _subscribe(self, frame: Frame) -> Wanted | None:
        data = frame.data if isinstance(frame.data, dict) else {}
        channel = data.get("channel")
        if not isinstance(channel, str) or not self._known.base_of(channel):
            self.refuse(f"channel: expected {' or '.join(self._known.names)}")
            return None
        if channel in self.channels:
            self.refuse("channel: it is subscribed to already")
            return None
        member = None
        if channel.startswith((frames.PRIVATE, frames.PRESENCE)):
            channel_data = data.get("channel_data")
            shown = channel_data if isinstance(channel_data, str) else ""
            if not self._is_signed(channel, data.get("auth"), shown):
                self._not_subscribed(channel, 401, "auth: the signature is missing or not right")
                return None
            if channel.startswith(frames.PRESENCE):
                member = _member(shown)
                if member is None:
                    self._not_subscribed(channel, 400, "channel_data: expected an object with `user_id` in a text")
                    return None
        self.channels[channel] = None
        return Subscribed(channel, member)

    def _is_signed(self, channel: str, auth: object, channel_data: str) -> bool:
        wanted = signature(self._secret, self._app_key, self.socket_id, channel, channel_data)
        return isinstance(auth, str) and hmac.compare_digest(wanted.encode(), auth.encode())

    def refuse(self, text: str) -> None:
        """Something that the client said was not taken; the connection stays."""
        self._say(frames.error_frame(Code.NOT_TAKEN, text))

    def _too_fast(self, now: float) -> None:
        if now - self._told_rate >= 1.0:
            self._told_rate = now
            self._say(frames.error_frame(Code.RATE, f"at most {EVENTS_PER_S:g} client events a second are taken"))

    def _not_subscribed(self, channel: str, status: int, text: str) -> None:
        data = {"type": "AuthError", "error": text, "status": status}
        self._say(frames.frame(frames.NOT_SUBSCRIBED, data, channel))

    # -- what is said to it --------------------------------------------------------------------------------------------

    def confirm(self, channel: str, data: object) -> None:
        """It is subscribed."""
        self._say(frames.frame(frames.SUBSCRIBED, data, channel))

    def turn_away(self, channel: str, text: str) -> None:
        """It cannot be subscribed after all: there is no room."""
        self.channels.pop(channel, None)
        self._not_subscribed(channel, 403, text)

    def tell(self, base: str, event: str, data: str) -> None:
        """Something on one of the channels (a JSON text), under each name by which the client listens to it."""
        for channel in self.channels:
            if self._known.base_of(channel) == base:
                self._say(frames.encoded_frame(event, data, channel))

    def tell_on(self, channel: str, event: str, data: object) -> None:
        """Something on one channel, if the client listens to it."""
        if channel in self.channels:
            self._say(frames.frame(event, data, channel))

    def tell_on_encoded(self, channel: str, event: str, data: str) -> None:
        """The same for data that is a JSON text already."""
        if channel in self.channels:
            self._say(frames.encoded_frame(event, data, channel))

    def say_frame(self, frame: bytes) -> None:
        """A whole frame, which was made once for several clients."""
        self._say(frame)

    @property
    def waiting_bytes(self) -> int:
        """What was said and not written yet."""
        return self._waiting_bytes

    def listens_to(self, base: str) -> bool:
        """Whether it listens to one of the channels, under any name."""
        return any(self._known.base_of(channel) == base for channel in self.channels)

    def end(self, code: Code, reason: str) -> None:
        """Say why, and nothing more."""
        if self.code is None:
            self._say(frames.error_frame(code, reason))
            self.code, self.reason = code, reason

    def _say(self, data: bytes) -> None:
        if self.code is not None:
            return
        size = len(data)
        if self._waiting_bytes + size > self._max_waiting_bytes:
            # It would not read why, either.
            self._output.clear()
            self.code, self.reason = Code.TOO_SLOW, "too much waits to be read"
            return
        self._waiting_bytes += size
        self._output.append(data)

    def take_output(self) -> bytes | None:
        """The next message to write, when what was written before has left."""
        if not self._output:
            return None
        data = self._output.popleft()
        self._waiting_bytes -= len(data)
        return data

    # -- time ----------------------------------------------------------------------------------------------------------

    def wake_at(self) -> float | None:
        """When to look whether it is still there."""
        if self.code is not None:
            return None
        return self._heard + ACTIVITY_TIMEOUT_S if self._pinged is None else self._pinged + PONG_S

    def wake(self, now: Now) -> None:
        """Ask for a sign of life, or miss one."""
        at = self.wake_at()
        if at is None or now.mono < at:
            return
        if self._pinged is None:
            self._pinged = now.mono
            self._say(frames.frame(frames.PING, {}))
        else:
            self.end(Code.NO_PONG, f"no answer to a ping within {PONG_S:g} s")


def _member(channel_data: str) -> Member | None:
    try:
        value = strictjson.load(channel_data.encode())
    except strictjson.NotStrictJson:
        return None
    user_id = value.get("user_id") if isinstance(value, dict) else None
    if isinstance(user_id, int) and not isinstance(user_id, bool):
        user_id = str(user_id)
    if not isinstance(user_id, str) or not 0 < len(user_id) <= MAX_USER_ID_CHARS:
        return None
    info = value.get("user_info")
    return None if len(frames.encode(info)) > MAX_USER_INFO_BYTES else Member(user_id, info)
