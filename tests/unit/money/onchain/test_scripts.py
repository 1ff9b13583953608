from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.money.cashu.curve import ORDER, public_key
from trunkline.money.onchain.headers import MAIN, REGTEST
from trunkline.money.onchain.scripts import address_script, job_script
from trunkline.money.refusals import ProofRefused

# BIP 341, test vectors: an internal key, the root of a tree (here: the hash of a job), the script and its address.
TAPROOT = [
    (
        "187791b6f712a8ea41c8ecdd0ee77fab3e85263b37e1ec18a3651926b3a6cf27",
        "5b75adecf53548f3ec6ad7d78383bf84cc57b55a3127c72b9a2481752dd88b21",
        "5120147c9c57132f6e7ecddba9800bb0c4449251c92a1e60371ee77557b6620f3ea3",
        "bc1pz37fc4cn9ah8anwm4xqqhvxygjf9rjf2resrw8h8w4tmvcs0863sa2e586",
    ),
    (
        "93478e9488f956df2396be2ce6c5cced75f900dfa18e7dabd2428aae78451820",
        "c525714a7f49c28aedbbba78c005931a81c234b2f6c99a73e4d06082adc8bf2b",
        "5120e4d810fd50586274face62b8a807eb9719cef49c04177cc6b76a9a4251d5450e",
        "bc1punvppl2stp38f7kwv2u2spltjuvuaayuqsthe34hd2dyy5w4g58qqfuag5",
    ),
    (
        "ee4fe085983462a184015d1f782d6a5f8b9c2b60130aff050ce221ecf3786592",
        "6c2dc106ab816b73f9d07e3cd1ef2c8c1256f519748e0813e4edd2405d277bef",
        "5120712447206d7a5238acc7ff53fbe94a3b64539ad291c7cdbc490b7577e4b17df5",
        "bc1pwyjywgrd0ffr3tx8laflh6228dj98xkjj8rum0zfpd6h0e930h6saqxrrm",
    ),
    (
        "f9f400803e683727b14f463836e1e78e1c64417638aa066919291a225f0e8dd8",
        "ab179431c28d3b68fb798957faf5497d69c883c6fb1e1cd9f81483d87bac90cc",
        "512077e30a5522dd9f894c3f8b8bd4c4b2cf82ca7da8a3ea6a239655c39c050ab220",
        "bc1pwl3s54fzmk0cjnpl3w9af39je7pv5ldg504x5guk2hpecpg2kgsqaqstjq",
    ),
]
# And private keys: the internal one, the root, the one that spends.
PRIVATE = [
    (
        "1e4da49f6aaf4e5cd175fe08a32bb5cb4863d963921255f33d3bc31e1343907f",
        "5b75adecf53548f3ec6ad7d78383bf84cc57b55a3127c72b9a2481752dd88b21",
        "ea260c3b10e60f6de018455cd0278f2f5b7e454be1999572789e6a9565d26080",
    ),
    (
        "d3c7af07da2d54f7a7735d3d0fc4f0a73164db638b2f2f7c43f711f6d4aa7e64",
        "c525714a7f49c28aedbbba78c005931a81c234b2f6c99a73e4d06082adc8bf2b",
        "97323385e57015b75b0339a549c56a948eb961555973f0951f555ae6039ef00d",
    ),
    (
        "f36bb07a11e469ce941d16b63b11b9b9120a84d9d87cff2c84a8d4affb438f4e",
        "ccbd66c6f7e8fdab47b3a486f59d28262be857f30d4773f2d5ea47f7761ce0e2",
        "a8e7aa924f0d58854185a490e6c41f6efb7b675c0f3331b7f14b549400b4d501",
    ),
    (
        "415cfe9c15d9cea27d8104d5517c06e9de48e2f986b695e4f5ffebf230e725d8",
        "2f6b2c5397b6d68ca18e09a3f05161668ffe93a988582d55c6f07bd5b3329def",
        "241c14f2639d0d7139282aa6abde28dd8a067baa9d633e4e7230287ec2d02901",
    ),
]
# BIP 350, test vectors: addresses of the real network, with their scripts and without one.
SEGWIT = [
    ("BC1QW508D6QEJXTDG4Y5R3ZARVARY0C5XW7KV8F3T4", "0014751e76e8199196d454941c45d1b3a323f1433bd6"),
    (
        "bc1pw508d6qejxtdg4y5r3zarvary0c5xw7kw508d6qejxtdg4y5r3zarvary0c5xw7kt5nd6y",
        "5128751e76e8199196d454941c45d1b3a323f1433bd6751e76e8199196d454941c45d1b3a323f1433bd6",
    ),
    ("BC1SW50QGDZ25J", "6002751e"),
    ("bc1zw508d6qejxtdg4y5r3zarvaryvaxxpcs", "5210751e76e8199196d454941c45d1b3a323"),
    (
        "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0",
        "512079be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798",
    ),
]
WRONG = [
    "tc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vq5zuyut",
    "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqh2y7hd",
    "BC1S0XLXVLHEMJA6C4DQV22UAPCTQUPFHLXM9H8Z3K2E72Q4K9HCZ7VQ54WELL",
    "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kemeawh",
    "bc1p38j9r5y49hruaue7wxjce0updqjuyyx0kh56v8s25huc6995vvpql3jow4",
    "BC130XLXVLHEMJA6C4DQV22UAPCTQUPFHLXM9H8Z3K2E72Q4K9HCZ7VQ7ZWS8R",
    "bc1pw5dgrnzv",
    "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7v8n0nx0muaewav253zgeav",
    "BC1QR508D6QEJXTDG4Y5R3ZARVARYV98GJ9P",
    "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7v07qwwzcrf",
    "bc1gmk9yu",
    "tb1qrp33g0q5c5txsp9arysrx4k6zdkfs4nce4xj0gdcccefvpysxf3q0sl5k7",
    "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jJ0",
    "",
    "1",
    "bc1",
    "0" * 34,
    "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNb",
    "3J98t1WpEZ73CNmQviecrnyiWrnqRhWNLz",
    "mipcBbFg9gMiCh81Kj8tqqdgoZub1ZJRfn",
    "\u00fc" * 30,
    "1" * 200,
]


