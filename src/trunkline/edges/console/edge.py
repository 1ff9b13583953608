"""The console as an edge of the exchange: doors of the HTTP listener for the page, signing in, and the live line.

Owns which parts there are, and in which order they start and stop. Does not own signing in (``signing_in``), the page's
files (``files``) or what is told live (``live``).

Invariant: a code is printed only where what is printed is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from starlette.types import Scope

from trunkline.edges.background import Background
from trunkline.edges.console.live import PATH, LiveLine
from trunkline.edges.console.messages import EDGE
from trunkline.edges.console.routes import Routes
from trunkline.edges.console.signing_in import SignIn, SignIns
from trunkline.edges.doors import Door
from trunkline.edges.edge import Edge, RunningEdge, Surroundings


class ConsoleEdge(RunningEdge):
    """The page, and who is at it: ``live.Doorkeeper``."""

    def __init__(self, given: Surroundings) -> None:
        self._given = given
        self._background = Background(given.feed)
        self.sign_ins = SignIns(given.operator_key, given.entropy, given.keys)
        self.live = LiveLine(given, self, self._background)
        self.routes = Routes(given, self.sign_ins, self.live.sign_in_ended)

    def doors(self) -> Sequence[Door]:
        """The first that leads to a path has it: a code is asked for with a token, as everything under ``/v1``."""
        return (
            Door(("/console/code",), self.routes.codes),
            Door((PATH,), self.live, gate_of=EDGE),
            Door(("/", "/console"), self.routes, gate_of=EDGE, admits=self.routes.admitted),
        )

    async def start(self) -> None:
        """Take up sign-ins of earlier runs."""
        self.sign_ins.load(self._given.feed.now())

    async def stop(self) -> None:
        """Say goodbye to all pages."""
        await self.live.stop()
        await self._background.stop()

    def greeting(self, places: Mapping[str, str | None], *, is_kept: bool) -> Sequence[str]:
        """Where the page is; with a code unless what is printed is kept somewhere."""
        if is_kept:
            return (f"  console {places['http']}/ (`trunkline console` prints an address that signs you in)",)
        return (f"  console {places['http']}/?code={self.sign_ins.new_code(self._given.feed.now())}",)

    def question_page(self, places: Mapping[str, str | None], approval_id: str) -> str | None:
        """The page, at this question; whoever opens it has to sign in, or to have done so."""
        return f"{places['http']}/#/approvals/{approval_id}"

    def status(self) -> Mapping[str, object]:
        """How many are at it."""
        return {"pages": len(self.live.pages), "sign_ins": self.sign_ins.count}

    def warnings(self) -> Sequence[str]:
        """What keeps sign-ins from being kept."""
        return (self.sign_ins.trouble,) if self.sign_ins.trouble else ()

    # -- for the live line ---------------------------------------------------------------------------------------------

    def cookie_of(self, scope: Scope) -> SignIn | None:
        """Whose cookie a request shows."""
        return self.routes.cookie_of(scope)

    def channel_secret(self, sign_in: SignIn) -> bytes:
        """What subscriptions of its pages are signed with."""
        return self.sign_ins.channel_secret(sign_in)

    def is_open(self, sign_in: SignIn) -> bool:
        """Whether it is still good."""
        return self.sign_ins.is_open(sign_in, self._given.feed.now())


CONSOLE: Final = Edge(name=EDGE, make=ConsoleEdge)
