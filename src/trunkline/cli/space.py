"""``trunkline space``: workspaces for agents, and operations in them (Agent Spaces).

Owns what a person sees of spaces. ``run`` is the protocol's own form on stdio, for programs: operations messages in
a file or on stdin, each on a line or spread over several, an events message on each line of stdout.
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import click

from trunkline.cli.client import ExchangeClient, at, decode, encode, end_with, error_of
from trunkline.cli.completion import spaces_here
from trunkline.cli.options import CommandSettings, json_argument, shared
from trunkline.cli.output_files import refuse_existing, with_force, with_output, write_output
from trunkline.cli.terminal import (
    CommandFailed,
    answers,
    clock,
    confirm,
    file_failure,
    note,
    printable,
    say,
    seconds_of,
    table,
    typed,
)
from trunkline.errors import ExchangeUnreachable

# Below the patience of one request; then it is asked again.
WAIT_S: Final = 30
# What an exchange takes; of more it says so.
MAX_MESSAGE_BYTES: Final = 16_777_216
# Of what an undo takes back, the newest.
SHOWN_RUNS: Final = 5
# A name of a commit that a shell and git take for nothing else.
_REVISION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./~^-]{0,127}")
# What `cp` names when the space is no repository, or one in which nothing was ever added.
_NO_INDEX: Final = ".git/index"


@click.group()
@shared
def space(_: CommandSettings) -> None:
    """Workspaces for agents: files and commands, in a sandbox and under a policy."""


@space.command("new", short_help="Make a space.")
@click.argument("name")
@click.option(
    "--preset",
    default="standard",
    metavar="P",
    help="restrictive (asks before it writes), standard (the default) or permissive.",
)
@click.option("--network", is_flag=True, help="Its commands may use the machine's network, all of it.")
@click.option("--domain", "domains", multiple=True, hidden=True)
@click.option(
    "--at",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Work in this folder of yours, instead of one of its own. Removing the space leaves it as it is.",
)
@shared
def new(
    settings: CommandSettings, name: str, preset: str, network: bool, domains: tuple[str, ...], folder: Path | None
) -> None:
    """Make the space NAME, whose tools are offered as those of the agent space.NAME."""
    asked: dict[str, object] = {"name": name, "preset": preset}
    if folder is not None:
        asked["at"] = str(folder.absolute())
    if network or domains:
        # The exchange says why there are no single domains.
        asked["policy"] = {"network": {"allowed": True, **({"domains": list(domains)} if domains else {})}}
    made: dict[str, Any] = settings.connect().post(at("spaces"), asked)
    if not settings.shown_as_json(made):
        say(f"space {printable(made['name'])} ({printable(made['preset'])}): {printable(made['folder'])}")
        if not made["shell"]:
            note(f"it has no shell: {printable(made.get('note', ''))}")


@space.command("list")
@shared
def list_spaces(settings: CommandSettings) -> None:
    """The spaces and what happens in them."""
    found: list[dict[str, Any]] = settings.connect().get(at("spaces"))["spaces"]
    if settings.shown_as_json({"spaces": found}):
        return
    if not found:
        say(f"No spaces. `{typed('space new NAME')}` makes one.")
        return
    rows = [
        [
            one["name"],
            one["preset"],
            "yes" if one["shell"] else "no",
            "yes" if one["network"] else "no",
            str(one["open_runs"]),
            str(one["awaiting_approval"]),
            one["folder"],
        ]
        for one in found
    ]
    table(["NAME", "PRESET", "SHELL", "NETWORK", "OPEN RUNS", "ASKING", "FOLDER"], rows, below=1, keep=(0,))


@space.command("rm", short_help="Remove a space; a folder of yours stays.")
@click.argument("name", shell_complete=spaces_here)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="End the runs that are not done.")
@shared
def rm(settings: CommandSettings, name: str, yes: bool, force: bool) -> None:
    """Remove the space NAME with all its files. Of a space on a folder of yours (`--at`) the folder stays as it is."""
    exchange = settings.connect()
    # Nobody should have to say yes to what is not there.
    found = exchange.get(at("spaces", name))
    with_what = (
        f"; {printable(found['folder'])} stays as it is" if found.get("on_own_folder") else " with all its files"
    )
    if not yes:
        confirm(f"Remove the space {printable(name)}{with_what}?", f"this removes the space {name}{with_what}")
    answer = decode(exchange.request("DELETE", at("spaces", name, force=1 if force else None)))
    if not settings.shown_as_json(answer):
        say(f"removed {printable(name)}")


@space.command("snapshots", short_help="What can be brought back in a space.")
@click.argument("name", shell_complete=spaces_here)
@shared
def list_snapshots(settings: CommandSettings, name: str) -> None:
    """How the space NAME was before its last runs. `trunkline space undo` brings it back."""
    found: dict[str, Any] = settings.connect().get(at("spaces", name, "snapshots"))
    if settings.shown_as_json(found):
        return
    if found.get("skipped"):
        note(f"the last one was not taken: {printable(found['skipped'])}")
    if not found["snapshots"]:
        say("No snapshots. One is taken before the first change of a run.")
        return
    rows = [
        [str(one["number"]), clock(seconds_of(one["taken_at"])), one["run"], str(one["files"]), str(one["bytes"])]
        for one in found["snapshots"]
    ]
    table(["NUMBER", "TAKEN", "BEFORE", "FILES", "BYTES"], rows, keep=(0, 2))


@space.command("undo", short_help="Bring a space back to where it was before a run.")
@click.argument("name", shell_complete=spaces_here)
@click.argument("run_id", metavar="[RUN]", default="")
@click.option("--redo", is_flag=True, help="Take back the last undo instead.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared
def undo(settings: CommandSettings, name: str, run_id: str, redo: bool, yes: bool) -> None:
    """Bring the files of the space NAME back to before RUN, or to before the last run that changed something.

    RUN may be the number of a snapshot, too. What was done since is undone, by whichever run. Each further undo goes
    back over one run more. The state before is kept: --redo brings it back.
    """
    if run_id and redo:
        raise click.UsageError("a run and --redo are two ways to say where to go: give one")
    exchange = settings.connect()
    path = at("spaces", name, "undo")
    if not yes:
        found: dict[str, Any] = exchange.post(path, {"run": run_id, "redo": redo, "dry_run": True})
        if not settings.as_json and sys.stdin.isatty():
            for line in changes(found, is_done=False):
                note(line)
        confirm(f"Do this in {printable(name)}?", f"this would {_told(found)}", found)
        # What was shown, also if another run has begun and ended since.
        if taken := found.get("snapshot"):
            run_id, redo = str(taken["number"]), False
    done: dict[str, Any] = exchange.post(path, {"run": run_id, "redo": redo})
    if settings.shown_as_json(done):
        return
    for line in changes(done, is_done=True):
        say(line)
    if "not_kept" in done:
        note(f"this cannot be undone: {printable(done['not_kept'])}")
    else:
        note("take this back with: " + typed(f"space undo {printable(name)} {printable(done['undo_with'])}"))


def _told(change: dict[str, Any]) -> str:
    back, other, made = change["brought_back"], change["changed_back"], change["removed"]
    what = f"bring back {back}, change back {other} and remove {made} names"
    if taken := change.get("snapshot"):
        what += f", as it was at {clock(seconds_of(taken['taken_at']))} before {printable(taken['run'])}"
    return what


_DONE: Final = ("undone", "back to", "brought back", "changed back", "removed")
_PLANNED: Final = (
    "would be undone",
    "goes back to",
    "would be brought back",
    "would be changed back",
    "would be removed",
)


def changes(change: dict[str, Any], *, is_done: bool) -> list[str]:
    """What an undo did or would do, with the first names of each kind."""
    undoing, back_to, *kinds = _DONE if is_done else _PLANNED
    lines = []
    if taken := change.get("snapshot"):
        undone = [printable(run) for run in change.get("undone", ())]
        more = f" and {len(undone) - SHOWN_RUNS} more" if len(undone) > SHOWN_RUNS else ""
        lines.append(f"{undoing}: {', '.join(undone[:SHOWN_RUNS])}{more}")
        lines.append(f"{back_to} {clock(seconds_of(taken['taken_at']))}, before {printable(taken['run'])}:")
    for key, text in zip(("brought_back", "changed_back", "removed"), kinds, strict=True):
        names = [printable(one) for one in change[f"first_{key}"]]
        more = f", and {change[key] - len(names)} more" if change[key] > len(names) else ""
        lines.append(f"  {text}: {change[key]}" + (f" ({', '.join(names)}{more})" if names else ""))
    return lines


@space.command("run", short_help="Run operations: messages in a file or on stdin, events on stdout.")
@click.argument("name", shell_complete=spaces_here)
@click.argument("file", metavar="[FILE]", default="-")
@click.option("--no-wait", is_flag=True, help="Do not wait for a person who is asked; exit with 3.")
@shared
def run(settings: CommandSettings, name: str, file: str, no_wait: bool) -> None:
    """Run operations in the space NAME: messages in FILE or on stdin, each on a line or on several; events on stdout.

    Exits with 1 if an operation did not succeed, a command with an exit code other than 0 included.
    """
    exchange = settings.connect()
    worst = -1
    with _opened(file) as lines:
        for message in messages_in(lines):
            worst = max(worst, _run_one(exchange, name, message, wait=not no_wait))
    if worst < 0:
        where = "on stdin" if file == "-" else f"in {file}"
        raise CommandFailed("message.malformed", f"nothing {where}: an operations message is expected")
    sys.exit(worst)


def _opened(file: str) -> AbstractContextManager[Iterable[bytes]]:
    """The lines of a file; ``-`` is stdin, which stays open."""
    if file == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise file_failure(file, error.strerror) from None


def messages_in(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The messages in what is read, each as soon as its last line is there. What is no JSON goes on as it is."""
    message = b""
    for line in lines:
        message += line
        if not message.strip():
            message = b""
        elif not _goes_on(message):
            yield message
            message = b""
    if message.strip():
        yield message


