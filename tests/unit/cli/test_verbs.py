"""The verbs that show and change things: what they print, what they ask, how they end."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from tests.inhabited import ALICE, ANY_OBJECT, CALL_ID, ECHO, LARGE_BYTES, MAIL, view
from tests.unit.cli.conftest import Running, trunkline
from trunkline import entries, input_conditions, schemas
from trunkline.cli import steering
from trunkline.cli.client import is_alive
from trunkline.cli.main import VERBS, cli
from trunkline.cli.tools import example_of, show_table
from trunkline.edges.http import routes
from trunkline.edges.ossa.keys import OSSA_KEYS
from trunkline.errors import ConfigError
from trunkline.events import DirectiveStated, SettingsChanged, TokenIssued
from trunkline.model import Actor, Circumstance, Decision, InputCondition, Rule, Status, ToolDefinition, fault
from trunkline.sdk.ossa_identity import read_identity
from trunkline.shown import AgentView, Question, TokenView, ToolView

NASTY = "\x1b[31m\u202eevil\u200b\n"


# --- without an exchange ----------------------------------------------------------------------------------------------


def test_no_arguments_show_three_commands_to_try() -> None:
    said = trunkline()
    assert said.code == 0
    assert [line.split()[1] for line in said.out.splitlines() if line.startswith("  trunkline")] == [
        "up",
        "tools",
        "call",
    ]


def test_the_version_needs_no_exchange() -> None:
    assert trunkline("--version").out.startswith("trunkline ")


def test_the_help_names_every_verb_and_loads_none() -> None:
    script = (
        "import sys, trunkline.cli.main as m\n"
        "try: m.main(['--help'])\n"
        "except SystemExit: print(sorted(n for n in sys.modules if n.startswith('trunkline.cli.')), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert all(verb in done.stdout for verb in VERBS)
    assert "trunkline.cli.call'" not in done.stderr


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_each_verb_explains_itself(verb: str) -> None:
    said = trunkline(verb, "--help")
    assert said.code == 0
    assert "Usage: trunkline" in said.out


def test_a_misspelt_verb_gets_a_suggestion() -> None:
    said = trunkline("aprove")
    assert said.code == 2
    assert "did you mean approve" in said.err


@pytest.mark.parametrize(
    ("word", "meant"),
    [("undo", "space undo"), ("submit", "jobs submit"), ("verify", "receipts verify or ledger verify")],
)
def test_a_verb_that_is_part_of_another_is_named_with_it(word: str, meant: str) -> None:
    assert f"did you mean {meant}?" in trunkline(word).err


@pytest.mark.parametrize("verb", ["approve", "deny"])
@pytest.mark.parametrize("word", ["--all", "all"])
def test_who_would_answer_all_questions_is_told_how_several_are_answered(verb: str, word: str) -> None:
    said = trunkline(verb, word)
    assert (said.code, "name several ids, or a run of a space with --run RUN" in said.err) == (2, True)
    assert "--always" not in said.err


@pytest.mark.parametrize(
    ("words", "dangerous"),
    [
        (("approve", "a1", "--alway"), "--always"),
        (("approve", "a1", "--also-untrust"), "--also-untrusted"),
        (("approve", "a1", "--yess"), "--yes"),
        (("space", "rm", "x", "--forced"), "--force"),
        (("space", "new", "x", "--networks"), "--network"),
        (("blob", "x", "--overwrit"), "--overwrite"),
        (("ledger", "export", "--al"), "--all"),
        (("connect", "x", "--und"), "--undo"),
        (("up", "--deamon"), "--demo"),
        (("jobs", "submit", "x", "--remot"), "--remote"),
    ],
)
def test_an_option_that_does_more_than_was_typed_is_not_suggested(words: tuple[str, ...], dangerous: str) -> None:
    said = trunkline(*words)
    assert (said.code, f"No such option '{words[-1]}'." in said.err) == (2, True)
    assert f"'{dangerous}'" not in said.err


def test_a_misspelt_option_that_only_shows_gets_a_suggestion() -> None:
    assert "Did you mean '--dry-run'?" in trunkline("connect", "x", "--dry-rum").err
    assert "'--reason'" in trunkline("deny", "a1", "--reson", "no").err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("space", "create"), "no verb 'create' of space; did you mean space new?"),
        (("token", "delete"), "no verb 'delete' of token; did you mean token revoke?"),
        (("ledger", "verfy"), "no verb 'verfy' of ledger; did you mean ledger verify?"),
        (("receipts", "ls"), "no verb 'ls' of receipts; `trunkline receipts` lists them"),
        (("wallet", "xyzzy"), "no verb 'xyzzy' of wallet\n"),
        # Alone it is a server on stdin and stdout.
        (("mcp", "ls"), "no verb 'ls' of mcp\n"),
    ],
)
def test_a_part_that_a_verb_does_not_have_is_told_with_what_was_meant(words: tuple[str, ...], told: str) -> None:
    said = trunkline(*words)
    assert (said.code, f"Error: {told}" in said.err) == (2, True), said.err


def _lines(command: click.Command, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Each verb, group and part of a group, as it is typed."""
    if not isinstance(command, click.Group):
        return [words]
    context = click.Context(command)
    inner = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    found = [line for name, part in inner if part is not None for line in _lines(part, (*words, name))]
    return [words, *found] if words else found


@pytest.mark.parametrize("words", _lines(cli), ids=" ".join)
def test_home_and_json_may_stand_anywhere_among_the_words_of_a_verb(short_path: Path, words: tuple[str, ...]) -> None:
    for place in range(len(words) + 1):
        line = [*words[:place], "--home", str(short_path), "--json", *words[place:], "--help"]
        said = trunkline(*line)
        assert (said.code, "Usage: trunkline" in said.out) == (0, True), said.err


def test_a_home_between_a_verb_and_its_part_is_the_one_that_is_meant(running: Running) -> None:
    said = trunkline("token", "--home", str(running.home), "--json", "list")
    assert (said.code, [one["agent"] for one in said.json["tokens"]]) == (0, ["alice", "carol"])


def test_a_number_below_zero_is_not_taken_for_an_option() -> None:
    said = trunkline("wallet", "fund", "alice", "-50")
    assert (said.code, "a number below zero is not taken here" in said.err) == (2, True)
    assert "No such option" in trunkline("wallet", "fund", "alice", "-x").err


