"""Providers of jobs for tests with a real exchange: each has a connection to a relay, and does what a test says."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

import msgspec
from msgspec import Raw

from tests.nostr import KINDS, OnRelay
from trunkline.edges.nostr import messages
from trunkline.edges.nostr.events import Draft, Event
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.messages import Announcement, Capabilities, Capacity, JobRequest, Pricing, Provenance, Status
from trunkline.jobs.schemas import CURRENT, job_types

# What a provider makes of a job; None: it says nothing.
Work = Callable[[dict[str, Any]], dict[str, Any] | None]


class Seller(OnRelay):
    """One provider. ``asked`` are the requests that reached it, ``taken_back`` those that were deleted."""

    def __init__(self, url: str, number: int, work: Work, **capacity: int) -> None:
        signer = Signer(bytes(30) + b"\x02" + bytes([number]))
        super().__init__(url, signer, {"kinds": [5050], "#p": [signer.public]}, {"kinds": [5]})
        self.work = work
        self.asked: list[Event] = []
        self.taken_back: list[str] = []
        self._capacity = {"max_concurrent_jobs": 4, "max_context_tokens": 100_000, **capacity}

    @property
    def npub(self) -> str:
        return self.signer.npub

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        said = Announcement("SingleNode", Capabilities(CURRENT, ()), Pricing(0, 0, 0), Capacity(**self._capacity))
        await self.say(messages.announcement_draft(KINDS, "x", said, created_at=int(time.time())))
        return self

    async def _heard(self, event: Event) -> None:
        if event.kind == 5:
            self.taken_back += messages.deleted_by(event)
        else:
            self.asked.append(event)
            await self._work(event)

    async def _work(self, request: Event) -> None:
        job = messages.read_request(request, self.signer.decrypt)
        outputs = self.work(json.loads(bytes(job.inputs)))
        if outputs is not None:
            await self.feedback(request, Status.PROCESSING, "on it")
            await self.give(request, job, outputs)

    async def give(self, request: Event, job: JobRequest, outputs: dict[str, Any]) -> None:
        """Publish a result."""
        draft = messages.result_draft(
            KINDS,
            request,
            Raw(msgspec.json.encode(outputs)),
            Provenance("scripted", self.npub),
            job_types()[job.schema_id].output_hash(outputs),
            created_at=int(time.time()),
            encrypt=self.signer.encrypt if job.is_private else None,
        )
        await self.say(draft)

    async def feedback(self, request: Event, status: Status, text: str = "") -> None:
        """Publish a word."""
        encrypt = self.signer.encrypt if request.tag("encrypted") else None
        at = int(time.time())
        await self.say(messages.feedback_draft(KINDS, request, status, text, created_at=at, encrypt=encrypt))

    async def say(self, draft: Draft) -> None:
        """Publish anything."""
        await self.say(draft)


@asynccontextmanager
async def selling(*sellers: Seller) -> AsyncIterator[None]:
    """All of them, for the length of a block."""
    async with AsyncExitStack() as stack:
        for seller in sellers:
            await stack.enter_async_context(seller)
        yield
