"""The command line as a whole: the table of verbs, and the place where a failure becomes a message and an exit code.

A verb's module is imported when the verb is used, and none for the help: ``trunkline call`` spends its time on the
call. A new verb is a module and a row in ``VERBS``.

Owns that table and the exit codes. Does not own what a verb does.

Invariant: nothing is imported for a verb that is not used.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import Any, NamedTuple, NoReturn

import click

from trunkline.cli.client import encode
from trunkline.cli.options import CommandSettings, say_json, shared
from trunkline.cli.terminal import CommandFailed, did_you_mean, heading, near, printable, say, typed
from trunkline.errors import ConfigError, ExchangeUnreachable, LedgerCorrupt, LedgerError, LedgerLocked


class Verb(NamedTuple):
    """A row of the table of verbs: the module, the function in it, and what it does in one line."""

    module: str
    name: str
    text: str


VERBS = {
    "up": Verb("up", "up", "Run the exchange here, in the foreground or in the background."),
    "down": Verb("down", "down", "Stop the exchange, wherever it was started."),
    "service": Verb("service", "service", "A systemd unit that runs it from login on."),
    "console": Verb("console", "console", "Open the console in a browser, or print where it is."),
    "status": Verb("status", "status", "What runs here, since when, and how busy it is."),
    "doctor": Verb("doctor", "doctor", "What is missing here, what is off and why, what is wrong."),
    "agents": Verb("agents", "agents", "The agents, how they are, and why one does not run."),
    "start": Verb("steering", "start", "Start an agent that does not run."),
    "stop": Verb("steering", "stop", "Stop an agent."),
    "restart": Verb("steering", "restart", "Stop an agent and start it again: its code changed."),
    "logs": Verb("logs", "logs", "What an agent printed, and what it prints."),
    "tools": Verb("tools", "tools", "What can be called; with a name, how to call it."),
    "calls": Verb("calls", "calls", "The latest calls and how they ended; the refused ones."),
    "call": Verb("call", "call", "Call a tool and print its output."),
    "blob": Verb("blob", "blob", "An output that was too large to be shown with its call."),
    "watch": Verb("watch", "watch", "Everything that happens, or the events of a topic, as it happens."),
    "publish": Verb("publish", "publish", "Tell all who subscribed to a topic of an event."),
    "topics": Verb("topics", "topics", "Who is told of which topics; end a subscription."),
    "approvals": Verb("approvals", "approvals", "What waits for your answer, and what it is about."),
    "approve": Verb("approvals", "approve", "Answer with yes: the call runs, the permission is given."),
    "deny": Verb("approvals", "deny", "Answer with no."),
    "directive": Verb("directive", "directive", "State an intent, for a tool that needs one."),
    "policy": Verb("policy", "policy", "The rules in force; what they would say to a call."),
    "space": Verb("space", "space", "Workspaces for agents: make, list, remove, run operations."),
    "jobs": Verb("jobs", "jobs", "Typed jobs: what there is, where it runs; submit one."),
    "wallet": Verb("wallet", "wallet", "Accounts of the embedded wallet: make, fund, balance, history."),
    "receipts": Verb("receipts", "receipts", "What was paid for which job: list, show, verify, export."),
    "token": Verb("token", "token", "Credentials for agents and programs: make, list, revoke."),
    "pylon": Verb("pylon", "pylon", "The bridge for pages: how to trust its certificate."),
    "mcp": Verb("mcp", "mcp", "An MCP server on stdin and stdout, for clients that start one."),
    "connect": Verb("connect", "connect", "Let an MCP client that you have use this exchange."),
    "import": Verb("connect", "import_servers", "Mount the MCP servers that a client has."),
    "reload": Verb("reload", "reload", "Read the configuration again, without a stop."),
    "replay": Verb("replay", "replay", "Check a trajectory, compare two, or answer from one."),
    "completion": Verb("completion", "completion", "Let a shell complete verbs and the names of what is there."),
    "check": Verb("check", "check", "Whether somebody's implementation of a protocol is right."),
    "ledger": Verb("ledger", "ledger", "The record of everything: verify, show, export."),
}


# These speak to somebody else, or only print; all others need the exchange, or its files.
ANYWHERE = frozenset({"check", "completion"})


# What is looked for as a verb and is done without one.
_BY_HAND = {
    "restore": "; a copy that `ledger backup` made is put back by copying it into a home: docs/operations.md, Restore"
}
# Words of other programs for parts of verbs.
_CALLED_ELSEWHERE = {
    **dict.fromkeys(("create", "add", "make", "init"), ("new",)),
    **dict.fromkeys(("remove", "delete", "del"), ("rm", "revoke", "end")),
    **dict.fromkeys(("ls", "all"), ("list",)),
    **dict.fromkeys(("stop", "abort", "kill"), ("cancel", "end")),
    "get": ("show",),
}
# Verbs that list when they stand alone.
_LISTS_ALONE = frozenset({"jobs", "policy", "receipts", "topics"})
# What Click takes for an option.
_NEGATIVE = re.compile(r"-[0-9]")
# Below it half of the letters are enough, and "stop" is like "restore".
_VERB_LIKENESS = 0.6
# Options without a value that change only what is shown or waited for. All others grant, start, overwrite or remove
# more than what was typed, and are never suggested: who typed `--all` did not mean `--always`.
SUGGESTED_FLAGS = frozenset(
    {
        "--detach",
        "--dry-run",
        "--follow",
        "--help",
        "--json",
        "--list",
        "--no-browser",
        "--no-wait",
        "--private",
        "--raw",
        "--refused",
        "--version",
        "--wait",
    }
)


class Verbs(click.Group):
    """The group of all commands: those that ``VERBS`` names, loaded on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """In the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load the command of a verb."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        command = getattr(importlib.import_module(f"trunkline.cli.{verb.module}"), verb.name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command line. What it fails with is told while it is still known which home was named."""
        try:
            return super().invoke(ctx)
        except (ExchangeUnreachable, LedgerError, ConfigError) as error:
            raise _failure(error) from None
        except click.NoSuchCommand as error:
            raise click.UsageError(_no_part(error.command_name, error.ctx) or error.message, error.ctx) from None
        except click.NoSuchOption as error:
            if _NEGATIVE.fullmatch(error.option_name):
                raise click.UsageError("a number below zero is not taken here", error.ctx) from None
            raise click.NoSuchOption(
                error.option_name,
                error.message,
                [one for one in error.possibilities or () if _is_safe(one, error.ctx)],
                error.ctx,
            ) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The table, without loading anything."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.text) for name, verb in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A verb, or the nearest one."""
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            ctx.fail(f"no verb {printable(name)!r}" + (_BY_HAND.get(name) or did_you_mean(self._meant(ctx, name))))
        if sys.platform != "linux" and name in VERBS and name not in ANYWHERE:
            raise CommandFailed("platform.unsupported", _needs_linux(name), exit_code=2)
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: click.Context, name: str) -> list[str]:
        """What somebody meant by a verb that is none: one that is part of another, else those most like it."""
        inside = []
        for verb in VERBS:
            command = self.get_command(ctx, verb)
            if isinstance(command, click.Group) and name in command.commands:
                inside.append(f"{verb} {name}")
        return inside or near(name, VERBS, _VERB_LIKENESS)


