"""``trunkline call``: one call, its progress, its output.

Owns the exit code (0 succeeded, 1 failed, 2 refused, 3 canceled or unknown) and what Ctrl-C means: first a request to
cancel, then leaving; while a person is asked, about this call or one inside it, leaving at once with the question open.
The output is printed as it came, byte for byte but for invisible characters, which are written as JSON escapes.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, NoReturn

import click
from msgspec import Raw, Struct

from trunkline.cli.client import ExchangeClient, at, decode, encode
from trunkline.cli.completion import tools_here
from trunkline.cli.numbers import Number
from trunkline.cli.options import CommandSettings, json_argument, say_json, shared
from trunkline.cli.terminal import CommandFailed, answers, clock, exit_code_of, note, printable, seconds_of, typed
from trunkline.cli.tools import check_needs_directive, help_with_tool
from trunkline.errors import ExchangeUnreachable

# A person answers in seconds or minutes: the first look comes soon, the later ones cost nothing.
POLL_FIRST_S: Final = 0.2
POLL_MOST_S: Final = 1.0
# A call that takes longer may be held up by a question further inside.
LOOK_EVERY_S: Final = 1.0
# A question outlives a restart of the exchange; how long we look for it to come back.
RESTART_S: Final = 60.0

CANCELED_OR_UNKNOWN: Final = 3


class KnownCall(Struct):
    """What the exchange said of a call so far, as far as we act on it; ``whole`` is all of it, as it came."""

    call_id: str
    status: str
    output: Raw = Raw(b"null")
    error: dict[str, Any] | None = None
    approval_id: str | None = None
    expires_at: str | None = None
    whole: bytes = b""

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen."""
        return self.status in {"succeeded", "failed", "canceled", "unknown"}


def _read_call(data: bytes) -> KnownCall:
    known: KnownCall = decode(data, type=KnownCall)
    known.whole = data
    return known


@click.command()
@click.argument("tool", shell_complete=tools_here)
@click.argument("json_input", metavar="[JSON]", required=False)
@click.option("--timeout", type=Number(min=0.001), metavar="S", help="Seconds the tool may take, instead of its own.")
@click.option(
    "--key", metavar="K", help="A name of yours for this call: a repeat returns its outcome, and never runs it twice."
)
@click.option("--correlation", metavar="ID", help="The conversation it belongs to, a name of yours.")
@click.option("--directive", metavar="ID", help="The stated intent, from `trunkline directive new`.")
@click.option("--follow", is_flag=True, help="Show progress on stderr as it comes.")
@click.option("--no-wait", is_flag=True, help="If a person is asked, also inside it, do not wait: exit with 3.")
@shared
def call(
    settings: CommandSettings,
    tool: str,
    json_input: str | None,
    timeout: float | None,
    key: str | None,
    correlation: str | None,
    directive: str | None,
    follow: bool,
    no_wait: bool,
) -> None:
    """Call TOOL with JSON (`-` for stdin, `@FILE` for a file, nothing for {}) and print its output as JSON.

    Exits with 0 succeeded, 1 failed, 2 refused, 3 canceled or unknown. Ctrl-C asks for cancellation; while a person is
    asked it leaves, and the question stays open.

    \b
    trunkline call com.example.echo/echo '{"text": "hello"}'
    trunkline call com.example.clock/countdown '{"start": 3}' --follow
    """
    said: dict[str, object] = {"tool_id": tool, "input": Raw(json_argument(json_input))}
    if timeout is not None:
        said["timeout_ms"] = max(1, round(timeout * 1000))
    named = {"idempotency_key": key, "correlation_id": correlation, "causation_id": directive}
    said |= {name: value for name, value in named.items() if value is not None}
    exchange = settings.connect()
    if directive is not None:
        check_needs_directive(exchange, tool, "call it without --directive")
    help_with_tool(exchange, tool)
    run_and_tell(settings, exchange, encode(said), ProgressPrinter() if follow else None, no_wait=no_wait)


def run_and_tell(
    settings: CommandSettings,
    exchange: ExchangeClient,
    body: bytes,
    printer: ProgressPrinter | None,
    *,
    no_wait: bool,
    has_failed: Callable[[bytes], bool] = lambda _: False,
) -> NoReturn:
    """Make a call, wait for a person if one is asked, print what came of it and end with its exit code.

    ``has_failed`` says whether an output tells of work that went wrong, though the call itself went well: exit 1.
    """
    known = _run(exchange, body, printer, no_wait=no_wait)
    if not known.is_final:
        if no_wait and settings.as_json:
            say_json(known.whole)
        known = _wait_for_person(exchange, known, printer, no_wait=no_wait)
    _tell(settings, known, has_failed)


