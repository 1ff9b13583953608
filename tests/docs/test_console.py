"""docs/console.md: its commands are run, and what it says of events and bounds is what the code has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.running import running
from tests.unit.cli.conftest import trunkline
from trunkline.edges.console import live, messages, signing_in
from trunkline.edges.console.feed import MAX_RECENT
from trunkline.edges.console.files import headers

PAGE = (Path(__file__).parents[2] / "docs" / "console.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page_work(short_path: Path) -> None:
    block = PAGE.partition("```\n")[2].partition("```")[0]
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert len(commands) == 2
    with running(short_path / "home"):
        for command in commands:
            said = trunkline("--home", str(short_path / "home"), *command[1:])
            assert said.code == 0, said.err
            assert "?code=" in said.out


def test_each_channel_and_event_is_described() -> None:
    named = set(re.findall(r"`([a-z-]+\.?[a-z]*)`", PAGE))
    events = {messages.FOLLOW, messages.BATCH, messages.BEHIND, messages.CHANGED, messages.FIGURES_TOLD}
    assert named >= {*messages.CHANNELS.names, *events}


def test_the_policy_and_the_bounds_are_those_of_the_code() -> None:
    assert f"`{headers('HOST')['content-security-policy']}`" in PAGE
    bounds = (
        f"{live.MAX_PAGES} pages",
        f"{signing_in.MAX_SIGN_INS} sign-ins",
        f"{signing_in.MAX_CODES} codes",
        f"{live.MAX_WAITING_BYTES // 2**20} MiB",
        f"{MAX_RECENT:,} entries",
        f"{signing_in.CODE_S / 60:g} minutes",
        f"{signing_in.SIGN_IN_S // 86_400} days",
    )
    assert [bound for bound in bounds if bound not in PAGE] == []
