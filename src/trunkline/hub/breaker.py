"""When an agent gets no new work for a while: so many failed attempts in a row, a rest, one look whether it is back.

Three states. *Closed*: work is given. *Open*: new work is refused, what runs goes on; after the rest comes one health
check. *Checking*: that check is under way; a good answer closes the breaker and resets the count, a bad one opens it
for another rest.

Arithmetic over ``now``, nothing durable. Does not own who is asked how they are (``agents``) or what a refusal says.
"""

from __future__ import annotations

from msgspec import Struct

from trunkline.model import BreakerPolicy, Fault


class Breaker(Struct):
    """The breaker of one agent, whatever its session."""

    policy: BreakerPolicy
    failures: int = 0
    is_open: bool = False
    is_checking: bool = False
    # While it is open: when the health check is due (monotonic).
    rests_until: float = 0.0

    @property
    def word(self) -> str:
        """Its state, for a person."""
        if self.is_checking:
            return "breaker_checking"
        return "breaker_open" if self.is_open else "breaker_closed"

    def failed(self, problem: Fault, now: float) -> bool:
        """An attempt failed; whether that opens the breaker. Other faults than the counted ones end the row."""
        if problem.code not in self.policy.codes:
            self.failures = 0
            return False
        self.failures += 1
        if self.is_open or self.failures < self.policy.failures:  # CH-070
            return False
        self._open(now)
        return True

    def answered(self) -> None:
        """The agent brought a call to an end: the row is over. Only a health check closes an open breaker."""
        self.failures = 0  # CH-074

    def is_due(self, now: float) -> bool:
        """Whether the rest is over and nobody has looked yet."""
        return self.is_open and not self.is_checking and now >= self.rests_until

    def check(self) -> None:
        """One health check is under way."""
        self.is_checking = True

    def checked(self, now: float, *, is_well: bool) -> None:
        """The answer of the health check."""
        if is_well:
            self.is_open = self.is_checking = False
            self.failures = 0
        else:
            self._open(now)

    def _open(self, now: float) -> None:
        self.is_open, self.is_checking = True, False
        self.rests_until = now + self.policy.rest_s  # CH-071
