"""What is shown: calls, tools, agents, questions, subscriptions and tokens, as pages, commands and peers see them.

Owns their fields, and by what calls can be looked for. It does not own how they are found out (``hub.views``,
``host.reading``), nor what a protocol calls them (``translate.py`` of its edge).

Invariant: a value is how things stood when somebody asked; it never changes, and no entry of the record holds one.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct

from trunkline.model import Actor, Fault, LargeOutput, OptionalRaw, Status

# Lists of calls show outputs up to this: what a line of a table has room for, many times over.
LISTED_OUTPUT_BYTES: Final = 4096


class CallSearch(Struct, frozen=True, omit_defaults=True):
    """Which calls are looked for. Empty: any."""

    limit: int
    # Words, each of which, or its beginning, stands in the input, the outcome, or a name of the call.
    words: str = ""
    # Parts of names; large and small letters are the same.
    tool: str = ""
    caller: str = ""
    # Only calls of exactly this caller.
    own: str = ""
    status: str = ""
    # Milliseconds of the wall clock, the second not included.
    first_ms: int | None = None
    last_ms: int | None = None
    # Those before this entry.
    before: int | None = None


class CallView(Struct, frozen=True, omit_defaults=True):
    """A call as anybody is shown it. Times are RFC 3339 strings; ``output`` is absent until there is one.

    ``output`` is always whole; ``large`` is there if it is a large one.
    """

    call_id: str
    tool_id: str
    caller: str
    status: Status
    accepted_at: str
    correlation_id: str | None = None
    approval_id: str | None = None
    output: Raw | None = None
    error: Fault | None = None
    started_at: str | None = None
    finished_at: str | None = None
    large: LargeOutput | None = None
    # The tool that serves it, where that is not the one that was asked for.
    provider: str | None = None
    # In lists: the size of an output that is left out there.
    output_bytes: int | None = None
    # The call succeeded, and a command that it ran did not: how that ended.
    failed_with: int | None = None


class ToolView(Struct, frozen=True, omit_defaults=True):
    """A tool as it is listed. ``status`` is ``available``, ``unavailable``, ``suspended`` or ``quarantined``."""

    tool_id: str
    status: str
    description: str
    input_schema: Raw
    output_schema: Raw | None = None
    capabilities: tuple[str, ...] = ()
    side_effects: bool = msgspec.field(default=True)
    requires_directive: bool = False
    tags: tuple[str, ...] = ()
    required_permissions: tuple[str, ...] = ()
    fingerprint: str = ""


class AgentView(Struct, frozen=True, omit_defaults=True):
    """An agent as it is listed. ``state`` is ``ready``, ``unhealthy``, or what the supervisor says of its process."""

    agent_id: str
    edge: str
    state: str
    health: str = ""
    version: str = ""
    tools: int = 0
    open_calls: int = 0
    succeeded: int = 0
    failed: int = 0
    pid: int | None = None
    run_id: str | None = None
    restarts: int = 0
    permissions: tuple[str, ...] = ()
    # What keeps a launched agent from everything else: "sandbox (bubblewrap)", "user", "none", "none: why".
    isolation: str = ""
    note: str = ""
    # Whether a person may start, stop and restart it.
    steerable: bool = False
    # It lives in the exchange, and is no process of its own.
    resident: bool = False


class Question(Struct, frozen=True, omit_defaults=True):
    """An open question to a person. ``subject`` is ``call``, ``definition``, ``manifest`` or ``directive``."""

    approval_id: str
    subject: str
    asked_by: str
    asked_at: str
    expires_at: str
    reason: str
    tool_id: str | None = None
    agent_id: str | None = None
    call_id: str | None = None
    chain: tuple[str, ...] = ()
    input: Raw | None = None
    before: Raw | None = None
    after: Raw | None = None
    permissions: tuple[str, ...] = ()
    waiting: int = 1
    # Of a call: the rule that asks.
    rule: str = ""
    # What its provider gets beside the input.
    context: Raw | None = None
    actor: Actor | None = None
    # Who would serve it, if it is a call of a tool that stands for others.
    provider: str | None = None


class SubscriptionView(Struct, frozen=True):
    """A subscription as it is listed. ``connected`` is whether there is a conversation in which its subscriber is told.

    ``number`` is that of the entry that made it: lists are in this order.
    """

    number: int
    subscription: str
    subscriber: str
    # A pattern.
    topic: str
    qos: int
    durable: bool
    since: str
    # What its subscriber has not taken yet.
    owed_events: int
    owed_bytes: int
    connected: bool


class TokenView(Struct, frozen=True, omit_defaults=True):
    """A standing credential as it is listed; its secret is kept nowhere.

    ``public`` is there for a pair of keys: a JSON object of its edge, whose ``kid`` names the key.
    """

    token_id: str
    edge: str
    agent: str
    issued_at: str
    permissions: tuple[str, ...] = ()
    revoked: bool = False
    type: str = ""
    public: OptionalRaw = None