def _goes_on(message: bytes) -> bool:
    """Whether this is the beginning of JSON, and not all of it."""
    # Cheap, for a message of many lines: only where an object may end is it read.
    if message.lstrip().startswith(b"{") and not message.rstrip().endswith(b"}"):
        return len(message) <= MAX_MESSAGE_BYTES
    try:
        decode(message)
    except ValueError as error:
        return "truncated" in str(error) and len(message) <= MAX_MESSAGE_BYTES
    return False


def _no_repository(name: str, folder: str) -> str:
    return (
        f"the space {name} is no repository of git with a commit, so nothing can be compared: "
        f"`git init`, `git add -A` and `git commit` in {folder}, and what changes from then on can be exported"
    )


@space.command("export", short_help="What changed in a space, as a patch of git.")
@click.argument("name", shell_complete=spaces_here)
@click.option("--since", default="HEAD", metavar="REV", help="Changed since this commit; HEAD unless said.")
@with_output
@with_force
@shared
def export(settings: CommandSettings, name: str, since: str, output: Path | None, force: bool) -> None:
    """Print what changed in the space NAME, a repository of git: a patch for `git apply`, new files included.

    git runs in the space's sandbox, and the repository's own index stays as it is.
    """
    if not _REVISION.fullmatch(since):
        raise click.BadParameter("expected a commit, a branch or a tag", param_hint="--since")
    if output is not None:
        refuse_existing(output, force=force)
    exchange = settings.connect()
    # What git writes is beside the repository: an export changes nothing in the space, so an undo passes it over.
    command = (
        "cp .git/index /tmp/index && mkdir -p /tmp/objects && git add -A && "
        f"git diff --cached --binary --no-ext-diff --no-textconv {since} -- > /tmp/patch && base64 -w0 /tmp/patch"
    )
    env = {
        "GIT_INDEX_FILE": "/tmp/index",  # noqa: S108  (the sandbox has its own)
        "GIT_OBJECT_DIRECTORY": "/tmp/objects",  # noqa: S108
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": ".git/objects",
    }
    operation = {"type": "shell", "command": command, "env": env}
    body = encode({"protocolVersion": "1.0", "operations": [operation]})
    answer = exchange.answer("POST", at("spaces", name, "runs", wait=WAIT_S), body)[1]
    event = (events_message(answer)["events"] or [{}])[-1]
    if event.get("type") != "shell" or not event.get("success"):
        why = event.get("stderr") or event.get("message") or event.get("reason") or "it did not end in time"
        if _NO_INDEX in str(why):
            folder = exchange.get(at("spaces", name)).get("folder", "its folder")
            raise CommandFailed("state.conflict", _no_repository(name, folder))
        raise CommandFailed("tool.failed", f"git in the space: {str(why).strip()}")
    if event.get("stdoutTruncated"):
        raise CommandFailed("tool.output_too_large", "the patch is larger than 768 KiB: use git in the folder itself")
    patch = base64.b64decode(event["stdout"])
    if not patch:
        note(f"nothing changed in {printable(name)} since {since}" + ("; no file is written" if output else ""))
        return
    if output is None:
        # As it is: a patch with something else in it does not apply. To a person it is shown harmless.
        if sys.stdout.isatty():
            say(printable(patch.decode(errors="replace"), keep="\n\t"))
        else:
            sys.stdout.buffer.write(patch)
        return
    size = write_output(output, [patch], force=force)
    note(f"{size:,} bytes in {printable(str(output))}; `git apply {printable(output.name)}` applies it")


