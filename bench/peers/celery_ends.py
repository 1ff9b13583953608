"""Celery with Redis, as its first steps show it: ``python -m bench.peers.celery_ends worker URL``, or ``caller``.

Acknowledged late and with a broker that writes each change down, because that is what the exchange promises; the
results are in Redis too.
"""

from __future__ import annotations

import sys
import time

from celery import Celery

from bench.loads import SMALL

app = Celery("bench", broker=sys.argv[2], backend=sys.argv[2])
app.conf.update(
    task_acks_late=True, worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True, result_expires=600
)


@app.task(name="echo")  # type: ignore[untyped-decorator]  # Celery has no types
def echo(text: str) -> str:
    """What it was given."""
    return text


def call(count: int) -> None:
    """So many tasks, one after the other; their times in milliseconds, one to a line."""
    for number in range(count):
        text = f"{number:08}".ljust(SMALL, "x")
        begun = time.perf_counter()
        assert echo.delay(text).get(timeout=30) == text
        print((time.perf_counter() - begun) * 1000, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        app.worker_main(["worker", "--pool", "solo", "--loglevel", "error", "--without-gossip", "--without-mingle"])
    else:
        call(int(sys.argv[3]))
