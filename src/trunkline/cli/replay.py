"""``trunkline replay``: check a trajectory made by anybody, compare two, write a bundle as lines, or answer from one.

Owns what a person is shown and the options. What a trajectory is, and where two part, is ``trunkline.trajectory``. Only
``--serve`` needs a running exchange.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trunkline.cli.client import at
from trunkline.cli.file_kinds import expect, kind_of
from trunkline.cli.options import CommandSettings, shared
from trunkline.cli.terminal import CommandFailed, file_failure, heading, note, printable, say, table

if TYPE_CHECKING:
    from trunkline.trajectory.check import Checked
    from trunkline.trajectory.diff import Difference

# What is shown of a value: with its indent it stays within 80 columns.
_VALUE_CHARS = 70
_TOKENS = "opensentience"
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class _FileOrVerb(click.Group):
    """``replay FILE`` besides ``replay diff A B``: what is no verb is a file to check."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of this name, or the one that checks a file."""
        return super().get_command(ctx, cmd_name) or self.commands["check"]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A verb, or the file."""
        return super().resolve_command(ctx, args if args[0] in self.commands else ["check", *args])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The options of ``check`` may stand before its file."""
        if args and args[0] == "--serve":
            args = ["check", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_FileOrVerb, subcommand_metavar="FILE [--serve] | diff A B | export BUNDLE")
@shared
def replay(_: CommandSettings) -> None:
    """Check a trajectory (REPLAY.jsonl v1), made here or by anybody else: its order, its values, its hashes.

    With --serve its calls can be made again: stand-in agents answer them from the recording. `diff` says where two runs
    part, `export` writes a ReplayBundle as REPLAY.jsonl. `trunkline ledger export --format replay` makes a trajectory.
    """


@replay.command("check", hidden=True)
@click.argument("file", type=_FILE)
@click.option("--serve", is_flag=True, help="Attach stand-in agents that answer the recorded calls.")
@shared
def check_file(settings: CommandSettings, file: Path, serve: bool) -> None:
    """Check FILE; exit 1 names the first line that is wrong."""
    expect("trajectory", file)
    found = _checked(file)
    if serve:
        _serve(settings, file)
        return
    if settings.shown_as_json({"status": "whole", **{name: getattr(found, name) for name in found.__struct_fields__}}):
        return
    calls = f"{found.tool_calls:,} {'call' if found.tool_calls == 1 else 'calls'}"
    say(f"whole: {found.lines:,} lines, {calls}, {found.status} with confidence {found.confidence:g}")
    say(f"session {printable(found.session_id)}, by {printable(found.producer)}")
    say(f"policy {printable(found.policy_bundle_id) or 'not named'}")
    say(_proved(found))
    say(f"trajectory {found.trajectory_hash}")


def _proved(found: Checked) -> str:
    text = f"{found.hashes:,} hashes computed"
    if found.unproved:
        text += f"; {found.unproved:,} not, since the file does not hold what they are of"
    if found.unknown_events:
        text += f"; {found.unknown_events:,} events of somebody's own left unread"
    return text


def _checked(file: Path, place: str = "") -> Checked:
    from trunkline.trajectory.check import NotATrajectory, check

    try:
        with _lines(file) as lines:
            return check(lines)
    except NotATrajectory as wrong:
        details = {"line": wrong.line, "file": str(file)}
        if kind_of(file) != "trajectory":
            text = f"{file} is no trajectory: line {wrong.line}: {wrong.fault}"
            raise CommandFailed("trajectory.invalid", text, exit_code=1, details=details) from None
        text = f"{place}line {wrong.line}: {wrong.fault}"
        raise CommandFailed("trajectory.invalid", text, exit_code=1, line=text, details=details) from None


@contextmanager
def _lines(file: Path) -> Iterator[Iterator[bytes]]:
    from trunkline.trajectory.check import lines_of

    try:
        with file.open("rb") as opened:
            yield lines_of(opened)
    except OSError as error:
        raise file_failure(file, error.strerror) from None


