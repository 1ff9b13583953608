"""The contract of an edge: what the host knows about a protocol, and all it knows.

A protocol is one folder with one value of ``Edge``; ``known.py`` lists them. The host makes a ``RunningEdge`` of each,
starts and stops it, and asks it what to put into ``ready.json`` and ``status``; it names no protocol anywhere.
docs/edges.md tells how to write one.

Owns these types and the form of our credentials. Does not own what an edge does, nor the order of all (``host.edges``).
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Raw, Struct

from trunkline.config import Config
from trunkline.edges.piped import NoPrograms, Programs, StartPiped, start_nothing
from trunkline.key_files import KEYS_FOLDER
from trunkline.model import Manifest, ProcessIdentity
from trunkline.shown import AgentView

if TYPE_CHECKING:
    from trunkline.edges.doors import Door
    from trunkline.edges.exchange import AgentAction, Feed, Operator, SignInAddress, Views


# What our credentials begin with, whatever their length: by this they are recognised, and masked, wherever they appear.
TOKEN_PREFIX: Final = "tlk_"  # noqa: S105  (the form, not a token)


# The public key of a server: the SHA-256 of its SubjectPublicKeyInfo in base64 (as in RFC 7469).
PIN: Final = re.compile(r"[A-Za-z0-9+/]{43}=")


def new_bearer() -> str:
    """A secret of 256 bits, in the form by which the masker knows ours."""
    return f"{TOKEN_PREFIX}{secrets.token_urlsafe(32)}"


class KeyTerms(Struct, frozen=True):
    """For whom a key pair is made, and what the operator said of him. Empty: it was not said."""

    agent: str
    type: str = ""
    # Where he takes messages, and the SHA-256 of his server's public key, in base64.
    url: str = ""
    pin: str = ""


class KeyPair(Struct, frozen=True):
    """A new credential whose holder keeps a private key, and we only the public one."""

    # Names the key; the credential is known by its SHA-256, as a token is by that of the token.
    kid: str
    # Members of the answer that shows the pair, private parts included: this once, and kept nowhere.
    shown: Mapping[str, object]
    # What goes on record and into ``TokenView.public``: a JSON object with ``kid``, the rest is the edge's own.
    public: Raw


class TokenKind(Struct, frozen=True):
    """A credential that ``trunkline token new EDGE`` can make: a secret, or a pair of keys if there is ``pair``."""

    # What an agent of this edge has to be, if its agents have types: fixed by its token.
    types: tuple[str, ...] = ()
    secret: Callable[[], str] = new_bearer
    # Instead of ``types``: an agent may have any type of this form, or none.
    type_form: str = ""
    # Ids under which the exchange itself speaks on this edge.
    own_ids: frozenset[str] = frozenset()
    # Which of ``url`` and ``pin`` (``KeyTerms``) may be said.
    options: frozenset[str] = frozenset()
    pair: Callable[[KeyTerms], KeyPair] | None = None

    def refusal(self, terms: KeyTerms) -> str:
        """What is wrong with these terms for such a credential, in words for the operator; empty if nothing is."""
        if terms.agent.casefold() in self.own_ids:
            return f"agent: {terms.agent} is the exchange itself"
        if self.type_form:
            if terms.type and re.fullmatch(self.type_form, terms.type) is None:
                return f"type: expected {self.type_form}"
        elif terms.type not in self.types and (terms.type or self.types):
            return "type: " + (f"expected {one_of(self.types)}" if self.types else "agents of this edge have none")
        for name in ("url", "pin"):
            if getattr(terms, name) and name not in self.options:
                return f"{name}: credentials of this edge have none"
        if terms.pin and not terms.url:
            return "pin: it says which server answers at url, and url is missing"
        return ""


def one_of(words: Iterable[str]) -> str:
    """Words as a choice between them."""
    return " or ".join(", ".join(words).rsplit(", ", 1))


class EdgeOff(Exception):
    """An edge that cannot run here and is not needed; its text says why and what to do. The exchange runs without.

    ``is_chosen``: its own section turns it off, so that there is nothing to warn of.
    """

    def __init__(self, why: str, *, is_chosen: bool = False) -> None:
        super().__init__(why)
        self.is_chosen = is_chosen


def _forget_secret(_name: str, _secret: str) -> None:
    """For an exchange whose record nobody reads."""


class Surroundings(Struct, frozen=True):
    """What an edge is given when it is made: the exchange, the configuration, and where and what it is part of."""

    feed: Feed
    views: Views
    operator: Operator
    config: Config
    home: Path
    process: ProcessIdentity
    version: str
    # This run of the exchange.
    instance: str
    # The doors of all edges, for the one that listens for them. To be asked for when all edges are made.
    doors: Callable[[], Sequence[Door]]
    # A key that is on no record and stays the same for this home: for secrets that an edge derives instead of keeping.
    key: bytes
    # The same, and another one once the operator has another token: for what is open to whoever has that.
    operator_key: bytes
    # So many random bytes: the source of all ids and secrets that an edge makes.
    entropy: Callable[[int], bytes] = secrets.token_bytes
    # How long work takes. Not the loop's clock: uvloop's stands still within a turn.
    stopwatch: Callable[[], float] = time.perf_counter
    # Has a program started whose stdin and stdout are pipes to the edge.
    start_piped: StartPiped = start_nothing
    # Keeps programs running that an edge makes agents of.
    programs: Programs = NoPrograms()
    # Has a secret masked wherever it appears from now on, under a name that is shown instead.
    know_secret: Callable[[str, str], None] = _forget_secret

    @property
    def keys(self) -> Path:
        """The folder for files with secrets of the edge's own (``key_files``)."""
        return self.home / KEYS_FOLDER


