"""A launched agent against the exchange that launched it: what it can reach in each kind of isolation.

The exchange is a real one, with a second agent to attack. It runs as whoever runs the tests, and if that is root also
as an ordinary user.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.attack.sandbox.conftest import MISSING
from tests.running import Running, wait_until
from trunkline.host import processes
from trunkline.host.isolation import probe

PYTHON = "/usr/bin/python3"
ATTACKER = Path(__file__).with_name("attacker.py")
ATTACKS = 54
ORDINARY = 54_321
# As root: nobody may enter root's own folder, and the interpreter may be in there. In a namespace of its own it is
# opened, with nothing in it but that; then root is given up.
BECOME_ORDINARY = """
set -e
prefix=$1; shift
path=$PATH; PATH=/usr/sbin:/usr/bin:/sbin:/bin
case $prefix in /root/*)
    mount -t tmpfs -o mode=755 none /mnt; mkdir /mnt/kept; mount --bind "$prefix" /mnt/kept
    mount -t tmpfs -o mode=755 none /root; mkdir -p "$prefix"; mount --move /mnt/kept "$prefix"; umount /mnt
esac
exec env PATH="$path" /usr/bin/setpriv --reuid 54321 --regid 54321 --clear-groups --pdeathsig KILL "$@"
"""
VICTIM = """
import os, pathlib, time
pathlib.Path(os.environ["HOME"], "secret").write_text("x")
time.sleep(600)
"""

# What each isolation must stop, besides everything that all of them must: the sandbox's view is more than a user's.
# Landlock does not know of sockets with a file.
NOT_BY_LANDLOCK = {"a socket with a file"}
NOT_BY_USER = {
    "read a file of the user",  # open to everybody on the machine
    "a socket without a file",
    "a socket with a file",
    "session keyring",  # its own: the kernel's are by user
    "add a key",
    "user namespace",
    "mount namespace",
    "by /proc/self/root",
}


def skip_without(kind: str) -> None:
    if not Path(PYTHON).exists():
        pytest.skip(f"the attacker is run by {PYTHON}, which is not there")
    if kind in {"bubblewrap", "landlock"} and (found := probe((kind,))).kind is None:  # type: ignore[arg-type]
        # Only a machine that has none may skip. One that was tried and has a hole is a failure.
        assert any(reason in found.why_not for reason in MISSING), found.why_not
        pytest.skip(found.why_not)
    if kind == "user" and os.getuid() != 0:
        pytest.skip("only root can give an agent a user of its own")


class Siege:
    """An exchange with a victim; attackers come later."""

    def __init__(self, exchange: Running, folder: Path, kind: str) -> None:
        self.exchange = exchange
        self.folder = folder
        self.kind = kind
        self.config = exchange.config_file.read_text()

    def agent(self, agent_id: str, script: Path, *words: str) -> str:
        isolation = self.kind if self.kind in {"user", "none"} else "sandbox"
        command = json.dumps([PYTHON, "-I", str(script), *words])
        return f'\n[[agent]]\nid = "{agent_id}"\ncommand = {command}\ncwd = "/"\nisolation = "{isolation}"\n'

    def add(self, lines: str) -> None:
        self.config += lines
        self.exchange.config_file.write_text(self.config)
        assert self.exchange.request("POST", "/v1/reload")[0] == 200

    def own_folder(self, agent_id: str) -> Path:
        return self.exchange.home / "agents" / agent_id if self.kind != "none" else self.folder / "nobody"

    def pid_of(self, script: Path) -> int:
        """The process that runs a script, not those that keep its sandbox."""

        def found() -> int | None:
            for pid in processes.table():
                try:
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if words[0] == PYTHON.encode() and os.fsencode(script) in words:
                    return pid
            return None

        return int(wait_until(found, f"{script} running"))

    def results(self) -> dict[str, str | None]:
        """What came of each attack."""
        victim = self.folder / "victim" / "agent.py"
        self.add(self.agent("victim", victim))
        secret = self.own_folder("victim") / "secret"
        wait_until(secret.exists, "the victim's secret")
        assert self.exchange.process is not None
        below = processes.children(processes.table()).get(self.exchange.process.pid, [])
        lines = {p.pid: Path(f"/proc/{p.pid}/cmdline").read_bytes() for p in below}
        targets = {
            "home": str(self.exchange.home),
            "outside": str(self.folder / "outside"),
            "exchange": self.exchange.process.pid,
            "keeper": next(pid for pid, line in lines.items() if b"host.keeper" in line),
            "writer": next(pid for pid, line in lines.items() if b"ledger.writer" in line),
            "victim": self.pid_of(victim),
            "socket": str(self.folder / "socket"),
            "abstract": f"trunkline-attack-{os.getpid()}",
        }
        code = self.folder / "attacker"
        (code / "targets.json").write_text(json.dumps(targets))
        with socket.socket(socket.AF_UNIX) as unnamed, socket.socket(socket.AF_UNIX) as named:
            for listener, address in ((unnamed, f"\0{targets['abstract']}"), (named, str(targets["socket"]))):
                listener.bind(address)
                listener.listen()
            (self.folder / "socket").chmod(0o666)
            self.add(self.agent("attacker", code / "attacker.py", str(code / "targets.json")))
            found = self.own_folder("attacker") / "result.json"
            wait_until(found.exists, f"the attacker's report; {self.printed()}")
        result: dict[str, str | None] = json.loads(found.read_text())
        assert len(result) == ATTACKS
        assert found.with_name("welcome").read_text() == "core.welcome", "it is an agent like others"
        return result

    def printed(self) -> str:
        return "".join(path.read_text() for path in (self.exchange.home / "logs" / "attacker").glob("*.log"))


@contextmanager
def siege(folder: Path, kind: str, *, ordinary: bool) -> Iterator[Siege]:
    skip_without(kind)
    folder.chmod(0o755)
    home = folder / "home"
    home.mkdir(mode=0o700)
    for name in ("victim", "attacker", "nobody"):
        (folder / name).mkdir()
    (folder / "victim" / "agent.py").write_text(VICTIM)
    shutil.copy(ATTACKER, folder / "attacker")
    (folder / "outside").write_text("a file of the user's")
    env = {"HOME": str(folder / "nobody")}
    under: tuple[str, ...] = ()
    if kind == "landlock":
        env["PATH"] = str(folder / "nothing")  # so that bubblewrap is not found
    if ordinary:
        if os.getuid() != 0:
            pytest.skip("the tests run as an ordinary user already")
        for path in (home, *folder.iterdir(), *(folder / "attacker").iterdir(), folder / "victim" / "agent.py"):
            os.chown(path, ORDINARY, ORDINARY)
        under = ("/usr/bin/unshare", "-m", "/bin/sh", "-c", BECOME_ORDINARY, "sh", sys.base_prefix)
    exchange = Running(home, env=env, under=under)
    if ordinary:
        os.chown(exchange.config_file, ORDINARY, ORDINARY)
    try:
        yield Siege(exchange.start(), folder, kind)
    finally:
        if exchange.process is not None and exchange.process.poll() is None:
            exchange.stop()


@pytest.mark.parametrize("ordinary", [False, True], ids=["as-we-are", "ordinary-user"])
@pytest.mark.parametrize("kind", ["bubblewrap", "landlock"])
def test_no_attack_of_an_agent_gets_out_of_its_sandbox(short_path: Path, kind: str, ordinary: bool) -> None:
    with siege(short_path, kind, ordinary=ordinary) as besieged:
        results = besieged.results()
        got = {name for name, error in results.items() if error is None}
        assert got == (NOT_BY_LANDLOCK if kind == "landlock" else set())
        agents = {agent["agent_id"]: agent for agent in besieged.exchange.request("GET", "/v1/agents")[1]["agents"]}
        assert agents["attacker"]["isolation"] == f"sandbox ({kind})"


def test_an_agent_with_a_user_of_its_own_reaches_nothing_of_the_exchange_or_of_another(short_path: Path) -> None:
    with siege(short_path, "user", ordinary=False) as besieged:
        results = besieged.results()
        assert {name for name, error in results.items() if error is None} <= NOT_BY_USER
        owners = [besieged.own_folder(name).stat().st_uid for name in ("victim", "attacker")]
        assert len({0, *owners}) == 3


def test_without_isolation_an_agent_reaches_everything_of_its_user(short_path: Path) -> None:
    """What the other tests are worth: the same attacks, and nothing stops them but that the exchange is not traced."""
    with siege(short_path, "none", ordinary=os.getuid() == 0) as besieged:
        results = besieged.results()
        got = {name for name, error in results.items() if error is None}
        assert got >= {"read operator.token", "read keys", "read ledger.sqlite", "by a symbolic link"}
        assert got >= {"trace the victim", "environment of the victim", "write to its own code"}
        assert got >= {"signal the exchange", "a socket without a file", "user namespace"}
        ours = ("exchange", "keeper", "writer")
        looks = ("environment of", "memory of", "descriptor of", "trace")
        assert not got & {f"{look} the {who}" for look in looks for who in ours}