@pytest.mark.parametrize(
    "words", [("status",), ("ledger", "show"), ("up",), ("down",), ("doctor",), ("calls", "--refused")]
)
def test_a_home_that_is_a_file_is_said_to_be_none(short_path: Path, words: tuple[str, ...]) -> None:
    file = short_path / "file"
    file.touch()
    said = trunkline(*words, "--home", str(file))
    assert (said.code, said.err) == (2, f"file.unusable: {file}: it is no folder, and the home of an exchange is one\n")


def test_restoring_is_no_verb_and_what_is_done_instead_is_said() -> None:
    said = trunkline("restore")
    assert (said.code, "did you mean" in said.err) == (2, False)
    assert "no verb 'restore'; a copy that `ledger backup` made is put back by copying it" in said.err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (("call", "a/b", "--timeout", "abc"), "'abc' is not a valid number."),
        (("calls", "--last", "1.5"), "'1.5' is not a valid whole number."),
        (("calls", "--last", "0"), "0 is not in the range x>=1."),
    ],
)
def test_what_is_no_number_is_said_to_be_none(line: tuple[str, ...], told: str) -> None:
    said = trunkline(*line)
    assert (said.code, told in said.err) == (2, True)


NEEDS_EXCHANGE = [
    ("status",),
    ("agents",),
    ("tools",),
    ("calls",),
    ("call", "a/b"),
    ("watch",),
    ("approvals",),
    ("approve", "a1"),
    ("deny", "a1"),
    ("directive", "new", "a/b", "--reason", "r"),
    ("token", "new", "http", "--agent", "x"),
    ("token", "revoke", "t1"),
    ("policy",),
    ("policy", "check", "operator", "a/b"),
    ("reload",),
    ("start", "com.x"),
    ("stop", "com.x"),
    ("restart", "com.x"),
]


@pytest.mark.parametrize("arguments", NEEDS_EXCHANGE, ids=" ".join)
def test_without_an_exchange_a_verb_says_how_to_start_one(short_path: Path, arguments: tuple[str, ...]) -> None:
    said = trunkline(*arguments, "--home", str(short_path))
    told = f"not running: trunkline up --home {short_path} (looked in {short_path})\n"
    assert (said.code, said.out, said.err) == (2, "", told)


def test_a_hint_repeats_the_home_that_was_given_and_only_then(running: Running, short_path: Path) -> None:
    spaced = short_path / "a b"
    spaced.symlink_to(running.home)
    said = trunkline("status", "--home", str(spaced))
    assert f": trunkline approvals --home '{spaced}'\n" in said.out
    assert ": trunkline approvals\n" in running.run("status").out
    question = trunkline("--home", str(running.home), "approvals").out
    assert f"--reason … --home {running.home}\n" in question


@pytest.mark.parametrize("home", [("before", "--home"), ("after",)])
def test_home_and_json_stand_before_or_after_the_verb(running: Running, home: tuple[str, ...]) -> None:
    options = ("--home", str(running.home), "--json")
    said = trunkline(*options, "agents") if home[0] == "before" else trunkline("agents", *options)
    assert said.json["agents"][0]["agent_id"] == "com.example.echo"


def test_the_environment_names_the_home(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUNKLINE_HOME", str(running.home))
    assert trunkline("agents").code == 0


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_file_left_by_a_run_that_died_is_recognised(running: Running) -> None:
    running.write_ready(pid=dead_process())
    assert running.run("agents").err.startswith("not running: trunkline up")


def test_a_process_that_ended_and_is_not_reaped_is_taken_for_dead(running: Running) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        running.write_ready(pid=process.pid)
        assert running.run("agents").err.startswith("not running: trunkline up")
    finally:
        process.wait()


def test_a_process_that_only_has_the_same_number_gets_no_token(running: Running) -> None:
    running.write_ready(start_time=1)
    assert running.run("agents").err.startswith("not running: trunkline up")
    mine = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    running.write_ready(start_time=mine)
    assert running.run("agents").code == 0
    assert is_alive(os.getpid(), mine)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 99999999999999999999}', "{}"])
def test_a_broken_ready_file_is_no_crash(running: Running, text: str) -> None:
    (running.home / "ready.json").write_text(text)
    said = running.run("status")
    assert said.code == 2
    assert len(said.err.splitlines()) == 1


def test_an_exchange_that_does_not_answer_is_named(running: Running) -> None:
    running.write_ready(http="http://127.0.0.1:1")
    said = running.run("status")
    assert said.code == 2
    assert said.err == "the exchange at 127.0.0.1:1 went away (nobody listens there); trunkline up starts it\n"
    assert trunkline("status", "--home", str(running.home)).err.endswith(
        f"; trunkline up --home {running.home} starts it\n"
    )


def test_a_wrong_operator_token_is_said_to_be_one(running: Running) -> None:
    (running.home / "operator.token").write_text("tlk_other")
    said = running.run("status")
    assert said.code == 2
    assert said.err.startswith("auth.failed: ")
    assert "tlk_other" not in said.err


def test_a_missing_operator_token_is_named(running: Running) -> None:
    (running.home / "operator.token").unlink()
    said = running.run("status")
    assert said.code == 2
    assert "operator.token" in said.err


# --- what is there ----------------------------------------------------------------------------------------------------


def test_status_is_one_line_for_each_thing_and_names_what_is_off(running: Running) -> None:
    assert running.exchange.blob
    running.exchange.advance(1.5)
    said = running.run("status")
    lines = dict(line.split(maxsplit=1) for line in said.out.splitlines())
    assert lines["running"].endswith("up 1.5 s")
    assert lines["http"].startswith("http://127.0.0.1:")
    assert lines["off"] == "relay: not configured"
    assert lines["calls"] == "2 open (1 running, 1 waiting_approval); 2 ended (2 succeeded)"
    assert lines["agents"] == "3 attached, 4 tools"
    assert "refused" not in lines
    assert "trunkline approvals" in lines["questions"]
    assert not {"warning", "defects"} & lines.keys()
    assert running.run("status", "--json").json["entries"] == len(running.exchange.log)


