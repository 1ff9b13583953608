"""The embedded relay as the exchange sees it: a child process that is started, watched and started anew.

Owns the process and the socket that clients connect to. That socket is made here and handed to the process, so the
address is ours from the start on and stays ours: whoever connects while the relay starts, or is started again, waits
until it is there, and finds it after the exchange's own client (``let_in``). Does not own what the relay does
(``relay``), nor what we say to it (``client``).

Invariant: after ``stop``, and after the exchange was killed, no such process is left: it ends with its standard input.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from trunkline import children
from trunkline.addresses import host_and_port, shown
from trunkline.edges.address import Address
from trunkline.edges.background import Background
from trunkline.edges.nostr.relay_settings import Settings

log = logging.getLogger("trunkline")

START_S: Final = 15.0
STOP_S: Final = 5.0
FIRST_WAIT_S: Final = 0.2
MAX_WAIT_S: Final = 30.0
# One that lived for so long was well: the next wait is short again.
WELL_S: Final = 60.0
# Clients that wait while it starts.
BACKLOG: Final = 128


class RelayFailed(Exception):
    """It did not start; the text says why."""


class RelayProcess:
    """The relay's process. ``start`` once, ``stop`` once."""

    def __init__(self, settings: Settings, address: Address, background: Background) -> None:
        self._settings = settings
        self._address = address
        self._background = background
        self._listener: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._is_up = asyncio.Event()
        # Where the exchange itself reaches it: another one after each start, and told to nobody else.
        self._inner = ""
        # Why it did not start, the last time that it was tried.
        self._problem = ""
        self.url = ""
        self.restarts = 0
        Path(settings.folder).mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return None if self._process is None else self._process.pid

    @property
    def state(self) -> str:
        """How it is, for ``trunkline status``."""
        if self._is_up.is_set():
            return "running"
        return f"does not start: {self._problem}" if self._problem else "starting"

    @property
    def problem(self) -> str:
        """Why it does not start; empty if that is not known to be so."""
        return self._problem

    async def start(self) -> None:
        """Take its address and start it, without waiting for it. ``ConfigError`` or ``EdgeOff`` if that is taken."""
        if not self._settings.auth:
            try:
                self._listener = _listening(self._settings.host, self._settings.port)
            except OSError as error:
                raise self._address.taken(error) from None
            self.url = f"ws://{shown(*self._listener.getsockname()[:2])}"
        self._keeper = self._background.spawn(self._keep())
        if self._settings.auth:
            # It takes its address itself.
            await self.reached()

    async def reached(self) -> str:
        """Where the exchange itself reaches it, once it is there."""
        await self._is_up.wait()
        return self._inner

    def let_in(self) -> None:
        """The exchange listens to it by now: everybody else may come in, and nothing that they say is missed."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(b"\n")

    async def stop(self) -> None:
        """End it."""
        if self._keeper is not None:
            self._keeper.cancel()
        await self._end()
        if self._listener is not None:
            self._listener.close()

    async def _keep(self) -> None:
        """Start it, and start it again whenever it ends."""
        wait_s = FIRST_WAIT_S
        clock = asyncio.get_running_loop().time
        has_run = False
        while True:
            try:
                process = await self._launch()
            except (RelayFailed, OSError) as error:
                self._problem = str(error)
                log.warning("nostr: the embedded relay did not start: %s", error)
            else:
                self._problem = ""
                self.restarts += has_run
                has_run = True
                began = clock()
                self._is_up.set()
                code = await process.wait()
                self._is_up.clear()
                if clock() - began > WELL_S:
                    wait_s = FIRST_WAIT_S
                log.warning("nostr: the embedded relay ended (%s); starting it again", code)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, MAX_WAIT_S)

    async def _launch(self) -> asyncio.subprocess.Process:
        handed = [] if self._listener is None else [self._listener.fileno()]
        settings = replace(self._settings, listener=handed[0] if handed else -1)
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "trunkline.edges.nostr.relay", msgspec.json.encode(settings).decode(),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, cwd="/",
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "MALLOC_ARENA_MAX": "2"},
            pass_fds=handed,
            # A Ctrl-C at the terminal is for the exchange, which ends this one when nobody needs it any more.
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        line = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                line = await process.stdout.readline()
        told = msgspec.json.decode(line or b'{"failed":"it said nothing"}', type=dict[str, str])
        if "inner" not in told:
            await self._end()
            raise RelayFailed(told["failed"])
        self._inner = told["inner"]
        if settings.auth:
            # It is to be found there again when it is started anew.
            self.url = self._inner
            self._settings = replace(self._settings, port=host_and_port(self.url.partition("//")[2])[1])
        return process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await children.end(process, STOP_S)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(BACKLOG)
    except OSError:
        found.close()
        raise
    return found