# --- two runs ---------------------------------------------------------------------------------------------------------


@replay.command("diff", short_help="Where two runs part.")
@click.argument("a", type=_FILE)
@click.argument("b", type=_FILE)
@shared
def diff(settings: CommandSettings, a: Path, b: Path) -> None:
    """Say where two runs part: the first call, its input, its output or its outcome that differs; exit 1 if they do."""
    from trunkline.trajectory.diff import difference, run_of

    for file in (a, b):
        expect("trajectory", file)
        _checked(file, f"{file}: ")
    with _lines(a) as first, _lines(b) as second:
        found = difference(run_of(first), run_of(second))
    if found is None:
        if not settings.shown_as_json({"same": True}):
            say("the same calls, with the same inputs, outputs and outcomes")
        return
    place, one, other = _change(found, a, b)
    shown = {
        "same": False, "what": found.what, "call": found.call, "at": place,
        "a": {"file": str(a), "line": found.a.line, "tool": found.a.tool or None, "value": one},
        "b": {"file": str(b), "line": found.b.line, "tool": found.b.tool or None, "value": other},
    }  # fmt: skip
    if not settings.shown_as_json(shown):
        _show_difference(found, place, (a, found.a.line, one), (b, found.b.line, other))
    raise click.exceptions.Exit(1)


def _change(found: Difference, a: Path, b: Path) -> tuple[str | None, Any, Any]:
    """The place inside a value at which two runs differ, and what each has there."""
    from trunkline.trajectory.diff import first_change

    match found.what:
        case "params" | "output":
            name = found.what
            return first_change(_value(a, found.a.line, name), _value(b, found.b.line, name))
        case "call":
            return None, found.a.tool or None, found.b.tool or None
        case _:
            return None, found.a.shown, found.b.shown


def _value(file: Path, number: int, name: str) -> Any:
    """A member of one line, as it stands there; None if it has none."""
    import itertools

    import msgspec

    with _lines(file) as lines:
        line = next(itertools.islice(lines, number - 1, None))
    return msgspec.json.decode(line, type=dict[str, msgspec.Raw]).get(name)


_WORDS = {
    "call": "another call is made",
    "params": "its input differs",
    "output": "its output differs",
    "outcome": "it ends otherwise",
    "end": "all calls are the same, and the session ends otherwise",
}


def _show_difference(found: Difference, place: str | None, *sides: tuple[Path, int, Any]) -> None:
    tool = found.a.tool or found.b.tool
    if found.what in {"call", "end"}:
        text = f"call {found.call}: {_WORDS[found.what]}" if found.call else _WORDS[found.what]
    else:
        text = f"call {found.call}, {_cut(tool, 40)}: {_WORDS[found.what]}"
    say(heading(text))
    if place is not None:
        say(f"  at {_cut(place, _VALUE_CHARS)}")
    for mark, (file, number, value) in zip("-+", sides, strict=True):
        name = printable(str(file))
        say(f"{mark} {name if len(name) <= 60 else f'…{name[-59:]}'}, line {number}")
        say(f"    {_cut('no call' if found.what == 'call' and value is None else _text(value), _VALUE_CHARS)}")


