"""The embedded relay as the exchange sees it: a child process that is started, watched and started anew.

Owns the process and its address, which stays the same when it is started again, because clients know it by it. Does
not own what the relay does (``relay``), nor what we say to it (``client``).

Invariant: after ``stop``, and after the exchange was killed, no such process is left: it ends with its standard input.
"""

from __future__ import annotations

import asyncio
import errno
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
from trunkline.addresses import host_and_port
from trunkline.edges.background import Background
from trunkline.edges.listener import Address
from trunkline.edges.nostr.relay_settings import Settings

log = logging.getLogger("trunkline")

START_S: Final = 15.0
STOP_S: Final = 5.0
FIRST_WAIT_S: Final = 0.2
MAX_WAIT_S: Final = 30.0
# One that lived for so long was well: the next wait is short again.
WELL_S: Final = 60.0


class RelayFailed(Exception):
    """It did not start; the text says why."""


class RelayProcess:
    """The relay's process. ``start`` once, ``stop`` once."""

    def __init__(self, settings: Settings, address: Address, background: Background) -> None:
        self._settings = settings
        self._address = address
        self._background = background
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.url = ""
        # Where the exchange itself reaches it: another one after each start, and told to nobody else.
        self.inner = ""
        self.restarts = 0
        Path(settings.folder).mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start it, and wait until it listens. ``ConfigError`` or ``EdgeOff`` if its address is taken."""
        try:
            _try_bind(self._settings.host, self._settings.port)
            self.url = await self._launch()
        except OSError as error:
            raise self._address.taken(error) from None
        except RelayFailed:
            raise self._address.taken(OSError(errno.EADDRNOTAVAIL, "")) from None
        _, port = host_and_port(self.url.partition("//")[2])
        self._settings = replace(self._settings, port=port)
        self._watcher = self._background.spawn(self._watch())

    async def stop(self) -> None:
        """End it."""
        if self._watcher is not None:
            self._watcher.cancel()
        await self._end()

    async def _launch(self) -> str:
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "trunkline.edges.nostr.relay", msgspec.json.encode(self._settings).decode(),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, cwd="/",
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "MALLOC_ARENA_MAX": "2"},
            # A Ctrl-C at the terminal is for the exchange, which ends this one when nobody needs it any more.
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        line = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                line = await process.stdout.readline()
        told = msgspec.json.decode(line or b'{"failed":"it said nothing"}', type=dict[str, str])
        if "url" not in told:
            await self._end()
            raise RelayFailed(told["failed"])
        self.inner = told["inner"]
        return told["url"]

    async def _watch(self) -> None:
        wait_s = FIRST_WAIT_S
        while self._process is not None:
            began = asyncio.get_running_loop().time()
            code = await self._process.wait()
            if asyncio.get_running_loop().time() - began > WELL_S:
                wait_s = FIRST_WAIT_S
            log.warning("nostr: the embedded relay ended (%s); starting it again", code)
            while True:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, MAX_WAIT_S)
                try:
                    await self._launch()
                    break
                except (RelayFailed, OSError) as error:
                    log.warning("nostr: the embedded relay did not start: %s", error)
            self.restarts += 1

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await children.end(process, STOP_S)


def _try_bind(host: str, port: int) -> None:
    """``OSError`` if somebody else listens there: the relay itself only says that it did not work."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind((host, port))
