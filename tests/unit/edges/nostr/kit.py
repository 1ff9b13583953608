"""A provider in an exchange in memory, with a relay that does what a test says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from trunkline import canonical
from trunkline.config import Config, Nostr
from trunkline.edges.edge import Surroundings
from trunkline.edges.nostr import events, messages
from trunkline.edges.nostr.events import Event
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.messages import JobFeedback, JobResult
from trunkline.edges.nostr.offer import Offer
from trunkline.edges.nostr.payments import Payments
from trunkline.edges.nostr.provider import Provider
from trunkline.edges.nostr.till import Till
from trunkline.jobs.tool_schemas import schema_id_of
from trunkline.model import ToolDefinition
from trunkline.testing.memory import ANY_OBJECT, AttachedAgent, MemoryExchange
from trunkline.testing.nostr import till_of

TOOL = "com.example.echo/echo"
ECHO = schema_id_of(TOOL)
OURS, BUYER, OTHER = (Signer(bytes(31) + bytes([number])) for number in (1, 2, 3))

WALLET_SECRET = bytes(31) + b"\x11"


class Bench:
    """One exchange with an agent that offers ``TOOL``, and a provider that offers it to strangers.

    ``said`` is what relays were told, in order. With ``takes`` False no relay says that it took something.
    """

    def __init__(self, *, answers: bool = True, can_cancel: bool = False, **settings: Any) -> None:
        self.settings = Nostr(**{"offer": (TOOL,), **settings})
        config = Config(nostr=self.settings)
        self.exchange = MemoryExchange(policy=config.policy(), config=config)
        self.said: list[Event] = []
        self.takes = True
        self.waiting: list[Callable[[bool], None]] = []
        self.agent = self.attach(answers=answers, can_cancel=can_cancel)
        self.provider = self._provider(config)

    def attach(self, *, answers: bool, can_cancel: bool = False) -> AttachedAgent:
        deliver = (lambda agent, effect: agent.finish(effect.input)) if answers else None
        capabilities = ("cancellation",) if can_cancel else ()
        tool = ToolDefinition(TOOL, "a tool", ANY_OBJECT, capabilities=capabilities)
        return self.exchange.attach("com.example.echo", tool, deliver=deliver)

    def _provider(self, config: Config) -> Provider:
        given = self.exchange.surroundings()
        offer = Offer(config, given.views)
        till = self.made_till(given, OURS)
        return Provider(given.feed, given.views, self.settings, OURS, offer, till, self._say)

    def made_till(self, given: Surroundings, signer: Signer) -> Till:
        self.payments = Payments(given.feed, given.views, WALLET_SECRET)
        self.payments.take_up()
        self.till = till_of(given, self.settings, signer, self.payments)
        return self.till

    def _say(self, event: Event, told: Callable[[bool], None]) -> None:
        self.said.append(event)
        if self.takes:
            told(True)
        else:
            self.waiting.append(told)

    def restarted(self, *, answers: bool = True) -> Bench:
        """The next process on the same record; its provider has taken up what was open."""
        bench = Bench.__new__(Bench)
        bench.settings = self.settings
        bench.exchange = self.exchange.restarted()
        bench.said, bench.takes, bench.waiting = [], True, []
        bench.agent = bench.attach(answers=answers)
        bench.provider = bench._provider(bench.exchange.config)
        bench.provider.take_up()
        return bench

    # -- buyers --------------------------------------------------------------------------------------------------------

    def request(self, inputs: object = None, *, by: Signer = BUYER, nonce: str = "n", **options: Any) -> Event:
        """A request, signed and not told yet."""
        body = Raw(msgspec.json.encode({"text": "hi"} if inputs is None else inputs))
        options = {"schema_id": ECHO, "provider": OURS.public, "job_hash": "", **options}
        schema_id = options.pop("schema_id")
        named = Raw(msgspec.json.encode({"schema_id": schema_id, "inputs": body}))
        job_hash = options.pop("job_hash") or canonical.openagents_hash(named)
        draft = messages.request_draft(
            self.settings.kinds, schema_id, body, job_hash, created_at=int(self.exchange.now().wall), nonce=nonce,
            **options,
        )  # fmt: skip
        return events.signed(draft, by)

    def ask(self, inputs: object = None, **options: Any) -> Event:
        """A request that reached us."""
        event = self.request(inputs, **options)
        self.provider.requested(event, self.exchange.now())
        return event

    def take_back(self, request: Event, *, by: Signer = BUYER) -> None:
        """A deletion that reached us."""
        draft = messages.deletion_draft([request.id], request.kind, "", created_at=int(self.exchange.now().wall))
        self.provider.deleted(events.signed(draft, by), self.exchange.now())

    # -- what we said --------------------------------------------------------------------------------------------------

    def results(self, buyer: Signer = BUYER) -> list[JobResult]:
        return [
            messages.read_result(event, buyer.decrypt)
            for event in self.said
            if event.kind == self.settings.kinds.result
        ]

    def feedback(self, buyer: Signer = BUYER) -> list[JobFeedback]:
        kind = self.settings.kinds.feedback
        return [messages.read_feedback(event, buyer.decrypt) for event in self.said if event.kind == kind]

    def statuses(self) -> list[str]:
        return [feedback.status.value for feedback in self.feedback()]


def read(raw: Raw) -> Any:
    return json.loads(bytes(raw))
