"""What the cases of the OSSA suite work with: the endpoint, the agents in their roles, and the words for what is wrong.

Owns who plays which role and when agents connect; does not own any case. ``BOOK`` is where cases are listed.

Invariant: no identity but the one that floods sends more requests than the default limit of a minute allows.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Final

from trunkline.check.ossa.actor import Actor
from trunkline.check.ossa.endpoint import KEYS, Answer, Endpoint
from trunkline.check.ossa.observer import Observer
from trunkline.check.ossa.wire import EXCHANGE, Identity, Keys, Message, read_keys
from trunkline.check.suite import Book, Failed, Skipped

# More are not used.
MAX_IDENTITIES: Final = 6
MIN_IDENTITIES: Final = 2
# Below the limit of 100, for what is sent in the same second by others with the same identity.
MAX_SPENT: Final = 95
# Longer than a delivery takes on a busy machine; few cases wait that long, and only when something is wrong.
PATIENCE_S: Final = 6.0
REQUEST_TIMEOUT_S: Final = 30.0
RATE: Final = 100


class OssaBench:
    """One run of the suite against one endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        identities: Sequence[Identity],
        jwks: Answer,
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        rate: int = RATE,
        denied: tuple[str, str] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.endpoint = endpoint
        self.jwks = jwks
        self.keys: Keys = read_keys(jwks.value)
        self.observer = Observer(self.keys)
        self.request_timeout_s = request_timeout_s
        self.rate = rate
        # An agent and an action of it that the endpoint's policy denies.
        self.denied = denied
        # What came of using up a limit, for all cases about it; done once.
        self.flooding = asyncio.Lock()
        self.flood: tuple[list[Answer], Answer] | None = None
        self.patience_s = patience_s
        self._actors = [
            Actor(endpoint, one, self.keys, self.observer, patience_s) for one in identities[:MAX_IDENTITIES]
        ]

    # --- roles --------------------------------------------------------------------------------------------------------

    def _role(self, number: int, what: str) -> Actor:
        if len(self._actors) <= number:
            raise Skipped(f"needs {what}: give {number + 1} identities")
        return self._actors[number]

    @property
    def first(self) -> Actor:
        """Who calls, where it matters that it is always the same one."""
        return self._role(0, "a caller")

    @property
    def other(self) -> Actor:
        """A third agent: another caller, another subscriber, a stranger to a call of two others."""
        return self._role(2, "a third agent")

    @property
    def troubled(self) -> Actor:
        """A provider that fails: kept apart, since an endpoint may give such an agent a rest."""
        return self._role(3, "a provider that fails on purpose")

    @property
    def flooder(self) -> Actor:
        """Who sends more than the limit allows, and is of no other use for a minute."""
        return self._role(4, "an agent that uses up its limit")

    @property
    def absent(self) -> Actor:
        """Who comes and goes."""
        return self._role(5, "an agent that leaves")

    @property
    def everybody(self) -> list[Actor]:
        """All agents of this run."""
        return self._actors

    def caller(self) -> Actor:
        """Whoever has sent least so far, of those that only call."""
        found = min((actor for number, actor in enumerate(self._actors) if number in {0, 2, 5}), key=_spent)
        if found.spent >= MAX_SPENT:
            raise Skipped("the identities have used up their requests for this minute: give six")
        return found

    async def provider(self) -> Actor:
        """Who serves calls, with its actions registered."""
        actor = self._role(1, "a provider")
        await actor.offer("echo", "validate_compliance", "slow", "broken", "flawed", "progress", "forbidden")
        return actor

    async def troubled_provider(self) -> Actor:
        """The provider that fails, with its actions registered."""
        actor = self.troubled
        await actor.offer("echo", "silent", "busy")
        return actor

    async def call(self, payload: object, *, action: str = "echo", by: Actor | None = None, **header: object) -> Answer:
        """A request to the provider by HTTPS."""
        provider = await self.provider()
        return await (by or self.caller()).request(provider.named, action, payload, **header)

    async def speak(self) -> None:
        """One call and one error, so that there is something to look at."""
        await self.call({})
        await self.caller().request(EXCHANGE, marker(), {})

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(actor.close() for actor in self._actors))
        self.endpoint.close()


def _spent(actor: Actor) -> int:
    return actor.spent


BOOK: Final[Book[OssaBench]] = Book()
case: Final = BOOK.case


def marker() -> str:
    """Something that stands in a payload and nowhere else."""
    return f"mark-{uuid.uuid4().hex}"


# --- what is expected of an answer ------------------------------------------------------------------------------------

POLICY: Final = (
    "The endpoint's policy denies its agents each other's actions. On a Trunkline exchange add to trunkline.toml, with "
    "the names of the identities if you gave your own:\n"
    '[[policy.rule]]\ncaller = "ossa:check-*"\ntool = "check-*/*"\ndecision = "allow"'
)


def expect_response(answer: Answer, question: str = "the request") -> Message:
    """The response in an answer; ``Failed`` if there is none."""
    message = answer.message
    if answer.status != 200 or message.get("header", {}).get("type") != "response":
        mend = ""
        if answer.status == 403:
            mend = POLICY
        elif answer.status == 429:
            mend = "The identity had used up its requests of this minute: wait a minute, or give other identities."
        raise Failed(f"{question} was answered by {answer}", mend)
    return message


def echoed(message: Message) -> object:
    """What the provider was given, as it says in its response."""
    payload = message["body"]["payload"]
    return payload.get("echo") if isinstance(payload, dict) else None


def expect_error(answer: Answer, *codes: int, what: str = "it") -> Message:
    """The error in an answer; ``Failed`` unless it has one of these codes."""
    message = answer.message
    error = message.get("body", {}).get("error") if isinstance(message.get("body"), dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    # A code that is a text is one fault, told by `errors.form`, and not the fault of each case.
    if message.get("header", {}).get("type") != "error" or str(code) not in map(str, codes):
        wanted = " or ".join(map(str, codes))
        raise Failed(f"{what} was answered by {answer}; expected error {wanted}")
    return message


def expect_nothing(answer: Answer, what: str) -> None:
    """``Failed`` unless an answer is good and empty."""
    if answer.status not in {200, 202, 204} or answer.body.strip():
        raise Failed(f"{what} was answered by {answer}; expected HTTP 202 and an empty body")


async def read_bench(
    endpoint: Endpoint,
    identities: Sequence[Identity],
    *,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
    rate: int = RATE,
    denied: tuple[str, str] | None = None,
    patience_s: float = PATIENCE_S,
) -> OssaBench:
    """The bench for an endpoint that was reached, with the keys that it shows."""
    jwks = await endpoint.get(KEYS)
    return OssaBench(
        endpoint,
        identities,
        jwks,
        request_timeout_s=request_timeout_s,
        rate=rate,
        denied=denied,
        patience_s=patience_s,
    )