@space.command("show", short_help="What happened in a run.")
@click.argument("run_id", metavar="RUN")
@click.option("--wait", is_flag=True, help="Follow it to its end, also while it waits for a person.")
@shared
def show(settings: CommandSettings, run_id: str, wait: bool) -> None:
    """What happened in a run, which its events messages name."""
    exchange = settings.connect()
    message = events_message(exchange.answer("GET", at("runs", run_id))[1])
    if wait:
        sys.exit(_follow(exchange, message, wait=True))
    _say(message)


@space.command("cancel", short_help="End a run before it is done.")
@click.argument("run_id", metavar="RUN")
@shared
def cancel(settings: CommandSettings, run_id: str) -> None:
    """End a run, whatever it does or waits for. What it did so far stays."""
    _say(events_message(settings.connect().answer("POST", at("runs", run_id, "cancel"))[1]))


def _run_one(exchange: ExchangeClient, name: str, line: bytes, *, wait: bool) -> int:
    """One operations message, to its end: the exit code."""
    message = events_message(exchange.answer("POST", at("spaces", name, "runs", wait=WAIT_S), line)[1])
    return _follow(exchange, message, wait=wait)


def _follow(exchange: ExchangeClient, message: dict[str, Any], *, wait: bool) -> int:
    """Show a run from this message on, to its end: the exit code."""
    seen, has_failed = 0, False
    while True:
        seen += len(message["events"])
        has_failed |= any(not went_well(event) for event in message["events"])
        paused = message["status"] == "awaiting_approval"
        if message["events"] or not message.get("more"):
            _say(message)
        if message["status"] == "error":
            return 1
        if not paused and not message.get("more"):
            return int(has_failed)
        if paused:
            _tell_of_question(message)
            if not wait:
                return 3
        run_id: str = message["runId"]
        try:
            while True:
                message = events_message(exchange.answer("GET", at("runs", run_id, wait=WAIT_S, after=seen))[1])
                if message["status"] != "awaiting_approval" or message["events"]:
                    break
        except ExchangeUnreachable:
            text = f"the exchange went away; the run goes on: {typed(f'space show {run_id} --wait')}"
            raise CommandFailed("hub.unavailable", text, exit_code=3) from None


