"""The grammar, and which commands a line may run."""

from __future__ import annotations

import shlex
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trunkline.errors import ConfigError
from trunkline.model import Decision
from trunkline.workspace.commands import read_commands
from trunkline.workspace.policy import PRESETS, judge_command, make_policy
from trunkline.workspace.shell_grammar import parse
from trunkline.workspace.shell_words import Kind, NotUnderstood


def texts(line: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in parse(line).commands]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", []),
        ("# only a comment", []),
        ("ls -l 'a b' \"c d\" e\\ f", [["ls", "-l", "a b", "c d", "e f"]]),
        ("a;b&&c||d|e&f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a\nb # c\nd", [["a"], ["b"], ["d"]]),
        ("echo a#b", [["echo", "a#b"]]),
        ("x=1 y='2 3' cmd z=4", [["cmd", "z=4"]]),
        ("2>e >o cmd <i a 2>&1", [["cmd", "a"]]),
        ("echo $(a $(b))", [["b"], ["a", ""], ["echo", ""]]),
        ('echo "x`a`y"', [["a"], ["echo", "x"]]),
        ("if a; then b; elif c; then d; else e; fi", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("for i in 1 2; do a $i; done; b", [["a", ""], ["b"]]),
        ("while a; do b; done > o", [["a"], ["b"]]),
        ("case $x in a|b) c;; (d) e;; *) f; esac", [["c"], ["e"], ["f"]]),
        ("f() { a; }\nf x", [["a"], ["f", "x"]]),
        ("cat <<E | a\nb; c\nE\nd", [["cat"], ["a"], ["d"]]),
        ("cat <<'E'\n$(b)\nE\nd", [["cat"], ["d"]]),
        ("cat <<E\n$(b)\nE\nd", [["cat"], ["b"], ["d"]]),
        ("a <<X <<-Y\n1\nX\n\t2\n\tY\nb", [["a"], ["b"]]),
        ("echo done if; echo }", [["echo", "done", "if"], ["echo", "}"]]),
    ],
)
def test_a_line_is_read_as_its_commands(line: str, expected: list[list[str]]) -> None:
    assert texts(line) == expected


@pytest.mark.parametrize(
    "line",
    ["'", '"', "`", "$(", "(", ")", "a;;b", "a &&", "| a", "if a", "for", "case x", "<<E", "cat <<E\nx", "a >", "&& a",
     "{ a", "$((1", "a\0b", "${x", "a | & b", "a=(b)", "! ", "x\\"],
)  # fmt: skip
def test_what_is_not_a_whole_line_is_not_understood(line: str) -> None:
    with pytest.raises(NotUnderstood):
        parse(line)


@given(st.lists(st.text("ab c'\"\\$`*;&|<>(){}#~=!?[]\n\t-é", max_size=8), min_size=1, max_size=5))
def test_quoted_words_are_read_as_they_are(words: list[str]) -> None:
    line = "echo " + shlex.join(words)
    assume("$\\\n" not in line)  # asked about wherever it stands
    command = parse(line).commands[0]
    assert [word.text for word in command.words[1:]] == words
    assert all(word.kind is Kind.LITERAL for word in command.words)


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("a", Kind.LITERAL),
        ("$x", Kind.UNKNOWN),
        ('"$x"', Kind.UNKNOWN),
        ('"a$x"', Kind.OPERAND),
        ('"-$x"', Kind.UNKNOWN),
        ("a$x", Kind.UNKNOWN),
        ('"a$@"', Kind.UNKNOWN),
        ("*", Kind.UNKNOWN),
        ("src/*.py", Kind.OPERAND),
        ("-*", Kind.UNKNOWN),
        ("~/a", Kind.UNKNOWN),
        ('"z${x-$@}"', Kind.UNKNOWN),
        ('"z${x[@]}"', Kind.UNKNOWN),
        ('"z${x-$y}"', Kind.OPERAND),
        ("{}.bak", Kind.LITERAL),
        ("{},a}", Kind.UNKNOWN),
        ("{a,b}", Kind.UNKNOWN),
        ("{}", Kind.LITERAL),
        ("a$", Kind.LITERAL),
    ],
)
def test_it_is_known_how_much_of_a_word_is_known(word: str, kind: Kind) -> None:
    assert parse(f"echo {word}").commands[0].words[1].kind is kind


