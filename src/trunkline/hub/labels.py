"""Who was told what strangers wrote, other than by a call's result: by an event on a topic, or by an agent's words.

Owns the entry that says so (``agents.labelled``). Does not own results, which carry the label themselves (``calls``),
nor what a label means for a call (``judging``).

Invariant: the entry that labels somebody is made before he is told untrusted words; events wait for it on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from trunkline import entries, events
from trunkline.hub.calls import Calls
from trunkline.hub.in_force import InForce
from trunkline.hub.journal import Journal
from trunkline.hub.limits import ENTRY_BYTES, Loads
from trunkline.model import Now, agent_of


class Labels:
    """Labels agents as who received an untrusted result is."""

    def __init__(
        self, journal: Journal, loads: Loads, calls: Calls, in_force: InForce, on_labelled: Callable[[], None]
    ) -> None:
        self._journal = journal
        self._state = journal.state
        self._loads = loads
        self._calls = calls
        self._in_force = in_force
        # Calls of an agent that was just labelled are judged otherwise than the one before.
        self._on_labelled = on_labelled

    def is_untrusted(self, identity: str, now: Now) -> bool:
        """Whether the words of this identity may be those of strangers: it reads them by trade, or was told some."""
        agent_id = agent_of(identity)
        # The operator is a person, who can tell what strangers wrote.
        return bool(agent_id) and (
            agent_id in self._in_force.settings.untrusted_agents or self._calls.is_touched(agent_id, now)
        )

    def label(self, told: Mapping[str, Iterable[str]], paid_by: str, now: Now) -> int:
        """Identities are about to be told untrusted words, each with the correlations these are part of.

        Returns the number of the entry that has to be on disk before; 0 if none of them is an agent.
        """
        agents: dict[str, dict[str, None]] = {}
        for identity, correlations in told.items():
            agent_id = agent_of(identity)
            if agent_id:
                # It may use what it is told for any of its work.
                working = {call.correlation_id: None for call in self._calls.worked_on(identity, now)}
                agents.setdefault(agent_id, {}).update(working | dict.fromkeys(correlations))
        if not agents:
            return 0
        number = self._journal.write(
            entries.AgentsLabelled(
                n=self._journal.next, at=now.ms, agents={name: tuple(found) for name, found in agents.items()}
            )
        )
        self._loads.wrote(paid_by, ENTRY_BYTES)
        self._on_labelled()
        return number

    def words_passed(self, event: events.WordsPassed, now: Now) -> None:
        """What one agent says reaches others, by an edge's own ways."""
        if self.is_untrusted(event.by, now):
            correlations = () if event.correlation_id is None else (event.correlation_id,)
            told = {identity: correlations for identity in event.to if not self._is_labelled(identity, now)}
            self.label(told, event.by, now)

    def _is_labelled(self, identity: str, now: Now) -> bool:
        """Whether one more label would say nothing new: there is a fresh one, younger than all it works on."""
        number, at = self._state.tainted_agents.get(agent_of(identity), (0, 0))
        is_fresh = self._state.age_ms(at, now.ms) < self._in_force.settings.limits.taint_ms / 2
        return number > 0 and is_fresh and all(call.entry.n < number for call in self._calls.worked_on(identity, now))
