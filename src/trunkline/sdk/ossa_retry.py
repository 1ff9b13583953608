"""When an OSSA agent sends a message again, as data (4.2 of the specification). Pure.

Owns the numbers and the waits between attempts. Does not own the sending (``ossa_asking``), nor what may be sent again:
that follows from the quality of service.

Invariant: no wait that the policy itself makes is longer than ``max_delay``; only a peer that says when to come back
can make it longer.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from trunkline.edges.ossa.messages import RATE_LIMITED, TIMEOUT, UNAVAILABLE
from trunkline.sdk.ossa_message import OssaError


class RetryPolicy(Struct, frozen=True, rename="camel", kw_only=True):
    """How often a message is sent, and how long is waited between. Delays are milliseconds, as the specification has
    them. ``max_attempts`` counts the first one too.
    """

    max_attempts: int = 3
    initial_delay: float = 1000
    max_delay: float = 30_000
    backoff_multiplier: float = 2
    retryable_errors: tuple[int, ...] = (UNAVAILABLE, TIMEOUT, RATE_LIMITED)

    def __post_init__(self) -> None:
        if self.max_attempts < 1 or self.initial_delay < 0 or self.max_delay < 0 or self.backoff_multiplier < 1:
            raise ValueError("expected at least one attempt, delays that are not negative, and a multiplier from 1 on")

    def delay_ms(self, attempt: int) -> float:
        """What is waited before this attempt; before the first one, nothing."""
        if attempt <= 1:
            return 0.0
        try:
            return float(min(self.initial_delay * self.backoff_multiplier ** (attempt - 2), self.max_delay))
        except OverflowError:
            return float(self.max_delay)

    def wait_ms(self, attempt: int, error: OssaError) -> float | None:
        """What is waited before this attempt after the one before failed so; None: it is not sent again.

        Whoever limits our rate says when to come back, and is believed.
        """
        if attempt > self.max_attempts or error.code not in self.retryable_errors:
            return None
        return max(self.delay_ms(attempt), error.retry_after_ms)


DEFAULT_RETRY_POLICY: Final = RetryPolicy()
