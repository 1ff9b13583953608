"""A server that runs here: its messages are lines on its stdin and stdout, and the host keeps it running.

Owns the way between a run's pipes and its ``Mount``. Does not own the process (the host), nor what is said.

Invariant: what a server writes is read message by message; one that does not read what it is sent is ended.
"""

from __future__ import annotations

from trunkline.config import AgentProgram, McpServer
from trunkline.edges.framing.lines import MAX_LINE_BYTES, Lines
from trunkline.edges.mounts.mount import Launch, Mount
from trunkline.edges.mounts.session import Outgoing
from trunkline.edges.piped import KeptRun


def program(server: McpServer) -> AgentProgram:
    """How the host runs it."""
    assert server.command is not None
    return AgentProgram(
        id=server.agent_id,
        command=server.command,
        cwd=server.cwd,
        env=server.env,
        restart=server.restart,
        isolation=server.isolation,
        read=server.read,
        write=server.write,
        network=server.network,
        stop_grace_s=server.stop_grace_s,
        max_log_bytes=server.max_log_bytes,
    )


class PipedServer:
    """One of them: ``edges.piped.KeptOwner``, and ``mount.Link`` while it runs."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        self._run: KeptRun | None = None
        self._lines = Lines()

    def began(self, run: KeptRun) -> None:
        """There is a process."""
        self._run, self._lines = run, Lines(MAX_LINE_BYTES)
        self._mount.connected(self, Launch(run.run_id, run.identity, run.token_sha256))

    def received(self, data: bytes) -> None:
        """Some bytes of its stdout."""
        for line in self._lines.receive(data):
            self._mount.heard(line)
        if self._lines.is_broken:
            self.give_up(self._lines.trouble)

    def ended(self, reason: str) -> None:
        """Nothing of this run is left."""
        self._run = None
        self._mount.disconnected(reason)

    def send(self, messages: list[Outgoing]) -> None:
        """Write these to its stdin."""
        if self._run is not None and not self._run.write(b"".join(one.body + b"\n" for one in messages)):
            self.give_up("it does not read what it is sent")

    def give_up(self, reason: str) -> None:
        """End it, as after a crash."""
        if self._run is not None:
            self._run.hung(reason)
