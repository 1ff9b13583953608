"""Headers of blocks: the work in them, that each follows the one before, and that a transaction is in a block.

Owns the arithmetic of proof-of-work from a checkpoint on. Does not own where headers come from, nor which chain is the
longest: work cannot be counterfeited, so headers that have it and follow a block that the operator knows were mined by
somebody who gave up the same on the real chain. The difficulty may not fall faster than Bitcoin's own rule lets it.

Invariant: what ``read_chain`` accepts starts at the checkpoint and has the work that each header claims. Whatever comes
in, functions here give a value or raise ``ProofRefused``.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import Final

from msgspec import Struct

from trunkline.money.onchain.transactions import double_sha256
from trunkline.money.refusals import ProofRefused, malformed

HEADER_BYTES: Final = 80
# A little more than two weeks of blocks, 170 KB: who needs more configures a newer checkpoint.
MAX_HEADERS: Final = 2100
# The tree of a block: a million transactions, ten times what fits.
MAX_DEPTH: Final = 20
# The difficulty changes every so many blocks, so that they take two weeks, and by a factor of four at most.
PERIOD: Final = 2016
PERIOD_SECONDS: Final = 14 * 24 * 3600
MOST_CHANGE: Final = 4
# A block is later than the median of so many before it.
MEDIAN_OF: Final = 11


class Network(Struct, frozen=True):
    """What differs between chains: the least work of a block, whether it adapts, and how addresses begin."""

    name: str
    easiest: int
    adapts: bool
    key_prefix: int
    script_prefix: int
    segwit_prefix: str


MAIN: Final = Network("main", 0xFFFF << 208, adapts=True, key_prefix=0, script_prefix=5, segwit_prefix="bc")
REGTEST: Final = Network(
    "regtest", 0x7FFFFF << 232, adapts=False, key_prefix=111, script_prefix=196, segwit_prefix="bcrt"
)
NETWORKS: Final = {network.name: network for network in (MAIN, REGTEST)}


class Checkpoint(Struct, frozen=True):
    """A block that the operator knows to be part of the chain: its height, and its hash as people write it."""

    height: int
    hash: str


class Header(Struct, frozen=True):
    """What a block says of itself. Hashes are bytes in the order in which they are hashed."""

    hash: bytes
    previous: bytes
    merkle_root: bytes
    time: int
    target: int
    bits: int


def read_header(data: bytes) -> Header:
    """The header that these 80 bytes are; refused unless its hash is below its own target."""
    if len(data) != HEADER_BYTES:
        raise malformed("a header has 80 bytes")
    bits = int.from_bytes(data[72:76], "little")
    target = target_of(bits)
    found = double_sha256(data)
    if int.from_bytes(found, "little") > target:
        raise ProofRefused("not_enough_work")
    return Header(found, data[4:36], data[36:68], int.from_bytes(data[68:72], "little"), target, bits)


def target_of(bits: int) -> int:
    """The number that four bytes of a header stand for: below it a hash has enough work."""
    exponent, mantissa = bits >> 24, bits & 0x7FFFFF
    if bits & 0x800000 or not mantissa:
        raise ProofRefused("not_enough_work", "a target that is no number above zero")
    target = mantissa << 8 * (exponent - 3) if exponent >= 3 else mantissa >> 8 * (3 - exponent)
    if not 0 < target < 1 << 256:
        raise ProofRefused("not_enough_work", "a target that is no number above zero")
    return target


def bits_of(target: int) -> int:
    """A target in the four bytes of a header, which lose what is below three bytes of precision."""
    size = (target.bit_length() + 7) // 8
    mantissa = target >> 8 * (size - 3) if size > 3 else target << 8 * (3 - size)
    if mantissa & 0x800000:
        mantissa, size = mantissa >> 8, size + 1
    return size << 24 | mantissa


def read_chain(data: bytes, checkpoints: Sequence[Checkpoint], network: Network) -> list[Header]:
    """Headers one after the other, the first of them a checkpoint, each on top of the one before."""
    if not 0 < len(data) <= HEADER_BYTES * MAX_HEADERS or len(data) % HEADER_BYTES:
        raise malformed(f"1 to {MAX_HEADERS} headers of 80 bytes")
    headers = [read_header(data[at : at + HEADER_BYTES]) for at in range(0, len(data), HEADER_BYTES)]
    start = headers[0].hash[::-1].hex()
    height = next((checkpoint.height for checkpoint in checkpoints if checkpoint.hash == start), None)
    if height is None:
        raise ProofRefused("no_checkpoint")
    for at in range(1, len(headers)):
        _check_follows(headers, at, height, network)
    return headers


def check_in_block(txid: str, position: int, siblings: Sequence[bytes], header: Header) -> None:
    """Refuse unless a transaction is in a block, at this place in its tree, with these hashes beside the way up."""
    if len(siblings) > MAX_DEPTH or not 0 <= position < 1 << len(siblings):
        raise malformed("a place that the tree does not have")
    node = bytes.fromhex(txid)[::-1]
    for sibling in siblings:
        if len(sibling) != 32:
            raise malformed("a hash has 32 bytes")
        node = double_sha256(sibling + node if position & 1 else node + sibling)
        position >>= 1
    if node != header.merkle_root:
        raise ProofRefused("other_block")


def _check_follows(headers: Sequence[Header], at: int, start_height: int, network: Network) -> None:
    header, before = headers[at], headers[at - 1]
    if header.previous != before.hash:
        raise ProofRefused("broken_chain", f"header {at}")
    recent = [earlier.time for earlier in headers[max(0, at - MEDIAN_OF) : at]]
    # With fewer than eleven at hand their median may be later than the real one.
    if len(recent) == MEDIAN_OF and header.time <= median_low(recent):
        raise ProofRefused("broken_chain", f"header {at} is earlier than those before it")
    if header.target > network.easiest:
        raise ProofRefused("not_enough_work", f"header {at}")
    if not network.adapts or (start_height + at) % PERIOD:
        if header.bits != before.bits:
            raise ProofRefused("not_enough_work", f"header {at} has another target than the one before it")
    elif at >= PERIOD:
        if header.bits != bits_of(_adapted(headers[at - PERIOD], before, network)):
            raise ProofRefused("not_enough_work", f"header {at} has not the target that follows from those before it")
    elif header.target > min(before.target * MOST_CHANGE, network.easiest):
        raise ProofRefused("not_enough_work", f"header {at} has a target that fell too fast")


def _adapted(first: Header, last: Header, network: Network) -> int:
    seconds = min(max(last.time - first.time, PERIOD_SECONDS // MOST_CHANGE), PERIOD_SECONDS * MOST_CHANGE)
    return min(last.target * seconds // PERIOD_SECONDS, network.easiest)
