"""Nutshell, the reference implementation of Cashu, as it is published: its mint, its wallet, and our side between them.

In an environment of its own, made from a lock and kept in pytest's cache: its dependencies do not fit ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec
import pytest
from msgspec import Raw

from tests import environments
from tests.running import leash, started, wait_until
from tests.unit.money.cashu.toy_mint import PAYEE, PAYEE_SECRET, PAYER, PAYER_SECRET, ToyMint, write_token_v3
from tests.unit.money.paid import JOB_HASH, NPUB, signed_event
from trunkline.edges.nostr.cashu_rail import AtMint
from trunkline.edges.nostr.mint_client import MintClient
from trunkline.money.cashu import proof as proofs
from trunkline.money.cashu.checking import Asked, check_hold, check_payment, check_signatures
from trunkline.money.cashu.keysets import Keyset, fee, find_keyset
from trunkline.money.cashu.locks import JOB_TAG, lock_secret, read_lock, signed_witness
from trunkline.money.cashu.mint import check_unspent
from trunkline.money.cashu.purse import Purse
from trunkline.money.cashu.requests import PaymentRequest, write_request
from trunkline.money.cashu.swaps import outputs_of
from trunkline.money.cashu.tokens import Proof, Token, read_token, write_token
from trunkline.money.rail import Due
from trunkline.money.refusals import ProofRefused
from trunkline.money.wallet import Held

# The first run installs it: seconds by uv, a minute or two by pip.
pytestmark = pytest.mark.timeout(240)
LOCK = Path(__file__).parent / "nutshell" / "requirements.txt"
PREIMAGE = "07" * 32
HASH = hashlib.sha256(bytes.fromhex(PREIMAGE)).hexdigest()
LATER = 4_000_000_000
# The mint is asked again and again until it answers: without this each time loads certificates, which takes 30 ms.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One worker at a time."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def programs(pytestconfig: pytest.Config) -> Path:
    """Where ``mint`` and ``cashu`` are; left out where they cannot be installed."""
    assert pytestconfig.cache is not None
    folder = Path(pytestconfig.cache.mkdir("nutshell"))
    name = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]
    place = folder / name
    with alone(folder):
        if not (place / "complete").exists():
            environments.make(place)
            done = environments.install(place, "--require-hashes", "-r", str(LOCK))
            if done.returncode:
                pytest.skip("nutshell cannot be installed here")
            (place / "complete").touch()
    return place / "bin"


class Nutshell(NamedTuple):
    """A running mint, and a wallet with money of it."""

    url: str
    programs: Path
    folder: Path

    def wallet(self, *words: str) -> list[str]:
        """What the wallet says to a command, in lines."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "CASHU_DIR": str(self.folder / "wallet")}
        done = subprocess.run(
            (self.programs / "cashu", "--tests", "--host", self.url, *words),
            capture_output=True, text=True, timeout=60, check=False, env=env | {"TOR": "FALSE"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    def fund(self, amount: int) -> None:
        """Have an invoice of the mint paid, which its stand-in for Lightning does by itself."""
        # In two commands: the one that waits misses a payment that is made while it asks to be told.
        said = "\n".join(self.wallet("invoice", str(amount), "--no-check"))
        [quote] = re.findall(r"--id (\S+)", said)
        url = f"{self.url}/v1/mint/quote/bolt11/{quote}"
        wait_until(lambda: httpx.get(url, verify=NO_TLS).json()["state"] == "PAID", "the invoice")
        self.wallet("invoice", str(amount), "--id", quote)

    def token(self, *words: str) -> Token:
        return read_token(next(line for line in self.wallet("send", *words) if line.startswith("cashu")))


@pytest.fixture(scope="module")
def nutshell(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nutshell]:
    folder, port = tmp_path_factory.mktemp("nutshell"), str(free_port())
    env = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "MINT_BACKEND_BOLT11_SAT": "FakeWallet", "TOR": "FALSE",
        "MINT_PRIVATE_KEY": "a key of a test", "MINT_DATABASE": str(folder / "mint"),
        "FAKEWALLET_DELAY_INCOMING_PAYMENT": "0",
    }  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        command = [*leash(), str(programs / "mint"), "--host", "127.0.0.1", "--port", port]
        process = started(command, env=env, cwd=folder, stdout=log, stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or answers(url), "the mint", 60)
        assert process.poll() is None, (folder / "log").read_text()
        found = Nutshell(url, programs, folder)
        found.fund(1000)
        yield found
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/info", verify=NO_TLS).status_code == 200
    except httpx.TransportError:
        return False


def free_port() -> int:
    """A port that nobody has, and that nobody gets who asks the system for any: those are above 32767."""
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def chance(size: int) -> bytes:
    return os.urandom(size)


def signed_inputs(
    proofs: tuple[Proof, ...], keysets: list[Keyset], private_key: bytes, preimage: str = ""
) -> tuple[Proof, ...]:
    """Proofs as the mint takes them: under the whole id of their keyset, locks opened with this key."""
    found = []
    for proof in proofs:
        witness = ""
        if read_lock(proof.secret) is not None:
            witness = signed_witness(proof.secret, private_key, chance(32), preimage)
        whole_id = find_keyset(proof.keyset_id, keysets).id
        found.append(msgspec.structs.replace(proof, keyset_id=whole_id, witness=witness))
    return tuple(found)


async def redeemed(
    mint: MintClient, proofs: tuple[Proof, ...], private_key: bytes, preimage: str = ""
) -> tuple[Proof, ...]:
    """New proofs for old ones, locks opened."""
    keysets = await mint.keysets_of(proofs)
    return await swapped(mint, signed_inputs(proofs, keysets, private_key, preimage), keysets)


async def swapped(
    mint: MintClient, inputs: tuple[Proof, ...], keysets: list[Keyset], secret: object = str
) -> tuple[Proof, ...]:
    active = await mint.active_keyset("sat")
    worth = sum(proof.amount for proof in inputs) - fee([keysets[0]] * len(inputs))
    assert callable(secret)
    return await mint.swap(inputs, outputs_of(worth, active, secret, chance), active)


async def test_a_token_of_its_wallet_is_signed_by_its_mint_and_of_no_other(nutshell: Nutshell) -> None:
    mint = MintClient(nutshell.url)
    assert await mint.missing_nuts() == []
    for words in (("13", "--dleq"), ("13", "--dleq", "--legacy")):
        token = nutshell.token(*words)
        assert (token.amount, token.unit, token.mint) == (13, "sat", nutshell.url)
        check_signatures(token, await mint.keysets_of(token.proofs))
        with pytest.raises(ProofRefused, match="keyset"):
            check_signatures(token, [ToyMint().keyset])


async def test_what_its_wallet_locks_to_us_is_a_hold_that_we_redeem_once(nutshell: Nutshell) -> None:
    mint = MintClient(nutshell.url)
    token = nutshell.token("8", "--dleq", "--lock", f"P2PK:{PAYEE.hex()}")
    keysets = await mint.keysets_of(token.proofs)
    asked = Asked(mint.url, "sat", 8, PAYEE[1:])
    check_hold(token, asked, keysets, until=1)
    check_unspent(await mint.states(token.proofs))
    with pytest.raises(ProofRefused) as refused:
        await redeemed(mint, token.proofs, PAYER_SECRET)
    assert refused.value.reason == "refused_by_mint"

    new = await redeemed(mint, token.proofs, PAYEE_SECRET)
    assert sum(proof.amount for proof in new) == 7  # the mint's fee
    states = await mint.states(token.proofs)
    with pytest.raises(ProofRefused) as refused:
        check_unspent(states)
    assert refused.value.reason == "spent"
    with pytest.raises(ProofRefused) as refused:
        await redeemed(mint, token.proofs, PAYEE_SECRET)
    assert refused.value.reason == "spent"
    # What the mint was shown proves to everybody that the payee opened it.
    shown = [Proof(one.keyset_id, one.amount, one.secret, one.signature, one.dleq, state.witness or "")
             for one, state in zip(token.proofs, states, strict=True)]  # fmt: skip
    check_payment(Token(token.mint, token.unit, tuple(shown)), asked, keysets)


async def test_its_mint_enforces_our_lock_to_a_hash_and_gives_back_what_is_over(nutshell: Nutshell) -> None:
    mint = MintClient(nutshell.url)
    plain = nutshell.token("32", "--dleq").proofs
    keysets = await mint.keysets_of(plain)
    inputs = signed_inputs(plain, keysets, PAYER_SECRET)

    def locked(nonce: str) -> str:
        return lock_secret(nonce, PAYEE, locktime=LATER, refund_key=PAYER, lock_hash=HASH)

    held = await swapped(mint, inputs, keysets, locked)
    check_hold(Token(mint.url, "sat", held), Asked(mint.url, "sat", 31, PAYEE[1:], HASH), keysets, LATER)
    for private_key, preimage in ((PAYEE_SECRET, ""), (PAYEE_SECRET, "08" * 32), (PAYER_SECRET, PREIMAGE)):
        with pytest.raises(ProofRefused) as refused:
            await redeemed(mint, held, private_key, preimage)
        assert refused.value.reason == "refused_by_mint"
    check_unspent(await mint.states(held))
    assert await redeemed(mint, held, PAYEE_SECRET, PREIMAGE)


async def test_its_mint_lets_the_payer_have_it_back_once_the_time_is_over(nutshell: Nutshell) -> None:
    mint = MintClient(nutshell.url)
    plain = nutshell.token("16", "--dleq").proofs
    keysets = await mint.keysets_of(plain)

    def locked(nonce: str) -> str:
        return lock_secret(nonce, PAYEE, locktime=1, refund_key=PAYER)

    held = await swapped(mint, signed_inputs(plain, keysets, PAYER_SECRET), keysets, locked)
    assert await redeemed(mint, held, PAYER_SECRET)


async def test_an_answer_that_was_lost_is_had_again_and_a_swap_that_never_was_is_not(nutshell: Nutshell) -> None:
    mint = MintClient(nutshell.url)
    plain = nutshell.token("4", "--dleq").proofs
    keysets = await mint.keysets_of(plain)
    inputs = signed_inputs(plain, keysets, PAYER_SECRET)
    active = await mint.active_keyset("sat")
    outputs = outputs_of(3, active, str, chance)
    assert await mint.restored(outputs, active) == ()
    proofs = await mint.swap(inputs, outputs, active)
    assert await mint.restored(outputs, active) == proofs


@pytest.mark.parametrize("write", [write_token, write_token_v3])
async def test_its_wallet_takes_what_we_write(nutshell: Nutshell, write: object) -> None:
    mint = MintClient(nutshell.url)
    new = await redeemed(mint, nutshell.token("16", "--dleq").proofs, PAYER_SECRET)
    assert callable(write)
    assert any("Received 14 sat" in line for line in nutshell.wallet("receive", write(Token(mint.url, "sat", new))))


async def test_its_wallet_receives_the_token_that_we_send_and_we_what_it_sends(nutshell: Nutshell) -> None:
    rail = AtMint(MintClient(nutshell.url), PAYER_SECRET, Purse(), lambda _purse: None, time.time, chance)
    assert await rail.receive(nutshell.token("32")) == 31  # the mint's fee
    assert await rail.receive(nutshell.token("16", "--legacy")) == 15
    await rail.make_token("ours", 21)
    [sent] = rail.purse.sent
    assert sent.amount == 21
    text = write_token(Token(nutshell.url, "sat", sent.proofs))
    assert text.startswith("cashuB")
    await rail.forget_spent()
    assert rail.purse.sent == (sent,)
    assert any("Received 20 sat" in line for line in nutshell.wallet("receive", text))
    await rail.forget_spent()
    assert rail.purse.sent == ()
    assert rail.purse.amount == 31 + 15 - 21 - 1


async def test_a_payment_from_an_invoice_to_its_proof_goes_through_its_mint(nutshell: Nutshell) -> None:
    kept: list[Purse] = []

    def side(private_key: bytes) -> AtMint:
        return AtMint(MintClient(nutshell.url), private_key, Purse(), kept.append, time.time, chance)

    payee, payer = side(PAYEE_SECRET), side(PAYER_SECRET)
    await payer.fund(64)
    deadline = time.monotonic() + 60
    while not await payer.collect():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    assert payer.purse.amount == 64
    await payee.learn_keyset()
    assert payee.can_ask(13)
    request = write_request(PaymentRequest(13, "sat", (nutshell.url,), payee.key.hex(), tags=((JOB_TAG, JOB_HASH),)))
    asked = signed_event([("amount", "13000", request), payee.keyset_tag()])
    held = Held(
        payment_hash=hashlib.sha256(request.encode()).hexdigest(), payer="exchange", payee=NPUB, msats=13_000,
        invoice=request, asked=Raw(asked), quote_id="", request_id="00" * 32, schema_id="s", job_hash=JOB_HASH,
        provider=NPUB, at_ms=0, judge="buyer",
    )  # fmt: skip
    locked = await payer.lock(held, lambda tag: tag == payee.keyset_tag(), 10)
    with pytest.raises(ProofRefused) as refused:
        await payer.reclaim(locked, locked.proofs)
    assert refused.value.reason == "refused_by_mint"
    token = Token(nutshell.url, "sat", locked.proofs)
    await payee.check(token, request)
    payee.take(held, token)
    assert (await payer.standing(locked)).proven is None
    proven = await payee.redeem(payee.purse.taken[0])
    assert await payee.redeem(payee.purse.taken[0]) == proven
    # What its mint tells the payer, by NUT-07, is the same proof.
    assert (await payer.standing(locked)).proven == proven
    due = Due(13_000, NPUB, proven.asset_id, request, JOB_HASH, bytes(proven.evidence).decode())
    proofs.verify(proven.proof, due)
    assert (payee.purse.amount, payer.purse.amount) == (12, 64 - 13 - 1)
    # Nothing is left to be had back, and a mint that is asked for it all the same gives nothing.
    assert (await payer.standing(locked)).unspent == ()
    with pytest.raises(ProofRefused):
        await payer.reclaim(locked, locked.proofs)
    assert payer.purse.amount == 64 - 13 - 1
