"""``agent.run()``: an agent as a process of its own, started by the exchange or by hand.

Owns the environment, the signals and the exit code. Does not own anything an embedding program would want: that is
``Agent.serve``.

Invariant: the token leaves the environment before any code of a tool runs, and is never printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from trunkline import hints
from trunkline.errors import ExchangeUnreachable, NotAdmitted
from trunkline.sdk.agent_socket import loopback_address

if TYPE_CHECKING:
    from trunkline.sdk.agent import Agent

EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2

log: Final = logging.getLogger("trunkline.agent")


def run(agent: Agent, grace_s: float) -> None:
    """Serve until SIGTERM or SIGINT. Ends the process with 1 when the exchange refuses, 2 when it cannot be found."""
    if not logging.getLogger().handlers:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Into a log it would else go by 8 KiB, and not at all when the process is killed.
        sys.stdout.reconfigure(line_buffering=True)
    token = take_token()
    launched_as = os.environ.get("OPENSENTIENCE_AGENT_ID")
    if token is None:
        _explain(agent)
    if launched_as not in {None, agent.agent_id}:
        _fail(f"this process was started as {launched_as}, but its code says Agent({agent.agent_id!r})", EXIT_USAGE)
    try:
        socket = find_socket()
        if socket.startswith("tcp://"):
            loopback_address(socket)
        home = os.environ.get("OPENSENTIENCE_HOME")
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            all_ended = runner.run(_serve(agent, socket, token, home, grace_s))
    except (ExchangeUnreachable, ValueError, FileNotFoundError) as exc:
        _fail(f"{agent.agent_id}: {exc}", EXIT_USAGE)
    except NotAdmitted as exc:
        _fail(f"{agent.agent_id}: the exchange refuses this agent: {exc}", EXIT_REFUSED)
    if not all_ended:
        # A thread that does not heed agent.canceled() would keep the interpreter from ending.
        log.warning("a tool did not stop in time; it is left behind")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def take_token() -> str | None:
    """The token, removed from the environment so that nothing started from here inherits it."""
    return os.environ.pop("OPENSENTIENCE_SESSION_TOKEN", None) or None


def find_socket(home: str | Path | None = None) -> str:
    """Where the exchange listens: ``OPENSENTIENCE_SOCKET``, else what its ``ready.json`` says."""
    named = os.environ.get("OPENSENTIENCE_SOCKET")
    if named and home is None:
        return named
    folder = Path(home or os.environ.get("TRUNKLINE_HOME") or "~/.trunkline").expanduser()
    try:
        socket = json.loads((folder / "ready.json").read_bytes())["socket"]
    except (OSError, ValueError, KeyError, TypeError):
        start = hints.command("up", None if home is None else str(folder))
        raise ExchangeUnreachable(f"no exchange runs in {folder}: `{start}` starts one") from None
    if not isinstance(socket, str):
        raise ExchangeUnreachable(f"the exchange in {folder} has no socket for agents")
    return socket


async def _serve(agent: Agent, socket: str, token: str, home: str | None, grace_s: float) -> bool:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.stop)
    return await agent.serve(socket=socket, token=token, home=home, grace_s=grace_s)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None


def _explain(agent: Agent) -> NoReturn:
    token = hints.command(f"token new opensentience --agent {agent.agent_id}", os.environ.get("TRUNKLINE_HOME"))
    _fail(
        f"""{agent.agent_id}: there is no OPENSENTIENCE_SESSION_TOKEN in the environment.
An exchange that starts this agent itself puts it there; in its trunkline.toml:

    [[agent]]
    id = "{agent.agent_id}"
    command = ["python", "{Path(sys.argv[0]).name}"]

To start it by hand, make a token and give it along:

    {token}
    OPENSENTIENCE_SESSION_TOKEN=… python {Path(sys.argv[0]).name}

OPENSENTIENCE_SOCKET names the exchange's socket, or tcp://127.0.0.1:PORT; without it, that of the one running here.""",
        EXIT_USAGE,
    )


def _fail(text: str, code: int) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    raise SystemExit(code)