@pytest.mark.parametrize(
    ("line", "inner"),
    [
        ("env -u A B=1 -- cmd x", "cmd"),
        ("timeout --signal KILL 5 cmd", "cmd"),
        ("timeout -k5 -s KILL 5 cmd", "cmd"),
        ("nice -n 5 nohup time -p cmd", "cmd"),
        ("xargs -0 -n 1 -P4 cmd", "cmd"),
        ("find . -name x -exec cmd {} \\; -print", "cmd"),
        ("bash -o pipefail -c 'cmd'", "cmd"),
        ("bash -o posix -c 'cmd'", None),
        ("bash -euc 'cmd' name", "cmd"),
        ("eval cmd a", "cmd"),
        ("trap -- 'cmd' EXIT", "cmd"),
        ("alias x='cmd a'", "cmd"),
        ("busybox cmd", "cmd"),
    ],
)
def test_a_command_inside_another_is_found(line: str, inner: str | None) -> None:
    reading = read_commands(line)
    found = {command.words[0].text for command in reading.commands}
    assert not reading.plain
    if inner is None:
        assert reading.unclear
    else:
        assert inner in found
        assert not reading.unclear


@pytest.mark.parametrize(
    "line",
    [
        "a()" * 10_000 + "b",
        "echo " + "${a-" * 10_000 + "}" * 10_000,
        "echo " + "$(echo " * 5_000 + ")" * 5_000,
        "if a; then b; " + "elif a; then b; " * 3_900 + "fi",
    ],
    ids=["functions", "parameters", "substitutions", "branches"],
)
def test_what_is_nested_or_strung_together_without_end_is_a_question_and_no_full_stack(line: str) -> None:
    assert read_commands(line).unclear


@pytest.mark.parametrize(
    "line",
    [
        "env " * 16_000 + "x",
        "find -exec " * 5_900,
        "nice " * 13_000 + "x",
        "git a " + "$x " * 21_000,
        "time ! " + "time ! " * 9_000,
    ],
    ids=["env", "find", "nice", "unknown words", "time"],
)
def test_the_longest_text_is_judged_in_a_moment(line: str) -> None:
    before = time.process_time()
    judge_command(PRESETS["standard"], line)
    # 0.2 s; it is 5 to 25 s where each level looks at all words again. The exchange does nothing else meanwhile.
    assert time.process_time() - before < 2.0


@pytest.mark.parametrize(
    "line",
    [
        "rm &>/dev/null -r x",  # one command to bash, two to dash
        '$"rm" -r x',
        "time ! rm -r x",
        "alias l=rm\nl -r x",
        "find . -exec echo {} \\; -exec rm -r x \\;",
    ],
)
def test_what_another_shell_would_take_for_a_destructive_command_is_asked_for(line: str) -> None:
    assert judge_command(PRESETS["standard"], line).decision is Decision.ASK


def test_a_rule_without_a_name_is_refused_where_it_is_written() -> None:
    for key in ("denied", "asked"):
        with pytest.raises(ConfigError, match=f"shell.{key}: a rule is empty"):
            make_policy("standard", {"shell": {key: ["rm", " "]}})


@pytest.mark.parametrize("number", [-1, 0, 2**63, 10**30])
@pytest.mark.parametrize(
    "place",
    ["limits.memory_bytes", "limits.processes", "limits.cpu_s", "limits.file_bytes", "shell.max_timeout_ms",
     "quota.max_bytes", "quota.max_files"],
)  # fmt: skip
def test_a_limit_that_would_be_none_or_hold_nothing_is_refused_where_it_is_written(place: str, number: int) -> None:
    section, _, key = place.partition(".")
    with pytest.raises(ConfigError, match=place):
        make_policy("standard", {section: {key: number}})


@pytest.mark.parametrize("part", ["a;", "a|", "a&&", "`a`;", "a\n", "x $(b);", "(a);"])
def test_a_text_of_ten_thousand_commands_is_not_read_to_its_end(part: str) -> None:
    line = part * (60_000 // len(part)) + "a"
    with pytest.raises(NotUnderstood, match="too many commands"):
        parse(line)
    assert judge_command(make_policy("standard"), line, {}).decision is Decision.ASK
