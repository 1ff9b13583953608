"""The exchange's end of the keeper: starting it, speaking with it, and cleaning up if it is killed.

Owns the keeper's process, the socket pair and the descriptors that come through it; does not know what a command means
(``keeper``) or when one is due (``supervisor``). No transport of asyncio reads the socket: those drop descriptors. The
keeper is started anew, not forked off: a keeper that was killed can so be replaced at any time,
although the exchange has threads and an event loop by then.

Invariant: ``on_lost`` is called once for each keeper that ended without being asked to.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from trunkline.edges.edge import Launcher
from trunkline.host import processes
from trunkline.host.isolation import folder_of_users
from trunkline.host.keeper import CHASE_S, KILL_WAIT_S, MAX_HANDED, READ_BYTES, SHORT_GRACE_S
from trunkline.model import ProcessIdentity

# The longest that a keeper needs to end everything.
LEAVE_WAIT_S: Final = SHORT_GRACE_S + KILL_WAIT_S
POLL_S: Final = 0.01

Report = dict[str, Any]


class KeeperLink:
    """One keeper, as the exchange sees it.

    ``on_report`` gets each report; one with ``pipes`` has the descriptors themselves there, and whoever takes the
    report closes them.
    """

    def __init__(self, on_report: Callable[[Report], None], on_lost: Callable[[], None]) -> None:
        self._on_report = on_report
        self._on_lost = on_lost
        self._received = b""
        self._unsent = bytearray()
        # Descriptors whose reports are still on their way.
        self._handed: deque[int] = deque()
        self._is_closing = False
        self._gone = asyncio.Event()
        self._socket: socket.socket
        self._loop: asyncio.AbstractEventLoop
        self._process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """The keeper's process."""
        return self._process.pid

    async def open(self, mask: Callable[[bytes], bytes], run_variable: str) -> None:
        """Start a keeper. ``mask`` must be a function that pickles; it is loaded when the first agent prints.

        ``run_variable`` is where an agent's processes carry the name of their run.
        """
        self._loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            # Its own group: neither Ctrl-C nor a signal to the exchange's group reaches it.
            self._process = subprocess.Popen(  # noqa: ASYNC220  (returns when the child has started: 2 ms)
                [sys.executable, "-P", "-m", "trunkline.host.keeper", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                process_group=0,
            )
        ours.setblocking(False)
        self._socket = ours
        self._loop.add_reader(ours, self._read)
        pickled = base64.b64encode(pickle.dumps(mask)).decode()
        self.send({"do": "begin", "mask": pickled, "run_variable": run_variable})

    def send(self, command: dict[str, object]) -> None:
        """Give a command. One that a lost keeper did not read is answered by ``on_lost``."""
        # json, not msgspec: an environment may hold bytes that are not UTF-8, as lone surrogates.
        self._unsent += json.dumps(command).encode() + b"\n"
        self._write()

    async def close(self) -> None:
        """Let the keeper end what is left and leave."""
        self._is_closing = True
        self._write()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_WAIT_S):
                await self._gone.wait()
        self._let_go()
        self._bury()

    # --- the socket ---------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        if self._gone.is_set():
            return
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            self._loop.add_writer(self._socket, self._write)
            return
        except ConnectionError:
            # Reading tells when it is gone, after its last reports.
            self._unsent.clear()
        self._loop.remove_writer(self._socket)
        if self._is_closing:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def _read(self) -> None:
        try:
            data, handed, _, _ = socket.recv_fds(self._socket, READ_BYTES, MAX_HANDED, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except ConnectionError:
            data, handed = b"", []
        self._handed.extend(handed)
        if not data:
            self._lost()
            return
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            report: Report = json.loads(line)
            if count := report.get("pipes", 0):
                report["pipes"] = tuple(self._handed.popleft() for _ in range(count))
            self._on_report(report)

    def _lost(self) -> None:
        """The keeper is gone."""
        self._let_go()
        if not self._is_closing:
            self._bury()
            self._on_lost()

    def _let_go(self) -> None:
        if not self._gone.is_set():
            self._gone.set()
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            while self._handed:
                os.close(self._handed.popleft())

    def _bury(self) -> None:
        self._process.kill()
        self._process.wait()


async def end_strays(roots: Iterable[ProcessIdentity]) -> None:
    """After a keeper was killed: end what it left, and collect it.

    The first process of each run died with the keeper. The rest is found by the sessions of the runs, and by the
    exchange being its new parent (``processes.become_subreaper``). What the exchange starts itself must stay in the
    exchange's session: that is how it is told apart, for a launched process never has that session.
    """
    sessions = {root.pid: root.start_time for root in roots}
    me = os.getpid()
    session = os.getsid(0)
    give_up_at = time.monotonic() + KILL_WAIT_S
    while time.monotonic() < give_up_at:
        known = processes.table()
        adopted = [process for process in known.values() if process.ppid == me and process.sid != session]
        in_sessions = [
            process
            for process in known.values()
            if process.sid in sessions
            and processes.in_session(process, known.get(process.sid), process.sid, sessions[process.sid])
        ]
        below = [known[pid] for pid in processes.descendants(known, [process.pid for process in adopted])]
        strays = {process.pid: process for process in [*adopted, *in_sessions, *below]}
        if not strays:
            return
        for process in strays.values():
            processes.send_signal(process, signal.SIGKILL)
        _chase_adopted(me, session)
        await asyncio.sleep(POLL_S)


def _chase_adopted(me: int, session: int) -> None:
    """End our own children of other sessions faster than they can fork, as ``Keeper._chase`` does."""
    until = time.monotonic() + CHASE_S
    while time.monotonic() < until:
        found = [process for pid in processes.child_pids(me) if (process := processes.read(pid)) is not None]
        adopted = [process for process in found if process.sid != session]
        if not adopted:
            return
        for process in adopted:
            processes.send_signal(process, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def end_leftovers(home: str, launcher: Launcher) -> None:
    """At start: end what an earlier exchange of this home left, if it was killed in one blow with its keeper."""
    known = processes.table()
    spared = processes.ancestors(known, os.getpid()) | {os.getpid()}
    us = os.getuid()
    for process in known.values():
        # Root may end anybody's: whose it is need not be read.
        if process.pid in spared or (us and us != processes.uid_of(process.pid)):
            continue
        env = processes.environment_of(process.pid)
        found = os.fsdecode(env.get(launcher.home_variable.encode(), b""))
        # An agent's own folder stands there if it has one.
        is_ours = found == home or os.path.dirname(found) in {f"{home}/agents", folder_of_users(Path(home))}  # noqa: PTH120
        if is_ours and launcher.run_variable.encode() in env:
            processes.send_signal(process, signal.SIGKILL)
