"""What an agent that the exchange starts itself finds in its environment, and what its manifest asks for.

Owns the names (OS-140, decision 18). Does not start anything: the host does, and knows an agent's processes by the two
variables that are named here.
"""

from __future__ import annotations

from pathlib import Path

from trunkline.config import Config
from trunkline.edges.edge import Launcher
from trunkline.edges.opensentience.manifest import read_manifest
from trunkline.edges.opensentience.translate import EDGE
from trunkline.model import Manifest


class AgentLauncher(Launcher):
    """Launches agents that come back over the Unix socket of this edge."""

    edge = EDGE
    run_variable = "OPENSENTIENCE_RUN_ID"
    home_variable = "OPENSENTIENCE_HOME"
    socket_variable = "OPENSENTIENCE_SOCKET"

    def __init__(self, home: Path, socket: Path) -> None:
        self._home = home
        self.socket = str(socket)

    @classmethod
    def of(cls, config: Config, home: Path) -> AgentLauncher:
        """As configured."""
        return cls(home, Path(config.opensentience.socket))

    def environment(self, agent_id: str, run_id: str, token: str) -> dict[str, str]:
        """OS-140, OS-141."""
        return {
            self.socket_variable: self.socket,
            "OPENSENTIENCE_SESSION_TOKEN": token,
            "OPENSENTIENCE_AGENT_ID": agent_id,
            self.run_variable: run_id,
            self.home_variable: str(self._home),
        }

    def read_manifest(self, path: Path, agent_id: str) -> Manifest:
        """``opensentience.agent.json``."""
        return read_manifest(path, agent_id)