def _tell(settings: CommandSettings, known: KnownCall, has_failed: Callable[[bytes], bool]) -> NoReturn:
    """The output on stdout or the fault on stderr, and the exit code."""
    if settings.as_json:
        say_json(known.whole)
    if known.status == "succeeded":
        if not settings.as_json:
            say_json(bytes(known.output))
            _tell_of_large_output(bytes(known.output))
        raise SystemExit(int(has_failed(bytes(known.output))))
    error = known.error or {"code": f"call.{known.status}", "message": "no reason was given"}
    # No CommandFailed: for a program all of it has just been said.
    note(printable(f"{error['code']}: {error['message']}"))
    kept = (error.get("details") or {}).get("$file")
    if error["code"] == "tool.output_too_large" and isinstance(kept, str):
        note(f"all of it: {printable(kept)}")
    agent_id = str(decode(known.whole).get("tool_id", "")).partition("/")[0]
    if error["code"] == "tool.failed" and agent_id and (settings.home.logs_folder / agent_id).is_dir():
        note(f"what it printed: {typed(f'logs {printable(agent_id)}')}")
    raise SystemExit(exit_code_of(error["code"]) if known.status == "failed" else CANCELED_OR_UNKNOWN)


def _tell_of_large_output(output: bytes) -> None:
    """If a reference stands for the output: how to get all of it."""
    if not output.startswith(b'{"$ref":"sha256:'):
        return
    shown = decode(output)
    if shown.keys() == {"$ref", "bytes", "head"}:
        note(f"{shown['bytes']:,} bytes; all of it: `trunkline blob {printable(str(shown['$ref']))}`")


class ProgressPrinter:
    """Prints progress on stderr as it comes. What a tool prints need not end with its line."""

    def __init__(self) -> None:
        self._inside_line = False

    def progress(self, data: bytes) -> None:
        """One piece, as an event of the stream or a line of the live feed."""
        said = decode(data)
        channel, piece = said.get("channel", "stdout"), said.get("data")
        text = piece.get("text") if isinstance(piece, dict) else None
        if channel in {"stdout", "stderr"} and isinstance(text, str):
            click.echo(printable(text, keep="\n\t"), err=True, nl=False)
            self._inside_line = not text.endswith("\n") if text else self._inside_line
            return
        if self._inside_line:
            note("")
            self._inside_line = False
        percent = piece.get("percent") if isinstance(piece, dict) else None
        words = text if isinstance(text, str) else encode(piece).decode()
        if isinstance(percent, int | float) and f"{percent:g} %" != words:
            words = f"{percent:g} % {words}"
        note(click.style(printable(words, keep="\t"), dim=True if channel != "status" else None))


def _run(exchange: ExchangeClient, body: bytes, printer: ProgressPrinter | None, *, no_wait: bool) -> KnownCall:
    """Make the call; its outcome, or the question it raised."""
    known: KnownCall | None = None
    inside = QuestionInside(leave_at_once=no_wait)
    with (
        _cancel_on_interrupt(exchange, lambda: known, inside),
        _questions_inside_told(exchange, lambda: known, inside),
    ):
        try:
            for name, data in exchange.events("POST", at("calls"), body):
                if name == "progress" and printer is not None:
                    printer.progress(data)
                elif name in {"accepted", "waiting_approval", "outcome"}:
                    known = _read_call(data)
        except ExchangeUnreachable:
            if known is None:
                raise
        except KeyboardInterrupt:
            stays = f"{inside.approval_id} stays open, and " if inside.approval_id else ""
            note(f"left; {stays}the call goes on" + (f": {_story(known)}" if known else ""))
            raise SystemExit(CANCELED_OR_UNKNOWN) from None
    if known is None or not (known.is_final or known.approval_id):
        # The stream ended early. The call, if it was taken on, is on record and goes on without us.
        # Its record can be read while no exchange runs; `trunkline calls` lists calls without their output.
        where = f"`{_story(known)}` shows" if known else f"after `{typed('up')}`, `{typed('calls')}` shows"
        text = f"the exchange went away while the call ran; {where} how it ended"
        raise CommandFailed("hub.unavailable", text, exit_code=CANCELED_OR_UNKNOWN)
    return known


def _story(known: KnownCall) -> str:
    """The command that shows what became of a call, its output included."""
    return typed(f"ledger show --call {printable(known.call_id)}")


class QuestionInside:
    """The question that a call inside this one waits for now, if any."""

    def __init__(self, *, leave_at_once: bool = False) -> None:
        self.approval_id: str | None = None
        self._leave_at_once = leave_at_once

    def found(self, approval_id: str) -> None:
        """It waits for this one; whoever does not want to wait leaves, as with Ctrl-C."""
        self.approval_id = approval_id
        if self._leave_at_once:
            # To the thread that listens: only there does it end a read.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@contextlib.contextmanager
