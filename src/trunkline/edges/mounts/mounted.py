"""The servers that are mounted now, by the agent that each is.

Owns the difference between one configuration and the next: a server that stays as it is goes on undisturbed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trunkline.config import McpServer
from trunkline.edges.background import Background
from trunkline.edges.edge import Surroundings
from trunkline.edges.exchange import SignInAddress
from trunkline.edges.mounts.mount import Mount
from trunkline.edges.mounts.names import AGENT_EDGE, TABLE
from trunkline.edges.mounts.piped import PipedServer, program
from trunkline.edges.offers import JudgingBudget
from trunkline.edges.shares import Share, Shares
from trunkline.errors import SignInRefused
from trunkline.shown import AgentView

if TYPE_CHECKING:
    from trunkline.edges.exchange import AgentAction
    from trunkline.edges.mounts.remote import RemoteServer
    from trunkline.edges.mounts.signing_in import SigningIn


class Mounted:
    """All of them."""

    def __init__(self, given: Surroundings) -> None:
        self._given = given
        self._judging = JudgingBudget(AGENT_EDGE, given.feed.offer_refused)
        self._background = Background(given.feed)
        self._mounts: dict[str, Mount] = {}
        self._remote: dict[str, RemoteServer] = {}
        # What is kept of answers that have not ended, of all servers that are reached elsewhere.
        self._answers = Shares()

    def set(self, servers: Sequence[McpServer]) -> Mapping[str, Sequence[str]]:
        """Have these, and no others; which agents were started, restarted and stopped, and which cannot start."""
        wanted = {server.agent_id: server for server in servers}
        gone = [agent_id for agent_id, mount in self._mounts.items() if wanted.get(agent_id) != mount.server]
        for agent_id in gone:
            self._let_go(agent_id)
        idle = [agent_id for agent_id, remote in self._remote.items() if remote.is_idle]
        added = [agent_id for agent_id in wanted if agent_id not in self._mounts]
        problems = {agent_id: problem for agent_id in added if (problem := self._add(wanted[agent_id]))}
        problems |= {agent_id: problem for agent_id in idle if (problem := self._try_again(agent_id))}
        able = [agent_id for agent_id in (*added, *idle) if agent_id not in problems]
        done = {
            "started": [agent_id for agent_id in able if agent_id not in gone],
            "restarted": [agent_id for agent_id in able if agent_id in gone],
            "stopped": [agent_id for agent_id in gone if agent_id not in added],
        }
        if problems:
            done["cannot_start"] = [f"{agent_id}: {problem}" for agent_id, problem in problems.items()]
        return done

    def _add(self, server: McpServer) -> str:
        mount = self._mounts[server.agent_id] = Mount(self._given, server, self._judging)
        if server.url is None:
            return self._given.programs.keep(program(server), PipedServer(mount), edge=AGENT_EDGE, table=TABLE)
        from trunkline.edges.mounts.remote import RemoteServer

        remote = self._remote[server.agent_id] = RemoteServer(
            self._given, mount, self._background, Share(self._answers, server.agent_id)
        )
        remote.start()
        return remote.problem()

    def _try_again(self, agent_id: str) -> str:
        """Connect to one that nothing is tried with any more; why that cannot be done, if it cannot."""
        remote = self._remote[agent_id]
        if not (problem := remote.problem()):
            remote.start()
        return problem

    def _let_go(self, agent_id: str) -> None:
        del self._mounts[agent_id]
        remote = self._remote.pop(agent_id, None)
        if remote is None:
            self._given.programs.release(agent_id)
        else:
            remote.stop("it is not configured any more")

    async def stop(self) -> None:
        """Let go of all. The host ends what runs here."""
        for remote in self._remote.values():
            remote.stop("the exchange is stopping")
        for mount in self._mounts.values():
            mount.disconnected("the exchange is stopping")
        await self._background.stop()

    def agents(self) -> Sequence[AgentView]:
        """Those that are reached elsewhere."""
        return [remote.view() for remote in self._remote.values()]

    def steer(self, agent_id: str, action: AgentAction) -> bool:
        """Connect to one of these, or let go of it."""
        remote = self._remote.get(agent_id)
        if remote is not None:
            remote.steer(action)
        return remote is not None

    async def sign_in(self, agent_id: str, base: str) -> SignInAddress | None:
        """Where a person signs in at this one."""
        signing_in = self._signing_in(agent_id)
        return None if signing_in is None else await signing_in.begin(base)

    def sign_in_state(self, agent_id: str) -> str | None:
        """``waiting``, ``done``, why it came to nothing, or empty: what came of the last attempt."""
        signing_in = self._signing_in(agent_id)
        return None if signing_in is None else "waiting" if signing_in.is_pending else signing_in.last

    async def sign_out(self, agent_id: str) -> bool:
        """Forget the tokens of this one."""
        if self._signing_in(agent_id) is None:
            return False
        await self._remote[agent_id].sign_out()
        return True

    async def came_back(self, state: str, code: str, issuer: str | None, error: str) -> str | None:
        """A browser is back from an authorization server (``callback.Finish``)."""
        for remote in self._remote.values():
            if remote.signing_in is not None and remote.signing_in.is_state(state):
                problem = await remote.signing_in.finish(code=code, issuer=issuer, error=error)
                if not problem:
                    remote.start_anew()
                return problem
        return None

    def _signing_in(self, agent_id: str) -> SigningIn | None:
        remote = self._remote.get(agent_id)
        if remote is not None and remote.signing_in is None:
            raise SignInRefused("its token is set in `headers`: nobody signs in")
        return None if remote is None else remote.signing_in

    def status(self) -> Mapping[str, object]:
        """How many there are, and how many of them can be used."""
        ready = sum(mount.is_ready for mount in self._mounts.values())
        found: dict[str, object] = {"servers": len(self._mounts), "ready": ready}
        if out := [agent_id for agent_id, remote in self._remote.items() if remote.is_signed_out]:
            found["signed_out"] = len(out)
            found["note"] = f"{', '.join(out[:3])}{', …' if len(out) > 3 else ''} wait for you to sign in"
        return found
