"""The edges of this release, and what the configuration already knows of later ones.

A new protocol is a folder, a line here, and a section of ``config.py``; its name, and a prefix if it gives out agent
ids, stand among those of ``model.py``. Edges start and stop in this order, those with ``stops_last`` after the others.
HTTP listens for the doors of the others, so it starts last.
"""

from __future__ import annotations

from typing import Final

from trunkline.edges.chiffon.edge import CHIFFON
from trunkline.edges.console.edge import CONSOLE
from trunkline.edges.edge import Edge
from trunkline.edges.http.edge import HTTP
from trunkline.edges.jobs.edge import JOBS
from trunkline.edges.mcp.edge import MCP
from trunkline.edges.mounts.edge import MOUNTS
from trunkline.edges.nostr.edge import NOSTR
from trunkline.edges.opensentience.edge import OPENSENTIENCE
from trunkline.edges.ossa.edge import OSSA
from trunkline.edges.pylon.edge import PYLON
from trunkline.edges.spaces.edge import SPACES
from trunkline.edges.topics.edge import TOPICS

EDGES: Final[tuple[Edge, ...]] = (
    TOPICS, SPACES, JOBS, OPENSENTIENCE, CHIFFON, OSSA, NOSTR, PYLON, MCP, MOUNTS, CONSOLE, HTTP,
)  # fmt: skip

# Sections of trunkline.toml for edges that this release does not have, each with its key in ``ready.json``.
UNBUILT: Final[dict[str, str | None]] = {
    "cluster": None,
}
