"""Every rail's judge, put together for one who verifies.

Owns which rails can be judged, and what the operator's word is needed for: blocks that are part of the chain. Does not
own any judgement (``lightning``, ``cashu.proof``, ``onchain.proof``).

Invariant: a rail without a judge is one whose payments are never believed. Assets on top of the chain have none: a
transaction does not say what of an asset it moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trunkline.money import lightning
from trunkline.money.cashu import proof as cashu
from trunkline.money.cashu.known_keys import KnownKeys
from trunkline.money.onchain import proof as onchain
from trunkline.money.onchain.headers import NETWORKS, Checkpoint
from trunkline.money.proving import Verify
from trunkline.money.rail import RailName


def verifiers(
    network: str, checkpoints: Iterable[str], confirmations: int, mint_keys: Sequence[KnownKeys] | None = None
) -> dict[RailName, Verify]:
    """The judges. A checkpoint is ``HEIGHT:HASH``; without one no payment on the chain is believed. ``mint_keys`` are
    the mint's own answer: without them its keys are the payee's word.
    """
    known = [Checkpoint(int(height), found) for height, _, found in (line.partition(":") for line in checkpoints)]
    return {
        "lightning": lightning.verify,
        "cashu": cashu.verify if mint_keys is None else cashu.verifier(mint_keys),
        "onchain": onchain.verifier(NETWORKS[network], known, confirmations),
    }