def test_topics_shows_who_is_told_of_what_and_ends_a_subscription(running: Running) -> None:
    name = running.exchange.subscription_id
    header, row = running.run("topics").out.splitlines()
    assert header.split() == ["ID", "WHO", "TOPIC", "LASTS", "QOS", "OWED", "SINCE", "STATE"]
    assert row.split()[:6] == [name, "http:alice", "build.#", "durable", "1", "0"]
    assert row.endswith("away")
    assert running.run("topics", "--json").json["subscriptions"][0]["subscription"] == name
    assert running.run("topics", "end", name).out == f"ended {name}\n"
    said = running.run("topics", "end", name)
    assert (said.code, "not_found: no such subscription" in said.err) == (2, True)
    assert running.run("topics").out.startswith("No subscriptions.")
    assert running.run("topics", "--json").json == {"subscriptions": []}


def test_status_shows_the_room_on_the_disk_and_what_the_record_takes(running: Running) -> None:
    figures = {"disk_free_bytes": 3 * 2**30, "disk_total_bytes": 4 * 2**30, "ledger_bytes": 5 * 2**20}
    running.exchange.operator._storage = lambda: figures
    assert "disk          3.0 GiB of 4.0 GiB free; the record has 5.0 MiB\n" in running.run("status").out


def test_status_has_no_histogram_for_people(running: Running) -> None:
    assert "call_durations" not in running.run("status", "--json").json