def went_well(event: dict[str, Any]) -> bool:
    """Whether an event tells of an operation that succeeded, or of one that only waits for a person so far."""
    return event.get("type") == "approvalRequired" or event.get("success") is True


def events_message(data: bytes) -> dict[str, Any]:
    """An answer in the protocol's form, whatever its status; anything else ends the command."""
    try:
        message = decode(data)
    except ValueError:
        message = None
    if not isinstance(message, dict) or "protocolVersion" not in message:
        end_with(error_of(data))
    return message


def _say(message: dict[str, Any]) -> None:
    say(printable(encode(message).decode()))
    sys.stdout.flush()


def _tell_of_question(message: dict[str, Any]) -> None:
    event = message["events"][-1] if message["events"] else {}
    approval_id = printable(str(event.get("details", {}).get("approvalId", "")))
    note(f"{printable(event.get('reason', ''))}; waiting: {answers(approval_id)}")


@space.command("check", short_help="What would be decided of each operation; nothing is done.")
@click.argument("name", shell_complete=spaces_here)
@click.argument("file")
@shared
def check(settings: CommandSettings, name: str, file: str) -> None:
    """What would be decided of each operation of the message in FILE (- for stdin). Nothing is done or recorded."""
    body = json_argument("-" if file == "-" else f"@{file}", "message")
    status, data = settings.connect().answer("POST", at("spaces", name, "check"), body)
    answer: dict[str, Any] = decode(data)
    if status >= 400:
        if "events" not in answer:
            end_with(error_of(data))
        settings.shown_as_json(answer)
        for event in answer["events"]:
            note(printable(f"{event['category']}: {event['message']}"))
        raise SystemExit(2)
    if settings.shown_as_json(answer):
        return
    rows = [
        [one["operationId"], one["type"], one["decision"], one["policy"], one.get("reason", "")]
        for one in answer["operations"]
    ]
    table(["OPERATION", "TYPE", "DECISION", "RULE", "REASON"], rows, status=2, below=1, keep=(0,))
