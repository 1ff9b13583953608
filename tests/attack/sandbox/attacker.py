"""An agent that tries everything an agent must not be able to do, and writes down what came of it. Plain Python.

It says hello first, as an agent that works would. Its one argument names a file with what it is to attack. For each
attack it writes None into ``result.json`` in its own folder if that got somewhere, or the error that stopped it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
MACHINE = os.uname().machine
CALLS = {
    "x86_64": {"ptrace": 101, "process_vm_readv": 310, "add_key": 248, "keyctl": 250, "pidfd_getfd": 438, "bpf": 321},
    "aarch64": {"ptrace": 117, "process_vm_readv": 270, "add_key": 217, "keyctl": 219, "pidfd_getfd": 438, "bpf": 280},
}[MACHINE]
PTRACE_SEIZE, KEYCTL_GET_KEYRING_ID, SESSION_KEYRING = 0x4206, 0, -3
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000

given: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
home = Path(given["home"])
own = Path(os.environ["HOME"])
results: dict[str, str | None] = {}


def attack(name: str, tried: Callable[[], object]) -> None:
    try:
        tried()
    except OSError as error:
        results[name] = type(error).__name__
    else:
        results[name] = None


def call(number: str, *arguments: Any) -> int:
    result = int(libc.syscall(CALLS[number], *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), number)
    return result


def check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "call")


def read(path: Path) -> None:
    if path.is_dir():
        names = list(path.iterdir())
        if not names:
            raise FileNotFoundError(path)
        read(names[0])
    else:
        path.read_bytes()


def by_link(link: Callable[[str, str], None]) -> None:
    name = own / "link"
    name.unlink(missing_ok=True)
    link(str(home / "operator.token"), str(name))
    read(name)


def environment(pid: int) -> None:
    if not Path(f"/proc/{pid}/environ").read_bytes():
        raise FileNotFoundError(pid)


def memory(pid: int) -> None:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0):
        return


def seize(pid: int) -> None:
    call("ptrace", PTRACE_SEIZE, pid, 0, 0)
    libc.syscall(CALLS["ptrace"], 17, pid, 0, 0)


class Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def read_memory(pid: int) -> None:
    # An address that is not there is EFAULT, and that says that the rest of the way was open.
    here = ctypes.create_string_buffer(8)
    ours, theirs = Vector(ctypes.addressof(here), 8), Vector(4096, 8)
    try:
        call("process_vm_readv", pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    except OSError as error:
        if error.errno != 14:
            raise


def take_descriptor(pid: int) -> None:
    call("pidfd_getfd", os.pidfd_open(pid), 0, 0)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


def replace(path: Path) -> None:
    path.rename(path.with_suffix(".old"))


def unnamed_socket() -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("\0" + given["abstract"])


def named_socket() -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(given["socket"])


def rights() -> None:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    if {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} - {0}:
        return
    raise PermissionError


def in_child(tried: Callable[[], None]) -> None:
    """In a process of its own: what works there would change this one."""
    pid = os.fork()
    if pid == 0:
        try:
            tried()
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1] != 0:
        raise PermissionError


def hello() -> str:
    """What the exchange answers to this agent's hello: it does its work while it attacks."""
    payload = {
        "session_token": os.environ["OPENSENTIENCE_SESSION_TOKEN"],
        "agent_id": os.environ["OPENSENTIENCE_AGENT_ID"],
        "agent_version": "1.0.0",
        "protocol": {"supported_versions": [1], "capabilities": ["tools"]},
    }
    ts = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    data = json.dumps({"v": 1, "type": "agent.hello", "id": "1", "ts": ts, "payload": payload}).encode()
    connection.connect(os.environ["OPENSENTIENCE_SOCKET"])
    connection.sendall(len(data).to_bytes(4, "big") + data)
    size = int.from_bytes(connection.recv(4), "big")
    return str(json.loads(connection.recv(size, socket.MSG_WAITALL))["type"])


connection = socket.socket(socket.AF_UNIX)
(own / "welcome").write_text(hello())
for secret in ("operator.token", "ledger.sqlite", "keys", "ready.json", "trunkline.toml", "logs"):
    attack(f"read {secret}", lambda secret=secret: read(home / secret))
attack("read another agent's folder", lambda: read(home / "agents" / "victim" / "secret"))
attack("read a file of the user", lambda: read(Path(given["outside"])))
attack("by a symbolic link", lambda: by_link(os.symlink))
attack("by a hard link", lambda: by_link(os.link))
token = f"{home}/operator.token"
for way in ("/proc/1/root", "/proc/self/root", "/proc/self/cwd/../../../../../.."):
    attack(f"by {way}", lambda way=way: read(Path(way + token)))
attack("by the exchange's root", lambda: read(Path(f"/proc/{given['exchange']}/root{token}")))
attack("by the exchange's folder", lambda: read(Path(f"/proc/{given['exchange']}/cwd/trunkline.toml")))
for who in ("exchange", "keeper", "writer", "victim"):
    pid = given[who]
    attack(f"environment of the {who}", lambda pid=pid: environment(pid))
    attack(f"memory of the {who}", lambda pid=pid: memory(pid))
    attack(f"memory of the {who} by a call", lambda pid=pid: read_memory(pid))
    attack(f"trace the {who}", lambda pid=pid: seize(pid))
    attack(f"signal the {who}", lambda pid=pid: os.kill(pid, signal.SIGCONT))
    attack(f"descriptor of the {who}", lambda pid=pid: take_descriptor(pid))
attack("any of root's rights", rights)
attack("write to its own code", lambda: append(Path(__file__)))
attack("replace its own code", lambda: replace(Path(__file__)))
attack("write beside its code", lambda: append(Path(__file__).with_name("sitecustomize.py")))
attack("write to the system", lambda: append(Path("/usr/lib/trunkline-was-here")))
attack("write kernel settings", lambda: append(Path("/proc/sys/kernel/core_pattern")))
attack("write into the exchange's home", lambda: append(home / "trunkline.toml"))
attack("a socket without a file", unnamed_socket)
attack("a socket with a file", named_socket)
attack("session keyring", lambda: call("keyctl", KEYCTL_GET_KEYRING_ID, SESSION_KEYRING, 0))
attack("add a key", lambda: call("add_key", b"user", b"trunkline", b"x", 1, SESSION_KEYRING))
attack("user namespace", lambda: in_child(lambda: check(libc.unshare(CLONE_NEWUSER))))
attack("mount namespace", lambda: in_child(lambda: check(libc.unshare(CLONE_NEWNS))))
attack("mount", lambda: in_child(lambda: check(libc.mount(b"none", os.fsencode(own), b"tmpfs", 0, None))))
attack("leave by chroot", lambda: in_child(lambda: os.chroot(own)))

(own / "result.part").write_text(json.dumps(results))
(own / "result.part").rename(own / "result.json")
time.sleep(600)