@pytest.mark.parametrize(("key", "root", "script", "address"), TAPROOT)
def test_the_script_of_a_key_and_a_hash_is_that_of_the_specification(
    key: str, root: str, script: str, address: str
) -> None:
    assert job_script(bytes.fromhex(key), bytes.fromhex(root)).hex() == script
    assert address_script(address, MAIN).hex() == script


def job_key(private_key: bytes, job_hash: bytes) -> bytes:
    """The private key that spends what was paid to ``job_script``, as a provider's wallet computes it (BIP 341)."""
    point = public_key(private_key)
    secret = int.from_bytes(private_key) if point[0] == 2 else ORDER - int.from_bytes(private_key)
    tag = hashlib.sha256(b"TapTweak").digest()
    tweak = int.from_bytes(hashlib.sha256(tag + tag + point[1:] + job_hash).digest())
    return ((secret + tweak) % ORDER).to_bytes(32)


@pytest.mark.parametrize(("key", "root", "spending"), PRIVATE)
def test_the_key_that_spends_it_is_that_of_the_specification(key: str, root: str, spending: str) -> None:
    assert job_key(bytes.fromhex(key), bytes.fromhex(root)).hex() == spending


@given(st.integers(1, ORDER - 1), st.binary(min_size=32, max_size=32))
def test_who_has_the_key_can_spend_what_was_paid_to_him_for_any_job(number: int, job_hash: bytes) -> None:
    private = number.to_bytes(32)
    script = job_script(public_key(private)[1:], job_hash)
    assert script == b"\x51\x20" + public_key(job_key(private, job_hash))[1:]


def test_two_jobs_of_one_provider_are_paid_to_two_scripts() -> None:
    key = bytes.fromhex(TAPROOT[0][0])
    assert job_script(key, bytes(32)) != job_script(key, b"\x01" * 32)


@pytest.mark.parametrize("key", [b"", bytes(32), b"\xff" * 32, bytes(33)])
def test_what_is_no_key_has_no_script(key: bytes) -> None:
    with pytest.raises(ProofRefused):
        job_script(key, bytes(32))


@pytest.mark.parametrize(("address", "script"), SEGWIT)
def test_an_address_of_the_specification_has_its_script(address: str, script: str) -> None:
    assert address_script(address, MAIN).hex() == script


def test_old_addresses_have_their_scripts() -> None:
    # The one of the first block, and one of a script.
    assert address_script("1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", MAIN).hex() == (
        "76a91462e907b15cbf27d5425399ebf6f0fb50ebb88f1888ac"
    )
    assert address_script("3J98t1WpEZ73CNmQviecrnyiWrnqRhWNLy", MAIN).hex() == (
        "a914b472a266d0bd89c13706a4132ccfb16f7c3b9fcb87"
    )


@pytest.mark.parametrize("address", WRONG)
def test_an_address_with_a_typing_error_or_of_another_network_is_refused(address: str) -> None:
    with pytest.raises(ProofRefused) as refused:
        address_script(address, MAIN)
    assert refused.value.reason == "malformed"


def test_an_address_of_the_real_network_is_none_of_a_test_network() -> None:
    for address, _ in SEGWIT:
        with pytest.raises(ProofRefused):
            address_script(address, REGTEST)
