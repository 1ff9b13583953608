"""One run of the OSSA suite: reach the endpoint, run the selected cases, gather the report.

Owns the order of these and the time that a run may take; the cases are in ``cases``, and are listed by importing them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from trunkline.check import suite
from trunkline.check.ossa.bench import BOOK, PATIENCE_S, RATE, REQUEST_TIMEOUT_S, read_bench
from trunkline.check.ossa.cases import (
    encryption,
    errors,
    guarantees,
    identity,
    limits,
    messages,
    patterns,
    security,
    streams,
)
from trunkline.check.ossa.endpoint import GONE, Endpoint, Unreachable
from trunkline.check.ossa.wire import Identity
from trunkline.check.report import Report
from trunkline.check.suite import Result
from trunkline.error_words import in_words

# A run ends within 40 s, connecting and closing included.
LIMIT_S: Final = 38.0
# In the order of the report: what everything else needs comes first.
ORDER: Final = tuple(
    module.__name__.rpartition(".")[2]
    for module in (messages, identity, security, patterns, errors, guarantees, limits, streams, encryption)
)


async def check_endpoint(
    endpoint: Endpoint,
    identities: Sequence[Identity],
    *,
    level: str = "advanced",
    only: Iterable[str] = (),
    request_timeout_s: float = REQUEST_TIMEOUT_S,
    rate: int = RATE,
    denied: tuple[str, str] | None = None,
    patience_s: float = PATIENCE_S,
    told: Callable[[Result], None] = lambda _: None,
) -> Report:
    """Run the suite. ``Unreachable`` if nobody is there, ``KeyError`` if ``only`` names what does not exist."""
    cases = sorted(BOOK.selected(level, only), key=lambda case: ORDER.index(case.category))
    started_at, started = time.time(), time.monotonic()
    await endpoint.reach()
    try:
        bench = await read_bench(
            endpoint, identities, request_timeout_s=request_timeout_s, rate=rate, denied=denied, patience_s=patience_s
        )
    except GONE as error:
        raise Unreachable(f"{endpoint.url}: {in_words(error)}") from None
    try:
        results = await suite.run(cases, bench, limit_s=LIMIT_S, told=told)
    finally:
        await bench.close()
    return Report(
        protocol="OSSA 1.0.0",
        endpoint=endpoint.url,
        fingerprint=endpoint.fingerprint,
        level=level,
        started_at=started_at,
        duration_s=time.monotonic() - started,
        messages=bench.observer.messages,
        results=tuple(results),
    )
