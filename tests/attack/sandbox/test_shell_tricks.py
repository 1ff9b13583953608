"""Rules on the text of a command against tricks that hide it (P-F9), and what a space can switch off itself (P-F10)."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.requirement import requirement
from trunkline.errors import ConfigError
from trunkline.model import Decision
from trunkline.workspace.commands import name_of, read_commands
from trunkline.workspace.policy import PRESETS, judge_command, judge_file, make_policy


def corpus() -> list[tuple[str, str, str]]:
    lines = Path(__file__).with_name("shell_tricks.txt").read_text(encoding="utf-8").splitlines()
    cases = []
    for line in lines:
        if line and not line.startswith("#"):
            *verdicts, command = line.split("\t", 3)
            command = command.replace("⏎", "\n")
            cases += [(preset, verdict, command) for preset, verdict in zip(PRESETS, verdicts, strict=True)]
    return cases


CORPUS = corpus()


def test_the_corpus_is_as_large_as_promised() -> None:
    assert len({command for _, _, command in CORPUS}) >= 80


@requirement("SP-066", "SP-061")
@pytest.mark.parametrize("preset", PRESETS)
def test_a_trick_gets_the_verdict_of_what_it_hides(preset: str) -> None:
    expected = {command: verdict for name, verdict, command in CORPUS if name == preset}
    assert {command: judge_command(PRESETS[preset], command).decision for command in expected} == expected


@requirement("SP-063", "SP-067", "SP-065", "SP-068")
def test_a_verdict_says_which_rule_and_why() -> None:
    denied = judge_command(PRESETS["standard"], "sudo ls")
    assert denied.rule == "shell.denied"
    assert denied.reason == "Command 'sudo' is blocked"
    assert denied.suggestion == "Remove sudo from command"
    asked = judge_command(PRESETS["standard"], "rm -rf data/")
    assert (asked.rule, asked.reason) == ("shell.approvalRequired", "Destructive command requires approval")


def test_of_a_long_line_the_dangerous_part_is_told_first_and_what_is_cut_is_said() -> None:
    filler = "echo building; " * 500
    asked = judge_command(PRESETS["standard"], f"{filler} rm -rf data; {filler}")
    assert asked.reason == "Destructive command requires approval: 'rm -rf data'"
    hidden = judge_command(PRESETS["standard"], f"make && sh -c 'rm -rf {'long ' * 100}'")
    assert hidden.reason.startswith("Destructive command requires approval: 'rm -rf long long ")
    assert hidden.reason.endswith("long' (cut: 305 more characters)")
    many = judge_command(PRESETS["standard"], "; ".join(f"rm -r {number}" for number in range(9)))
    assert many.reason.endswith("; and 4 more such commands that are not shown here")
    unclear = judge_command(PRESETS["standard"], f"{filler} eval $x; python3 -c y")
    assert unclear.reason.endswith(", and 1 more of the kind")
    too_long = judge_command(PRESETS["standard"], f"{filler * 20} rm -rf data; {filler}")
    assert "it is too long; it holds, among other things: 'rm -rf data; echo" in too_long.reason


def test_a_denied_name_is_found_wherever_a_real_shell_would_run_it(tmp_path: Path) -> None:
    """Each denied line, given to a real shell whose `sudo` leaves a mark, leaves it: the corpus tests what it says."""
    marked = 0
    for name in ("sudo", "su", "doas"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n: > {tmp_path}/mark\n")
        program.chmod(0o755)
    for preset, expected, command in CORPUS:
        if preset != "standard" or expected != "deny" or "/usr/bin/" in command or "while :" in command:
            continue
        (tmp_path / "mark").unlink(missing_ok=True)
        (tmp_path / "list").write_text("a")
        line = command.replace("exec -a ls", "exec").replace("command -p", "command").replace("env -i", "env")
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        ran = ["timeout", "5", "sh", "-c", line]
        subprocess.run(ran, cwd=tmp_path, env=environment, capture_output=True, check=False, stdin=subprocess.DEVNULL)
        marked += (tmp_path / "mark").exists()
    assert marked >= 55


@given(st.text(max_size=60))
def test_any_text_gets_a_verdict_in_every_preset(command: str) -> None:
    for policy in PRESETS.values():
        assert judge_command(policy, command).decision in Decision


PIECES = st.sampled_from([
    ";", "&&", "|", "$(", ")", "`", "'", '"', "\\", "\n", " ", "{", "}", "(", "sudo", "ls", "$x", "#", "<<E", "E", "=",
    "if", "then", "fi", "case", "esac", "in", "do", "done", "for", "-c", "sh", "eval", "2>", "&", "${", "~", "*", "!",
    "$((",
])  # fmt: skip


@given(st.lists(PIECES, max_size=14).map("".join))
def test_a_line_of_shell_pieces_never_breaks_the_parser(command: str) -> None:
    read_commands(command)


@given(st.lists(PIECES, max_size=10).map(" ".join))
@example("ls =")
def test_restrictive_never_allows_what_is_not_on_its_list(command: str) -> None:
    policy = PRESETS["restrictive"]
    if judge_command(policy, command).decision is Decision.ALLOW:
        reading = read_commands(command)
        assert not reading.unclear
        assert {name_of(found) for found in reading.commands} <= set(policy.shell.allowed or ())
        if not set(command) & set("#'\"\\"):
            # A `=` that stands alone is an argument, and no assignment.
            assert not set(command) & set("$`<>()")


WRAPPINGS = [
    "{}", "({})", "{{ {}; }}", "if {}; then :; fi", "f() {{ {}; }}; f", "echo $({})", "echo `{}`", 'echo "$({})"',
    "x={} x", "case x in x) {};; esac", "for x in a; do {}; done", "cat <<E\n{}\nE\n", "cat <<E\n$({})\nE",
    "cat <<'E'\n{}\nE", "eval '{}'", 'eval "{}"', "sh -c '{}'", "{} | x", "x; {}", "x || {}", "{} &", "> o {}",
    "echo ${{x:-{}}}", "echo $(({}))", "# {}\n", "x \\\n{}", '"{}"', "'{}'", "echo {} #", "$(({}))", "env {}",
    "exec {}", "! {}", "x=1 {}", "alias echo='{}'\necho a", "alias cat='{}'\ncat <<'E'\nsudo\nE", "echo `# {}\n`",
    "echo `cat <<'E'\n{}\nE\n`", "cat <<E\n`{}`\nE", 'cat <<"EF"\nE\\\nF\n{}\nEF', "echo $[ {} ]", "(( {} ))",
    "echo ${{x-{}}}",
]  # fmt: skip


def hidden_in_shell() -> st.SearchStrategy[str]:
    """Lines around one `sudo`, many of which a shell accepts."""
    word = st.sampled_from(
        ["sudo", "echo", "x", "'sudo'", '"$x"', "$(sudo)", "`sudo`", "su\\do", "${x}", '"', "'", "\\", "$", "#"]
    )
    words = st.lists(word, min_size=1, max_size=3).map(" ".join) | st.lists(word, min_size=1, max_size=3).map("".join)
    return st.recursive(words, lambda inner: st.builds(str.format, st.sampled_from(WRAPPINGS), inner), max_leaves=4)


@settings(max_examples=250)
@given(hidden_in_shell())
def test_nothing_that_a_real_shell_runs_as_sudo_is_ever_allowed(command: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sudo").write_text(f"#!/bin/sh\n: > {folder}/mark\n")
        (folder / "sudo").chmod(0o755)
        for program in ("sh", "cat", "env"):
            (folder / program).symlink_to(f"/usr/bin/{program}")
        for shell in (["/bin/dash"], ["/bin/bash", "--posix"]):
            line = ["/usr/bin/timeout", "5", *shell, "-c", command]
            nothing = subprocess.DEVNULL
            subprocess.run(line, cwd=folder, env={"PATH": name}, stdin=nothing, capture_output=True, check=False)
        if (folder / "mark").exists():
            assert judge_command(PRESETS["standard"], command).decision is not Decision.ALLOW


@pytest.mark.parametrize(
    "command",
    [
        "(" * 5000,
        "$(" * 5000,
        "`" * 5001,
        "if " * 3000,
        "sh -c " * 300,
        "a;" * 30_000,
        "foo " + "rm " * 20_000,
        "foo '" + "rm " * 20_000 + "'",
        "a\\\n''" * 13_000,
    ],
)
def test_a_hostile_text_is_answered_in_bounded_time(command: str) -> None:
    verdict = judge_command(PRESETS["standard"], command)
    assert verdict.decision in {Decision.ASK, Decision.ALLOW}


# --- both sides of the rule -------------------------------------------------------------------------------------------


def lines(name: str) -> list[str]:
    """The lines of a corpus; one with a line break in it is never a comment."""
    found = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return [line.replace("⏎", "\n") for line in found if line and ("⏎" in line or not line.startswith("# "))]


ASKED, ORDINARY = lines("asked_lines.txt"), lines("ordinary_lines.txt")


def test_both_corpora_are_as_large_as_promised() -> None:
    assert len(set(ASKED)) >= 445
    assert len(set(ORDINARY)) >= 335


def test_a_line_that_may_remove_a_tree_is_asked() -> None:
    asked = (Decision.ASK, "shell.approvalRequired")
    verdicts = {command: judge_command(PRESETS["standard"], command) for command in ASKED}
    assert {command: one for command, one in verdicts.items() if (one.decision, one.rule) != asked} == {}


def test_ordinary_work_is_not_asked() -> None:
    verdicts = {command: judge_command(PRESETS["standard"], command) for command in ORDINARY}
    assert {command: one.reason for command, one in verdicts.items() if one.decision is not Decision.ALLOW} == {}


@pytest.mark.parametrize("key", ["GIT_CONFIG_COUNT", "GIT_SSH_COMMAND", "PAGER", "PS4", "NODE_OPTIONS"])
def test_a_variable_that_programs_run_is_asked_where_what_is_unclear_is(key: str) -> None:
    assert judge_command(PRESETS["standard"], "git status", {key: "x"}).decision is Decision.ASK
    assert judge_command(PRESETS["permissive"], "git status", {key: "x"}).decision is Decision.ALLOW


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("rm ~ data", "HOME", "-rf"),
        ('make "$TARGET"', "TARGET", "--eval=all:;/bin/r?m -rf data"),
        ("make x.o", "CFLAGS", "${shell rm -rf data}"),
        ("echo $((n))", "n", "a[b]"),
    ],
)
def test_a_variable_of_an_operation_counts_for_what_it_becomes_in_the_line(line: str, key: str, value: str) -> None:
    assert judge_command(PRESETS["standard"], line, {key: value}).decision is Decision.ASK
    if key != "HOME":
        assert judge_command(PRESETS["standard"], line, {key: "1"}).decision is Decision.ALLOW


RUNNERS = [
    "{}", "A=1 {}", "! {}", "2>/dev/null {}", "({})", "{{ {}; }}", "ls; {}", "false || {}", "ls && {}", "ls | {}",
    "if true; then {}; fi", "for x in a; do {}; done", "case x in x) {};; esac", "f() {{ {}; }}; f", "echo $({})",
    "echo `{}`", "x=$({})", "cat <<E\n$({})\nE", "cat <<E $(\n{}\n)\nE", "cat <<E; {}\nE", "sh -c '{}'",
    "sh -ec '{}'", "eval '{}'", "trap '{}' EXIT", "env {}", "env - {}", "env -i {}", "env -u A {}", "env A=1 {}",
    "env --uns A {}", "env -S '{}'", "timeout 5 {}", "timeout -s 9 5 {}", "timeout --sig KILL 5 {}",
    "timeout --preserve 5 {}", "nice {}", "nice -n 1 {}", "nice -1 {}", "nohup {}", "setsid -w {}", "stdbuf -o0 {}",
    "ionice -c 3 {}", "taskset 1 {}", "chrt -o 0 {}", "choom -n 1 -- {}", "flock lock {}", "flock lock -c '{}'",
    "command {}", "exec {}", "echo a | xargs {}", "echo '{}' | sh", "echo '{}' | . //dev/stdin",
    "echo '{}' | xargs -I@ sh -c @", "find . -maxdepth 0 -exec {} \\;", "awk 'BEGIN{{system(\"{}\")}}'",
    "sed '1e {}' file", "perl -e 'system \"{}\"'", "x='{}'; $x", 'set -- {}; "$@"', "ssh-agent {}",
    "tar cf /dev/null --checkpoint=1 --checkpoint-action=exec='{}' list", "git -c alias.x='!{}' x",
    "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=alias.x GIT_CONFIG_VALUE_0='!{}' git x", "script -qc '{}' /dev/null",
    "make -f /dev/null --eval='x:;{}' x", "echo 'x:;{}' | make -f - x", "prlimit --nofile=99 {}",
    "bash -O extglob -c '{}'", "split --filter='{}' list",
    # Words that become options, or several words.
    "HOME=-c; sh ~ '{}'", "OLDPWD=-c; sh ~- '{}'", "set -- -c '{}'; sh \"${{x-$@}}\"", "sh +c '{}'", "bash +c '{}'",
    "find . -maxdepth 0 -exec sh -c '{}' + \\;", "echo '{}' | xargs -rI@ sh -c @", "env a.b=1 {}",
    # Aliases and backticks.
    "alias cat='#'\ncat <<'E'\n{}\nE", "alias echo='#'\necho '\n{}\necho '", "alias cat='true \\'\ncat<<'E'\n{}\nE",
    "alias ls='echo $(cat <<E\n{}\nE\n)'\nls a", "alias echo='{}'\necho a", 'echo `cat <<"EF"\nE\\\nF\n{}\nEF\n`',
    "echo `# \\\ncat <<E\n{}\nE\n`", "echo `cat <<E\n$({})\nE\n`", 'echo "`{}`"',
    # Input by a path that is not written out, and words that nobody can see.
    "echo '{}' | . -- /dev/stdin", "echo '{}' | sh /de?/stdin", "make -f /d*v/stdin x <<'E'\nx:\n\t{}\nE",
    "set -- '--eval=x:;{}'; make \"$1\"", "echo() {{ make \"$1\"; }}; echo '--eval=x:;{}'",
    "printf '%s' '--eval=x:;{}' | xargs -0 make", "set -- '-e1e{}'; sed p \"$@\" file", ": '--eval=x:;{}'; make \"$_\"",
    "read x <<'E'\nA {}\nE\nenv -u $x ls", "find() {{ echo '\"-e1e{}\"'; }}; find | xargs sed p file",
    # Programs of others.
    "awk 'BEGIN{{x = /\"/ ; system(\"{}\") ; y = /\"/ }}'", "awk 'BEGIN{{x=/#/;system(\"{}\")}}'",
    "sed 'r x\\\ne {}' file",
    "python3 -v -c 'import os; os.system(\"{}\")'", "env 'BASH_FUNC_echo%%=() {{ {}; }}' bash -c 'echo hi'",
    "touch x.c; make 'CFLAGS=$(shell {})' x.o", "sqlite3 x.db <<'E'\n.shell {}\nE", "sqlite3 x.db '.sh {}'",
    "git init -q; git config core.fsmonitor '{};false' get; git status",
    "git init -q; GIT_ALLOW_PROTOCOL=ext git -c remote.o.url='ext::{}' fetch o",
    # What bash knows and dash does not.
    "echo $[ 1 #$({}) ]", "(( 'x $({})' ))", "(( 1 #$({})\n))", "read y <<'E'\na[$({})]\nE\necho $((y))",
    "read y <<'E'\na[$({})]\nE\ntest -v \"$y\"", "mapfile -C '{} #' -c 1 x < list", "compgen -C '{}'",
    "compgen -W '$({})'",
    "printf -v PS4 '\\x24({})'; set -x; ls", "v=PS4; read \"$v\" <<'E'\n$({})\nE\nset -x; ls", "jobs -x {}",
]  # fmt: skip
PROGRAMS = (
    "sh", "bash", "cat", "ls", "env", "timeout", "nice", "nohup", "setsid", "stdbuf", "ionice", "taskset", "chrt",
    "choom", "xargs", "find", "awk", "sed", "perl", "tar", "git", "make", "script", "prlimit",
    "split", "python3", "sqlite3", "touch",
)  # fmt: skip
REMOVALS = [
    "rm -rf data", "rm -r data", "rm data -fr", "r''m -rf data", "HOME=-rf; rm ~ data", "OLDPWD=-rf; rm ~- data",
    'set -- a -rf data; rm "z${x-$@}"', "find data ! -name -- -delete", "tar cf /dev/null data --remove-files",
    "find . -maxdepth 0 -exec rm + -rf data \\;",
]  # fmt: skip
# What is put anywhere: it continues a line, or begins or ends what is read in another way.
MARKS = ["\\\n", "\\\n", "\\\n", "\n", "'", '"', "\\", "#", " #", "`", "~", "$x"]


@st.composite
def wrapped(draw: st.DrawFn) -> str:
    """A removal in one to three wrappers, with marks put in wherever chance says."""
    line = draw(st.sampled_from(REMOVALS))
    for wrapper in draw(st.lists(st.sampled_from(RUNNERS), min_size=1, max_size=3)):
        # Quoted as it should be, or just put between the quotes.
        is_quoted = draw(st.booleans())
        line = wrapper.replace("'{}'", "{}").format(shlex.quote(line)) if is_quoted else wrapper.format(line)
    for place in draw(st.lists(st.integers(0, len(line)), max_size=3)):
        line = line[:place] + draw(st.sampled_from(MARKS)) + line[place:]
    return line


# It leaves a mark where the real one would remove a tree.
RM = """#!/bin/sh
for word; do
    case $word in --) break;; --r*|-[!-]*[rR]*|-[rR]*) recursive=1;; data) named=1;; esac
