"""The verbs, and what happens when one of them cannot do its work.

Owns the table of verbs. A verb's module is imported when the verb is used, and none for the help: ``trunkline call``
spends its time on the call.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import NamedTuple, NoReturn

import click

from trunkline.cli.options import Settings, shared
from trunkline.cli.terminal import did_you_mean, heading, near, note, printable, say
from trunkline.errors import ConfigError, ExchangeUnreachable, LedgerCorrupt, LedgerError, LedgerLocked


class Verb(NamedTuple):
    """Where a verb lives and what it does, in one line."""

    module: str
    name: str
    text: str


VERBS = {
    "up": Verb("up", "up", "Run the exchange in the foreground."),
    "status": Verb("status", "status", "What runs here, since when, and how busy it is."),
    "agents": Verb("agents", "agents", "The agents and how they are."),
    "tools": Verb("tools", "tools", "What can be called; with a name, how."),
    "calls": Verb("calls", "calls", "The latest calls and how they ended."),
    "call": Verb("call", "call", "Call a tool and print its output."),
    "watch": Verb("watch", "watch", "What happens, as it happens."),
    "approvals": Verb("approvals", "approvals", "The open questions."),
    "approve": Verb("approvals", "approve", "Answer a question with yes."),
    "deny": Verb("approvals", "deny", "Answer a question with no."),
    "directive": Verb("directive", "directive", "State an intent for a tool that needs one."),
    "policy": Verb("policy", "policy", "The rules in force; what they would say."),
    "space": Verb("space", "space", "Workspaces for agents: make, list, run operations in them."),
    "token": Verb("token", "token", "Credentials: make, list, revoke."),
    "reload": Verb("reload", "reload", "Read the configuration again."),
    "ledger": Verb("ledger", "ledger", "The record: verify, show, export."),
}


class Verbs(click.Group):
    """A group whose members are named in ``VERBS`` and loaded on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """In the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load one."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        command = getattr(importlib.import_module(f"trunkline.cli.{verb.module}"), verb.name)
        assert isinstance(command, click.Command)
        return command

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
            ctx.fail(f"no verb {printable(name)!r}{did_you_mean(near(name, VERBS))}")
        return super().resolve_command(ctx, args)


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
def cli(context: click.Context, _: Settings) -> None:
    """An exchange for agents: they call each other's tools, under one policy, with one record."""
    if os.environ.get("NO_COLOR"):
        context.color = False
    if context.invoked_subcommand is None:
        say(heading("Trunkline joins agents: they call each other's tools, under one policy, with one record."))
        say()
        say("  trunkline up --demo          start an exchange with example agents")
        say("  trunkline tools              what can be called")
        say("  trunkline call TOOL '{…}'    call it")
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
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except ExchangeUnreachable as error:
        note(printable(str(error)))
        code = 2
    except LedgerLocked as error:
        note(printable(f"already running: {error}"))
        code = 2
    except LedgerError as error:
        note(printable(f"ledger.{'corrupt' if isinstance(error, LedgerCorrupt) else 'unreadable'}: {error}"))
        code = 1
    except ConfigError as error:
        note(printable(f"config.invalid: {error}"))
        code = 2
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        # Whoever read us stopped; without this Python complains once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code or 0)
