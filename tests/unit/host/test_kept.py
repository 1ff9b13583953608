"""Programs that the supervisor keeps for an edge, below a real keeper; and secrets that are looked up at launch."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.descriptors import open_descriptors
from trunkline.config import AgentProgram
from trunkline.edges.opensentience.launching import AgentLauncher
from trunkline.edges.piped import KeptRun, NoPrograms
from trunkline.events import AgentExited, AgentLaunched, Event, Noticed
from trunkline.host.supervisor import Supervisor

pytestmark = pytest.mark.slow

WAIT_S = 20.0
SECRET = "correct-horse-battery"


async def eventually(condition: Callable[[], object]) -> None:
    """Look again and again, not for ever: nothing calls back for this."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Owner:
    """An edge's side."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.said = b""
        self.run: KeptRun | None = None
        self._changed = asyncio.Event()

    def began(self, run: KeptRun) -> None:
        self.run = run
        self.story.append("began")
        self._changed.set()

    def received(self, data: bytes) -> None:
        self.said += data
        self._changed.set()

    def ended(self, reason: str) -> None:
        self.story.append(f"ended: {reason}")
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class Keeping:
    """A supervisor, what it told the hub, and which secrets."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.events: list[Event] = []
        self.secrets: list[tuple[str, str]] = []
        self.supervisor = Supervisor(home, AgentLauncher(str(home / "s"), home))

    async def start(self) -> None:
        await self.supervisor.start(self.events.extend, [], lambda *secret: self.secrets.append(secret))

    def keep(self, script: str, **terms: Any) -> Owner:
        owner = Owner()
        table = {"isolation": "none", "stop_grace_s": 0.5, "restart": "always", **terms}
        program = AgentProgram(id="mcp.x", command=("sh", "-c", script), cwd=str(self.home), **table)
        self.supervisor.keep(program, owner, edge="mcp", table="[[mcp]]")
        return owner

    def log(self) -> str:
        return "".join(file.read_text() for file in (self.home / "logs" / "mcp.x").glob("*.log"))


@pytest.fixture
async def keeping(tmp_path: Path) -> AsyncIterator[Keeping]:
    found = Keeping(tmp_path)
    before = open_descriptors()
    yield found
    await found.supervisor.stop_all()
    assert open_descriptors() <= before + 1, "a descriptor was left open"


async def test_what_is_kept_before_the_start_runs_after_it_and_the_hub_knows_first(keeping: Keeping) -> None:
    owner = keeping.keep("echo hello; cat")
    assert owner.story == []
    await keeping.start()
    await owner.until(lambda: owner.said == b"hello\n")
    assert owner.run is not None
    [launched] = keeping.events
    assert isinstance(launched, AgentLaunched)
    assert (launched.run_id, launched.token_sha256) == (owner.run.run_id, owner.run.token_sha256)
    assert owner.run.write(b"back\n")
    await owner.until(lambda: owner.said == b"hello\nback\n")
    [view] = keeping.supervisor.views()
    assert (view.agent_id, view.edge, view.state, view.pid) == ("mcp.x", "mcp", "running", owner.run.identity.pid)


async def test_one_that_ends_is_started_again_and_its_last_words_are_heard_before_its_end(keeping: Keeping) -> None:
    await keeping.start()
    owner = keeping.keep("echo last; exit 3")
    await owner.until(lambda: owner.story.count("ended: exit code 3") + owner.story.count("ended: ") >= 2)
    assert owner.said.startswith(b"last\nlast\n")
    assert owner.story[:3] == ["began", owner.story[1], "began"]
    kinds = [type(event) for event in keeping.events[:3]]
    assert kinds == [AgentLaunched, AgentExited, AgentLaunched]


async def test_it_is_given_no_token_and_no_socket(keeping: Keeping) -> None:
    await keeping.start()
    owner = keeping.keep("env; cat")
    await owner.until(lambda: b"OPENSENTIENCE_RUN_ID" in owner.said and b"PATH=" in owner.said)
    assert b"OPENSENTIENCE_SESSION_TOKEN" not in owner.said
    assert b"OPENSENTIENCE_SOCKET" not in owner.said


