"""``trunkline up``: bring an exchange up, keep it up, take it down.

Owns the order of things: ledger, fold, hub, listeners, agents, ``ready.json``; and the reverse when it stops. Does not
own any of these parts, nor what comes before them (``begin``: home, configuration, log, the ledger's writer).

Invariant: ``ready.json`` exists only while every listener is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import json
import logging
import os
import secrets
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trunkline
from trunkline import events
from trunkline.config import Config
from trunkline.edges.edge import Edge, new_bearer
from trunkline.edges.known import EDGES, UNBUILT
from trunkline.errors import ConfigError, LedgerCorrupt, LedgerError
from trunkline.home import Home
from trunkline.host import processes
from trunkline.host.anchoring import Anchoring
from trunkline.host.asked import AskedPeople
from trunkline.host.assembly import Plan, assemble
from trunkline.host.begin import load_config
from trunkline.host.config_changes import changes
from trunkline.host.edges import Edges, refuse_fixed
from trunkline.host.housekeeping import Housekeeping, storage_figures
from trunkline.host.logs import is_kept, notice, set_up
from trunkline.host.run_files import last_lines
from trunkline.host.runner import Runner
from trunkline.host.supervised import AgentSpec
from trunkline.host.supervisor import Supervisor
from trunkline.host.verifying import Verifying
from trunkline.hub import views
from trunkline.hub.hub import Hub
from trunkline.ledger.kept_masking import KeptMasking
from trunkline.ledger.ledger import BegunWriter, Ledger
from trunkline.ledger.masking import Masker
from trunkline.ledger.search_process import SearchProcess
from trunkline.ledger.verify import verify
from trunkline.model import ProcessIdentity, Status, uuid_4
from trunkline.rule_remarks import never_reached

if TYPE_CHECKING:
    from trunkline.host.spans import Exporter

log = logging.getLogger("trunkline")

# P-A10: how long a clean stop waits for calls that run.
DRAIN_S: Final = 10.0
# A commit takes a thousandth of that; a disk that needs longer keeps nobody.
LAST_WORDS_S: Final = 1.0
EXIT_FAILED: Final = 70
# New objects at which the youngest are looked through, and how often the older ones are with them.
GC_THRESHOLDS: Final = (20_000, 20, 100)
# Ours have 47. What is shorter than this is a file that was cut off, or a word that can be guessed.
MIN_TOKEN_CHARS: Final = 16


class Exchange:
    """One running exchange: the parts, joined."""

    def __init__(
        self,
        home: Home,
        config_path: Path | None,
        config: Config,
        *,
        demo: bool,
        edges: Sequence[Edge] = EDGES,
        begun: BegunWriter | None = None,
    ) -> None:
        self._home = home
        self._config_path = config_path
        self._config = config
        self._demo = demo
        # The ledger's writer, if it is on its way already.
        self._begun = begun
        self._instance = secrets.token_hex(8)
        self._exporter: Exporter | None = None
        self._stop = asyncio.Event()
        self._exit_code = 0
        self._edges = Edges(edges, UNBUILT)
        self._search = SearchProcess(home.ledger_file, home.index_file)
        self._supervisor = Supervisor(home.path, self._edges.launcher(config, home.path))
        self._ledger: Ledger
        self._signed_at_start = 0
        # The last entry of the runs before.
        self._last_at_start = 0
        # Found by a walk through the record.
        self._damage: LedgerCorrupt | None = None
        self._runner: Runner
        self._know_secret: Callable[[str, str], None]
        self._house: Housekeeping
        self._anchoring = Anchoring(home.ledger_file, home.keys_folder, config.ledger.anchor)
        self._verifying = Verifying(
            home.ledger_file,
            home.keys_folder,
            on_damage=self._record_was_changed,
            on_defect=lambda error: self._runner.failed(0, error),
        )

    async def serve(self) -> int:
        """Start everything, wait for the end, stop everything."""
        loop = asyncio.get_running_loop()
        try:
            self._open(loop)
        except LedgerCorrupt as damage:
            if not damage.number:
                # SQLite says what is damaged; which entry that is shows when all are read.
                verify(self._home.ledger_file)
            raise
        self._watch_signals(loop)
        loop.set_exception_handler(self._on_defect)
        spans = self._trace()
        housekeeping = loop.create_task(self._house.keep())
        housekeeping.add_done_callback(self._house_is_left)
        if self._ledger.reader.snapshot() is not None:
            # The start proved what it folded; what is older is walked beside the work.
            self._verifying.walk()
        elif self._last_at_start:
            self._verifying.start_proved(self._last_at_start)
        try:
            await self._edges.start()
            await self._search.start()
            specs = [AgentSpec.of(agent) for agent in self._config.agents]
            await self._supervisor.start(self._runner.feed, specs, self._know_secret)
            self._write_ready()
            self._warn()
            _spare_the_collector()
            await self._stop.wait()
        finally:
            self._home.ready_file.unlink(missing_ok=True)
            housekeeping.cancel()
            await self._verifying.stop()
            await self._take_down()
            if spans is not None:
                await asyncio.to_thread(spans.stop)
        if self._damage is not None and self._exit_code == 0:
            raise self._damage
        return self._exit_code

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        """The ledger, the hub folded from it, the runner between them, and the edges around it."""
        operator_token = _operator_token(self._home)
        known = [("operator_token", operator_token)]
        ledger = Ledger.open(
            self._home.ledger_file,
            self._home.keys_folder,
            loop=loop,
            on_durable=self._on_durable,
            on_failure=self._on_failure,
            secrets=known,
            begun=self._begun,
        )
        self._signed_at_start = self._anchoring.signed
        self._last_at_start = ledger.last
        self._asked = AskedPeople(notice, lambda: self._config.approvals.notify, self._edges.question_page)
        plan = Plan(
            settings=self._config.hub_settings(),
            config=self._config,
            home=self._home.path,
            version=trunkline.__version__,
            instance=self._instance,
            process=_own_identity(),
            operator_sha256=hashlib.sha256(operator_token.encode()).hexdigest(),
            launch_edge=self._edges.launch_edge,
            operator_edge=self._edges.operator_edge,
            call_prefix=_call_prefix(),
            new_id=_new_id,
            masked=known,
            kept_masking=KeptMasking(self._home.ledger_file, ledger.mac_key),
            reload=self._reload_now,
            steer=self._supervisor.steer,
            start_piped=self._supervisor.piped.start,
            programs=self._supervisor,
            warnings=self._warnings,
            awaited=self._agent_ids,
            anchoring=self._anchoring,
            verifying=self._verifying,
            searcher=self._search,
            storage=lambda: storage_figures(self._home),
            config_file=(self._config_path or self._home.config_file).absolute(),
            agent_log=lambda agent_id, count: last_lines(self._home.logs_folder, agent_id, count),
        )

        def make_runner(hub: Hub, masker: Masker) -> Runner:
            self._runner = Runner(
                hub, ledger, masker, self._supervisor, loop, instance=self._instance, fatal=self._fatal
            )
            return self._runner

        self._ledger = ledger
        try:
            parts = assemble(ledger, self._edges, self._supervisor, plan, make_runner)
        except (LedgerError, ConfigError):
            ledger.close()
            raise
        self._know_secret = parts.surroundings.know_secret
        self._house = Housekeeping(
            self._home.path,
            ledger,
            self._runner,
            self._supervisor,
            self._anchoring,
            self._verifying,
            self._asked,
            lambda: self._config,
        )
        self._runner.mind_the_clock(self._runner.now())

    def _trace(self) -> Exporter | None:
        """Tell of calls as spans, where that is wanted; what it takes is imported then."""
        settings = self._config.otel
        if not settings.endpoint:
            return None
        from trunkline.host.spans import Exporter, Spans

        exporter = self._exporter = Exporter(settings.endpoint, settings.service)
        self._runner.watch(Spans(exporter.put).watch)
        return exporter

    # -- while it runs -------------------------------------------------------------------------------------------------

    def _watch_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number, why in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")):
            loop.add_signal_handler(number, self._told_to_stop, why)
        loop.add_signal_handler(signal.SIGHUP, self._reload_or_stop, os.isatty(sys.stderr.fileno()))

    def _reload_or_stop(self, was_on_terminal: bool) -> None:
        """SIGHUP: somebody wants the file read again, or our terminal was closed and nobody would see us run on."""
        if was_on_terminal and not os.isatty(sys.stderr.fileno()):
            self._told_to_stop("the terminal was closed")
        else:
            self._reload_on_signal()

    def _told_to_stop(self, why: str) -> None:
        if self._stop.is_set():
            return
        self._stop.set()
        running = self._running_calls()
        waits = f"; waiting up to {DRAIN_S:g} s for {_calls(running)} to end" if running else ""
        notice(f"stopping: {why}{waits}")

    def _on_durable(self, number: int) -> None:
        self._runner.on_durable(number)

    def _on_failure(self, error: LedgerError) -> None:
        self._runner.on_failure(error)

    def _fatal(self, _why: str) -> None:
        self._exit_code = EXIT_FAILED
        self._stop.set()

    def _reload_on_signal(self) -> None:
        try:
            self._reload_now()
        except ConfigError as error:
            log.warning("the configuration was not changed: %s", error)

    def _reload_now(self) -> dict[str, list[str]]:
        """Read the file again, and say what changed. A file that cannot be used changes nothing."""
        config = load_config(self._home, self._config_path, demo=self._demo)
        place = str(self._config_path or "")
        own = {
            "[otel]": config.otel != self._config.otel,
            "[ledger] anchor": config.ledger.anchor != self._config.ledger.anchor,
        }
        refuse_fixed([*self._edges.fixed_changes(config), *(name for name, differs in own.items() if differs)], place)
        of_edges = self._edges.reload(config, place)
        before, self._config = self._config, config
        set_up(config.log, self._home.to_name)
        held = views.held_back(self._runner.hub)
        self._runner.feed([events.SettingsChanged(self._config.hub_settings())])
        done = self._supervisor.reload([AgentSpec.of(agent) for agent in config.agents])
        done["released"] = sorted(held - views.held_back(self._runner.hub))
        done["changed"] = [*changes(before, config), *of_edges]
        self._edges.configured(done)
        for problem in done.get("cannot_start", ()):
            log.warning("cannot start %s", problem)
        log.info("configuration read again: %d agents, %d rules", len(config.agents), len(config.policy().rules))
        self._warn()
        return done

    def _agent_ids(self) -> list[str]:
        return self._config.agent_ids()

    def _warn(self) -> None:
        """Say what of the configuration has no effect here."""
        unreached = never_reached(self._config.policy().rules)
        for warning in (*self._edges.warnings(), *self._supervisor.warnings(), *unreached):
            log.warning("%s", warning)

    def _warnings(self) -> list[str]:
        """What `status` and `doctor` are to name besides what edges say."""
        told = [*self._supervisor.warnings(), *self._asked.warnings()]
        return told if self._exporter is None else [*told, *self._exporter.warnings()]

    def _on_defect(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What nobody caught: on record with its place, without its text (that may hold a payload)."""
        error = context.get("exception")
        if error is None:
            log.error("%s", context["message"])
        else:
            self._runner.failed(0, error)

    def _house_is_left(self, housekeeping: asyncio.Task[None]) -> None:
        """Nobody would watch the room on the disk any more."""
        if not housekeeping.cancelled() and (error := housekeeping.exception()) is not None:
            log.critical("housekeeping ended by %s: %s; stopping", type(error).__name__, error)
            self._fatal("housekeeping ended")

    def _record_was_changed(self, damage: LedgerCorrupt) -> None:
        self._damage = damage
        self._stop.set()

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _take_down(self) -> None:
        """No new calls; what runs may finish; everybody hears of it; the last entry; the ledger closed."""
        runner = self._runner
        if self._exit_code == 0:
            runner.feed([events.DrainStarted()])
            await self._wait_idle(DRAIN_S)
        is_stalled = self._exit_code == 0 and self._house.is_stalled
        if is_stalled:
            self._exit_code = EXIT_FAILED
            log.critical("the disk does not answer; stopping without it. The next start recovers from the ledger.")
            runner.answer_overdue()
        await self._edges.stop()
        # Calls whose agents have just left have ended too, and who asked for them is still there to hear it.
        await self._wait_idle(LAST_WORDS_S)
        await self._edges.stop_last()
        await self._search.stop()
        await self._supervisor.stop_all()
        if self._exit_code == 0:
            self._house.take_snapshot()
            runner.feed([events.ExchangeStopped()])
        try:
            self._ledger.close(is_stalled=is_stalled)
        except LedgerError as error:
            if self._exit_code == 0:
                log.critical("the ledger failed at the end: %s. The next start recovers from it.", error)
            self._exit_code = EXIT_FAILED
        if self._exit_code == 0:
            self._anchoring.finish()
        if self._exit_code == 0 and self._stop.is_set():
            left = len(runner.hub.state.calls)
            notice("stopped" + (f"; {_calls(left)} will go on at the next start" if left else ""))

    async def _wait_idle(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        # Nothing in the hub calls back when a call ends.
        while (  # noqa: ASYNC110
            self._exit_code == 0 and self._is_busy() and not self._house.is_stalled and time.monotonic() < deadline
        ):
            await asyncio.sleep(0.02)

    def _is_busy(self) -> bool:
        """Whether a call runs, or the one who asked for it has not been told of its end."""
        return bool(self._running_calls()) or self._runner.is_waiting_for_disk

    def _running_calls(self) -> int:
        return sum(call.status is Status.RUNNING for call in self._runner.hub.state.calls.values())

    def _write_ready(self) -> None:
        """Say where everything is, to programs (``ready.json``) and to the person who looks on."""
        places = self._edges.ready()
        ready = {
            "pid": os.getpid(),
            # Tells a reused pid apart, so that nobody sends the operator's token to a stranger on our old port.
            "start_time": _own_identity().start_time,
            **places,
            "operator_token_file": str(self._home.operator_token_file),
            "config_file": str((self._config_path or self._home.config_file).absolute()),
        }
        path = self._home.ready_file
        part = path.with_suffix(".part")
        _write(part, json.dumps(ready))
        notice(f"trunkline {trunkline.__version__} is up in {self._home.path}")
        for name, place in places.items():
            if place is not None:
                notice(f"  {name:<7} {place}")
        for line in self._edges.greetings(places, is_kept=is_kept(self._home)):
            notice(line)
        self._say_ready()
        # At last: whoever waits for it in the background then shows all of these lines.
        part.replace(path)

    def _say_ready(self) -> None:
        signed = self._signed_at_start
        how_far = f"signed up to {signed:,}, and nothing signed is missing" if signed else "not signed yet"
        notice(f"  record  {self._ledger.durable:,} entries, {how_far}")
        notice(f"  agents  {', '.join(agent.id for agent in self._config.agents) or 'none to launch'}")
        own, home = _own_command(), self._home.to_name
        home_option = f" --home {shlex.quote(home)}" if home else ""
        if self._demo:
            command = own + home_option
            notice("")
            notice("Open the console's address in a browser, or try it in another terminal:")
            notice(f"  {command} tools")
            notice(f"""  {command} call com.example.echo/echo '{{"text": "hello"}}'""")
            notice(f"  {command} call com.example.clock/countdown '{{}}' --follow")
            notice("")
        is_watched = os.isatty(sys.stderr.fileno())
        notice("Stop with Ctrl-C." if is_watched else f"Stop with: {own} down{home_option}")


def _own_command() -> str:
    """What to type before a verb: the way we were started, if that can be typed."""
    name = sys.argv[0]
    if Path(name).name == "__main__.py":
        beside = Path(sys.executable).with_name("trunkline")
        if not beside.exists():
            return f"{shlex.quote(sys.executable)} -m trunkline"
        return "trunkline" if shutil.which("trunkline") == str(beside) else shlex.quote(str(beside))
    # Whole: the other terminal may be in another folder.
    path = Path(name).absolute()
    return "trunkline" if shutil.which("trunkline") == str(path) else shlex.quote(str(path))


def _spare_the_collector() -> None:
    """What is there now stays: the collector need not look through it again and again.

    With one request after the other a full collection stopped everybody for 16 ms each 1,300 calls.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _calls(number: int) -> str:
    return f"{number:,} {'call' if number == 1 else 'calls'}"


def _own_identity() -> ProcessIdentity:
    process = processes.read(os.getpid())
    return ProcessIdentity(os.getpid(), 0 if process is None else process.start_time)


def _operator_token(home: Home) -> str:
    """The operator's bearer token, made on the first start: whole or not at all, and once, whoever else starts now."""
    path = home.operator_token_file
    if not path.exists():
        started = path.with_name(f".{path.name}.{os.getpid()}")
        _write(started, f"{new_bearer()}\n")
        with contextlib.suppress(FileExistsError):
            os.link(started, path)
        started.unlink()
    token = path.read_text().strip()
    if len(token) < MIN_TOKEN_CHARS:
        raise ConfigError("is damaged: remove it, and the next start makes another one", str(path))
    return token


def _write(path: Path, text: str) -> None:
    """Make a file that only its owner can read, or say why that cannot be done."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise ConfigError(f"cannot be written: {error.strerror}", str(path)) from None


def _call_prefix() -> str:
    """The first 24 characters of every call id of this run: a UUID of version 8; twelve digits follow."""
    return f"{secrets.token_hex(4)}-{secrets.token_hex(2)}-8{secrets.token_hex(2)[1:]}-a{secrets.token_hex(2)[1:]}-"


def _new_id() -> str:
    return uuid_4(secrets.token_bytes(16))