def _no_part(name: str, context: click.Context | None) -> str:
    """What is said of a part that a verb does not have, with the one that other programs call so, or those like it."""
    group = None if context is None else context.command
    if context is None or not isinstance(group, click.Group):
        return ""
    verb, called = context.info_name or "", _CALLED_ELSEWHERE.get(name, (name,))
    text = f"no verb {printable(name)!r} of {verb}"
    if verb in _LISTS_ALONE and "list" in called:
        return f"{text}; `{typed(verb)}` lists them"
    found = [part for part in called if part in group.commands] or near(name, group.commands, _VERB_LIKENESS)
    return text + did_you_mean([f"{verb} {part}" for part in found])


def _is_safe(option: str, context: click.Context | None) -> bool:
    """Whether an option may be suggested: what one with a value does stands in the value, which was typed."""
    found = [one for one in context.command.params if option in one.opts] if context is not None else []
    known = [one for one in found if isinstance(one, click.Option) and not one.hidden]
    return option in SUGGESTED_FLAGS or any(not one.is_flag for one in known)


def _needs_linux(verb: str) -> str:
    system = {"win32": "Windows", "darwin": "macOS"}.get(sys.platform, sys.platform)
    where = "WSL 2" if sys.platform == "win32" else "a virtual machine or a container with Linux"
    return (
        f"`trunkline {verb}` needs Linux, and this is {system}: run the exchange in {where}. "
        "Agents of yours can run here and reach it over OSSA or Chiffon"
    )


def _version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        import trunkline

        say(f"trunkline {trunkline.__version__}")
        context.exit()


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    options_metavar="[--home DIR] [--json]",
    subcommand_metavar="VERB …",
)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="The version.")
@shared
@click.pass_context
def cli(context: click.Context, _: CommandSettings) -> None:
    """An exchange for agents: they call each other's tools, under one policy, with one record."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        context.color = False
    if context.invoked_subcommand is None:
        say(heading("Trunkline joins agents: they call each other's tools, under one policy, with one record."))
        say()
        first = {"up --demo": "start an exchange with example agents", "tools": "what can be called"}
        first["call TOOL '{…}'"] = "call it"
        for words, text in first.items():
            say(f"  {typed(words):<27}  {text}")
        say()
        say("All verbs: trunkline --help")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command line, that of this process unless another is given, and end with its exit code."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.stderr.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = cli.main(arguments, prog_name="trunkline", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message())
        code = 2
    except (CommandFailed, click.ClickException) as error:
        failure = _failure(error)
        (error if isinstance(error, click.ClickException) else failure).show()
        # Asked of the words themselves: those of a command line that cannot be used were never read.
        if "--json" in (sys.argv[1:] if arguments is None else arguments):
            say_json(encode({"error": failure.error}))
        code = failure.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        # Whoever read us stopped; without this Python complains once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code or 0)


def _failure(error: Exception) -> CommandFailed:
    """Whatever ended a command, as what is told of it."""
    text = str(error)
    match error:
        case CommandFailed():
            return error
        case click.ClickException():
            return CommandFailed("usage.invalid", error.format_message(), exit_code=error.exit_code)
        case ExchangeUnreachable():
            return CommandFailed("exchange.unreachable", text, exit_code=2, line=text)
        case LedgerLocked():
            text += "; `trunkline status` shows it, `trunkline down` stops it"
            return CommandFailed("exchange.already_running", text, exit_code=2, line=f"already running: {text}")
        case LedgerCorrupt():
            return CommandFailed("ledger.corrupt", text)
        case LedgerError():
            return CommandFailed("ledger.unreadable", text)
        case _:
            return CommandFailed("config.invalid", text)
