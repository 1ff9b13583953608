"""``trunkline down``: stop the exchange of this home, whoever started it, and wait until it has stopped.

Finds it by the lock of its ledger and not by ``ready.json``, which is not there while it starts or stops.

Invariant: the signal goes to the process that holds the lock and to no other, also when numbers of processes are used
again meanwhile.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Final

import click

from trunkline.cli.numbers import Number
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import CommandFailed, say
from trunkline.home import Home

# What runs has 10 s to end, and each edge 20 s to say goodbye, of which few take a second.
WITHIN_S: Final = 60.0
LOOK_EVERY_S: Final = 0.05


@click.command()
@click.option(
    "--timeout",
    "within_s",
    type=Number(min=0),
    default=WITHIN_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for its end.",
)
@shared
def down(settings: CommandSettings, within_s: float) -> None:
    """Stop the exchange: no new calls, those that run have 10 s to end, what is left is taken up at the next start.

    Returns when it has stopped. If none is running, that is said, and nothing is wrong.
    """
    home = settings.home
    pid = _holder(home)
    if pid is None:
        if not settings.shown_as_json({"status": "not_running"}):
            say(f"not running (looked in {home.path})")
        return
    deadline = time.monotonic() + within_s
    if not (_stop(home, pid, deadline) and _is_left(home, deadline)):
        text = f"process {pid} has not stopped within {within_s:g} s; it was told to and goes on with that"
        raise CommandFailed("exchange.not_stopped", text, exit_code=1)
    if not settings.shown_as_json({"status": "stopped", "pid": pid}):
        say(f"stopped (process {pid})")


def _holder(home: Home) -> int | None:
    from trunkline.ledger.store import holder_of

    return holder_of(home.ledger_file.with_name("ledger.lock"))


def _stop(home: Home, pid: int, deadline: float) -> bool:
    """Tell it to stop; whether it ended in time."""
    try:
        process = os.pidfd_open(pid)
    except (OSError, OverflowError):
        # It is gone, or the lock does not say who holds it: what is left is to wait.
        return True
    try:
        # Asked again now that the number cannot pass to another: the process that we hold is the one of the lock.
        if _holder(home) != pid:
            return True
        signal.pidfd_send_signal(process, signal.SIGTERM)
        ended, _, _ = select.select([process], [], [], max(0.0, deadline - time.monotonic()))
        return bool(ended)
    except ProcessLookupError:
        return True
    except PermissionError:
        raise CommandFailed("exchange.not_stopped", f"process {pid} belongs to somebody else", exit_code=1) from None
    finally:
        os.close(process)


def _is_left(home: Home, deadline: float) -> bool:
    """Whether the ledger is free in time: its writer may live a moment longer than the exchange."""
    while _holder(home) is not None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_EVERY_S)
    return True
