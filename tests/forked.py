"""Exchanges for tests without the start of an interpreter: forked from a process that has imported the exchange.

The imports are half of what the start of an exchange takes, and the tests start hundreds; to compile the masking rules
is half of what its writer takes. ``Forked`` is one such process, with the methods of ``Popen`` that tests use;
``can_start`` says whether one may stand for a start by command: not under coverage, and not with another environment,
which may change what an import or the interpreter does.

Run as a program this module is the process that forks. It has one thread and runs nothing of the exchange. Invariant:
whatever ends the test process, the one that forks ends with it, and every exchange that it forked with that.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
MAX_REQUEST_BYTES = 200_000
# What a start may find changed in the environment: nothing reads these before the exchange runs.
OURS = ("TRUNKLINE_", "PYTEST_")


# --- in the process of the tests --------------------------------------------------------------------------------------


def can_start(env: Mapping[str, str]) -> bool:
    """Whether an exchange with this environment is the same when it is forked."""
    before = _environment()
    changed = {name for name in before.keys() | env.keys() if before.get(name) != env.get(name)}
    return all(name.startswith(OURS) for name in changed) and not any(name.startswith("COVERAGE_") for name in env)


class Forked:
    """An exchange, by the words behind ``trunkline``; what it prints goes to ``output``, a descriptor."""

    def __init__(self, words: list[str], env: Mapping[str, str], output: int) -> None:
        self.returncode: int | None = None
        # Its exit code comes here.
        self._ended, ended = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            self.pid = _starter().fork(
                {"words": words, "env": dict(env), "cwd": str(Path.cwd())}, nothing, output, ended
            )
        finally:
            os.close(nothing)
            os.close(ended)

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, as soon as it has ended."""
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(["trunkline"], timeout or 0)
            code = os.read(self._ended, 16)
            os.close(self._ended)
            assert code, "the process that forks exchanges is gone"
            self.returncode = int(code)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """With -9."""
        self.send_signal(signal.SIGKILL)


class _Starter:
    """The process that forks, as the tests see it."""

    def __init__(self, start: Callable[..., subprocess.Popen[bytes]], leash: tuple[str, ...]) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            # -P: beside this file are modules with the names of packages.
            self._process = start(
                [*leash, sys.executable, "-P", __file__, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_environment(),
            )

        atexit.register(self.end)

    def end(self) -> None:
        """Nothing more is forked: the process ends when nobody can ask it."""
        self._channel.close()
        self._process.wait()

    def fork(self, request: dict[str, Any], *descriptors: int) -> int:
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(request).encode()], list(descriptors))
            answer = self._channel.recv(64)
        assert answer, "the process that forks exchanges is gone"
        return int(answer)


@functools.cache
def _environment() -> dict[str, str]:
    """That of the tests when the first exchange was started."""
    return dict(os.environ)


@functools.cache
def _starter() -> _Starter:
    from tests.running import leash, started

    return _Starter(started, leash())


# --- in the process that forks ----------------------------------------------------------------------------------------


def serve(channel: socket.socket) -> list[str]:
    """Fork whenever asked to. Returns in each exchange, with its words; the process that forks ends here."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    ours = os.getpid()
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([channel.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(running)
        if channel.fileno() not in ready:
            continue
        told, descriptors, _, _ = socket.recv_fds(channel, MAX_REQUEST_BYTES, 3)
        if not told:
            os._exit(0)
        process = os.fork()
        if process == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != ours:
                os._exit(97)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel.close()
            for place in (woken, wake, descriptors[2], *running.values()):
                os.close(place)
            return _become(json.loads(told), descriptors[0], descriptors[1])
        running[process] = descriptors[2]
        for place in descriptors[:2]:
            os.close(place)
        channel.send(b"%d" % process)


def _tell_ends(running: dict[int, int]) -> None:
    while running:
        process, status = os.waitpid(-1, os.WNOHANG)
        if not process:
            return
        place = running.pop(process)
        # Nobody may be left to hear it.
        with contextlib.suppress(BrokenPipeError):
            os.write(place, b"%d" % os.waitstatus_to_exitcode(status))
        os.close(place)


def _become(request: dict[str, Any], given: int, output: int) -> list[str]:
    for place, number in ((given, 0), (output, 1), (output, 2)):
        os.dup2(place, number)
    os.close(given)
    os.close(output)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    words: list[str] = request["words"]
    return words


def keep_masking() -> None:
    """Compile the masking rules here, once: the writer of each new record would, which was half of what it took.

    The file that a first start leaves beside the record is there before its writer starts, as at any later start.
    """
    from trunkline.ledger import ledger
    from trunkline.ledger.kept_masking import KeptMasking
    from trunkline.ledger.keys import LedgerKeys
    from trunkline.ledger.masking import Masker

    Masker().prepare()
    found = ledger._keys_of

    def keys_of(path: Path, keys_dir: Path) -> LedgerKeys:
        keys = found(path, keys_dir)
        Masker(kept=KeptMasking(path, keys.mac_key)).prepare()
        return keys

    ledger._keys_of = keys_of


if __name__ == "__main__":
    # Before the first fork; what is imported here is not imported again by any exchange: first what `up` imports, then
    # what it imports while it starts.
    import trunkline.cli.main
    import trunkline.cli.up
    import trunkline.host.up

    for name in (
        "cryptography.hazmat.backends.openssl.backend",
        "encodings.idna",
        "trunkline.edges.mounts.callback",
        "uvicorn.lifespan.off",
        "uvloop",
    ):
        importlib.import_module(name)
    keep_masking()
    # An exchange collects once it is up, and would look through all of this, and have a copy of it for itself.
    gc.collect()
    gc.freeze()
    sys.argv[1:] = serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv[0] = trunkline.__path__[0] + "/__main__.py"
    # As `python -m trunkline` does it.
    runpy.run_module("trunkline", run_name="__main__", alter_sys=True)
