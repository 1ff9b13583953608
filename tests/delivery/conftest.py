"""One exchange for each module of tests of delivery."""

from __future__ import annotations

from tests.one_exchange import exchange

__all__ = ["exchange"]
