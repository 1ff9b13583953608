"""Attacks by strangers over Nostr: what they may ask for, whom they may act for, and what of ours they can see."""

from __future__ import annotations

import json
import time
from pathlib import Path

import nostr_sdk
import pytest

from tests.nostr import CONFIG, Buyer
from tests.running import running
from tests.unit.edges.nostr.kit import BUYER, OTHER, OURS, TOOL, Bench
from trunkline.config import Config, Nostr
from trunkline.edges.nostr import events, messages
from trunkline.edges.nostr.keys import OWN_FILE
from trunkline.entries import CallAccepted, CallRefused
from trunkline.model import Decision, Principal
from trunkline.testing.memory import ANY_OBJECT, ToolDefinition

EMBEDDING = "oa.embedding.v1"
INPUTS = {"texts": ["hello"], "model": "trunkline-hashing-v1"}


@pytest.mark.parametrize("has_builtin", [True, False])
@pytest.mark.parametrize("side_effects", [True, False])
def test_a_stranger_may_not_call_what_is_not_offered_whatever_it_does(side_effects: bool, has_builtin: bool) -> None:
    bench = Bench()
    tool = ToolDefinition("com.example.files/read", "x", ANY_OBJECT, side_effects=side_effects)
    bench.exchange.attach("com.example.files", tool)
    verdict = bench.exchange.views.check(f"nostr:{BUYER.npub}", "com.example.files/read", None)
    assert verdict.decision is Decision.DENY
    builtin = Config(nostr=Nostr(offer=(TOOL,))).policy_table
    policy = Config(nostr=Nostr(offer=(TOOL,)), policy_table=type(builtin)(builtin=has_builtin)).policy()
    assert [rule.tool for rule in policy.rules if rule.caller == "nostr:*" and rule.decision is Decision.ALLOW] == [
        TOOL
    ]


def test_what_an_agent_does_for_a_stranger_is_judged_for_the_stranger_too() -> None:
    bench = Bench(answers=False)
    bench.exchange.attach("com.example.files", "delete")
    bench.ask()
    made = bench.exchange.call("com.example.files/delete", by=Principal("opensentience:com.example.echo"))
    assert made.code == "policy.denied"
    [refused] = bench.exchange.recorded(CallRefused)
    assert (refused.rule, refused.chain) == ("builtin-strangers", (f"nostr:{BUYER.npub}",))


def test_somebody_elses_request_said_again_by_another_key_is_another_job() -> None:
    bench = Bench()
    request = bench.ask()
    copied = events.Draft(request.kind, request.content, request.tags, request.created_at)
    bench.provider.requested(events.signed(copied, OTHER), bench.exchange.now())
    callers = {call.caller: call.key for call in bench.exchange.recorded(CallAccepted)}
    assert set(callers) == {f"nostr:{BUYER.npub}", f"nostr:{OTHER.npub}"}
    assert len(set(callers.values())) == 2


def test_a_private_request_that_another_copies_is_not_decrypted_for_him() -> None:
    bench = Bench()
    request = bench.ask({"text": "secret"}, encrypt=BUYER.encrypt)
    copied = events.Draft(request.kind, request.content, request.tags, request.created_at)
    bench.said.clear()
    bench.provider.requested(events.signed(copied, OTHER), bench.exchange.now())
    assert len(bench.exchange.recorded(CallAccepted)) == 1
    [refused] = bench.said
    assert messages.read_feedback(refused, OTHER.decrypt).status == "error"


def test_a_stranger_cannot_answer_for_us() -> None:
    bench = Bench()
    request = bench.ask()
    [result] = bench.results()
    assert (result.provider, result.request_id) == (OURS.public, request.id)
    forged = json.loads(events.encoded(bench.said[-1])) | {"content": "{}"}
    with pytest.raises(events.NotAnEvent):
        events.read(json.dumps(forged).encode())


async def test_our_private_key_is_in_its_file_and_nowhere_else(short_path: Path) -> None:
    config = CONFIG + f'offer = ["{EMBEDDING}"]\n'
    with running(short_path / "home", config) as exchange:
        async with Buyer(exchange.ready["relay"]) as buyer:
            await buyer.result(await buyer.ask(EMBEDDING, INPUTS))
            await buyer.result(await buyer.ask(EMBEDDING, INPUTS, encrypt=buyer.signer.encrypt, nonce="2"))
            heard = b"".join(events.encoded(event) for event in buyer.seen)
        key_file = exchange.home / "keys" / OWN_FILE
        secret = key_file.read_bytes()
        nsec = nostr_sdk.SecretKey.from_bytes(secret).to_bech32()
        forms = [secret, secret.hex().encode(), secret.hex().upper().encode(), nsec.encode()]
        _, status = exchange.request("GET", "/v1/status")
        shown = heard + json.dumps(status).encode() + exchange.said().encode()
    files = [path for path in exchange.home.rglob("*") if path.is_file() and path != key_file]
    shown += b"".join(path.read_bytes() for path in files)
    assert [form for form in forms if form in shown] == []
    assert key_file.stat().st_mode & 0o077 == 0


async def test_a_flood_of_rubbish_keeps_nobody_from_his_job(short_path: Path) -> None:
    config = CONFIG + f'offer = ["{EMBEDDING}"]\n'
    with running(short_path / "home", config) as exchange:
        async with Buyer(exchange.ready["relay"]) as buyer:
            provider = await buyer.provider()
            for number in range(150):
                tags = (("p", provider), ("param", "schema_id", f"oa.none{number}.v1"))
                await buyer.publish(events.Draft(5050, "", tags, int(time.time())))
            result = await buyer.result(await buyer.ask(EMBEDDING, INPUTS))
            assert result.provider == provider
        assert exchange.request("GET", "/healthz")[0] == 200
