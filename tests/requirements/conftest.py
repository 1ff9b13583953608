"""One exchange for each module of end-to-end tests, whose agents have names of their own."""

from __future__ import annotations

from tests.one_exchange import exchange

__all__ = ["exchange"]
