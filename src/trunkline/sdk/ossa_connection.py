"""The WebSocket between an OSSA agent and the exchange: made, kept, and made again when it ends.

Owns connecting with a growing wait between tries, the exchange's keys, the signature and encryption of every message in
both directions, and a heartbeat every 30 s. Does not own what messages mean: each that proved to be the exchange's goes
to ``on_message``, and ``on_open`` says what has to be said first on a new connection.

Invariant: nothing that the exchange did not sign, or that is not for this agent, reaches ``on_message``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from trunkline.edges import client
from trunkline.edges.ossa import messages, reading, sealing, signing
from trunkline.edges.ossa.messages import HEARTBEAT, MAX_MESSAGE_BYTES, Identity, Message, Refused
from trunkline.error_words import in_words
from trunkline.errors import ExchangeUnreachable, NotAdmitted
from trunkline.model import EMPTY_OBJECT, stamp
from trunkline.sdk.ossa_identity import ExchangeKeys, OwnIdentity, Place, UnknownKey, read_keys
from trunkline.sdk.ossa_message import ConnectionLost, OssaError
from trunkline.sdk.ossa_trouble import FOREIGN, Distrusted, explained

log = logging.getLogger("trunkline.sdk")

PREFIX: Final = "/ossa/v1"
# The exchange itself, as a recipient.
EXCHANGE: Final = Identity("trunkline", "orchestrator")
# Silent point 25.
HEARTBEAT_S: Final = 30.0
FIRST_WAIT_S: Final = 0.2
MAX_WAIT_S: Final = 10.0
OPEN_S: Final = 10.0
# How often, at most, the exchange is asked for its keys because of one that is not known.
KEYS_S: Final = 10.0


class Socket(Protocol):
    """What is needed of a WebSocket."""

    async def send(self, message: str, /) -> None:
        """Send a text frame."""

    def __aiter__(self) -> AsyncIterator[str | bytes]:
        """Frames, until it ends."""


class Dialling(Protocol):
    """How the exchange is reached."""

    async def keys(self) -> ExchangeKeys:
        """Its public keys now."""

    def socket(self) -> AbstractAsyncContextManager[Socket]:
        """A new WebSocket to it."""


class NetworkDialling:
    """Over TLS 1.3. Where it is and whom to trust is looked up each time: after a restart it may be elsewhere."""

    def __init__(self, place: Place) -> None:
        self._place = place

    async def keys(self) -> ExchangeKeys:
        """Ask ``GET /ossa/v1/keys``."""
        url, context = self._place.find()
        try:
            answer = await client.request(url, "GET", path=f"{PREFIX}/keys", timeout_s=OPEN_S, tls=context)
        except FOREIGN as error:
            raise explained(error, url, open_s=OPEN_S) from None
        if answer.status != 200:
            raise ExchangeUnreachable(f"GET {PREFIX}/keys: HTTP {answer.status}")
        return read_keys(answer.body)

    @contextlib.asynccontextmanager
    async def socket(self) -> AsyncIterator[Socket]:
        """Connect to ``/ossa/v1/ws``."""
        from websockets.asyncio.client import connect

        url, context = self._place.find()
        address = f"wss{url.removeprefix('https')}{PREFIX}/ws"
        try:
            socket = await connect(
                address, ssl=context, open_timeout=OPEN_S, max_size=2 * MAX_MESSAGE_BYTES, compression=None, proxy=None
            )
        except FOREIGN as error:
            raise explained(error, url, open_s=OPEN_S) from None
        try:
            yield socket
        finally:
            await socket.close()


class OssaConnection:
    """One agent's connection. ``is_open``: messages can be sent; ``is_ready``: what had to be said first was said."""

    def __init__(
        self,
        own: OwnIdentity,
        dialling: Dialling,
        *,
        on_open: Callable[[], Awaitable[None]],
        on_message: Callable[[Message, bool], None],
        on_refused: Callable[[Message, Refused], None],
        on_lost: Callable[[], None],
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.own = own
        self._dialling = dialling
        self._on_open = on_open
        self._on_message = on_message
        self._on_refused = on_refused
        self._on_lost = on_lost
        self._heartbeat_s = heartbeat_s
        self._socket: Socket | None = None
        self._keys: ExchangeKeys | None = None
        self._keys_at = 0.0
        self._refused: asyncio.Future[None] | None = None
        self.is_ready = asyncio.Event()
        # Why the last attempt led to nothing, and whether that is because nobody vouches for who answered.
        self.trouble = ""
        self.is_distrusted = asyncio.Event()

    def not_admitted(self, why: NotAdmitted) -> None:
        """The exchange does not let this agent in: ``run`` ends with this."""
        if self._refused is not None and not self._refused.done():
            self._refused.set_exception(why)

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._socket is not None

    # -- the connection's life -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Stay connected until cancelled; ``NotAdmitted`` if the exchange does not let this agent in."""
        wait_s, is_told = FIRST_WAIT_S, False
        while True:
            try:
                await self._connect()
            except (*FOREIGN, ExchangeUnreachable, OssaError) as error:
                if self.is_ready.is_set():
                    wait_s, is_told = FIRST_WAIT_S, False
                self.trouble = _sentence(error)
                if isinstance(error, Distrusted):
                    self.is_distrusted.set()
                if not is_told:
                    is_told = True
                    log.warning("no connection to the exchange, which is tried again: %s", self.trouble)
            finally:
                self._socket = None
                self.is_ready.clear()
                self._on_lost()
            # Many agents that lost the same exchange do not come back in the same moment.
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, MAX_WAIT_S)

    async def _connect(self) -> None:
        await self._ask_keys()
        async with self._dialling.socket() as socket:
            self._socket = socket
            refused = self._refused = asyncio.get_running_loop().create_future()
            tasks = [
                *(asyncio.create_task(one) for one in (self._read(socket), self._greet(), self._beat())),
                refused,
            ]
            try:
                # None but the greeting ends in order: whatever ends first ends the connection.
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                for task in tasks:
                    if task.done():
                        task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _greet(self) -> None:
        await self._on_open()
        self.is_ready.set()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            await self.send(self.new(HEARTBEAT, HEARTBEAT, (EXCHANGE,)))

    async def _ask_keys(self) -> None:
        self._keys = await self._dialling.keys()
        self._keys_at = time.monotonic()

    # -- what comes ----------------------------------------------------------------------------------------------------

    async def _read(self, socket: Socket) -> None:
        async for frame in socket:
            data = frame.encode() if isinstance(frame, str) else bytes(frame)
            try:
                message = await self._judged(data)
            except Refused as refused:
                log.warning("a message was dropped: %s", refused.text)
                continue
            if not sealing.is_sealed(message.payload):
                self._on_message(message, False)
                continue
            try:
                payload = sealing.open_sealed(message, self.own.opens)
            except Refused as refused:
                self._on_refused(message, refused)
            else:
                self._on_message(msgspec.structs.replace(message, payload=payload, sensitive=True), True)
        raise ConnectionLost

    async def _judged(self, data: bytes) -> Message:
        """A message of the exchange for us; ``Refused`` if it is anything else."""
        message = reading.read(data, any_uuid=True)
        assert self._keys is not None
        try:
            self._keys.check(message, data)
        except UnknownKey:
            if time.monotonic() - self._keys_at < KEYS_S:
                raise
            await self._ask_keys()
            self._keys.check(message, data)
        if all(one.agent_id != self.own.identity.agent_id for one in message.recipients):
            raise Refused(messages.BAD_REQUEST, "it is for somebody else")
        return message

    # -- what leaves ---------------------------------------------------------------------------------------------------

    def new(
        self, kind: str, action: str, to: tuple[Identity, ...], payload: Raw = EMPTY_OBJECT, **fields: Any
    ) -> Message:
        """A message of ours."""
        at = stamp(round(time.time() * 1000))
        return Message(str(uuid.uuid4()), kind, self.own.identity, to, at, action, payload, **fields)

    def encode(self, message: Message, *, sealed: bool = False) -> bytes:
        """A message as it leaves: sealed for the exchange if it has to be, and signed. ``OssaError`` if that fails."""
        try:
            if sealed:
                if self._keys is None:
                    raise ConnectionLost
                payload = sealing.seal(message.payload, message.message_id, [self._keys.seals])
                message = msgspec.structs.replace(message, payload=payload, sensitive=True)
            data = signing.sign(message, self.own.signs)
        except Refused as refused:
            raise OssaError(refused.error_code, refused.text) from None
        if len(data) > MAX_MESSAGE_BYTES:
            raise OssaError(messages.BAD_REQUEST, f"a message of {len(data)} bytes; the limit is {MAX_MESSAGE_BYTES}")
        return data

    async def send(self, message: Message, *, sealed: bool = False) -> None:
        """Send this now; ``ConnectionLost`` if there is no connection."""
        await self.send_bytes(self.encode(message, sealed=sealed))

    async def send_bytes(self, data: bytes) -> None:
        """Send what ``encode`` made."""
        from websockets.exceptions import ConnectionClosed

        socket = self._socket
        if socket is None:
            raise ConnectionLost
        try:
            await socket.send(data.decode())
        except (ConnectionClosed, OSError):
            raise ConnectionLost from None


def _sentence(error: Exception) -> str:
    """Why a connection ended, or was not made."""
    from websockets.exceptions import ConnectionClosed

    if isinstance(error, ExchangeUnreachable | OssaError):
        return str(error)
    if isinstance(error, ConnectionClosed) and error.rcvd is not None and error.rcvd.reason:
        return f"the exchange closed it: {error.rcvd.reason}"
    return in_words(error)