done
test "$recursive$named" != 11 || : > {}/mark
"""


def is_carried_out(command: str, folder: Path, limit_s: int = 1) -> bool:
    """Whether dash or bash, given this line, comes to call `rm`, which is one that only leaves a mark."""
    (folder / "rm").write_text(RM.format(folder))
    (folder / "rm").chmod(0o755)
    for program in PROGRAMS:
        if Path("/usr/bin", program).exists():
            (folder / program).symlink_to(f"/usr/bin/{program}")
    (folder / "list").write_text("a")
    (folder / "file").write_text("a")
    (folder / "data").mkdir()
    for shell in (["/bin/dash"], ["/bin/bash", "--posix"]):
        line = ["/usr/bin/timeout", "-s", "KILL", str(limit_s), *shell, "-c", command]
        environment = {"PATH": str(folder), "HOME": str(folder)}
        # No pipe: whatever stays behind for a moment would keep it open.
        none = subprocess.DEVNULL
        subprocess.run(line, cwd=folder, env=environment, stdin=none, stdout=none, stderr=none, check=False)
    # Without a PATH the real one is found, and does what it does.
    return (folder / "mark").exists() or not (folder / "data").exists()


@settings(max_examples=300)
@given(wrapped())
def test_a_wrapped_removal_that_a_real_shell_carries_out_is_never_allowed(command: str) -> None:
    if judge_command(PRESETS["standard"], command).decision is Decision.ALLOW:
        with tempfile.TemporaryDirectory() as name:
            assert not is_carried_out(command, Path(name))


@pytest.mark.parametrize("wrapper", RUNNERS)
def test_a_wrapper_is_asked_and_most_of_them_do_carry_out_a_removal(wrapper: str, tmp_path: Path) -> None:
    """So that the test above says something: each wrapper alone, given to a real shell."""
    command = wrapper.format("rm -rf data")
    assert judge_command(PRESETS["standard"], command).decision is Decision.ASK
    may_not_work = (
        "sed '1e",
        "chrt",
        "choom",
        "ionice",
        "x='",
        "env -S",
        "cat <<E;",
        "cat <<E $",
        "script",
        "split",
        "ssh-agent",
        "flock",
        "sqlite3",  # not on every machine
        "alias ls='echo $(cat",  # bash only from 5.2 on
        "alias echo='#'",
    )
    if not wrapper.startswith(may_not_work):
        assert is_carried_out(command, tmp_path, limit_s=30)


# --- what an operation can not change (P-F10) and other rules ---------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV", "ENV", "a=b", ""]
)
def test_a_variable_that_loads_code_is_refused_in_every_preset(key: str) -> None:
    for policy in PRESETS.values():
        verdict = judge_command(policy, "ls", {key: "x"})
        assert (verdict.decision, verdict.rule) == (Decision.DENY, "shell.environment")


def test_a_variable_makes_a_reading_command_a_question() -> None:
    assert judge_command(PRESETS["restrictive"], "ls", {"PATH": "."}).decision is Decision.ASK
    assert judge_command(PRESETS["standard"], "ls", {"DEBUG": "true"}).decision is Decision.ALLOW


@pytest.mark.parametrize(
    "path",
    [".git/hooks/pre-commit", ".git/config", ".GIT/Hooks/x", "sub/.git/hooks/x", ".git", "./.git//hooks/x", ".bashrc",
     ".ssh/id", ".git/modules/a/hooks/x", ".vscode/tasks.json"],
)  # fmt: skip
@pytest.mark.parametrize("preset", PRESETS)
def test_what_other_programs_would_run_is_not_written_in_any_preset(preset: str, path: str) -> None:
    for action in ("create", "edit", "delete"):
        verdict = judge_file(PRESETS[preset], action, path)  # type: ignore[arg-type]
        assert (verdict.decision, verdict.rule) == (Decision.DENY, "filesystem.protected")
    assert judge_file(PRESETS[preset], "read", path).decision is Decision.ALLOW


@pytest.mark.parametrize("path", ["git/hooks/x", ".gitignore", ".github/workflows/x.yml", "src/.git-blame", "hooks/x"])
def test_a_path_that_only_looks_protected_is_not(path: str) -> None:
    assert judge_file(PRESETS["standard"], "create", path).decision is Decision.ALLOW
    assert judge_file(PRESETS["restrictive"], "create", path).decision is Decision.ASK


def test_overrides_replace_single_values_and_a_bad_one_names_its_place() -> None:
    policy = make_policy("standard", {"shell": {"denied": ["curl"]}, "network": {"allowed": True}})
    assert judge_command(policy, "curl x").decision is Decision.DENY
    assert judge_command(policy, "rm -r x").decision is Decision.ASK
    assert policy.network.allowed
    for overrides, place in (
        ({"shel": {}}, "shel"),
        ({"shell": {"denies": []}}, "shell.denies"),
        ({"shell": 1}, "shell"),
        ({"network": {"allowed": "yes"}}, "network.allowed"),
        ({"filesystem": {"write": "maybe"}}, "filesystem.write"),
    ):
        with pytest.raises(ConfigError) as refused:
            make_policy("standard", overrides)
        assert refused.value.place == place
    with pytest.raises(ConfigError):
        make_policy("free", {})