class RunningEdge:
    """One edge of a running exchange. Children override what they need."""

    def prepare(self) -> None:
        """Before the record is taken up: set guards, so that what was asked before a restart is judged by them."""

    def doors(self) -> Sequence[Door]:
        """Paths behind the HTTP listener that are this edge's."""
        return ()

    async def start(self) -> None:
        """Listen, attach, connect. ``ConfigError`` ends the start, ``EdgeOff`` only this edge."""

    async def stop(self) -> None:
        """Say goodbye and let go of everything. Called once, also after a start that failed."""

    def reload(self) -> Sequence[str]:
        """Read again what stands in files of its own, and say what changed, in a line each; ``ConfigError`` if one
        cannot be used: then nothing changes.
        """
        return ()

    def configured(self, config: Config) -> Mapping[str, Sequence[str]]:  # noqa: ARG002
        """Another configuration is in force. Only edges without a section of their own have something to do here.

        The agents that were ``started``, ``restarted`` and ``stopped`` for it; those that ``cannot_start``, and why.
        """
        return {}

    def agents(self) -> Sequence[AgentView]:
        """Agents that this edge looks after and that have no process here, also those that are away, and why.

        Of one that is ``resident``, what is to be said of its ``health`` and in its ``note``.
        """
        return ()

    def steer(self, agent_id: str, action: AgentAction) -> bool:  # noqa: ARG002  (those that have agents do)
        """Start, stop or restart one of these; False if there is none of this id."""
        return False

    async def sign_in(self, agent_id: str, base: str) -> SignInAddress | None:  # noqa: ARG002
        """Where a person signs in for one of these; None if there is none of this id. ``base`` is where his browser
        finds us. ``SignInRefused`` says why that cannot be done.
        """
        return None

    def sign_in_state(self, agent_id: str) -> str | None:  # noqa: ARG002
        """``waiting``, ``done`` or why not; empty if nobody has begun. None if there is none of this id."""
        return None

    async def sign_out(self, agent_id: str) -> bool:  # noqa: ARG002
        """Forget it; False if there is none of this id."""
        return False

    def ready(self) -> Mapping[str, str | None]:
        """What this edge adds to ``ready.json`` once it runs: where it can be reached."""
        return {}

    def question_page(self, places: Mapping[str, str | None], approval_id: str) -> str | None:  # noqa: ARG002
        """The address of a page where a person answers this question, if this edge has one; it opens nothing itself.

        ``places`` is what all edges are ``ready``.
        """
        return None

    def greeting(self, places: Mapping[str, str | None], *, is_kept: bool) -> Sequence[str]:  # noqa: ARG002
        """Lines for the person who starts the exchange, after all edges run and ``places`` is what they are ``ready``.

        ``is_kept``: what is printed goes into a log, so that nothing may be said that opens something.
        """
        return ()

    def status(self) -> Mapping[str, object]:
        """Figures of this edge, for ``trunkline status``. ``note`` says what should be here and is not,
        ``not_installed`` what is optional and missing.
        """
        return {}

    def warnings(self) -> Sequence[str]:
        """What of its section has no effect here, and why."""
        return ()


class Launcher(Protocol):
    """How an edge's agents are launched as processes: the names in their environment, and what their manifest says."""

    # The edge's name.
    edge: str
    # The variables that hold the run and the home folder: by these the host recognises an agent's processes.
    run_variable: str
    home_variable: str
    # Where agents find the exchange: the path, and the variable that says it.
    socket: str
    socket_variable: str

    def environment(self, agent_id: str, run_id: str, token: str) -> dict[str, str]:
        """What a launched agent finds in its environment besides what all programs have."""

    def read_manifest(self, path: Path, agent_id: str) -> Manifest:
        """What an agent's manifest asks for; ``ConfigError`` if it cannot be used."""


class Edge(Struct, frozen=True):
    """One protocol, as the host knows it before anything runs."""

    # Before the colon of a caller (``chiffon:infra-1``), in ``status`` and in notices.
    name: str
    make: Callable[[Surroundings], RunningEdge]
    # Its section of trunkline.toml; it cannot change while the exchange runs. Empty: it has none.
    section: str = ""
    # What it adds to ``ready.json``; null there while it is off.
    ready_keys: tuple[str, ...] = ()
    tokens: TokenKind | None = None
    # A module that must be there, and the extra that brings it: without it the edge is off.
    needs: tuple[str, str] | None = None
    # Callers wait here for what the other edges end: it stops after them.
    stops_last: bool = False
    # The token of the person who runs the exchange opens this one (one edge has it).
    is_operators: bool = False
    # Agents that the exchange launches speak this edge (one edge has it).
    launcher: Callable[[Config, Path], Launcher] | None = None