def _cancel_on_interrupt(
    exchange: ExchangeClient, known: Callable[[], KnownCall | None], inside: QuestionInside
) -> Iterator[None]:
    """The first Ctrl-C asks the exchange to cancel and goes on listening; the second one leaves. While a call inside
    waits for a person, the first one leaves.

    A signal handler, because an exception inside a read would lose the rest of what was read.
    """

    def on_interrupt(_: int, __: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        current = known()
        if current is None or inside.approval_id is not None:
            raise KeyboardInterrupt
        note("canceling; Ctrl-C again to leave")
        # If it cannot be canceled any more, its outcome is on the way.
        with contextlib.suppress(ExchangeUnreachable):
            other = ExchangeClient(exchange.home)
            other.refused = lambda _: None
            other.post(at("calls", current.call_id, "cancel"), {"reason": "Ctrl-C"})

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _questions_inside_told(
    exchange: ExchangeClient, known: Callable[[], KnownCall | None], inside: QuestionInside
) -> Iterator[None]:
    """Name the questions that calls inside this one wait for: who waits here would see nothing of them.

    A thread, because the call's own stream is silent meanwhile.
    """
    over = threading.Event()
    # Of the command line that this thread belongs to; a hint repeats its --home.
    context = click.get_current_context()

    def look() -> None:
        with context.scope(cleanup=False):
            look_on()

    def look_on() -> None:
        told = set()
        while not over.wait(LOOK_EVERY_S):
            current = known()
            if current is None:
                continue
            told.add(current.approval_id)
            with contextlib.suppress(ExchangeUnreachable, CommandFailed):
                other = ExchangeClient(exchange.home)
                looked_at = _look(other, current.call_id)
                approval_id = looked_at.approval_id
                if approval_id is None or approval_id == current.approval_id:
                    inside.approval_id = None
                elif approval_id in told:
                    pass
                elif looked_at.status == "waiting_approval":
                    told.add(approval_id)
                    note(f"asked again as {printable(approval_id)}: {answers(approval_id)}")
                else:
                    told.add(approval_id)
                    question = other.get(at("approvals", approval_id))
                    what = printable(f"{approval_id} of {question.get('tool_id', '')}")
                    note(f"waiting for approval {what}, called inside: {answers(approval_id)}")
                    inside.found(approval_id)

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _wait_for_person(
    exchange: ExchangeClient, asked: KnownCall, printer: ProgressPrinter | None, *, no_wait: bool
) -> KnownCall:
    """The outcome, after a person's answer.

    Nothing is held meanwhile, and a restart of the exchange changes nothing.
    """
    until = f" (until {clock(seconds_of(asked.expires_at))})" if asked.expires_at else ""
    try:
        note(f"waiting for approval {asked.approval_id}{until}: {answers(str(asked.approval_id))}")
        if no_wait:
            note(_left(asked))
            raise SystemExit(CANCELED_OR_UNKNOWN)
        with _questions_inside_told(exchange, lambda: asked, QuestionInside()):
            return _polled(exchange, asked.call_id, printer)
    except KeyboardInterrupt:
        note(_left(asked))
        raise SystemExit(CANCELED_OR_UNKNOWN) from None


def _left(asked: KnownCall) -> str:
    """For somebody who does not wait for the answer: which call it is, and where its outcome will be."""
    return f"left; {asked.approval_id} stays open. When it was answered, {_story(asked)} has what came of it"


def _polled(exchange: ExchangeClient, call_id: str, printer: ProgressPrinter | None) -> KnownCall:
    pause, lost_at = POLL_FIRST_S, 0.0
    while True:
        try:
            if printer is not None:
                _follow(exchange, call_id, printer)
            now = _look(exchange, call_id)
            if now.is_final:
                return now
            lost_at = 0.0
        except ExchangeUnreachable:
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > RESTART_S:
                text = f"the exchange went away; the question will be open again after `{typed('up')}`"
                raise CommandFailed("hub.unavailable", text, exit_code=CANCELED_OR_UNKNOWN) from None
            with contextlib.suppress(ExchangeUnreachable):
                exchange = ExchangeClient(exchange.home)
        time.sleep(pause)
        pause = min(POLL_MOST_S, pause * 1.5)


def _look(exchange: ExchangeClient, call_id: str) -> KnownCall:
    return _read_call(exchange.request("GET", at("calls", call_id)))


def _follow(exchange: ExchangeClient, call_id: str, printer: ProgressPrinter) -> None:
    """Show the progress of a call whose own stream has ended, from the live feed, until the call has ended too."""
    for name, data in exchange.events("GET", at("watch")):
        if name == "watching" and _look(exchange, call_id).is_final:
            return
        if name == "entry":
            entry = decode(data)
            if entry.get("call_id") == call_id and entry.get("kind") == "progress":
                printer.progress(data)
            elif entry.get("call_id") == call_id and entry.get("kind") == "call.settled":
                return
