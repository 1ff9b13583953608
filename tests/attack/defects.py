"""An exchange with a defect: a handler that raises, with a canary in the text of the exception (P-H5).

Python imports ``sitecustomize`` before anything else; ours breaks the one thing that ``BREAK`` names.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.running import Running

CANARY = "canary-in-an-exception-5f1c"

_BREAK = f"""
import os, sys

what = os.environ.get("BREAK", "")
side, _, name = what.partition(":")

def broken(*arguments, **named):
    raise ValueError("{CANARY} " + repr(arguments)[:200])

async def broken_route(*arguments, **named):
    raise ValueError("{CANARY} " + repr(arguments)[:200])

# The exchange only, not its writer and its keeper.
if "up" in sys.orig_argv:
    if side == "hub":
        from trunkline import events
        from trunkline.hub import hub
        from trunkline.model import RESERVED_PREFIXES

        init = hub.Hub.__init__

        def init_broken(self, **named):
            init(self, **named)
            kind = getattr(events, name)
            whole = self._handlers[kind]

            def handle(event, now):
                # The exchange's own agents come in before anybody can be asked.
                own = ("trunkline", *RESERVED_PREFIXES)
                tools = getattr(event, "tools", ())
                is_own = getattr(event, "is_resident", False) or any(one.agent_id.startswith(own) for one in tools)
                (whole if is_own else broken)(event, now)

            self._handlers[kind] = handle

        hub.Hub.__init__ = init_broken
    elif side == "http":
        from trunkline.edges.http import approvals, calls, routes

        calls.NewCall._answer = broken_route
        for method in ("approvals", "approval", "answer", "rule", "allow"):
            assert hasattr(approvals.ApprovalRoutes, method), method
            setattr(approvals.ApprovalRoutes, method, broken_route)
        for method in (
            "agents", "tools", "calls", "call", "cancel", "policy", "check", "new_directive", "tokens", "new_token",
            "revoke_token", "reload", "watch", "ledger", "replay", "metrics", "blob", "status",
        ):
            assert hasattr(routes.Api, method), method
            setattr(routes.Api, method, broken_route)
    elif side == "session":
        from trunkline.edges.opensentience import calls, session, tools

        for method in name.split(","):
            rooms = (session.CoreSession, calls.GivenCalls, calls.MadeCalls, tools.OfferedTools)
            (owner,) = [one for one in rooms if hasattr(one, method)]
            setattr(owner, method, broken)
"""


def broken_exchange(folder: Path, what: str) -> Running:
    """An exchange in which ``hub:EventType``, ``http:`` (every route) or ``session:METHOD,METHOD`` raises."""
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "sitecustomize.py").write_text(_BREAK)
    path = os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return Running(folder / "home", env={"PYTHONPATH": path, "BREAK": what})
