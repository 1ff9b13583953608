"""What an agent's author imports: ``from trunkline import Agent``, or from here ``ChiffonAgent`` or ``OssaAgent``.

Start reading at ``agent.py`` (OpenSentience), at ``chiffon.py`` (Chiffon) or at ``ossa.py`` (OSSA); the other modules
serve these three. Names are loaded when they are first used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trunkline.sdk.chiffon import ChiffonAgent, ResourceLimit, WorkFailed
    from trunkline.sdk.ossa import OssaAgent
    from trunkline.sdk.ossa_message import OssaError, OssaMessage
    from trunkline.sdk.ossa_retry import DEFAULT_RETRY_POLICY, RetryPolicy
    from trunkline.sdk.ossa_streams import IncomingStream, Stream
    from trunkline.sdk.ossa_subscription import Subscription

__all__ = [
    "DEFAULT_RETRY_POLICY",
    "ChiffonAgent",
    "IncomingStream",
    "OssaAgent",
    "OssaError",
    "OssaMessage",
    "ResourceLimit",
    "RetryPolicy",
    "Stream",
    "Subscription",
    "WorkFailed",
]

_MODULES = {
    "ChiffonAgent": "chiffon",
    "DEFAULT_RETRY_POLICY": "ossa_retry",
    "IncomingStream": "ossa_streams",
    "OssaAgent": "ossa",
    "OssaError": "ossa_message",
    "OssaMessage": "ossa_message",
    "ResourceLimit": "chiffon",
    "RetryPolicy": "ossa_retry",
    "Stream": "ossa_streams",
    "Subscription": "ossa_subscription",
    "WorkFailed": "chiffon",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'trunkline.sdk' has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(f"trunkline.sdk.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
