"""Who is on a relay in tests with a real exchange, and one of them: a buyer of jobs, with everything it saw."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import msgspec
from msgspec import Raw
from websockets.asyncio.client import ClientConnection, connect

from trunkline.config import NostrKinds
from trunkline.edges.nostr import events, messages
from trunkline.edges.nostr.events import Draft, Event
from trunkline.edges.nostr.keys import Signer
from trunkline.jobs.schemas import job_types

KINDS = NostrKinds()
WAIT_S = 30.0
CONFIG = """
[ossa]
listen = ""
[nostr]
relay = "127.0.0.1:0"
"""


class OnRelay:
    """Somebody with a key and one connection to a relay, in an ``async with``. What the relay sends is kept."""

    def __init__(self, url: str, signer: Signer, *wanted: dict[str, object]) -> None:
        self.signer = signer
        self.seen: list[Event] = []
        # What the relay said of each event that was sent to it.
        self.oks: dict[str, tuple[bool, str]] = {}
        self._changed = asyncio.Event()
        self._url = url
        self._wanted = wanted
        self._connection: ClientConnection
        self._reader: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._connection = await connect(self._url, max_size=None)
        self._reader = asyncio.ensure_future(self._read())
        await self._connection.send(json.dumps(["REQ", "all", *self._wanted]))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._connection.close()

    async def _read(self) -> None:
        async for frame in self._connection:
            words = json.loads(frame)
            if words[0] == "EVENT":
                event = events.read(msgspec.json.encode(words[2]))
                self.seen.append(event)
                await self._heard(event)
            elif words[0] == "OK":
                self.oks[words[1]] = (words[2], words[3])
            self._changed.set()

    async def say(self, draft: Draft, signer: Signer | None = None) -> Event:
        """Send something to the relay."""
        event = events.signed(draft, signer or self.signer)
        await self._connection.send(b'["EVENT",%b]' % events.encoded(event), text=True)
        return event

    async def _heard(self, event: Event) -> None:
        """What becomes of it, besides that it is kept."""

    async def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait, for a bounded time, until what was seen makes this true."""
        deadline = time.monotonic() + WAIT_S
        while not (found := condition()):
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), max(0.01, deadline - time.monotonic()))
            except TimeoutError:
                raise AssertionError(f"waited in vain for: {what}; saw {self.seen}") from None
        return found


class Buyer(OnRelay):
    """It hears all that the relay has and gets."""

    def __init__(self, url: str, signer: Signer | None = None, also: Sequence[int] = ()) -> None:
        super().__init__(url, signer or Signer(bytes(31) + b"\x09"), {"kinds": [31_990, 6050, 7000, *also]})

    async def provider(self) -> str:
        """Who announces itself here."""
        announced = await self.until(lambda: [e for e in self.seen if e.kind == 31_990], "an announcement")
        return str(announced[-1].pubkey)

    async def publish(self, draft: Draft, signer: Signer | None = None) -> Event:
        """Say something, and wait until the relay has it."""
        event = await self.say(draft, signer)
        is_taken, why = await self.until(lambda: self.oks.get(event.id), "an OK")
        assert is_taken, why
        return event

    async def ask(self, schema_id: str, inputs: dict[str, Any], **options: Any) -> Event:
        """Post a job."""
        body = Raw(msgspec.json.encode(inputs))
        job_hash = options.pop("job_hash", None) or job_types()[schema_id].job_hash(inputs)
        options = {"provider": await self.provider(), "created_at": int(time.time()), "nonce": "n", **options}
        return await self.publish(messages.request_draft(KINDS, schema_id, body, job_hash, **options))

    def about(self, request: Event, kind: int) -> list[Event]:
        """What was said about a job."""
        return [event for event in self.seen if event.kind == kind and event.value("e") == request.id]

    def statuses(self, request: Event) -> list[str]:
        """The words of all feedback about a job."""
        return [event.value("status") for event in self.about(request, 7000)]

    async def result(self, request: Event) -> messages.JobResult:
        """The result of a job."""
        [event] = await self.until(lambda: self.about(request, 6050), "a result")
        return messages.read_result(event, self.signer.decrypt)
