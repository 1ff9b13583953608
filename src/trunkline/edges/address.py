"""Where an edge listens, as the configuration names it, and what it means that the place is taken.

Does not own listening itself: each kind of listener does that.

Invariant: an address that somebody chose and that cannot be had ends the start; a default one turns its edge off only.
"""

from __future__ import annotations

import os

from msgspec import Struct

from trunkline.edges.edge import EdgeOff
from trunkline.errors import ConfigError


class Address(Struct, frozen=True):
    """Where to listen, and what the configuration calls it."""

    host: str
    port: int
    # Its section and key in trunkline.toml, and whether somebody chose the value.
    section: str
    key: str = "listen"
    is_given: bool = False
    # Whether the exchange is of no use without this listener.
    is_needed: bool = False

    def taken(self, error: OSError) -> ConfigError | EdgeOff:
        """What to raise when it cannot be had: a default that is taken turns its edge off, a choice is an error."""
        problem = f"cannot listen here: {os.strerror(error.errno or 0)}; choose another address in [{self.section}] "
        place = f"{self.host}:{self.port}"
        if self.is_given or self.is_needed:
            # A start ends at the first; who mends one by one starts as often.
            return ConfigError(f"{problem}{self.key}; `trunkline doctor` shows each that is taken", place)
        return EdgeOff(f"{place}: {problem}{self.key}")
