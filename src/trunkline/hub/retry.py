"""The one place that decides whether a call is sent again. Edges and agents state facts; nobody else retries.

Decision 1: a call that was sent and then lost is sent again only if that cannot do harm: the tool has no side effects,
or its provider promised to recognise a call it has seen. Everything else has the honest outcome *unknown*.
"""

from __future__ import annotations

from typing import Final

from trunkline.hub.state import Call
from trunkline.model import Fault, RetryPolicy

# A tool whose calls cost three agents in a row gets a rest, so that one poisonous input does not keep its agent down.
QUARANTINE_S: Final = 60.0
# How long an accepted call waits for an agent that is away. Restarts take under a second, reconnects under five.
PATIENCE_S: Final = 10.0
# Nothing of the call was begun: nobody was reached, or the answer was that there are no means for it.
NOT_TAKEN_ON: Final = frozenset({"tool.unavailable", "limit.resource", "limit.inflight"})


def may_resend(call: Call) -> bool:
    """Whether running it twice would do no harm."""
    return not call.entry.side_effects or call.dedupes


def may_move(problem: Fault) -> bool:
    """Whether a routed call whose attempts ended with this may go to another provider: this one took nothing on."""
    return problem.code in NOT_TAKEN_ON


def next_delay_s(call: Call, policy: RetryPolicy) -> float | None:
    """How long to wait before the next delivery, or None when there is none."""
    if call.ending is not None or not may_resend(call) or call.attempt >= policy.deliveries:
        return None
    return policy.delays_s[call.attempt]


def next_attempt_s(call: Call, problem: Fault, policy: RetryPolicy | None, now: float) -> float | None:
    """How long to wait after a failed attempt before the next one, or None when there is none.

    The caller's own deadline stops the attempts: one that would come after it is not made.
    """
    if policy is None or not problem.retryable:  # CH-063, CH-082
        return None
    delay = next_delay_s(call, policy)
    return None if delay is None or (call.deadline and now + delay >= call.deadline) else delay
