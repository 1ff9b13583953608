"""The beginning of ``trunkline up``: home, configuration, log, the ledger's writer; then everything else is imported.

The writer is a process that needs as long for its start as this one for the rest of its imports, so both go on at the
same time. Owns that order, and how the configuration is read. Does not own what follows (``up``).

Invariant: nothing is written but the home folder, and no process started, before the configuration was found good.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from msgspec import structs

from trunkline.config import Config
from trunkline.config_file import load
from trunkline.errors import ConfigError
from trunkline.home import Home
from trunkline.host.logs import set_up
from trunkline.ledger.ledger import Ledger
from trunkline.tracing import refuse_tracing

# The example agents: in a clone, or where a wheel puts them.
EXAMPLES: Final = (Path(__file__).parents[3] / "examples", Path(sys.prefix) / "share" / "trunkline" / "examples")


def run(home: Home, config_path: Path | None, *, demo: bool = False) -> int:
    """Run the exchange in the foreground until it is told to stop; the process's exit code."""
    refuse_tracing()
    home.create()
    config = load_config(home, config_path, demo=demo)
    set_up(config.log, home.to_name)
    begun = Ledger.begin(home.ledger_file, home.keys_folder)
    try:
        import uvloop

        from trunkline.host.up import Exchange

        return uvloop.run(Exchange(home, config_path, config, demo=demo, begun=begun).serve())
    finally:
        begun.abandon()


def load_config(home: Home, config_path: Path | None, *, demo: bool) -> Config:
    """The configuration; for a demonstration with the example agents besides those of the file."""
    config = load(home, config_path, os.environ)
    if not demo:
        return config
    own = {agent.id for agent in config.agents}
    added = tuple(agent for agent in _examples(home).agents if agent.id not in own)
    return structs.replace(config, agents=config.agents + added)


def _examples(home: Home) -> Config:
    file = next((file for folder in EXAMPLES if (file := folder / "trunkline.toml").exists()), None)
    if file is None:
        raise ConfigError("the example agents are not installed here; `git clone` has them")
    return load(home, file, {})


def is_example(home: Home, agent_id: str) -> bool:
    """Whether this is an agent that only ``up --demo`` brings."""
    try:
        return any(agent.id == agent_id for agent in _examples(home).agents)
    except ConfigError:
        return False
