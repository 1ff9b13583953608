"""A call's states, and the only steps between them.

Theory of operation. A call is *accepted* once, with one entry. Then it is queued (its agent has its hands full, is away
for a moment, or a repeat waits for its delay), waits for a person, or runs. It leaves for good with one of four
outcomes. Two things can happen more than once: a call that was lost in flight and may be sent again, or that its
provider did not take on, goes back to the queue, and a question whose terms changed is asked anew. Everything else
moves forward.

``STEPS`` is that paragraph as a table; ``step`` refuses what is not in it. The hub calls ``step`` for each change, so a
second outcome is not a case to be handled but a thing that cannot be written.
"""

from __future__ import annotations

from typing import Final

from trunkline.errors import InvariantBroken
from trunkline.model import Status

_QUEUED, _WAITING, _RUNNING = Status.QUEUED, Status.WAITING_APPROVAL, Status.RUNNING
_SUCCEEDED, _FAILED, _CANCELED, _UNKNOWN = Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.UNKNOWN

STEPS: Final[dict[Status, frozenset[Status]]] = {
    # approved goes through the queue; denied or expired fails
    _WAITING: frozenset({_QUEUED, _WAITING, _FAILED, _CANCELED}),
    # sent; gave up waiting for its agent; canceled; lost on its last allowed delivery; who would serve it now is not
    # the one that a person said yes to
    _QUEUED: frozenset({_RUNNING, _WAITING, _FAILED, _CANCELED, _UNKNOWN}),
    # finished; lost, or not taken on, and to be sent again; lost and not known
    _RUNNING: frozenset({_SUCCEEDED, _FAILED, _CANCELED, _UNKNOWN, _QUEUED}),
    _SUCCEEDED: frozenset(),
    _FAILED: frozenset(),
    _CANCELED: frozenset(),
    _UNKNOWN: frozenset(),
}


def step(before: Status, after: Status) -> Status:
    """The state after a step; a step that is not in the table is a defect of ours."""
    if after not in STEPS[before]:
        raise InvariantBroken(f"a call cannot go from {before} to {after}")
    return after