async def test_its_path_is_that_of_whoever_started_the_exchange(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    await keeping.start()
    owner = keeping.keep("env; cat")
    await owner.until(lambda: b"\nPATH=/usr/bin:/bin\n" in b"\n" + owner.said)


async def test_one_that_hangs_is_ended_and_started_again(keeping: Keeping) -> None:
    await keeping.start()
    owner = keeping.keep("cat")
    await owner.until(lambda: owner.story == ["began"])
    assert owner.run is not None
    owner.run.hung("it does not answer")
    await owner.until(lambda: owner.story == ["began", "ended: it does not answer", "began"])
    assert any(isinstance(event, Noticed) and event.code == "agent.hung" for event in keeping.events)


async def test_it_is_stopped_started_restarted_and_let_go_of_and_a_reload_of_agents_leaves_it(keeping: Keeping) -> None:
    await keeping.start()
    owner = keeping.keep("cat")
    await owner.until(lambda: owner.story == ["began"])
    assert keeping.supervisor.reload([]) == {"started": [], "restarted": [], "stopped": []}
    assert keeping.supervisor.steer("mcp.x", "stop")
    await owner.until(lambda: len(owner.story) == 2)
    assert keeping.supervisor.steer("mcp.x", "start")
    await owner.until(lambda: len(owner.story) == 3)
    assert keeping.supervisor.steer("mcp.x", "restart")
    await owner.until(lambda: len(owner.story) == 5)
    keeping.supervisor.release("mcp.x")
    await owner.until(lambda: len(owner.story) == 6)
    assert [line.split(":")[0] for line in owner.story] == ["began", "ended"] * 3
    assert keeping.supervisor.views() == []


async def test_one_that_cannot_start_is_said_to_when_it_is_kept_and_by_each_reload_until_it_can(
    keeping: Keeping, tmp_path: Path
) -> None:
    await keeping.start()
    script = tmp_path / "server.sh"
    program = AgentProgram(id="mcp.x", command=("sh", str(script)), cwd=str(tmp_path), isolation="none")
    problem = f"its script {script} does not exist"
    owner = Owner()
    assert keeping.supervisor.keep(program, owner, edge="mcp", table="[[mcp]]") == problem
    assert keeping.supervisor.reload([])["cannot_start"] == [f"mcp.x: {problem}"]
    script.write_text("echo here; cat")
    await owner.until(lambda: owner.said == b"here\n")
    assert "cannot_start" not in keeping.supervisor.reload([])


async def test_another_form_of_it_takes_its_place_and_each_owner_hears_of_his_own(keeping: Keeping) -> None:
    await keeping.start()
    first = keeping.keep("cat")
    await first.until(lambda: first.story == ["began"])
    keeping.supervisor.release("mcp.x")
    second = keeping.keep("echo second; cat")
    await second.until(lambda: second.said == b"second\n")
    assert len(first.story) == 2
    assert second.story == ["began"]


async def test_a_secret_is_looked_up_for_its_environment_known_to_the_masker_and_not_in_its_log(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", SECRET)
    await keeping.start()
    owner = keeping.keep('echo "$TOKEN"; echo "it is $TOKEN" >&2; cat', env={"TOKEN": "env:A_SECRET"})
    await owner.until(lambda: owner.said == f"{SECRET}\n".encode())
    assert keeping.secrets == [("TOKEN", SECRET)]
    await eventually(lambda: "it is" in keeping.log())
    assert keeping.log() == "it is [masked]\n"


async def test_a_missing_secret_is_told_once_and_nothing_runs(
    keeping: Keeping, caplog: pytest.LogCaptureFixture
) -> None:
    await keeping.start()
    owner = keeping.keep("cat", env={"TOKEN": "env:NOBODY_SET_THIS"})
    [view] = keeping.supervisor.views()
    assert view.state == "crashed"
    assert "a secret is missing: TOKEN: the variable NOBODY_SET_THIS is not set" in view.note
    assert len(caplog.records) == 1
    assert owner.story == []
    assert not keeping.supervisor._looking


async def test_a_keyring_is_waited_for_without_holding_up_anybody_and_a_stop_meanwhile_counts(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    unlocked = threading.Event()
    ring = ModuleType("keyring")

    def get_password(*_: str) -> str:
        assert unlocked.wait(WAIT_S)
        return SECRET

    monkeypatch.setattr(ring, "get_password", get_password, raising=False)
    monkeypatch.setattr(ring, "errors", ModuleType("errors"), raising=False)
    monkeypatch.setitem(sys.modules, "keyring", ring)
    await keeping.start()
    owner = keeping.keep('echo "$TOKEN"; cat', env={"TOKEN": "keyring:x"})
    assert keeping.supervisor.views()[0].state == "starting"
    keeping.supervisor.steer("mcp.x", "stop")
    unlocked.set()
    await eventually(lambda: keeping.supervisor.views()[0].state == "stopped")
    assert owner.story == []
    keeping.supervisor.steer("mcp.x", "start")
    await owner.until(lambda: owner.said == f"{SECRET}\n".encode())


async def test_an_exchange_without_processes_keeps_nothing() -> None:
    programs, owner = NoPrograms(), Owner()
    assert programs.keep(AgentProgram(id="x", command=("x",)), owner, edge="e", table="t") == ""
    programs.release("x")
    assert (owner.run, owner.story, owner.said) == (None, [], b"")
