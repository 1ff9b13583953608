"""The settings in force, and whether new calls are taken on: one object that every module of the hub reads.

Owns nothing else. Invariant: only events about the exchange itself (``exchange``) change it, and the settings only as
a whole, so no two modules ever go by different ones.
"""

from __future__ import annotations

from trunkline.model import Fault, HubSettings


class InForce:
    """The settings in force, and why the exchange takes no new calls on, if it does not."""

    def __init__(self, settings: HubSettings) -> None:
        self.settings = settings
        self.closed: Fault | None = None
        # Why nothing can be put on record, while that is so.
        self.storage_trouble = ""
