"""What somebody in a simulation does when there is a choice: which tool, which words, and what becomes of a call.

Owns how often what is chosen. Does not own when something happens (``simulation``), nor what is there (``world``).
Once ``is_quiet``, everybody does what they should.
"""

from __future__ import annotations

from typing import Final

from trunkline.edges.chiffon import messages
from trunkline.edges.chiffon.messages import ErrorPayload, WorkRequest
from trunkline.edges.opensentience.agent_events import Called
from trunkline.testing import chiffon
from trunkline.testing.agents import Deed, Job, ScriptedAgent
from trunkline.testing.chiffon import Plan, Worker
from trunkline.testing.world import World

# What an agent does with a call, and how often.
DEEDS: Final = {
    Deed.ANSWER: 60,
    Deed.CHAIN: 22,
    Deed.FAIL: 6,
    Deed.CRASH: 5,
    Deed.TWO_RESULTS: 4,
    Deed.NEVER: 3,
    Deed.FORGE: 4,
    Deed.BAD_RESULT: 2,
    Deed.GARBAGE: 2,
    Deed.HANG: 2,
}
# Which tools are called, and how often.
WANTED: Final = {"read": 5, "look": 4, "write": 5, "make": 4, "once": 4, "intended": 1.5, "guarded": 1}
# What a Chiffon worker does with a piece of work, and how often.
WORK_DEEDS: Final = {
    chiffon.Deed.SUCCEED: 50,
    chiffon.Deed.FAIL: 8,
    chiffon.Deed.ERROR: 12,
    chiffon.Deed.TWO_RESULTS: 5,
    chiffon.Deed.IN_PIECES: 8,
    chiffon.Deed.NEVER: 3,
    chiffon.Deed.SILENT: 5,
    chiffon.Deed.DIE: 5,
}
# A body that is stored apart from its entry.
LARGE_BYTES: Final = 70_000
# An input that costs every agent its life.
POISON: Final = b'{"n":13}'


class Choices:
    """The choices of one simulation, all from its one source of chance."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self.is_quiet = False

    def job(self, agent: ScriptedAgent, called: Called) -> Job:
        """What an agent does with a call."""
        rng = self._rng
        if self.is_quiet:
            return Job(Deed.ANSWER, 0.01)
        (deed,) = rng.choices(list(DEEDS), list(DEEDS.values()))
        if bytes(called.input) == POISON:
            deed = Deed.CRASH
        after_s = rng.choice([rng.uniform(0.0, 0.05), rng.uniform(0.0, 0.05), rng.uniform(0.1, 3.0)])
        if rng.random() < 0.08:
            after_s = rng.uniform(10.0, 45.0)
        return Job(
            deed,
            after_s,
            output=self.body(f"done by {agent.agent_id}"),
            chunks=self._chunks() if rng.random() < 0.2 else (),
            obeys_cancel=rng.random() < 0.6,
            other=self.tool(agent.agent_id),
            names_cause=rng.random() < 0.7,
        )

    def plan(self, worker: Worker, request: WorkRequest) -> Plan:
        """What a Chiffon worker does with a piece of work."""
        del request
        rng = self._rng
        if self.is_quiet:
            return Plan(chiffon.Deed.SUCCEED, 0.01, "done in the end")
        (deed,) = rng.choices(list(WORK_DEEDS), list(WORK_DEEDS.values()))
        after_s = rng.choice([rng.uniform(0.0, 0.05), rng.uniform(0.1, 3.0)])
        if rng.random() < 0.1:
            after_s = rng.uniform(10.0, 40.0)
        output = f"done by {worker.agent_id} as number {rng.randrange(1000)}"
        return Plan(deed, after_s, output, self._error() if deed is chiffon.Deed.ERROR else None)

    def _error(self) -> ErrorPayload:
        return self._rng.choice(
            [
                ErrorPayload(messages.TIMEOUT, "took too long"),
                messages.unavailable("worker", None, "busy elsewhere").error,
                messages.over_limit("memory_mb", 1, 2).error,
                messages.invalid("not like this").error,
                messages.unsupported("this", ("that",)).error,
                ErrorPayload(5999, "something else"),
            ]
        )

    def _chunks(self) -> tuple[str, ...]:
        """Some text, in which a secret may be cut in two."""
        if self._rng.random() < 0.3:
            secret = self._world.canary()
            cut = self._rng.randint(1, len(secret) - 1)
            return ("here: " + secret[:cut], secret[cut:] + " so far")
        return tuple(f"line {number}\n" for number in range(self._rng.randint(1, 4)))

    def body(self, text: str = "") -> bytes:
        """A JSON object: one of a few, so that equal ones meet; sometimes with a secret, sometimes large."""
        kind = self._rng.random()
        if kind < 0.09:
            return b'{"n":0,"note":"%s use %s"}' % (text.encode(), self._world.canary().encode())
        if kind < 0.12:
            return b'{"n":0,"password":"%s"}' % self._world.canary().encode()
        if kind < 0.13:
            return b'{"n":0,"large":"%s"}' % (b"x" * LARGE_BYTES)
        if kind < 0.15:
            return b'{"n":"none"}'
        if kind < 0.17:
            return POISON
        return b'{"n":%d}' % self._rng.randrange(3)

    def tool(self, not_of: str = "") -> str:
        """A tool, mostly of the few agents that everybody wants something of."""
        agents = [name for name in self._world.agents if name != not_of]
        if self._world.has_chiffon and self._rng.random() < 0.2:
            worker = self._rng.choice(list(self._world.workers.values()))
            who = worker.agent_id if self._rng.random() < 0.4 else f"chiffon.{worker.kind}"
            return f"{who}/{self._rng.choice(worker.work_types)}"
        if self._world.ossa is not None and self._rng.random() < 0.15:
            return self._rng.choice(list(self._world.ossa.tools))
        agent = self._rng.choice(agents[:2] if self._rng.random() < 0.5 else agents)
        (name,) = self._rng.choices(list(WANTED), list(WANTED.values()))
        return f"{agent}/{name}"

    def correlation(self) -> str | None:
        """A conversation that a call belongs to; most belong to none."""
        kind = self._rng.random()
        if kind < 0.02:
            return f"about {self._world.canary()}"
        return self._rng.choice(["c1", "c2", "c3"]) if kind < 0.3 else None
