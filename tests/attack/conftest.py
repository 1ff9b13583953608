"""One exchange for each module of attacks."""

from __future__ import annotations

from tests.one_exchange import exchange

__all__ = ["exchange"]
