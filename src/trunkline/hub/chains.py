"""Calls that cause calls: how deep, and never in a circle.

An agent that calls while it works for somebody acts for that somebody too. It may name the call it works on; if it
does not, it might be working on any of its open calls, and is judged against the chains of all of them (decision 7).
Which agent it is, its id says: the token, the edge and the session that it asks by make no difference.

Does not find out which calls an agent works on (``calls.worked_on``), and does not judge who may call what
(``policy``).

Owns what a chain is and when one is refused.

Invariant: no agent is called by a chain that it is part of, and no chain is deeper than ``MAX_DEPTH``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from trunkline.hub.state import Call
from trunkline.model import NOBODY, Behalf, Fault, agent_of, fault

# Deeper chains were loops in every trace seen; other gateways stop between 5 and 10.
MAX_DEPTH: Final = 8


class Chain(Struct, frozen=True):
    """The callers behind a call, first one first; the calls it may belong to, and the one if there is exactly one."""

    callers: tuple[str, ...] = ()
    depth: int = 1
    causes: tuple[Call, ...] = ()
    cause: Call | None = None


NO_CHAIN: Final = Chain()


def chain_of(caller: str, named: Call | None, working: Sequence[Call]) -> Chain:
    """The chain of a new call by ``caller``, whose agent works on ``working``, and who named ``named``, if any.

    To name a call that the agent itself made says for whom that one was made, not which of its work this one is for.
    """
    own = None
    if named is not None and any(call is named for call in working):
        working = (named,)
    elif named is not None and agent_of(named.entry.caller) == agent_of(caller):
        own = named
    if not working and own is None:
        return NO_CHAIN
    callers: dict[str, None] = {}
    depth = 1
    for call in working:
        callers.update(dict.fromkeys((*call.entry.chain, call.entry.caller)))
        depth = max(depth, call.entry.depth + 1)
    if own is not None:
        callers.update(dict.fromkeys(who for who in (*own.entry.chain, own.entry.caller) if who != caller))
        depth = max(depth, own.entry.depth)
        return Chain(tuple(callers), depth, (*working, own))
    return Chain(tuple(callers), depth, tuple(working), working[0] if len(working) == 1 else None)


def added(chain: Chain, behalf: Behalf) -> Chain:
    """The chain of a call that is made now for work that was asked for before, on behalf of others."""
    if behalf == NOBODY:
        return chain
    callers = tuple(dict.fromkeys((*behalf.callers, *chain.callers)))
    return Chain(callers, max(chain.depth, behalf.depth), chain.causes, chain.cause)


def refusal(chain: Chain, caller: str, target: str) -> Fault | None:
    """Why a chain may not go on to ``target`` (an agent's identity), if it may not."""
    agent_id = agent_of(target)
    if agent_id == agent_of(caller) or any(agent_id == agent_of(before) for before in chain.callers):
        return fault("chain.refused", f"{target} is already part of this chain of calls")
    if chain.depth > MAX_DEPTH:
        return fault("chain.refused", f"a chain of calls may be {MAX_DEPTH} deep")
    return None
