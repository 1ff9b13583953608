"""What an agent's author imports: ``from trunkline import Agent``, or ``from trunkline.sdk import ChiffonAgent``.

Start reading at ``agent.py`` (OpenSentience) or at ``chiffon.py`` (Chiffon); the other modules serve these two. Names
are loaded when they are first used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trunkline.sdk.chiffon import ChiffonAgent, ResourceLimit, WorkFailed

__all__ = ["ChiffonAgent", "ResourceLimit", "WorkFailed"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'trunkline.sdk' has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module("trunkline.sdk.chiffon"), name)
    globals()[name] = value
    return value
