"""The edges of one running exchange, all alike: made, prepared, started, stopped, asked how they are.

Owns their order, and what happens when one cannot run: an edge whose extra is missing, or whose default port is taken,
is off, with a line that says so. Names no protocol: which there are, ``trunkline.edges.known`` says.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from trunkline.config import Config
from trunkline.edges.doors import Door
from trunkline.edges.edge import Edge, EdgeOff, Launcher, RunningEdge, Surroundings, TokenKind
from trunkline.edges.exchange import AgentAction, Feed, SignInAddress
from trunkline.errors import ConfigError, InvariantBroken, LedgerError, where_raised
from trunkline.shown import AgentView

log = logging.getLogger("trunkline")
T = TypeVar("T")
# What is told of an edge that cannot tell it itself, by a defect.
NOWHERE: Final[Mapping[str, str | None]] = {}
NONE: Final[Sequence[str]] = ()
NO_AGENTS: Final[Sequence[AgentView]] = ()
NOT_TOLD: Final[Mapping[str, object]] = {"note": "a defect keeps it from telling how it is"}

# What one edge may take to say goodbye and to end what it runs. Each has deadlines of its own, of seconds; this one
# holds where they do not, so that no peer can keep the exchange from stopping.
STOP_WITHIN_S: Final = 20.0


class Edges:
    """All edges of an exchange. ``unbuilt`` are sections of the file for edges that this release does not have.

    They start, and stop, in the order of the list; those where callers wait for what the others end stop last.
    """

    def __init__(self, known: Sequence[Edge], unbuilt: Mapping[str, str | None]) -> None:
        self._known = known
        self._unbuilt = unbuilt
        self._running: dict[str, RunningEdge] = {}
        # Why an edge does not run here.
        self._off: dict[str, str] = {}
        # Those of them that the configuration turns off.
        self._chosen_off: set[str] = set()
        self._is_started: set[str] = set()
        self._config = Config()
        self._feed: Feed

    @property
    def launch_edge(self) -> str:
        """The edge that launched agents speak."""
        return _only([edge.name for edge in self._known if edge.launcher is not None], "launches agents")

    @property
    def operator_edge(self) -> str:
        """The edge that the operator's own token opens."""
        return _only([edge.name for edge in self._known if edge.is_operators], "is the operator's")

    def launcher(self, config: Config, home: Path) -> Launcher:
        """How agents are launched: by the one edge that says so."""
        launchers = [edge.launcher for edge in self._known if edge.launcher is not None]
        return _only(launchers, "launches agents")(config, home)

    def make(self, surroundings: Surroundings) -> None:
        """Make all that can run here."""
        self._config = surroundings.config
        self._feed = surroundings.feed
        for edge in self._known:
            if edge.needs is not None and importlib.util.find_spec(edge.needs[0]) is None:
                self._turn_off(edge.name, f"{edge.needs[0]} is missing: pip install 'trunkline[{edge.needs[1]}]'")
                continue
            try:
                self._running[edge.name] = edge.make(surroundings)
            except (ConfigError, LedgerError):
                raise
            except Exception as error:  # noqa: BLE001  (the boundary of an edge)
                self._broken(edge.name, error)

    def _turn_off(self, name: str, why: str) -> None:
        self._off[name] = why
        log.warning("%s is off: %s", name, why)

    def _broken(self, name: str, error: Exception) -> None:
        """A defect of an edge: the others run without it. Without the operator's nobody could do anything."""
        why = f"it has a defect: {type(error).__name__} at {where_raised(error)}"
        if any(edge.is_operators for edge in self._known if edge.name == name):
            raise ConfigError(f"{name} cannot run: {why}") from None
        self._running.pop(name, None)
        self._turn_off(name, why)

    def prepare(self) -> None:
        """Before the record is taken up."""
        for name, running in list(self._running.items()):
            try:
                running.prepare()
            except (ConfigError, LedgerError):
                raise
            except Exception as error:  # noqa: BLE001  (the boundary of an edge)
                self._broken(name, error)

    def doors(self) -> Sequence[Door]:
        """The doors of all edges; ``ConfigError`` if two are for the same path, of which one would never be asked."""
        found = [(name, door) for name, running in self._running.items() for door in running.doors()]
        of: dict[str, str] = {}
        for name, door in found:
            for prefix in door.prefixes:
                if prefix in of:
                    raise ConfigError(f"{prefix} is a path of {of[prefix]} and of {name}: one edge may have it")
                of[prefix] = name
        return [door for _, door in found]

    async def start(self) -> None:
        """Start all; ``ConfigError`` if one cannot run that should."""
        for name, running in list(self._running.items()):
            self._is_started.add(name)
            try:
                await running.start()
            except EdgeOff as off:
                await self._stop_one(name)
                if off.is_chosen:
                    self._off[name] = str(off)
                    self._chosen_off.add(name)
                else:
                    self._turn_off(name, str(off))
            except (ConfigError, LedgerError):
                raise
            except Exception as error:  # noqa: BLE001  (the boundary of an edge)
                await self._stop_one(name)
                self._feed.failed(0, error)
                self._broken(name, error)

    async def stop(self) -> None:
        """Stop all but those where callers wait for what the others end."""
        last = {edge.name for edge in self._known if edge.stops_last}
        for name in [name for name in self._running if name not in last]:
            await self._stop_one(name)

    async def stop_last(self) -> None:
        """Stop what is left."""
        for name in list(self._running):
            await self._stop_one(name)

    async def _stop_one(self, name: str) -> None:
        running = self._running.pop(name)
        if name in self._is_started:
            try:
                async with asyncio.timeout(STOP_WITHIN_S):
                    await running.stop()
            except Exception as error:  # noqa: BLE001  (the boundary of an edge: the others have to stop too)
                self._feed.failed(0, error)

    # -- what is told of them ------------------------------------------------------------------------------------------

    def ready(self) -> dict[str, str | None]:
        """What stands in ``ready.json``: where each can be reached; null for what is off."""
        found: dict[str, str | None] = {key: None for edge in self._known for key in edge.ready_keys}
        found.update((key, None) for key in self._unbuilt.values() if key is not None)
        for running in self._running.values():
            found.update(self._told(running.ready, NOWHERE))
        return dict(sorted(found.items()))

    def greetings(self, places: Mapping[str, str | None], *, is_kept: bool) -> list[str]:
        """What each has to say to the person who starts the exchange."""
        greet = (partial(running.greeting, places, is_kept=is_kept) for running in self._running.values())
        return [line for ask in greet for line in self._told(ask, NONE)]

    def question_page(self, approval_id: str) -> str | None:
        """Where a person answers this question, if there is a page for it."""
        places = self.ready()
        found = (
            self._told(partial(one.question_page, places, approval_id), None) for one in list(self._running.values())
        )
        return next((page for page in found if page is not None), None)

    def status(self) -> dict[str, object]:
        """What stands in ``status``: how each is, and what this release lacks."""
        edges: dict[str, object] = {}
        for edge in self._known:
            running = self._running.get(edge.name)
            if running is None:
                edges[edge.name] = {"state": "off", "note": self._off.get(edge.name, "")}
            else:
                edges[edge.name] = {"state": "on", **self._told(running.status, NOT_TOLD)}
        not_built = sorted(key for key in self._unbuilt.values() if key is not None)
        return {"edges": edges, "not_built": not_built}

    def warnings(self) -> list[str]:
        """What of the configuration has no effect, and why (decision 34)."""
        given = self._config.given_sections
        found = [
            f"[{section}] has no effect: this release does not have it" for section in self._unbuilt if section in given
        ]
        found += [
            f"[{edge.section}] has no effect: {self._off[edge.name]}"
            for edge in self._known
            if edge.name in self._off and edge.name not in self._chosen_off and edge.section in given
        ]
        return found + [text for running in self._running.values() for text in self._told(running.warnings, NONE)]

    def _told(self, ask: Callable[[], T], otherwise: T) -> T:
        """What an edge says of itself; a defect of one leaves what the others say."""
        try:
            return ask()
        except Exception as error:  # noqa: BLE001  (the boundary of an edge)
            self._feed.failed(0, error)
            return otherwise

    def token_kinds(self) -> dict[str, TokenKind]:
        """By edge: which credentials can be made there."""
        return {edge.name: edge.tokens for edge in self._known if edge.tokens is not None}

    def fixed_changes(self, config: Config) -> list[str]:
        """Which sections of another configuration differ from those in force, and cannot change while an edge runs."""
        return [
            f"[{edge.section}]"
            for edge in self._known
            if edge.section and getattr(config, edge.section) != getattr(self._config, edge.section)
        ]

    def reload(self, config: Config, place: str) -> list[str]:
        """Another configuration; ``ConfigError`` if it changes what cannot change while an edge runs.

        What changed in files of the edges' own, in a line each.
        """
        refuse_fixed(self.fixed_changes(config), place)
        changed = [line for running in self._running.values() for line in running.reload()]
        self._config = config
        return changed

    def configured(self, done: dict[str, list[str]]) -> None:
        """The configuration of the last ``reload`` is in force everywhere else; what edges do for it is added."""
        for running in list(self._running.values()):
            try:
                for what, agent_ids in running.configured(self._config).items():
                    done.setdefault(what, []).extend(agent_ids)
            except Exception as error:  # noqa: BLE001  (the boundary of an edge)
                self._feed.failed(0, error)

    def agents(self) -> list[AgentView]:
        """Agents that edges look after themselves."""
        return [view for running in self._running.values() for view in self._told(running.agents, NO_AGENTS)]

    def steer(self, agent_id: str, action: AgentAction) -> bool:
        """Start, stop or restart one of these; False if there is none of this id."""
        return any(running.steer(agent_id, action) for running in self._running.values())

    async def sign_in(self, agent_id: str, base: str) -> SignInAddress | None:
        """Where a person signs in for one of these."""
        for running in list(self._running.values()):
            if (found := await running.sign_in(agent_id, base)) is not None:
                return found
        return None

    def sign_in_state(self, agent_id: str) -> str | None:
        """How that is going."""
        found = (running.sign_in_state(agent_id) for running in self._running.values())
        return next((state for state in found if state is not None), None)

    async def sign_out(self, agent_id: str) -> bool:
        """Forget it."""
        for running in list(self._running.values()):
            if await running.sign_out(agent_id):
                return True
        return False


def refuse_fixed(changed: Sequence[str], place: str) -> None:
    """``ConfigError`` that names everything in a file that differs and cannot change while the exchange runs."""
    if changed:
        *most, last = changed
        named = f"{', '.join(most)} and {last}" if most else last
        raise ConfigError(f"a change of {named} needs a restart", place)


def _only(found: list[T], what: str) -> T:
    if len(found) != 1:
        raise InvariantBroken(f"of the edges exactly one {what}, not {len(found)}")
    return found[0]
