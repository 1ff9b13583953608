"""A chain of a few blocks that a test mines itself, on the network whose blocks cost next to nothing.

And the first payment that was ever made on the real one: block 170, whose parts everybody can look up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from trunkline.money.onchain.headers import REGTEST, Checkpoint, bits_of
from trunkline.money.onchain.payments import Evidence
from trunkline.money.onchain.transactions import double_sha256

SCRIPT = b"\x51\x20" + hashlib.sha256(b"payee").digest()
OTHER_SCRIPT = b"\x51\x20" + hashlib.sha256(b"somebody else").digest()

FIRST_PAYMENT = (
    "0100000001c997a5e56e104102fa209c6a852dd90660a20b2d9c352423edce25857fcd3704000000004847304402204e45e16932b8af514961a1"
    "d3a1a25fdf3f4f7732e9d624c6c61548ab5fb8cd410220181522ec8eca07de4860a4acdd12909d831cc56cbbac4622082221a8768d1d0901ffff"
    "ffff0200ca9a3b00000000434104ae1a62fe09c5f51b13905f07f06b99a2f7159b2225f374cd378d71302fa28414e7aab37397f554a7df5f142c"
    "21c1b7303b8a0626f1baded5c72a704f7e6cd84cac00286bee0000000043410411db93e1dcdb8a016b49840f8c53bc1eb68a382e97b1482ecad7"
    "b148a6909a5cb2e0eaddfb84ccf9744464f82e160bfa9b8b64f9d4c03f999b8643f656b412a3ac00000000"
)
ITS_ID = "f4184fc596403b9d638783cf57adfe4c75c605f6356fbc91338530e9831e9e16"
ITS_NEIGHBOUR = "b1fea52486ce0c62bb442b530a3f0132b826c74e473d1f2c220bfa78111c5082"
BLOCK_170 = "00000000d1145790a8694403d4063f323d499e655c83426834d4ce2f8dd4a2ee"


def header(previous: str, merkle_root: str, time: int, bits: int, nonce: int, version: int = 1) -> bytes:
    """Eighty bytes; hashes as people write them."""
    parts = (
        version.to_bytes(4, "little"), bytes.fromhex(previous)[::-1], bytes.fromhex(merkle_root)[::-1],
        time.to_bytes(4, "little"), bits.to_bytes(4, "little"), nonce.to_bytes(4, "little"),
    )  # fmt: skip
    return b"".join(parts)


HEADER_170 = header(
    "000000002a22cfee1f2c846adbd12b3e183d4f97683f85dad08a79780a84bd55",
    "7dac2c5666815c17a3b36427de37bb9d2e2c5ccec3f8633eb91a4205cb4c10ff",
    1231731025, 0x1D00FFFF, 1889418792,
)  # fmt: skip
GENESIS = header(
    "00" * 32, "4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b", 1231006505, 0x1D00FFFF, 2083236893
)
BLOCK_1 = header(
    "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f",
    "0e3e2357e806b6cdb1f70b54c3a3a17b6714ee1f0e68bebb44a74b1efd512098",
    1231469665, 0x1D00FFFF, 2573394689,
)  # fmt: skip


def hash_of(data: bytes) -> str:
    return double_sha256(data)[::-1].hex()


def transaction(*outputs: tuple[int, bytes], witness: bool = False, marker: int = 0) -> bytes:
    """A transaction that pays these scripts so many satoshis; ``marker`` makes two of them different."""
    data = b"\x02\0\0\0" + (b"\0\x01" if witness else b"")
    data += b"\x01" + bytes([marker]) * 32 + b"\0\0\0\0" + b"\0" + b"\xfd\xff\xff\xff"
    data += bytes([len(outputs)])
    data += b"".join(amount.to_bytes(8, "little") + bytes([len(script)]) + script for amount, script in outputs)
    return data + (b"\x01\x40" + bytes([7]) * 64 if witness else b"") + b"\0\0\0\0"


def mined(previous: str, merkle_root: str, time: int, bits: int = bits_of(REGTEST.easiest)) -> bytes:
    """A header with enough work: about two tries."""
    from trunkline.money.onchain.headers import target_of

    nonce = 0
    while True:
        data = header(previous, merkle_root, time, bits, nonce)
        if int.from_bytes(double_sha256(data), "little") <= target_of(bits):
            return data
        nonce += 1


def tree(txids: Sequence[str], position: int) -> tuple[str, list[str]]:
    """The root of a block's tree, and the hashes beside the way from one leaf up to it."""
    level, siblings = [bytes.fromhex(txid)[::-1] for txid in txids], []
    while len(level) > 1:
        level += level[-1:] if len(level) % 2 else []
        siblings.append(level[position ^ 1].hex())
        level = [double_sha256(level[at] + level[at + 1]) for at in range(0, len(level), 2)]
        position >>= 1
    return level[0][::-1].hex(), siblings


class Chain:
    """Blocks that a test mined: a checkpoint, a block with a payment, and some on top."""

    def __init__(self, paid: bytes, *, on_top: int = 2, neighbours: int = 4, position: int = 2) -> None:
        self.headers = [mined("00" * 32, "11" * 32, 1_700_000_000)]
        self.checkpoint = Checkpoint(100, hash_of(self.headers[0]))
        txids = [hashlib.sha256(bytes([at])).hexdigest() for at in range(neighbours)]
        # Of a transaction with witnesses the id is over the rest: those of tests are made without.
        self.txid = hash_of(paid)
        txids.insert(position, self.txid)
        root, siblings = tree(txids, position)
        self.add(root)
        for _ in range(on_top):
            self.add("22" * 32)
        self.evidence = Evidence(paid.hex(), b"".join(self.headers).hex(), 1, position, tuple(siblings))

    def add(self, merkle_root: str) -> None:
        self.headers.append(mined(hash_of(self.headers[-1]), merkle_root, 1_700_000_000 + 600 * len(self.headers)))
