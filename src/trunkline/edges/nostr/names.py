"""By what the rest of the exchange knows this edge: its name, the wallet's agent, and the tool that pays.

Owns names that several modules of this folder say, so that none of them imports another for a word. Does not own what
they stand for: the tools are ``wallet_agent``'s.

Invariant: they stand on records that were written before, and in people's rules; none of them changes.
"""

from __future__ import annotations

from typing import Final

EDGE: Final = "nostr"
WALLET_AGENT: Final = f"{EDGE}.wallet"
PAY: Final = f"{WALLET_AGENT}/pay"
