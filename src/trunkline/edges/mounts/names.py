"""Under which names mounted servers stand in the exchange, and in its configuration.

Owns these names and nothing else, so that the edge can say its own without importing what speaks with servers.
"""

from __future__ import annotations

from typing import Final

EDGE: Final = "mounts"
# What stands for it where its agents are named: `mcp.<id>`, and `mcp` on record.
AGENT_EDGE: Final = "mcp"
TABLE: Final = "[[mcp]]"
