"""``/v1/agents/{agent_id}/sign-in``: a person signs in for an agent that wants it, or out again.

Which agents those are, and what signing in is there, their edge decides. Owns the routes and where a browser finds us:
the address of the listener that was asked, never a name out of a header.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from trunkline.addresses import shown
from trunkline.edges.answers import Handler, json_answer, refusal
from trunkline.edges.exchange import Operator
from trunkline.errors import SignInRefused
from trunkline.model import Fault, fault

PATH: Final = "/v1/agents/{agent_id}/sign-in"
NOBODY: Final = fault("not_found", "nobody signs in for an agent of this id; `trunkline agents` lists all")


def table(operator: Operator, permission: str) -> dict[str, dict[str, tuple[str, Handler]]]:
    """The routes, each with the permission that it needs."""

    async def begin(request: Request) -> Response:
        """``POST``: an address for the person to open."""
        host, port = request.scope["server"]
        try:
            found = await operator.sign_in(request.path_params["agent_id"], f"http://{shown(host, port)}")
        except SignInRefused as refused:
            return refusal(_refused(refused))
        return refusal(NOBODY) if found is None else json_answer(found)

    async def state(request: Request) -> Response:
        """``GET``: how that is going."""
        try:
            found = operator.sign_in_state(request.path_params["agent_id"])
        except SignInRefused as refused:
            return refusal(_refused(refused))
        return refusal(NOBODY) if found is None else json_answer({"state": found})

    async def end(request: Request) -> Response:
        """``DELETE``: what is kept of it is forgotten."""
        try:
            was_there = await operator.sign_out(request.path_params["agent_id"])
        except SignInRefused as refused:
            return refusal(_refused(refused))
        return json_answer({"status": "signed out"}) if was_there else refusal(NOBODY)

    return {PATH: {"POST": (permission, begin), "GET": (permission, state), "DELETE": (permission, end)}}


def _refused(problem: SignInRefused) -> Fault:
    # Our own words, for the operator only: no text of anybody else is in them.
    return fault("state.conflict", str(problem))
