"""What providers say to a buyer, made wrong in many ways: results, feedback and announcements.

Events arrive as a client lets them in, so their signatures are good; everything that an author writes may be wrong.
Whatever comes, nothing raises, the exchange goes on, and each call has one outcome.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec

from tests.fuzz.mutations import Mutator
from tests.unit.edges.nostr.market import PROVIDERS, RANK, US, Market, announcement, embedded, ranked
from trunkline.edges.nostr.events import Draft, Event, event_id
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.messages import MAX_MSATS
from trunkline.entries import CallAccepted, CallSettled
from trunkline.jobs.schemas import EMBEDDING, RERANK, job_types

AT_ONCE = 4


def _contents(provider: Signer) -> list[Any]:
    """Contents that are right."""
    said: list[Any] = []
    for schema_id, outputs in ((EMBEDDING, embedded()), (RERANK, ranked("cat", "dog"))):
        digest = job_types()[schema_id].output_hash(outputs)
        provenance = {"model": "m", "provider_id": provider.npub, "token_counts": {"input": 3}}
        said.append({"outputs": outputs, "provenance": provenance, "output_hash": digest})
    return said


class Fuzzer:
    """One market, and everything that can be said in it."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.market = Market(silence_s=5)
        self.market.announce(*PROVIDERS[:4])
        contents = _contents(PROVIDERS[0])
        self.results = Mutator(seed, contents)
        said = announcement(models=("m",))
        self.announcements = Mutator(seed, [msgspec.to_builtins(said)])
        self.feedback = Mutator(seed, [{"text": "half"}])

    def step(self) -> None:
        market, rng = self.market, self.rng
        if len(market.agent.buyer) < AT_ONCE:
            self._call()
        kind = rng.choice([market.settings.kinds.result] * 4 + [market.settings.kinds.feedback] * 2 + [31_990, 1])
        if kind == 31_990:
            tags: Any = [["d", rng.choice(["d", "", "x" * 900])], ["k", rng.choice(["5050", "0", "x", "99999"])]]
            self._tell("announcements", kind, self.announcements.body(), tags)
        else:
            self._tell("answers", kind, (self.results if kind == 6050 else self.feedback).body(), self._tags())
        if rng.random() < 0.1:
            market.exchange.advance(rng.choice([0.1, 3, 30]))

    def _call(self) -> None:
        schema_id = self.rng.choice([EMBEDDING, RERANK])
        options: dict[str, Any] = {}
        if self.rng.random() < 0.3:
            options["private"] = True
        if self.rng.random() < 0.3:
            options["providers"] = self.rng.choice([1, 3])
        self.market.call(schema_id, RANK if schema_id == RERANK else None, **options)

    def _tags(self) -> list[list[str]]:
        rng = self.rng
        requests = self.market.requests()
        name = rng.choice(requests[-6:]).id if requests and rng.random() < 0.9 else rng.choice(["", "0" * 64, "x"])
        tags = [["e", name], ["p", US.public]]
        if rng.random() < 0.7:
            words = ["processing", "partial", "success", "error", "payment-required", "", "done", "\u202e"]
            tags.append(["status", rng.choice(words), rng.choice(["", "no\nmemory", "x" * 5000])])
        if rng.random() < 0.3:
            tags.append(["amount", rng.choice(["1", "-1", "x", str(MAX_MSATS * 10), "1" * 400]), "lnbc"])
        if rng.random() < 0.2:
            tags.append(["encrypted"])
        if rng.random() < 0.2:
            tags.insert(rng.randrange(len(tags) + 1), rng.choice([[], ["e"], ["status"], ["e", "", "", ""]]))
        return tags

    def _tell(self, subscription: str, kind: int, body: bytes, tags: list[list[str]]) -> None:
        rng = self.rng
        author = rng.choice(PROVIDERS[:5])
        requests = {event.id: event for event in self.market.requests()}
        asked = next((requests[tag[1]] for tag in tags if tag[:1] == ["e"] and tag[1:2] and tag[1] in requests), None)
        if asked is not None and rng.random() < 0.85:
            author = next(one for one in PROVIDERS if one.public == asked.value("p"))
        content = body.decode("utf-8", "replace").replace(PROVIDERS[0].npub, author.npub)
        if ["encrypted"] in tags and rng.random() < 0.7 and 0 < len(content.encode()) < 60_000:
            content = author.encrypt(content, US.public)
        draft = Draft(kind, content, tuple(map(tuple, tags)), int(self.market.exchange.now().wall))
        name = event_id(author.public, draft)
        event = Event(name, author.public, draft.created_at, kind, draft.tags, content, "0" * 128)
        self.market.tell(subscription, event)

    def end(self) -> None:
        """Time passes, and nothing more is said."""
        exchange = self.market.exchange
        exchange.advance(4000)
        accepted = [entry.n for entry in exchange.recorded(CallAccepted)]
        settled = sorted(entry.call for entry in exchange.recorded(CallSettled))
        assert accepted
        assert settled == accepted
        assert exchange.died is None
        assert "defect" not in json.dumps(exchange.notices())


def fuzz(seed: int, cases: int) -> int:
    """So many words of providers; how many there were."""
    fuzzer = Fuzzer(seed)
    for _ in range(cases):
        fuzzer.step()
    fuzzer.end()
    return cases
