"""What one run of an agent is started with: its environment, and the plan by which the keeper isolates it.

Owns which sandbox holds here, once an agent needed to know. Does not own the kinds of isolation (``isolation``), what
an agent may see (``confinement``), nor when it runs (``supervisor``).

Invariant: an agent that cannot have the isolation that was written for it is not started.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from trunkline.edges.edge import Launcher
from trunkline.host import isolation
from trunkline.host.confinement import Subject, environment_inside, make_view
from trunkline.host.isolation import Sandbox
from trunkline.host.launch import find_program
from trunkline.host.supervised import AgentSpec, Run, environment


class RunIsolation:
    """The isolation of all runs of one exchange."""

    def __init__(self, home: Path, launcher: Launcher) -> None:
        self._home = home
        self._launcher = launcher
        # The one that holds here; None while nobody needed to know.
        self.sandbox: Sandbox | None = None

    async def probe(self) -> None:
        """Find out which sandbox holds."""
        self.sandbox = await asyncio.to_thread(isolation.probe)

    def of(
        self, run: Run, own: Mapping[str, str], given: dict[str, str], others: Iterable[AgentSpec]
    ) -> tuple[dict[str, str], dict[str, object] | None]:
        """A run's environment, and the plan of its isolation; ``LaunchError`` if it cannot have what was written.

        ``own`` is what its configuration sets there, ``given`` what the exchange does; ``others`` are all other agents.
        """
        agent, spec = run.agent, run.agent.spec
        # Who is spoken with over pipes has nothing to look for at the agents' socket.
        socket = self._launcher.socket if agent.kept is None else ""
        agent.isolation = None
        if spec.isolation in {None, "sandbox"} and self.sandbox is None:
            self.sandbox = isolation.probe()  # 50 ms, once: no agent needed it when the exchange started
        agent.isolation = isolation.choose(spec.isolation, self.sandbox or Sandbox(None))
        env = environment(own, given, os.environ, is_ours=agent.kept is None)
        if agent.isolation.kind == "none":
            return env, None
        folder = isolation.agent_folder(self._home, spec.agent_id)
        if agent.isolation.kind == "user":
            plan = isolation.user_plan(self._home, folder, socket, spec.cwd)
            run.uid = plan["uid"]
            isolation.give_to(folder, plan["uid"])
            (_, inside), *shown = plan["shown"]
            if shown:
                given = {**given, self._launcher.socket_variable: shown[0][1]}
            env = environment(own, given, os.environ, is_ours=agent.kept is None)
            return {**env, **environment_inside(inside, self._launcher.home_variable)}, plan
        isolation.give_to(folder, os.geteuid())
        assert self.sandbox is not None
        program = find_program(spec.command, spec.cwd, env.get("PATH", os.defpath))
        written = tuple(path for other in others for path in other.write)
        subject = Subject(spec.command, program, spec.cwd, spec.read, spec.write, spec.network, written, spec.manifest)
        run.view = make_view(
            subject,
            home=str(self._home),
            folder=str(folder),
            socket=socket,
            installed=isolation.own_code(str(self._home)),
        )
        return {**env, **environment_inside(str(folder), self._launcher.home_variable)}, self.sandbox.plan(run.view)