def _text(value: Any) -> str:
    import msgspec

    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _cut(text: str, most: int) -> str:
    shown = printable(text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


# --- a bundle ---------------------------------------------------------------------------------------------------------


@replay.command("export", short_help="Write a ReplayBundle as REPLAY.jsonl.")
@click.argument("bundle", type=_FILE)
@shared
def export(_: CommandSettings, bundle: Path) -> None:
    """Write BUNDLE, which `trunkline ledger export --format bundle` made, as REPLAY.jsonl on stdout."""
    import msgspec

    from trunkline.trajectory.bundle import decode_bundle
    from trunkline.trajectory.bundle import export as lines_of_bundle

    expect("bundle", bundle)
    try:
        lines = [line + b"\n" for line in lines_of_bundle(decode_bundle(bundle.read_bytes()))]
    except (msgspec.DecodeError, KeyError, ValueError) as error:
        raise CommandFailed("trajectory.invalid", f"not a ReplayBundle: {error}", exit_code=1) from None
    for line in lines:
        text = printable(line.decode(), keep="\n").encode() if sys.stdout.isatty() else line
        sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


# --- answering --------------------------------------------------------------------------------------------------------


def _serve(settings: CommandSettings, file: Path) -> None:
    """Attach stand-ins to the running exchange, and answer until Ctrl-C; their tokens are taken back at the end."""
    import asyncio
    import signal

    from trunkline.sdk.recorded import serve, stand_in
    from trunkline.trajectory.standin import Recording

    exchange = settings.connect()
    with _lines(file) as lines:
        recording = Recording.of(lines)
    if recording.left_out:
        note(f"{recording.left_out:,} calls cannot be answered: the file does not hold their outputs")
    if not recording.tools:
        raise CommandFailed("trajectory.invalid", "no call in this file has an output to answer with", exit_code=1)
    offered = _offered(exchange, recording.tools)
    tokens: list[str] = []
    agents = {}
    try:
        for agent_id, tools in offered.items():
            made = exchange.post(at("tokens"), {"edge": _TOKENS, "agent": agent_id})
            tokens.append(made["id"])
            agents[stand_in(agent_id, recording, tools)] = made["token"]

        def attached() -> None:
            rows = [
                [definition.tool_id, recorded, str(recording.tools[recorded])]
                for tools in offered.values()
                for recorded, definition in tools.items()
            ]
            table(["TOOL", "RECORDED AS", "INPUTS"], rows, keep=(0,))
            note("answering; Ctrl-C ends it")
            sys.stdout.flush()

        async def answer() -> None:
            serving = asyncio.ensure_future(serve(agents, exchange.ready["socket"], exchange.home.path, attached))
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
            await asyncio.wait({serving})
            if not serving.cancelled():
                serving.result()

        asyncio.run(answer())
    finally:
        for token_id in tokens:
            exchange.answer("DELETE", at("tokens", token_id))


def _offered(exchange: Any, recorded: dict[str, int]) -> dict[str, dict[str, Any]]:
    """By the id of a stand-in, the tools that it offers: under the recorded ids where nobody else has them.

    A tool that is known and whose agent is away is offered with its own definition, so that nobody is asked about
    another one. What an agent offers that is there, and what is the exchange's own, is offered as ``replay.<id>``.
    """
    from trunkline.model import AGENT_ID, TOOL_NAME, reserved_prefix
    from trunkline.sdk.recorded import definition_of

    known = {tool["tool_id"]: tool for tool in _all_tools(exchange)}
    here = {agent["agent_id"] for agent in exchange.get(at("agents"))["agents"]}
    here -= {tool.partition("/")[0] for tool, one in known.items() if one["status"] == "unavailable"}
    offered: dict[str, dict[str, Any]] = {}
    for tool, answers in recorded.items():
        agent_id, _, name = tool.rpartition("/")
        agent_id = agent_id or "recording"
        if not AGENT_ID.fullmatch(agent_id[:120]) or not TOOL_NAME.fullmatch(name):
            note(f"{printable(tool)} is left out: it has no name that a tool can have here")
            continue
        if agent_id in here or reserved_prefix(agent_id):
            agent_id = f"replay.{agent_id}"[:128]
        tool_id = f"{agent_id}/{name}"
        known_one = known.get(tool_id)
        definition = definition_of(tool_id, tool, answers) if known_one is None else _definition(known_one)
        offered.setdefault(agent_id, {})[tool] = definition
    return offered


def _all_tools(exchange: Any) -> Iterator[dict[str, Any]]:
    after: str | None = ""
    while after is not None:
        page = exchange.get(at("tools", after=after or None))
        yield from page["tools"]
        after = page["next"]


def _definition(known: dict[str, Any]) -> Any:
    import msgspec

    from trunkline.model import ToolDefinition

    return msgspec.json.decode(msgspec.json.encode(known), type=ToolDefinition)