def test_status_says_why_an_edge_is_off_what_has_no_effect_and_how_often_a_defect_was_met(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = running.exchange.operator.status
    edges = {
        "chiffon": {"state": "on", "agents": 2_000, "broker": "connected"},
        "http": {"state": "on"},
        "pylon": {"state": "off", "note": "127.0.0.1:8081: cannot listen here: \x1b[31min use"},
        "space": {"state": "on", "open_runs": 3, "note": "no shell: there is no sandbox here"},
    }
    running.write_ready(ossa=None, tcp=None)
    more = {
        "edges": edges,
        "not_built": ["ossa", "relay"],
        "warnings": ["[ossa] has no effect: this release does not have it", "[mcp] too"],
    }
    monkeypatch.setattr(running.exchange.operator, "status", lambda: {**figures(), **more})
    for _ in range(2):
        running.exchange.feed.failed(0, RuntimeError())
    said = running.run("status").out.splitlines()
    assert "off           tcp: not configured" in said
    assert "off           relay, ossa: not part of this release" in said
    assert "off           pylon: 127.0.0.1:8081: cannot listen here: \\u001b[31min use" in said
    assert "space         3 open runs; no shell: there is no sandbox here" in said
    assert "chiffon       2,000 agents, broker connected" in said
    assert len([line for line in said if line.startswith("http")]) == 1, "where it listens; it has no figures"
    assert [line for line in said if line.startswith("warning")] == [
        "warning       [ossa] has no effect: this release does not have it",
        "warning       [mcp] too",
    ]
    [defects] = [line for line in said if line.startswith("defects")]
    assert defects == "defects       2 met since the start: trunkline ledger show --last 100"
    shape = running.run("status", "--json").json
    assert (shape["defects"], shape["edges"], shape["warnings"]) == (2, edges, more["warnings"])


@pytest.mark.parametrize(
    ("verb", "hint"),
    [
        ("agents", "token new opensentience"),
        ("tools", "trunkline agents"),
        ("calls", "trunkline tools"),
        ("approvals", "No open questions"),
    ],
)
def test_an_empty_table_says_what_to_do_next(
    running: Running, monkeypatch: pytest.MonkeyPatch, verb: str, hint: str
) -> None:
    running.exchange.pretend(calls=[], questions=[])
    for view_of in ("agents", "tools"):
        monkeypatch.setattr(running.exchange.views, view_of, lambda *_: [])
    said = running.run(verb)
    assert said.code == 0
    assert hint in said.out


def test_everything_an_agent_says_is_escaped_in_every_table(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = running.exchange
    schema = Raw(json.dumps({"type": "object", "title": NASTY}).encode())
    error = fault("tool.failed", NASTY)
    stamp = "2026-11-15T10:00:00.000Z"
    monkeypatch.setattr(exchange.views, "agents", lambda: [AgentView(NASTY, "e", NASTY, version=NASTY, note=NASTY)])
    monkeypatch.setattr(exchange.views, "tools", lambda *_: [ToolView("a/b", NASTY, NASTY, schema, tags=(NASTY,))])
    monkeypatch.setattr(exchange.operator, "tokens", lambda: [TokenView("t1", "http", NASTY, stamp, (NASTY,))])
    question = Question(
        "a1", "definition", NASTY, stamp, stamp, NASTY, tool_id=NASTY, chain=(NASTY,), permissions=(NASTY,),
        input=Raw(json.dumps({"x": NASTY}, ensure_ascii=False).encode()),
        before=Raw(b'{"a":1}'), after=Raw(json.dumps({NASTY: 1}, ensure_ascii=False).encode()),
    )  # fmt: skip
    exchange.pretend(calls=[view(CALL_ID, NASTY, Status.FAILED, error=error)], questions=[question])
    for verb in (("agents",), ("tools",), ("tools", "a/b"), ("calls",), ("approvals",), ("token", "list")):
        for options in ((), ("--json",)):
            said = running.run(*verb, *options)
            assert said.code == 0, said.err
            assert "evil" in said.out
            assert said.out.replace("\n", "").isprintable(), (verb, options)


def test_an_agent_that_does_not_run_says_why_and_where_to_read_more(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed = AgentView("com.x", "opensentience", "crashed", note="exit code 1; `trunkline reload` starts it again")
    monkeypatch.setattr(running.exchange.views, "agents", lambda: [crashed])
    assert running.run("agents").out.endswith("exit code 1; `trunkline reload` starts it again\n")
    (running.home / "logs" / "com.x").mkdir(parents=True)
    assert running.run("agents").out.endswith("starts it again; trunkline logs com.x\n")


def test_what_isolates_an_agent_is_shown_and_why_nothing_does(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = AgentView("com.x", "opensentience", "ready", isolation="sandbox (bubblewrap)")
    free = AgentView("com.y", "opensentience", "ready", isolation="none: bwrap is not installed")
    monkeypatch.setattr(running.exchange.views, "agents", lambda: [held, free])
    header, first, second = running.run("agents").out.splitlines()
    column = header.index("ISOLATION")
    assert first[column:].rstrip() == "sandbox (bubblewrap)"
    assert second[column:].split("  ")[0] == "none"
    assert second.endswith("no sandbox: bwrap is not installed")
    assert running.run("agents", "--json").json["agents"][1]["isolation"] == "none: bwrap is not installed"


def test_at_80_columns_what_isolates_an_agent_is_there(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    agent_id, isolation = "com.example.reporter", "sandbox (bubblewrap)"
    note = "exit code 1 a moment after it was started, for the third time in a row; it is started again in a minute"
    known = AgentView(
        agent_id, "opensentience", "unhealthy", "failing", "1.20.0", 12, 3, 1400, 12, 4_000_000, isolation=isolation
    )
    monkeypatch.setattr(running.exchange.views, "agents", lambda: [known, replace(known, note=note)])
    header, first, second, *below = running.run("agents", columns=80).out.splitlines()
    assert "ISOLATION" in header
    for line in (first, second):
        assert (line.split()[0], line.endswith(isolation), len(line) <= 80) == (agent_id, True, True)
    assert (" ".join(line.strip() for line in below), max(map(len, below)) <= 80) == (note, True)


def test_at_80_columns_the_conditions_of_rules_are_whole(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from trunkline.model import Policy

    wanted = (InputCondition(("path",), "like", "/srv/data/reports/2026/*"),)
    rule = Rule("trunkline.toml:rule-1", "agent:com.example.reporter", "com.example.notes/append", Decision.ASK)
    rules = (replace(rule, reason="careful, " * 12 + "careful", side_effects=True, input=wanted),)
    monkeypatch.setattr(running.exchange.operator, "policy", lambda: Policy(rules, "v2"))
    lines = running.run("policy", columns=80).out.splitlines()
    assert max(map(len, lines)) <= 80
    shown = " ".join(line.strip() for line in lines)
    assert "…" not in shown
    for cell in (rule.id, rule.caller, rule.tool, input_conditions.shown(wanted[0])):
        assert cell in shown


def test_all_pages_of_tools_are_shown(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = running.run("tools")
    monkeypatch.setattr(routes, "MAX_PAGE_TOOLS", 1)
    assert running.run("tools").out == whole.out
    assert len(whole.out.splitlines()) > 3


def test_the_id_of_an_agent_lists_what_it_offers(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [ToolView(name, "available", "Text.", Raw(b"{}")) for name in ("com.me.shop/buy", "com.me.shop2/buy")]
    monkeypatch.setattr(running.exchange.views, "tools", lambda *_: found)
    lines = running.run("tools", "com.me.shop").out.splitlines()
    assert [line.split()[0] for line in lines] == ["TOOL", "com.me.shop/buy"]


def test_tools_of_agents_that_are_gone_are_left_out_of_the_list(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.exchange.token("opensentience", "com.by-token")
    running.exchange.token("chiffon", "by-token")
    crashed = AgentView("com.crashed", "opensentience", "crashed")
    monkeypatch.setattr(running.exchange.views, "agents", lambda: [crashed])
    away = ["com.gone", "com.by-token", "chiffon.by-token", "com.crashed"]
    found = [ToolView(f"{one}/do", "unavailable", "Text.", Raw(b"{}")) for one in away]
    monkeypatch.setattr(running.exchange.views, "tools", lambda *_: found)
    said = running.run("tools")
    assert [line.split()[0] for line in said.out.splitlines()] == ["TOOL", *(f"{one}/do" for one in away[1:])]
    assert said.err == "left out, as they are gone: the tools of com.gone; trunkline tools --all\n"
    for arguments in (("tools", "--all"), ("tools", "com.gone"), ("tools", "com.gone/do"), ("tools", "--json")):
        said = running.run(*arguments)
        assert ("com.gone/do" in said.out, said.err) == (True, "")
    running.exchange.revoke("opensentience", "com.by-token")
    assert "the tools of com.by-token, com.gone;" in running.run("tools").err
    monkeypatch.setattr(running.exchange.views, "tools", lambda *_: found[:1])
    assert running.run("tools").out.startswith("No tools")


@pytest.mark.parametrize("columns", [80, 200])
def test_on_a_narrow_terminal_a_description_has_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    text = "Puts the order into the books, and tells whoever has to pack it. " * 3
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    show_table([{"tool_id": "com.example.warehouse/put_order", "status": "available", "description": text}])
    lines = click.unstyle(capsys.readouterr().out).splitlines()
    assert all(len(line) <= columns for line in lines)
    assert "com.example.warehouse/put_order  available  changes things" in lines[1]
    shown = lines[2].strip() if columns == 80 else lines[1].split("  ")[-1]
    assert shown.startswith("Puts the order into the books, and tells whoever has to pack it.")


def test_one_tool_is_described_with_a_call_to_try(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Raw(
        b'{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city","days"]}'
    )
    monkeypatch.setattr(
        running.exchange.views, "tools", lambda *_: [ToolView("a/forecast", "available", "Weather.", schema)]
    )
    said = running.run("tools", "forecast")
    assert """trunkline call a/forecast '{"city":"…","days":0}'""" in said.out
    assert "changes things" in said.out
    misspelt = running.run("tools", "forecats")
    assert misspelt.code == 2
    assert "a/forecast" in misspelt.err


def test_calls_are_fetched_page_by_page_up_to_the_number_asked_for(running: Running) -> None:
    running.exchange.pretend(calls=[view(f"{n:032x}", "operator", Status.RUNNING) for n in range(1200)])
    assert len(running.run("calls", "--last", "700", "--json").json["calls"]) == 700
    assert len(running.run("calls", "--last", "5000", "--json").json["calls"]) == 1200
    assert len(running.run("calls").out.splitlines()) == 21


def test_a_call_shows_how_long_it_took_and_why_it_failed(running: Running) -> None:
    times = {"started_at": "2026-11-15T10:00:00.000Z", "finished_at": "2026-11-15T10:00:00.250Z"}
    running.exchange.pretend(calls=[view(CALL_ID, "operator", Status.FAILED, error=fault("tool.timeout"), **times)])
    row = running.run("calls").out.splitlines()[1]
    assert "250 ms" in row
    assert CALL_ID in row
    assert "tool.timeout" in row


# --- people -----------------------------------------------------------------------------------------------------------


def test_a_question_shows_its_arguments_whole(running: Running) -> None:
    secret_plan = "x" * 5000
    question = Question(
        "a42", "call", "agent:a", "2026-11-15T10:00:00.000Z", "2099-01-01T00:00:00.000Z", "rule file:3 asks",
        tool_id="mail/send", chain=("operator",), input=Raw(json.dumps({"to": secret_plan}).encode()), waiting=3,
    )  # fmt: skip
    running.exchange.pretend(questions=[question])
    out = running.run("approvals").out
    assert secret_plan in out
    assert "operator → agent:a" in out
    assert "3 identical calls wait" in out
    assert "trunkline approve a42   or   trunkline deny a42" in out
    assert "trunkline approve a42 --always" in out
    # No rule of the configuration asks: none could allow it from now on.
    running.exchange.pretend(questions=[msgspec.structs.replace(question, rule="shell.approvalRequired")])
    assert "--always" not in running.run("approvals").out


def test_a_changed_definition_is_shown_as_what_changed(running: Running) -> None:
    question = Question(
        "a42", "definition", "agent:a", "2026-11-15T10:00:00.000Z", "2099-01-01T00:00:00.000Z", "",
        tool_id="mail/send", before=Raw(b'{"description":"Sends mail.","side_effects":true}'),
        after=Raw(b'{"description":"Reads mail.","side_effects":true}'),
    )  # fmt: skip
    running.exchange.pretend(questions=[question])
    lines = [line.strip() for line in running.run("approvals").out.splitlines()]
    assert '-  "description": "Sends mail.",' in lines
    assert '+  "description": "Reads mail.",' in lines
    assert '"side_effects": true' in lines


@pytest.mark.parametrize(("verb", "approved"), [("approve", True), ("deny", False)])
def test_an_answer_is_given_with_its_reason(running: Running, verb: str, approved: bool) -> None:
    approval_id = running.exchange.approval_id
    said = running.run(verb, approval_id, "--reason", "because")
    assert said.code == 0
    word = "approved" if approved else "denied"
    assert said.out.startswith(f"{word} {approval_id}")
    [given] = running.exchange.recorded(entries.QuestionClosed)
    assert (given.how, given.reason, given.by) == (word, "because", "operator")


def test_an_answer_to_no_question_is_an_error(running: Running) -> None:
    said = running.run("approve", "a1")
    assert said.code == 2
    assert said.err.startswith("not_found: ")


def test_a_directive_for_a_tool_that_needs_none_is_not_stated(running: Running) -> None:
    said = running.run("directive", "new", ECHO, "--reason", "as agreed")
    assert (said.code, said.out, running.fed) == (2, "", [])
    assert said.err == f"state.conflict: {ECHO} needs no directive; call it: trunkline call {ECHO} …\n"


def test_a_directive_prints_its_id_alone_on_stdout(running: Running) -> None:
    running.exchange.attach("com.a", ToolDefinition("com.a/go", "", ANY_OBJECT, requires_directive=True))
    said = running.run("directive", "new", "com.a/go", '{"x": 1.10}', "--reason", "as agreed")
    [recorded] = running.exchange.recorded(entries.DirectiveStated)
    assert said.out == f"{recorded.directive_id}\n"
    assert f"--directive {recorded.directive_id}" in said.err
    [stated] = running.fed
    assert isinstance(stated, DirectiveStated)
    assert stated.input == Raw(b'{"x": 1.10}')
    assert running.run("directive", "new", "a/b").code == 2


# --- credentials, rules -----------------------------------------------------------------------------------------------


def test_a_new_token_is_alone_on_stdout_and_whole_in_json(running: Running) -> None:
    said = running.run("token", "new", "http", "--agent", "dave", "--permission", "approve", "--permission", "metrics")
    assert said.code == 0
    assert said.out.startswith("tlk_")
    assert len(said.out) == 48
    [made] = running.fed
    assert isinstance(made, TokenIssued)
    assert made.permissions == ("approve", "metrics")
    shape = running.run("token", "new", "http", "--agent", "dave", "--json").json
    assert list(shape)[:4] == ["id", "edge", "agent", "token"]


@pytest.mark.parametrize(
    "arguments",
    [("token", "new", "pigeon", "--agent", "x"), ("token", "new", "http"), ("token", "new", "http", "--agent", "../x")],
    ids=" ".join,
)
def test_a_token_for_nobody_is_refused(running: Running, arguments: tuple[str, ...]) -> None:
    assert running.run(*arguments).code == 2
    assert not running.fed


def test_why_a_token_is_refused_is_said_in_words(running: Running) -> None:
    edge = running.run("token", "new", "pigeon", "--agent", "x").err
    assert edge == "message.malformed: edge: expected opensentience, chiffon, ossa, mcp or http\n"
    near = running.run("token", "new", "osa", "--agent", "x").err
    assert near.endswith("; did you mean `ossa`?\n")
    agent = running.run("token", "new", "http", "--agent", "../x").err
    assert agent.startswith("message.malformed: agent: expected letters, digits, '.', '_' and '-'")
    kind = running.run("token", "new", "chiffon", "--agent", "x", "--type", "gardener").err
    assert "type: expected orchestrator, infra, desktop, code or research" in kind
    permission = running.run("token", "new", "http", "--agent", "x", "--permission", "a b").err
    assert "permissions[0]: expected no white space" in permission


def test_a_chiffon_token_has_a_type_and_32_characters(running: Running) -> None:
    said = running.run("token", "new", "chiffon", "--agent", "infra-1", "--type", "infra")
    assert (said.code, len(said.out)) == (0, 33)
    [made] = running.fed
    assert isinstance(made, TokenIssued)
    assert (made.edge, made.type) == ("chiffon", "infra")
    assert running.run("token", "new", "chiffon", "--agent", "infra-1").code == 2
    assert running.run("token", "new", "chiffon", "--agent", "infra-1", "--type", "gardener").code == 2


def test_a_type_is_refused_where_there_are_none(running: Running) -> None:
    assert running.run("token", "new", "http", "--agent", "x", "--type", "infra").code == 2


def test_a_pair_of_keys_is_printed_as_the_kit_takes_it_and_listed_by_its_key_id(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "KEY" not in running.run("token", "list").out
    kinds = running.exchange.operator.token_kinds()
    monkeypatch.setattr(running.exchange.operator, "token_kinds", lambda: {**kinds, "ossa": OSSA_KEYS})
    arguments = ("token", "new", "ossa", "--agent", "worker-7", "--type", "worker", "--url", "https://w.example/x")
    shape = running.run(*arguments, "--pin", "A" * 43 + "=", "--json").json
    assert list(shape) == ["id", "edge", "agent", "jwk", "enc_jwk", "type"]
    said = running.run(*arguments)
    shown = json.loads(said.out)
    assert [set(shown[name]) for name in ("jwk", "enc_jwk")] == [{"kty", "crv", "x", "kid", "d"}] * 2
    found = read_identity(shown).identity
    assert (found.agent_id, found.agent_type) == ("worker-7", "worker")
    assert "shown this once" in said.err
    listed = running.run("token", "list").out
    assert shape["jwk"]["kid"] in listed
    assert shown["jwk"]["kid"] in listed
    third = running.run(*arguments)
    assert (third.code, "trunkline token revoke" in third.err) == (2, True)
    assert running.run("token", "new", "http", "--agent", "x", "--url", "https://w.example/x").code == 2


def test_tokens_are_listed_and_revoked(running: Running) -> None:
    token_id = running.exchange.token_id
    assert token_id in running.run("token", "list").out
    assert running.run("token", "revoke", token_id).out == f"revoked {token_id}\n"
    assert [entry.token_id for entry in running.exchange.recorded(entries.TokenRevoked)] == [token_id]
    assert running.run("token", "revoke", "t1").code == 2


def test_the_rules_are_shown_in_order_with_the_last_resort(running: Running) -> None:
    lines = running.run("policy").out.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [rule.id for rule in running.exchange.policy.rules]
    assert lines[4].split()[:4] == ["builtin-operator", "allow", "operator", "*"]
    assert lines[-1].split()[:2] == ["default", "deny"]
    assert running.run("policy", "--json").json["version"] == running.exchange.policy.version


def test_a_dry_run_says_what_would_happen_and_by_which_rule(running: Running) -> None:
    said = running.run("policy", "check", "agent:x", MAIL, '{"y": 1}')
    assert said.code == 0
    assert said.out.startswith("ask by builtin-side-effects: a person decides before an agent calls")
    shape = running.run("policy", "check", "agent:x", MAIL, "--json").json
    assert (shape["decision"], shape["caller"]) == ("ask", "opensentience:x"), "agent: is short for opensentience:"


@pytest.mark.parametrize("verb", ["start", "stop", "restart"])
def test_an_agents_process_is_steered_by_its_name(running: Running, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    asked: list[tuple[str, str]] = []

    def steer(agent_id: str, action: str) -> bool:
        asked.append((agent_id, action))
        return agent_id == "com.x"

    monkeypatch.setattr(running.exchange.operator, "steer", steer)
    assert running.run(verb, "com.x").out.startswith("com.x is being ")
    said = running.run(verb, "com.y")
    assert (said.code, said.err) == (
        2,
        "not_found: the exchange launches no agent of this id; `trunkline agents` lists all\n",
    )
    assert asked == [("com.x", verb), ("com.y", verb)]


@pytest.mark.parametrize(
    ("verb", "state", "told"),
    [
        ("start", "ready", "runs already"),
        ("start", "crashed", "is being started"),
        ("stop", "stopped", "does not run, and is not started again"),
        ("stop", "backoff", "is being stopped"),
        ("restart", "stopped", "is being restarted"),
    ],
)
def test_what_an_action_does_not_change_is_not_said_to_be_done(
    running: Running, monkeypatch: pytest.MonkeyPatch, verb: str, state: str, told: str
) -> None:
    monkeypatch.setattr(running.exchange.operator, "steer", lambda *_: True)
    monkeypatch.setattr(running.exchange.views, "agents", lambda: [AgentView("com.x", "e", state, steerable=True)])
    no_wait = [] if verb == "stop" else ["--no-wait"]
    assert running.run(verb, "com.x", *no_wait).out == f"com.x {told}; `trunkline agents` shows how it is\n"


@pytest.mark.parametrize("verb", ["start", "stop", "restart"])
def test_who_steers_a_misspelt_agent_is_told_which_was_perhaps_meant(
    running: Running, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    launched = AgentView("com.example.clock", "opensentience", "ready", steerable=True)
    monkeypatch.setattr(
        running.exchange.views, "agents", lambda: [launched, AgentView("com.example.clerk", "e", "ready")]
    )
    said = running.run(verb, "com.example.clok")
    assert (said.code, said.err.endswith("; did you mean com.example.clock?\n")) == (2, True)


def test_reload_says_what_it_did(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    done = {"started": ["com.x", "com.y"], "restarted": [], "stopped": ["com.z"]}
    monkeypatch.setattr(running.exchange.operator, "reload", lambda: done)
    assert running.run("reload").out == "reloaded\n  started: com.x, com.y\n  stopped: com.z\n"
    done |= {"released": ["com.x/a"], "changed": ["rules: 3, were 2", "log.level: debug, was info"]}
    said = running.run("reload").out
    assert said.endswith("\n  released: com.x/a\n  rules: 3, were 2\n  log.level: debug, was info\n")
    done["cannot_start"] = ["com.w: its folder /gone does not exist"]
    said = running.run("reload")
    assert said.code == 1
    assert said.out.endswith("\n  cannot start: com.w: its folder /gone does not exist\n")


ATTACHED, RUNNING, ENDED = (
    AgentView("com.x", "opensentience", "ready", run_id="new"),
    AgentView("com.x", "opensentience", "running", run_id="new"),
    AgentView("com.x", "opensentience", "crashed", note="exit code 1; `trunkline reload` starts it again"),
)


@pytest.mark.parametrize("verb", [("reload",), ("start", "com.x"), ("restart", "com.x")], ids=" ".join)
def test_who_starts_an_agent_is_told_whether_it_attached(
    running: Running, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    monkeypatch.setattr(running.exchange.operator, "reload", lambda: {"restarted": ["com.x"]})
    monkeypatch.setattr(running.exchange.operator, "steer", lambda *_: True)
    earlier = AgentView("com.x", "opensentience", "running" if verb[0] == "start" else "ready", run_id="old")

    def seen(*views: AgentView) -> None:
        """The first is seen before it is asked for, the last from then on."""
        left = [earlier, earlier, *views]
        monkeypatch.setattr(running.exchange.views, "agents", lambda: [left.pop(0) if len(left) > 1 else left[0]])

    seen(RUNNING, ATTACHED)
    said = running.run(*verb)
    assert (said.code, said.out.splitlines()[-1].strip()) == (0, "com.x is attached")
    seen(RUNNING, ENDED)
    said = running.run("--home", str(running.home), *verb)
    home = f"--home {running.home}"
    ended = f"com.x ended: exit code 1; `trunkline reload {home}` starts it again; trunkline logs com.x {home}"
    assert (said.code, said.out.splitlines()[-1].strip()) == (1, ended)
    seen(RUNNING, ENDED)
    said = running.run(*verb, "--json")
    assert (said.code, said.json["agents"][0]["state"]) == (1, "crashed")
    seen(RUNNING, ENDED)
    said = running.run(*verb, "--no-wait")
    assert (said.code, "ended" in said.out) == (0, False)
    monkeypatch.setattr(steering, "START_WAIT_S", 0.1)
    seen(RUNNING)
    said = running.run(*verb)
    last = "com.x runs and has not connected yet; `trunkline agents` shows how it is"
    assert (said.code, said.out.splitlines()[-1].strip()) == (0, last)


def test_a_reload_that_changes_nothing_says_so(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    none: list[str] = []
    done = {"started": none, "restarted": none, "stopped": none, "released": none, "changed": none}
    monkeypatch.setattr(running.exchange.operator, "reload", lambda: done)
    assert running.run("reload").out == "reloaded\n  nothing changed\n"


def test_reload_says_why_not(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert running.run("reload").out == "reloaded\n"

    def bad() -> None:
        raise ConfigError("unknown key 'lisen'; did you mean listen?", "trunkline.toml:3")

    monkeypatch.setattr(running.exchange.operator, "reload", bad)
    said = running.run("reload")
    assert said.code == 2
    assert said.err.startswith("config.invalid: nothing changed: trunkline.toml:3: unknown key 'lisen'")


def test_a_rule_with_conditions_reads_as_words(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    from trunkline.model import Policy

    rules = (Rule("file:3", "agent:*", "*", Decision.ASK, "careful", side_effects=True, when=Circumstance.UNTRUSTED),)
    monkeypatch.setattr(running.exchange.operator, "policy", lambda: Policy(rules, "v2"))
    assert "it changes things, untrusted  careful" in running.run("policy").out


def test_a_question_says_first_which_part_of_a_command_is_dangerous_and_shows_all_of_it() -> None:
    from trunkline.cli.approvals import described

    command = "echo building; " * 200 + "rm -rf data"
    question = {
        "approval_id": "a1",
        "subject": "call",
        "tool_id": "space.demo/shell",
        "asked_by": "operator",
        "asked_at": "2026-01-01T00:00:00.000Z",
        "expires_at": "2026-01-01T01:00:00.000Z",
        "reason": "Destructive command requires approval: 'rm -rf data'",
        "input": {"command": command},
    }
    lines = list(described(question))
    assert "rm -rf data" in lines[1]
    assert any(command in line for line in lines[2:])


@pytest.mark.parametrize("verb", ["approve", "deny"])
def test_an_answer_to_no_question_says_where_the_open_ones_are(running: Running, verb: str) -> None:
    said = running.run(verb, "a1")
    assert (said.code, said.err.startswith("not_found: a1: no such open question: ")) == (2, True)
    assert said.err.endswith("; `trunkline approvals` lists what is open\n")


def test_a_run_without_a_message_says_what_is_missing(running: Running) -> None:
    said = running.run("space", "run", "demo", stdin=b"\n")
    assert said.code == 2
    assert "nothing on stdin" in said.err
    empty = running.home / "operations.json"
    empty.touch()
    said = running.run("space", "run", "demo", str(empty))
    assert (said.code, f"nothing in {empty}: an operations message is expected" in said.err) == (2, True)
    said = running.run("space", "run", "demo", "nosuch.json")
    assert (said.code, said.err) == (2, "file.unusable: nosuch.json: No such file or directory\n")


def test_how_many_calls_were_refused_is_said_with_where_to_look(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "refused" not in running.run("calls").err
    figures = running.exchange.operator.status
    refused = {"refused_calls": {"policy.denied": 2, "tool.not_found": 1}}
    monkeypatch.setattr(running.exchange.operator, "status", lambda: {**figures(), **refused})
    assert running.run("calls").err == "3 refused since the start: trunkline calls --refused\n"
    assert running.run("calls", "--json").err == ""
    assert (
        "refused       3 since the start (2 policy.denied, 1 tool.not_found): trunkline calls --refused"
        in running.run("status").out.splitlines()
    )


@pytest.mark.parametrize("caller", ["nobody", "pigeon:x", "agent:", "agent:*", "operator:x", "agent:a b", ""])
def test_a_dry_run_for_a_caller_that_cannot_be_is_refused(running: Running, caller: str) -> None:
    said = running.run("policy", "check", caller, "a/b")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("message.malformed: caller: expected operator, or an edge and an id as in agent:")


def test_a_dry_run_of_a_missing_tool_suggests_one(running: Running) -> None:
    said = running.run("policy", "check", "operator", "com.example.echo/sya")
    assert "no tool 'com.example.echo/sya'; did you mean com.example.echo/say?" in said.out


def test_a_directive_for_a_missing_tool_suggests_one(running: Running) -> None:
    said = running.run("directive", "new", "com.example.echo/sya", "--reason", "r")
    assert (said.code, said.out) == (2, "")
    assert said.err == "tool.not_found: no tool 'com.example.echo/sya'; did you mean com.example.echo/say?\n"


def test_a_conversation_without_calls_is_named(running: Running) -> None:
    assert running.run("calls", "--correlation", "nope").out == "No calls in the conversation nope.\n"


def test_a_large_output_is_printed_or_written_to_a_file(running: Running, tmp_path: Path) -> None:
    ref = f"sha256:{running.exchange.blob}"
    assert running.run("blob", ref).json == "x" * LARGE_BYTES
    file = tmp_path / "large.json"
    said = running.run("blob", ref, "-o", str(file))
    assert (said.code, said.out) == (0, "")
    assert json.loads(file.read_text()) == "x" * LARGE_BYTES
    assert running.run("blob", "sha256:" + "0" * 64).code == 2
    assert "sha256: and 64" in running.run("blob", "nonsense").err


def test_a_call_whose_output_is_large_says_how_to_get_all_of_it(running: Running) -> None:
    said = running.run("call", "com.example.echo/big")
    assert said.code == 0
    assert f"2,000,002 bytes; all of it: `trunkline blob sha256:{running.exchange.blob}`" in said.err


def test_several_questions_are_answered_and_one_that_is_not_open_keeps_none_from_its_answer(running: Running) -> None:
    first = running.exchange.approval_id
    second = running.exchange.call(MAIL, {"to": "carol"}, by=ALICE).approval_id
    said = running.run("approve", first, "a999", second)
    assert said.code == 2
    assert [line.split(":")[0] for line in said.out.splitlines()] == [f"approved {first}", f"approved {second}"]
    assert said.err.startswith("not_found: a999: there never was such a question")
    assert [given.how for given in running.exchange.recorded(entries.QuestionClosed)] == ["approved"] * 2


def test_a_question_that_is_asked_again_is_answered_by_the_name_it_had_and_its_new_one_is_said(
    running: Running,
) -> None:
    settings = running.exchange.hub.in_force.settings
    other = replace(settings, policy=replace(settings.policy, version="other"))
    old = running.exchange.approval_id
    running.exchange.feed.feed([SettingsChanged(other)])
    [new] = (one["approval_id"] for one in running.run("approvals", "--json").json["approvals"])
    assert new != old
    said = running.run("approve", old)
    lines = said.out.splitlines()
    assert (said.code, lines[0]) == (0, f"{old} was asked again as {new}")
    assert lines[1].startswith(f"approved {new}: call ")


def test_a_person_is_shown_all_that_the_provider_gets_and_each_digit_of_it(running: Running) -> None:
    exact = Raw(b'{"to":"carol","n":1.0000000000000000001}')
    context, actor = Raw(b'{"project_root":"/etc"}'), Actor("human", "anna")
    running.exchange.call(MAIL, exact, by=ALICE, context=context, actor=actor)
    shown = running.run("approvals").out
    for part in ('"n": 1.0000000000000000001', '"project_root": "/etc"', "for, as the caller says: human anna"):
        assert part in shown
    [told] = [one for one in running.run("approvals", "--json").json["approvals"] if "context" in one]
    assert (told["context"], told["actor"]) == ({"project_root": "/etc"}, {"type": "human", "id": "anna"})


def test_who_answers_is_told_that_identical_calls_wait_on(running: Running) -> None:
    asked = [running.exchange.call(MAIL, {"to": "carol"}, by=ALICE).approval_id for _ in range(3)]
    assert len(set(asked)) == 1
    said = running.run("approve", str(asked[0]))
    assert "2 identical calls wait on, with another question: `trunkline approvals`" in said.out


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"exclusiveMinimum": 2, "type": "number"}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"enum": ["x", "y"]}, "b": {"const": 7}}, "required": ["a", "b"]},
        {
            "type": "object",
            "properties": {"item": {"$ref": "#/$defs/Item"}, "tags": {"type": "array", "items": {"type": "string"}}},
            "required": ["item", "tags"],
            "$defs": {"Item": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}},
        },
        {
            "type": "object",
            "properties": {
                "edits": {
                    "type": "array",
                    "minItems": 1,
                    "items": {"type": "object", "properties": {"old": {"type": "string"}}, "required": ["old"]},
                },
                "maybe": {"anyOf": [{"type": "null"}, {"type": "string"}]},
                "either": {"type": ["boolean", "null"]},
            },
            "required": ["edits", "maybe", "either"],
        },
    ],
)
def test_the_call_to_try_is_one_that_its_schema_allows(schema: dict[str, Any]) -> None:
    assert schemas.compile(json.dumps(schema).encode()).error(json.dumps(example_of(schema)).encode()) is None


def test_the_call_to_try_of_a_schema_that_refers_to_itself_ends() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}
    assert json.dumps(example_of({"$ref": "#/$defs/Node", "$defs": {"Node": node}})).count("next") == 3


def test_answers_to_several_are_one_json_value(running: Running) -> None:
    answers = running.run("deny", running.exchange.approval_id, "a999", "--json").json["answers"]
    assert [one.get("decision", one.get("error", {}).get("code")) for one in answers] == ["denied", "not_found"]


@pytest.mark.parametrize("words", [(), ("a1", "--run", "r1"), ("a1", "a2", "--always")])
def test_an_answer_names_questions_or_a_run(running: Running, words: tuple[str, ...]) -> None:
    assert running.run("approve", *words).code == 2
    assert running.exchange.recorded(entries.QuestionClosed) == []


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        (b'{"a":1}\n{"b":2}\n', [b'{"a":1}\n', b'{"b":2}\n']),
        (b'\n{\n "a": {\n  "b": 1\n }\n}\n\n{"c":3}', [b'{\n "a": {\n  "b": 1\n }\n}\n', b'{"c":3}']),
        (b'nonsense\n{"a":1}\n', [b"nonsense\n", b'{"a":1}\n']),
        (b'{"a": 1}}\n{"b":2}\n', [b'{"a": 1}}\n', b'{"b":2}\n']),
        (b'{\n "a": 1\n', [b'{\n "a": 1\n']),
        (b"\n \n", []),
    ],
)
def test_a_message_of_operations_may_be_spread_over_lines(given: bytes, messages: list[bytes]) -> None:
    from trunkline.cli.space import messages_in

    assert list(messages_in(io.BytesIO(given))) == messages
