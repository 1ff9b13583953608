"""The parts of an exchange, joined: the hub folded from its ledger, the runner between them, the edges around it.

One way for the exchange that ``trunkline up`` runs, for the one in memory and for the simulated one. Does not own any
of the parts, nor when they start and stop.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

from trunkline import events
from trunkline.config import Config
from trunkline.edges.edge import Surroundings
from trunkline.edges.exchange import AgentAction
from trunkline.edges.piped import NoPrograms, Programs, StartPiped, start_nothing
from trunkline.host.anchoring import Anchoring
from trunkline.host.edges import Edges
from trunkline.host.operating import Operating
from trunkline.host.reading import NoIndex, Reading, Searcher
from trunkline.host.receipts import judges_of
from trunkline.host.runner import Processes, Runner
from trunkline.host.verifying import Verifying
from trunkline.hub.hub import Hub
from trunkline.ledger.kept_masking import KeptMasking
from trunkline.ledger.keys import derived
from trunkline.ledger.ledger import Ledger
from trunkline.ledger.masking import Masker
from trunkline.model import HubSettings, ProcessIdentity

log = logging.getLogger("trunkline")
R = TypeVar("R", bound=Runner)


class Plan(Struct, frozen=True, kw_only=True):
    """What an exchange is made from, beside its ledger and its edges."""

    settings: HubSettings
    config: Config
    home: Path
    version: str
    instance: str
    process: ProcessIdentity
    operator_sha256: str
    # The edge that launched agents come in by, and the one that takes the operator's token.
    launch_edge: str
    operator_edge: str
    # The first characters of every call id of this run; and how other ids are made.
    call_prefix: str
    new_id: Callable[[], str]
    # Texts that are masked wherever they appear, each with the name that is shown instead.
    masked: Sequence[tuple[str, str]] = ()
    # The rules of masking as they were compiled before, where there is a disk.
    kept_masking: KeptMasking | None = None
    entropy: Callable[[int], bytes] = secrets.token_bytes
    stopwatch: Callable[[], float] = time.perf_counter
    # What the operator may have done to the exchange.
    reload: Callable[[], dict[str, list[str]]] = dict
    steer: Callable[[str, AgentAction], bool] = lambda _agent_id, _action: False
    # What is to be said besides what edges say: agents without isolation, people and collectors that cannot be told.
    warnings: Callable[[], list[str]] = list
    # Agents that the configuration names, here or not yet.
    awaited: Callable[[], Collection[str]] = tuple
    # Starts programs that edges speak with over pipes.
    start_piped: StartPiped = start_nothing
    # Keeps programs running that edges make agents of.
    programs: Programs = NoPrograms()
    # How far the record is signed and published, if it is.
    anchoring: Anchoring | None = None
    # How far it is proved to be whole, where it can be walked.
    verifying: Verifying | None = None
    # Who finds calls by what is in them.
    searcher: Searcher = NoIndex()
    # Figures of the disk, where there is one.
    storage: Callable[[], dict[str, int]] = dict
    # Where the rules are written, if they are in a file.
    config_file: Path | None = None
    # The last lines that an agent printed, by its id.
    agent_log: Callable[[str, int], list[str] | None] = lambda _agent_id, _count: None


class Assembly(Struct, Generic[R], frozen=True):
    """The parts that were made."""

    hub: Hub
    runner: R
    views: Reading
    operator: Operating
    surroundings: Surroundings


def assemble(
    ledger: Ledger, edges: Edges, processes: Processes, plan: Plan, make_runner: Callable[[Hub, Masker], R]
) -> Assembly[R]:
    """Join them, take up what the record says, and begin this run. ``LedgerError`` if it cannot be taken up."""
    hub = Hub(
        mac_key=ledger.mac_key,
        call_prefix=plan.call_prefix,
        new_id=plan.new_id,
        operator_sha256=plan.operator_sha256,
        launch_edge=plan.launch_edge,
        operator_edge=plan.operator_edge,
        settings=plan.settings,
    )
    hub.fold(ledger.reader.recovery())
    hub.stored(ledger.durable)
    masker = Masker(plan.masked, plan.kept_masking)
    runner = make_runner(hub, masker)
    views = Reading(runner, ledger.reader, processes, plan.searcher, edges.agents, judges_of(plan.config))

    def know_secret(name: str, secret: str) -> None:
        try:
            ledger.add_secret(name, secret)
            masker.add(name, secret)
        except ValueError as problem:
            log.warning("%s: it may appear in the record", problem)

    operator = Operating(
        runner,
        edges,
        reload=plan.reload,
        steer=lambda agent_id, action: plan.steer(agent_id, action) or edges.steer(agent_id, action),
        warnings=plan.warnings,
        awaited=plan.awaited,
        anchoring=plan.anchoring,
        verifying=plan.verifying,
        storage=plan.storage,
        agent_log=plan.agent_log,
        config_file=plan.config_file,
    )
    surroundings = Surroundings(
        feed=runner,
        views=views,
        operator=operator,
        config=plan.config,
        home=plan.home,
        process=plan.process,
        version=plan.version,
        instance=plan.instance,
        doors=edges.doors,
        key=derived(ledger.mac_key, b"trunkline edges 1"),
        operator_key=derived(ledger.mac_key, b"trunkline operator " + plan.operator_sha256.encode()),
        entropy=plan.entropy,
        stopwatch=plan.stopwatch,
        start_piped=plan.start_piped,
        programs=plan.programs,
        know_secret=know_secret,
    )
    edges.make(surroundings)
    edges.prepare()
    runner.feed([events.SettingsChanged(plan.settings), events.ExchangeStarted(plan.version, plan.instance)])
    return Assembly(hub, runner, views, operator, surroundings)
