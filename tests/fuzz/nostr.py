"""Anything over Nostr: what a relay sends, what an event holds that a stranger signed well, and what he encrypts.

Each function is one of its seed. Nothing may raise, no defect may be on record, and what was taken on has ended.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import random
import resource
from pathlib import Path
from typing import Any

import orjson

from tests.fuzz.mutations import VALUES, Mutator
from tests.unit.edges.nostr.kit import BUYER, ECHO, OURS, Bench
from tests.unit.money.cashu.toy_mint import PAYEE, URL, ToyMint
from trunkline.edges.nostr import events, nutzaps
from trunkline.edges.nostr.events import Draft, Event, NotAnEvent
from trunkline.edges.nostr.keys import Signer
from trunkline.edges.nostr.messages import BadMessage
from trunkline.edges.nostr.provider import PROCESS
from trunkline.edges.nostr.session import Filter, RelaySession
from trunkline.edges.nostr.wallet_service import WalletService
from trunkline.model import Now
from trunkline.money import wallet
from trunkline.money.cashu.checking import Asked, check_hold
from trunkline.money.refusals import ProofRefused

ENVELOPE = {"job_type": ECHO, "schema_version": 1, "job_hash": "sha256:" + "0" * 64, "payload": {"text": "x"}}
TAGS: list[Any] = [
    [["p", OURS.public]],
    [["p", OURS.public], ["param", "schema_id", ECHO], ["i", '{"text": "hi"}', "text"]],
    [["p", OURS.public], ["encrypted"]],
    [["relays", "wss://x"], ["bid", "100"], ["output", "application/json"], ["e", "ab" * 32], ["k", "5050"]],
]
FRAMES: list[Any] = [
    ["EVENT", "a", {"id": "x", "tags": [["p", "y"]], "kind": 1}],
    ["OK", "ab" * 32, True, "duplicate: x"],
    ["EOSE", "a"],
    ["CLOSED", "a", "auth-required: x"],
    ["AUTH", "challenge"],
    ["NOTICE", "words"],
]


def jobs(seed: int, count: int) -> int:
    """Well signed events with anything in them, for us; and deletions of them."""
    chance = random.Random(seed)
    contents, tags = Mutator(seed, [ENVELOPE]), Mutator(seed, TAGS)
    bench = Bench(requests_per_minute=1_000_000)
    for _ in range(count):
        event = _event(chance, contents, tags, int(bench.exchange.now().wall))
        if event is None:
            continue
        if chance.random() < 0.9:
            bench.provider.requested(event, bench.exchange.now())
        else:
            bench.provider.deleted(event, bench.exchange.now())
        bench.said.clear()
    assert bench.exchange.died is None
    assert [code for code in bench.exchange.notices() if not code.startswith("nostr.")] == []
    assert bench.exchange.views.open_steps(PROCESS) == {}
    bench.exchange.close()
    return count


def _event(chance: random.Random, contents: Mutator, tags: Mutator, now: int) -> Event | None:
    content = contents.body().decode("utf-8", "replace")
    if chance.random() < 0.2:
        content = ""
    try:
        found = json.loads(tags.body())
        wanted = tuple(tuple(str(part) for part in tag) for tag in found if isinstance(tag, list))
    except (ValueError, TypeError, RecursionError):
        wanted = (("p", OURS.public),)
    if ("encrypted",) in wanted and content and len(content) < 5000:
        content = BUYER.encrypt(content, OURS.public)
    try:
        return events.read(events.encoded(events.signed(Draft(5050, content, wanted, now), BUYER)))
    except (NotAnEvent, UnicodeEncodeError, orjson.JSONEncodeError):
        return None


def frames(seed: int, count: int) -> int:
    """Anything that a relay sends."""
    mutator, signer = Mutator(seed, FRAMES), Signer(bytes(31) + b"\x05")
    relay = RelaySession("ws://x", lambda draft: events.signed(draft, signer))
    now = Now(0.0, 1e9)
    relay.connected(now)
    relay.subscribe("a", lambda now: [Filter()], now)
    for number in range(count):
        relay.receive(mutator.body(), Now(float(number), 1e9))
        relay.wake(Now(float(number), 1e9))
        relay.take_output()
    assert len(relay) == 0
    return count


def bytes_of_events(seed: int, count: int) -> int:
    """Anything in the place of an event; what is let in is what was signed."""
    signer = Signer(bytes(31) + b"\x05")
    good = events.signed(Draft(1, "hé", (("p", "x"),), 5), signer)
    mutator = Mutator(seed, [json.loads(events.encoded(good))])
    for _ in range(count):
        with contextlib.suppress(NotAnEvent):
            assert events.read(mutator.body()) == good
    return count


def nutzap_events(seed: int, count: int) -> int:
    """Well signed nutzaps with anything in them: read or refused, and none that was changed pays another amount."""
    chance, mint, sender = random.Random(seed), ToyMint(), Signer(bytes(31) + b"\x05")
    token = mint.locked(13, locktime=2_000_000_000)
    good = nutzaps.nutzap_draft(token, OURS.public, "ab" * 32, 5050, created_at=5)
    tags, proofs = Mutator(seed, [good.tags]), Mutator(seed, [json.loads(good.tags[0][1])])
    asked = Asked(URL, "sat", 13, PAYEE[1:])
    secrets = {one.secret for one in token.proofs}
    for _ in range(count):
        try:
            found = json.loads(tags.body())
            wanted = [tuple(str(part) for part in tag) for tag in found if isinstance(tag, list)]
        except (ValueError, TypeError, RecursionError):
            wanted = list(good.tags)
        if chance.random() < 0.7:
            wanted = list(good.tags)
            wanted[0] = ("proof", proofs.body().decode("utf-8", "replace"))
        try:
            event = events.read(events.encoded(events.signed(Draft(9321, "", tuple(wanted), 5), sender)))
            zap = nutzaps.read_nutzap(event)
            check_hold(zap.token, asked, [mint.keyset], 1_900_000_000)
        except (BadMessage, ProofRefused, NotAnEvent, UnicodeEncodeError, orjson.JSONEncodeError):
            continue
        assert {one.secret for one in zap.token.proofs} == secrets
    return count


REQUESTS: list[Any] = [
    {"method": "pay_invoice", "params": {"invoice": "lnbcrt1", "amount": 1}},
    {"method": "make_invoice", "params": {"amount": 1000, "description": "x", "expiry": 60}},
    {"method": "lookup_invoice", "params": {"payment_hash": "00" * 32}},
    {"method": "lookup_invoice", "params": {"invoice": "lnbcrt1"}},
    {"method": "get_balance", "params": {}},
    {"method": "get_info"},
]


def wallet_requests(seed: int, count: int) -> int:
    """Well signed and encrypted requests to the wallet with anything in them, by who has an account and who has none;
    money is neither made nor lost.
    """
    chance = random.Random(seed)
    bench = Bench()
    said: list[Event] = []
    signer = Signer(bytes(31) + b"\x11")
    service = WalletService(bench.exchange.surroundings().feed, signer, bench.payments, bench.till, said.append)
    for name, client in (("one", BUYER), ("two", OURS)):
        bench.payments.take(wallet.Opened(name, client.public))
        bench.payments.take(wallet.Funded(name, 10_000))
    invoices = [json.dumps("lnbcrt1").encode()]
    mutator = Mutator(seed, REQUESTS)
    for number in range(count):
        body = mutator.body().replace(b'"lnbcrt1"', chance.choice(invoices))
        client = chance.choice([BUYER, OURS, Signer(bytes(31) + b"\x07")])
        text = body.decode("utf-8", "replace")
        tags: tuple[tuple[str, ...], ...] = (("p", signer.public), ("nonce", str(number)))
        if chance.random() < 0.7 and 0 < len(text.encode()) < 30_000:
            text, tags = client.encrypt(text, signer.public), (*tags, ("encryption", "nip44_v2"))
        elif chance.random() < 0.7:
            text = client.encrypt_old(text, signer.public)
        bench.exchange.advance(0.2)
        draft = Draft(chance.choice([23_194, 23_194, 23_194, 5]), text, tags, int(bench.exchange.now().wall))
        try:
            service.heard(events.signed(draft, client), bench.exchange.now())
        except (UnicodeEncodeError, orjson.JSONEncodeError):
            continue
        for event in said:
            told = json.loads(_opened(client, event))
            assert (told["error"] is None) != (told["result"] is None)
            invoice = (told["result"] or {}).get("invoice")
            if invoice is not None and len(invoices) < 50:
                invoices.append(json.dumps(invoice).encode())
        said.clear()
        assert bench.payments.wallet.total == 20_000
    assert bench.exchange.died is None
    assert {code for code in bench.exchange.notices() if not code.startswith("nostr.")} == set()
    assert len(invoices) > 1
    bench.exchange.close()
    return count


# Besides what breaks parsers: texts that are short in characters and long in bytes, and the edges of an invoice.
WALLET_VALUES: tuple[Any, ...] = (
    *VALUES, "\U0001f600" * 256, "\U0001f600" * 160, "é" * 320, "x" * 639, "x" * 640, "\0" * 640, 86_400, 86_401,
    2_100_000_000_000_000_000, 2_100_000_000_000_000_001, "lnbcrt1", "LNBCRT1", "ln" + "é" * 90, ["x"] * 300,
)  # fmt: skip


def wallet_fields() -> int:
    """Each value in the place of each field of each request, of its parameters, and of the event around it."""
    bench = Bench()
    said: list[Event] = []
    signer = Signer(bytes(31) + b"\x11")
    service = WalletService(bench.exchange.surroundings().feed, signer, bench.payments, bench.till, said.append)
    bench.payments.take(wallet.Opened("one", BUYER.public))
    count = 0
    for request, value in itertools.product(REQUESTS, WALLET_VALUES):
        params = request.get("params", {})
        wishes: list[Any] = [{**request, "params": {**params, name: value}} for name in params]
        tags: list[tuple[str, ...]] = []
        if request is REQUESTS[-1]:  # what all requests have alike is looked at in one of them
            wishes += [{**request, name: value} for name in ("method", "params", "surprise")]
            if isinstance(value, str):
                tags = [("expiration", value), ("encryption", value), ("p", value), ("e", value)]
        for wish, tag in [*((wish, ()) for wish in wishes), *((request, tag) for tag in tags)]:
            bench.exchange.advance(1.0)
            count += 1
            try:
                content = BUYER.encrypt(json.dumps(wish), signer.public)
                around = (("p", signer.public), ("n", str(count)), ("encryption", "nip44_v2"))
                draft = Draft(23_194, content, (tag, *around) if tag else around, int(bench.exchange.now().wall))
                event = events.read(events.encoded(events.signed(draft, BUYER)))
            except (NotAnEvent, UnicodeEncodeError, orjson.JSONEncodeError):
                continue  # no relay carries this
            said.clear()
            service.heard(event, bench.exchange.now())
            for answer in said:
                assert json.loads(_opened(BUYER, answer))["result_type"] == wish.get("method")
    assert {code for code in bench.exchange.notices() if not code.startswith("nostr.")} == set()
    assert bench.payments.wallet.total == 0
    bench.exchange.close()
    return count


def _opened(client: Signer, event: Event) -> str:
    """What the wallet answered, in the form in which it was asked."""
    return (client.decrypt_old if "?iv=" in event.content else client.decrypt)(event.content, event.pubkey)


def strangers(seed: int, count: int) -> tuple[int, int]:
    """So many events, each of a key that nobody saw before; the process's memory after a tenth of them and in the end.

    Some are jobs that are done, most are none, some are repeated or taken back. What a test keeps of them is let go of.
    """
    chance = random.Random(seed)
    bench = Bench(requests_per_minute=1_000_000)
    early = 0
    for number in range(count):
        signer = Signer((seed * count + number + 1).to_bytes(32, "big"))
        schema_id = ECHO if number % 100 == 0 else "oa.none.v1"
        event = bench.request(by=signer, nonce=str(number), schema_id=schema_id)
        event = events.read(events.encoded(event))
        for _ in range(chance.choice((1, 1, 2))):
            bench.provider.requested(event, bench.exchange.now())
        if chance.random() < 0.1:
            bench.take_back(event, by=signer)
        if number % 1000 == 0:
            _let_go(bench)
            bench.exchange.advance(1)
        if number == count // 10:
            early = _memory()
    _let_go(bench)
    late = _memory()
    assert bench.exchange.died is None
    assert bench.exchange.views.open_steps(PROCESS) == {}
    bench.exchange.close()
    return early, late


def _let_go(bench: Bench) -> None:
    for kept in (bench.said, bench.exchange.log, bench.exchange.effects, bench.agent.delivered):
        kept.clear()
    bench.exchange.disk.steps.clear()


def _memory() -> int:
    """Resident bytes of this process, once nothing is waiting to be collected."""
    gc.collect()
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()
