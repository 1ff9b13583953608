"""Trunkline joins agent systems: agents call each other's tools through it, under one policy, with one record.

The public names are all here and are loaded when they are first used, so that ``import trunkline`` costs nothing and
the command line starts without the SDK.
"""

from __future__ import annotations

# Type checkers know the name; importing it from `typing` would be nine tenths of the cost of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from trunkline.errors import NotAdmitted, ToolError, ToolFailed
    from trunkline.sdk.agent import Agent, connect

    __version__: str

__all__ = ["Agent", "NotAdmitted", "ToolError", "ToolFailed", "__version__", "connect"]

_HOMES = {
    "Agent": "trunkline.sdk.agent",
    "NotAdmitted": "trunkline.errors",
    "ToolError": "trunkline.errors",
    "ToolFailed": "trunkline.errors",
    "connect": "trunkline.sdk.agent",
}


def __getattr__(name: str) -> object:
    import importlib

    if name == "__version__":
        import importlib.metadata

        value: object = importlib.metadata.version("trunkline")
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'trunkline' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
