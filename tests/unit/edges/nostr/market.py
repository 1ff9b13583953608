"""A buyer in an exchange in memory, and providers that do what a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
from msgspec import Raw

from trunkline.config import Config, Nostr, NostrBuyer
from trunkline.edges.nostr import events, messages
from trunkline.edges.nostr.client import Told
from trunkline.edges.nostr.events import Draft, Event
from trunkline.edges.nostr.jobs_agent import GATHER_S, RemoteJobs
from trunkline.edges.nostr.keys import Signer, npub_of
from trunkline.edges.nostr.messages import Announcement, Capabilities, Capacity, Pricing, Provenance, Status
from trunkline.edges.nostr.payments import Payments
from trunkline.edges.nostr.receipting import Receipting
from trunkline.edges.nostr.remote_tools import tool_id
from trunkline.edges.nostr.session import Filter
from trunkline.edges.nostr.settling import Settling
from trunkline.jobs import embedding
from trunkline.jobs.schemas import EMBEDDING, RERANK, job_types
from trunkline.model import Now
from trunkline.testing.memory import MadeCall, MemoryExchange

US = Signer(bytes(31) + b"\x01")
PROVIDERS = tuple(Signer(bytes(30) + b"\x01" + bytes([number])) for number in range(1, 10))
EMBED = {"texts": ["hello there", "good bye"], "model": embedding.HASHING, "dimensions": 8}
RANK = {
    "user_task": "find the cat",
    "k": 3,
    "candidates": [{"id": name, "content": f"about {name}"} for name in ("cat", "dog", "cow")],
}


def embedded(inputs: dict[str, Any] = EMBED) -> dict[str, Any]:
    """What an honest provider gives."""
    return embedding.embed(inputs["texts"], inputs["model"], dimensions=inputs["dimensions"])


def ranked(*ids: str) -> dict[str, Any]:
    """A ranking in this order."""
    return {"topk": [{"rank": rank, "id": name, "score": 1 / rank} for rank, name in enumerate(ids, start=1)]}


def announcement(
    *schema_ids: str, msats: float = 0, jobs: int = 4, tokens: int = 128_000, models: tuple[str, ...] = (), **more: Any
) -> Announcement:
    """What a provider says of itself."""
    return Announcement(
        "SingleNode",
        Capabilities(schema_ids or (EMBEDDING, RERANK), models),
        Pricing(msats, msats, msats),
        Capacity(jobs, tokens),
        **more,
    )


# The wallet's key.
WALLET_SECRET = bytes(31) + b"\x11"


class Market:
    """One exchange with the agent ``nostr.jobs``. ``said`` is what relays were told, in order.

    With ``takes`` False no relay says anything of what it is told.
    """

    def __init__(self, *, exchange: MemoryExchange | None = None, **settings: Any) -> None:
        buyer = NostrBuyer(**{name: settings.pop(name) for name in NostrBuyer.__struct_fields__ if name in settings})
        self.settings = Nostr(buyer=buyer, **settings)
        self.exchange = exchange or MemoryExchange(config=Config(nostr=self.settings))
        self.said: list[Event] = []
        self.takes: bool | None = True
        self.heard: dict[str, Told] = {}
        self.filters: dict[str, Callable[[Now], Sequence[Filter]]] = {}
        self.listened = 0
        given = self.exchange.surroundings()
        self.payments = Payments(given.feed, given.views, WALLET_SECRET)
        self.payments.take_up()
        self.settling = Settling(
            given.feed, given.views, self.payments, Receipting(given.feed, given.views, self.payments)
        )
        self.agent = RemoteJobs(
            given.feed, given.views, self.settings, US, self, self._say, given.process, "0", Random(7).randbytes,
            self.settling,
        )  # fmt: skip
        self.agent.begin()

    def restarted(self, **changes: Any) -> Market:
        """The next process on the same record."""
        market = Market.__new__(Market)
        settings = {name: getattr(self.settings.buyer, name) for name in NostrBuyer.__struct_fields__}
        market.__init__(  # type: ignore[misc]
            exchange=self.exchange.restarted(**changes), wallet=self.settings.wallet, **settings
        )
        return market

    # -- relays --------------------------------------------------------------------------------------------------------

    def subscribe(
        self, name: str, filters: Callable[[Now], Sequence[Filter]], told: Told, *, has_window: bool = True
    ) -> None:
        del has_window
        self.heard[name], self.filters[name] = told, filters
        self.listened += 1

    def unsubscribe(self, name: str) -> None:
        del self.heard[name]

    def _say(self, event: Event, told: Callable[[bool], None]) -> None:
        self.said.append(event)
        if self.takes is not None:
            told(self.takes)

    # -- providers -----------------------------------------------------------------------------------------------------

    def announce(self, *providers: Signer, said: Announcement | None = None, name: str = "d", at: int = 0) -> None:
        """These announce themselves, and are known."""
        for provider in providers:
            when = at or int(self.exchange.now().wall)
            draft = messages.announcement_draft(self.settings.kinds, name, said or announcement(), created_at=when)
            self.tell("announcements", events.signed(draft, provider))
        self.exchange.advance(GATHER_S)

    def tell(self, subscription: str, event: Event) -> None:
        """A relay sends this."""
        self.heard[subscription](event, "ws://relay")

    def requests(self) -> list[Event]:
        """What was asked, each event once."""
        kind = self.settings.kinds.request
        return list({event.id: event for event in self.said if event.kind == kind}.values())

    def taken_back(self) -> list[str]:
        """Requests that were deleted."""
        return [name for event in self.said if event.kind == messages.DELETION for name in messages.deleted_by(event)]

    def asked(self) -> list[Signer]:
        """Who was asked, in order."""
        by_key = {provider.public: provider for provider in (US, *PROVIDERS)}
        return [by_key[event.value("p")] for event in self.requests()]

    def request_to(self, provider: Signer) -> Event:
        """What was asked of one."""
        return next(event for event in self.requests() if event.value("p") == provider.public)

    def result(
        self, provider: Signer, outputs: dict[str, Any], *, by: Signer | None = None, output_hash: str = "",
        request: Event | None = None, schema_id: str = "", provider_id: str = "", model: str = "m",
    ) -> Event:  # fmt: skip
        """A result, signed and not told yet."""
        request = request or self.request_to(provider)
        is_private = bool(request.tag("encrypted"))
        signer = by or provider
        schema_id = schema_id or (RERANK if "topk" in outputs else EMBEDDING)
        job = job_types().get(schema_id)
        digest = output_hash or ("sha256:" + "0" * 64 if job is None else job.output_hash(outputs))
        draft = messages.result_draft(
            self.settings.kinds,
            request,
            Raw(msgspec.json.encode(outputs)),
            Provenance(model, provider_id or npub_of(signer.public)),
            digest,
            created_at=int(self.exchange.now().wall),
            encrypt=signer.encrypt if is_private else None,
        )
        return events.signed(draft, signer)

    def answer(self, provider: Signer, outputs: dict[str, Any], **options: Any) -> None:
        """A provider's result reaches us."""
        self.tell("answers", self.result(provider, outputs, **options))

    def feedback(self, provider: Signer, status: Status, text: str = "", **options: Any) -> None:
        """A provider's word reaches us."""
        request = self.request_to(provider)
        encrypt = provider.encrypt if request.tag("encrypted") else None
        at = int(self.exchange.now().wall)
        draft = messages.feedback_draft(
            self.settings.kinds, request, status, text, created_at=at, encrypt=encrypt, **options
        )
        self.tell("answers", events.signed(draft, provider))

    def sign(self, draft: Draft, by: Signer) -> Event:
        return events.signed(draft, by)

    # -- callers -------------------------------------------------------------------------------------------------------

    def call(self, schema_id: str = EMBEDDING, inputs: object = None, **terms: Any) -> MadeCall:
        """Somebody wants a job done; what stands in ``remote`` may be given by name."""
        body = dict(inputs if isinstance(inputs, dict) else EMBED if schema_id == EMBEDDING else RANK)
        remote = {name: terms.pop(name) for name in ("provider", "bid_msats", "private", "providers") if name in terms}
        if remote:
            body["remote"] = remote
        return self.exchange.call(tool_id(schema_id), body, **terms)


def shown(call: MadeCall) -> list[dict[str, Any]]:
    """What a caller was shown of a job."""
    return [json.loads(bytes(progress.data))["json"] for progress in call.progress]
