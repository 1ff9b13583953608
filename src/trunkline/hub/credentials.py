"""Who may come in: launch tokens and standing tokens, known by their hashes only.

A launch token belongs to one launched run: taken by its first process within 120 s, afterwards only by that same
process, once its earlier session is closed (decision 16). A standing token belongs to one agent on one edge and lives
until it is revoked; it is durable (``state``). Failures are counted for each origin and slow only that origin's next
refusal; a valid token is never refused because of them (decision 17).

Does not own what an admitted agent may do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from trunkline.entries import TokenIssued
from trunkline.hub.state import State
from trunkline.model import OPERATOR, RESERVED_PREFIXES, Manifest, Peer, Principal, ProcessIdentity, agent_of

FIRST_USE_S: Final = 120.0
# Doubling from 0.1 s, so that a mistyped token costs nothing and a guesser gets 0.2 tries a second.
MAX_DELAY_S: Final = 5.0
# Origins whose failures are remembered; the oldest is forgotten first.
MAX_ORIGINS: Final = 1024


class Launch(Struct):
    """One launched run and the process that may speak for it."""

    agent_id: str
    run_id: str
    process: ProcessIdentity
    expires_at: float
    manifest: Manifest | None
    used_by: ProcessIdentity | None = None


class Credentials:
    """The tokens that are good for something now. ``launch_edge`` is the edge that launched agents come in by,
    ``operator_edge`` the one that takes the operator's own token; neither token opens any other.
    """

    def __init__(self, state: State, operator_sha256: str, *, launch_edge: str, operator_edge: str) -> None:
        self._state = state
        self._operator_sha256 = operator_sha256
        self._launch_edge = launch_edge
        self._operator_edge = operator_edge
        self._launches: dict[str, Launch] = {}
        self._failures: dict[str, int] = {}
        # Standing tokens by hash, those of each identity (oldest first), and the identities that had one and have none:
        # all follow ``state`` (``index``).
        self._by_hash: dict[str, str] = {}
        self._revoked_by_hash: dict[str, str] = {}
        self._by_identity: dict[str, list[TokenIssued]] = {}
        self._revoked: frozenset[str] = frozenset()
        # Identities that were launched: those need no standing token.
        self._launched: set[str] = set()

    def index(self) -> None:
        """Read the standing tokens from the state, after a fold and after each change."""
        tokens, revoked = self._state.tokens.values(), self._state.revoked
        self._by_hash = {token.sha256: token.token_id for token in tokens if token.token_id not in revoked}
        self._revoked_by_hash = {token.sha256: token.token_id for token in tokens if token.token_id in revoked}
        self._by_identity = {}
        for token_id in self._by_hash.values():
            token = self._state.tokens[token_id]
            self._by_identity.setdefault(f"{token.edge}:{token.agent}", []).append(token)
        self._revoked = frozenset(f"{token.edge}:{token.agent}" for token in tokens) - self._by_identity.keys()

    def is_revoked(self, identity: str) -> bool:
        """Whether this identity had standing tokens, has none any more, and comes in by nothing else."""
        return identity in self._revoked and identity not in self._launched

    def granted(self, identity: str) -> tuple[str, ...]:
        """What a person granted the manifest of a launched agent, wherever the agent is now."""
        grant = self._state.grants.get(agent_of(identity))
        return grant.permissions if grant is not None and identity == self._launched_as(grant.agent_id) else ()

    def _launched_as(self, agent_id: str) -> str:
        """The identity of a launched agent. One that is part of the exchange comes in by the edge its prefix names."""
        prefix = agent_id.partition(".")[0]
        return f"{prefix if f'{prefix}.' in RESERVED_PREFIXES else self._launch_edge}:{agent_id}"

    def expect(self, token_sha256: str, launch: Launch) -> None:
        """A run was launched with this token."""
        self._launches = {known: other for known, other in self._launches.items() if other.agent_id != launch.agent_id}
        self._launches[token_sha256] = launch
        self._launched.add(self._launched_as(launch.agent_id))

    def forget(self, run_id: str) -> None:
        """A run is over, and its token with it."""
        self._launches = {known: launch for known, launch in self._launches.items() if launch.run_id != run_id}

    def launch_of(self, token_sha256: str) -> Launch | None:
        """The launched run of a token."""
        return self._launches.get(token_sha256)

    def admit(
        self, edge: str, agent_id: str, token_sha256: str, peer: Peer, now: float, *, in_use: bool
    ) -> tuple[str, str]:
        """``(credential, "")`` for a valid token, else ``("", reason)``; the reason is for the operator, not the peer.

        ``in_use`` says whether this agent has an open session that came in with the same token.
        """
        launch = self._launches.get(token_sha256)
        if launch is not None:
            if f"{edge}:{launch.agent_id}" != self._launched_as(launch.agent_id):
                return "", f"launch token of {launch.agent_id} on the edge {edge}"
            return self._admit_launched(launch, agent_id, peer, now, in_use=in_use)
        token_id = self._by_hash.get(token_sha256)
        if token_id is None:
            return "", "unknown, expired or revoked token"
        token = self._state.tokens[token_id]
        if token.edge != edge:
            return "", f"token {token_id} belongs to the edge {token.edge}"
        if token.agent != agent_id:
            return "", f"token {token_id} belongs to {token.agent}"
        return token_id, ""

    def _admit_launched(
        self, launch: Launch, agent_id: str, peer: Peer, now: float, *, in_use: bool
    ) -> tuple[str, str]:
        if launch.agent_id != agent_id:
            return "", f"launch token of {launch.agent_id}"
        if peer.run_id != launch.run_id or peer.process is None:
            return "", f"launch token of {agent_id} used by a process outside its run"
        if launch.used_by is None:
            if now > launch.expires_at:
                return "", f"launch token of {agent_id} not used in time"
        elif launch.used_by != peer.process:
            return "", f"launch token of {agent_id} used by a second process"
        elif in_use:
            return "", f"launch token of {agent_id} used while its session is open"
        launch.used_by = peer.process
        return f"run:{launch.run_id}", ""

    def delay_after_failure(self, origin: str) -> float:
        """Count one failure and say how long this refusal waits."""
        count = self._failures.pop(origin, 0) + 1
        self._failures[origin] = count
        if len(self._failures) > MAX_ORIGINS:
            del self._failures[next(iter(self._failures))]
        # Capped before the power: a guesser who keeps at it for a thousand tries must not overflow a float.
        return 0.0 if count == 1 else min(MAX_DELAY_S, 0.1 * 2.0 ** min(count - 2, 10))

    def identify(self, edge: str, token_sha256: str) -> Principal | None:
        """Whose token this is, on an edge where each request carries one."""
        if edge == self._operator_edge and token_sha256 == self._operator_sha256:
            return Principal(OPERATOR)
        token = self.standing(edge, token_sha256)
        return None if token is None else Principal(f"{edge}:{token.agent}", token.permissions, token.type)

    def standing(self, edge: str, token_sha256: str) -> TokenIssued | None:
        """The standing token with this hash, if it is good for this edge."""
        token_id = self._by_hash.get(token_sha256)
        token = None if token_id is None else self._state.tokens[token_id]
        return token if token is not None and token.edge == edge else None

    def revoked(self, edge: str, token_sha256: str) -> TokenIssued | None:
        """The token with this hash that was good for this edge until it was revoked."""
        token_id = self._revoked_by_hash.get(token_sha256)
        token = None if token_id is None else self._state.tokens[token_id]
        return token if token is not None and token.edge == edge else None

    def standing_of(self, identity: str) -> Sequence[TokenIssued]:
        """The standing tokens of an identity that are good for something, oldest first."""
        return self._by_identity.get(identity, ())

    def names_of(self, identity: str) -> tuple[str, ...]:
        """An identity as rules may name it: itself, and ``<edge>:type=<type>`` for each type of its tokens."""
        edge = identity.partition(":")[0]
        types = {token.type for token in self.standing_of(identity) if token.type}
        return (identity, *(f"{edge}:type={kind}" for kind in sorted(types)))

    def permissions_of_token(self, identity: str) -> tuple[str, ...]:
        """What the standing tokens of an identity carry."""
        return tuple(permission for token in self.standing_of(identity) for permission in token.permissions)
