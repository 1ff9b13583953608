from __future__ import annotations

import os
from pathlib import Path

import pytest

from trunkline.host.confinement import (
    Subject,
    View,
    advice,
    bubblewrap_plan,
    is_visible,
    landlock_plan,
    make_view,
    program_paths,
)
from trunkline.host.launch import LaunchError


class Machine:
    """A user's home with an exchange, a project and programs in it, below one folder."""

    def __init__(self, root: Path) -> None:
        self.user = root / "home" / "me"
        self.home = self.user / ".trunkline"
        self.project = self.user / "project"
        for folder in (self.home / "keys", self.home / "agents" / "a", self.project):
            folder.mkdir(parents=True)
        for file in (self.home / "operator.token", self.project / "agent.py", self.user / "diary"):
            file.write_text("x")

    def view(self, *words: str, cwd: Path | None = None, **more: object) -> View:
        program = more.pop("program", "/usr/bin/env")
        subject = Subject(("env", *words), str(program), str(cwd or self.project), **more)  # type: ignore[arg-type]
        return make_view(
            subject,
            home=str(self.home),
            folder=str(self.home / "agents" / "a"),
            socket=str(self.home / "run" / "agents.sock"),
            installed=(),
        )

    def installed(self, name: str) -> Path:
        """A program in a folder of its own."""
        file = self.user / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\x7fELF")
        file.chmod(0o755)
        return file


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(Path(os.path.realpath(tmp_path)))
    monkeypatch.setenv("HOME", str(made.user))
    return made


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_an_agent_sees_its_folder_its_working_folder_and_nothing_else_of_its_user(machine: Machine) -> None:
    view = machine.view("agent.py")
    assert (view.readable, view.writable) == ((str(machine.project),), ())
    assert is_visible(view, str(machine.home / "agents" / "a" / "notes"))
    for hidden in (machine.user / "diary", machine.home / "operator.token", machine.home / "agents" / "b"):
        assert not is_visible(view, str(hidden))


def test_the_folder_of_every_file_that_a_command_names_is_shown(machine: Machine) -> None:
    for name in ("one/a.py", "two/b.toml", "three/c"):
        machine.installed(name)
    words = ("../one/a.py", f"--config={machine.user}/two/b.toml", str(machine.user / "three"), "nowhere.py")
    view = machine.view(*words)
    assert set(view.readable) == {str(machine.user / name) for name in ("one", "two", "three", "project")}


def test_a_file_in_the_users_home_is_shown_alone(machine: Machine) -> None:
    view = machine.view("../diary")
    assert str(machine.user / "diary") in view.readable
    assert not is_visible(view, str(machine.user / "letters"))


@pytest.mark.parametrize("where", ["user", "root"])
def test_a_working_folder_that_holds_everything_is_entered_and_not_shown(machine: Machine, where: str) -> None:
    cwd = machine.user if where == "user" else Path("/")
    view = machine.view(cwd=cwd)
    assert view.readable == ()
    options = bubblewrap_plan(view, "bwrap")["options"]
    assert options[-2:] == ["--chdir", str(cwd)]


def test_a_file_beside_the_exchanges_own_is_shown_if_the_command_names_it_and_those_are_not(machine: Machine) -> None:
    """An agent that lies in the exchange's home, as in the README."""
    (machine.home / "weather.py").write_text("x")
    view = machine.view("weather.py", "operator.token", "keys", cwd=machine.home)
    assert view.readable == (str(machine.home / "weather.py"),)
    assert not is_visible(view, str(machine.home / "operator.token"))


def test_a_working_folder_above_the_exchanges_home_shows_everything_but_that(machine: Machine) -> None:
    inner = machine.project / ".exchange"
    (inner / "agents" / "a").mkdir(parents=True)
    (inner / "operator.token").write_text("x")
    machine.home = inner
    (machine.project / "lib").mkdir()
    view = machine.view("agent.py")
    assert is_visible(view, str(machine.project / "agent.py"))
    assert not is_visible(view, str(inner / "operator.token"))
    options = bubblewrap_plan(view, "bwrap")["options"]
    shown, covered = options.index(str(machine.project)), options.index(str(inner))
    own = options.index(str(inner / "agents" / "a"))
    assert (options[covered - 1], shown < covered < own) == ("--tmpfs", True)
    rules = landlock_plan(view)["readable"]
    assert str(machine.project / "lib") in rules
    assert not [rule for rule in rules if str(inner).startswith(rule + "/") or rule == str(inner)]


def test_a_link_to_a_folder_above_the_home_does_not_lead_there(machine: Machine) -> None:
    up = machine.user.parent / "up"
    up.symlink_to(machine.user)
    view = machine.view(read=(str(up),))
    assert is_visible(view, str(up / "diary"))
    for way in (machine.home, up / ".trunkline"):
        assert not is_visible(view, str(way / "operator.token"))
    options = bubblewrap_plan(view, "bwrap")["options"]
    assert options[options.index(str(up / ".trunkline")) - 1] == "--tmpfs"


@pytest.mark.parametrize("key", ["read", "write"])
@pytest.mark.parametrize("name", [".trunkline", ".trunkline/keys", ".trunkline/operator.token", ".trunkline/agents/b"])
def test_what_is_the_exchanges_own_cannot_be_shown(machine: Machine, key: str, name: str) -> None:
    (machine.home / "agents" / "b").mkdir()
    with pytest.raises(LaunchError, match=f"{key} names .*the exchange's own"):
        machine.view(**{key: (str(machine.user / name),)})
    (machine.project / "link").symlink_to(machine.user / name)
    with pytest.raises(LaunchError, match="the exchange's own"):
        machine.view(**{key: (str(machine.project / "link"),)})


def test_a_path_that_is_not_there_is_named(machine: Machine) -> None:
    with pytest.raises(LaunchError, match="write names /nowhere/at/all, which does not exist"):
        machine.view(write=("/nowhere/at/all",))


def test_what_may_be_written_is_not_shown_to_read_only_as_well(machine: Machine) -> None:
    view = machine.view("agent.py", write=(str(machine.project),))
    assert (view.readable, view.writable) == ((), (str(machine.project),))
    options = bubblewrap_plan(view, "bwrap")["options"]
    assert options[options.index(str(machine.project)) - 1] == "--bind"


def test_without_a_network_there_is_none(machine: Machine) -> None:
    assert "--share-net" in bubblewrap_plan(machine.view(), "bwrap")["options"]
    closed = machine.view(network=False)
    assert "--share-net" not in bubblewrap_plan(closed, "bwrap")["options"]
    assert landlock_plan(closed)["filter"] != landlock_plan(machine.view())["filter"]


# --- what an agent leaves for the next start --------------------------------------------------------------------------


@pytest.fixture
def secret(machine: Machine) -> Path:
    """A folder that nobody named."""
    return machine.installed("private/keys/id")


def exposes(view: View, secret: Path) -> bool:
    return any(str(secret).startswith(os.path.realpath(path) + "/") or str(secret) == os.path.realpath(path)
               for path in (*view.readable, *view.writable))  # fmt: skip


@pytest.mark.parametrize("name", ["agent.py", "sub/agent.py", "work", "tool"])
def test_a_link_that_an_agent_made_where_it_may_write_is_not_followed(
    machine: Machine, secret: Path, name: str
) -> None:
    place = machine.project / name
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(secret.parent if name == "work" else secret)
    cwd = place if name == "work" else machine.project
    view = machine.view(name, cwd=cwd, write=(str(machine.project),), read=(str(place),))
    assert not exposes(view, secret)
    way_in = machine.user / "entry"
    way_in.symlink_to(place)
    assert not exposes(machine.view(str(way_in), write=(str(machine.project),)), secret)


def test_a_folder_to_write_that_an_agent_replaced_by_a_link_is_not_followed(machine: Machine, secret: Path) -> None:
    (machine.project / "out").symlink_to(secret.parent)
    view = machine.view(write=(str(machine.project), str(machine.project / "out")))
    assert view.writable == (str(machine.project),)


def test_a_link_in_an_agents_own_folder_is_not_followed(machine: Machine, secret: Path) -> None:
    link = machine.home / "agents" / "a" / "code.py"
    link.symlink_to(secret)
    assert not exposes(machine.view(str(link)), secret)


def test_a_link_that_another_agent_made_is_not_followed(machine: Machine, secret: Path) -> None:
    shared = machine.user / "shared"
    shared.mkdir()
    (shared / "data").symlink_to(secret.parent)
    others = (str(shared),)
    for view in (
        machine.view(read=(str(shared / "data"),), written_by_others=others),
        machine.view(str(shared / "data"), written_by_others=others),
        machine.view(cwd=shared / "data", written_by_others=others),
    ):
        assert not exposes(view, secret)
        assert str(shared) in view.readable


def test_a_program_that_an_agent_could_change_is_not_followed_and_the_error_says_what_to_add(machine: Machine) -> None:
    real = machine.installed("pyenv/3.12/bin/python3")
    link = machine.project / "python"
    link.symlink_to(real)
    changeable = {"program": link, "write": (str(machine.project),)}
    with pytest.raises(LaunchError, match=f'leads to {real}.*: add read = \\["{machine.user}/pyenv/3.12"\\]'):
        machine.view(**changeable)
    assert (
        str(machine.user / "pyenv/3.12")
        in machine.view(read=(str(machine.user / "pyenv/3.12"),), **changeable).readable
    )


def test_nobody_may_write_above_the_exchanges_home_or_in_its_program(machine: Machine) -> None:
    with pytest.raises(LaunchError, match="the exchange itself is there"):
        machine.view(write=(str(machine.user),))
    venv = machine.project / ".venv"
    (venv / "lib").mkdir(parents=True)
    for path in (machine.project, venv, venv / "lib"):
        subject = Subject(("env",), "/usr/bin/env", "/", write=(str(path),))
        with pytest.raises(LaunchError, match="the exchange itself is there"):
            make_view(subject, home=str(machine.home), folder="/x", socket="/y", installed=(str(venv),))


def test_a_folder_in_the_home_that_is_not_the_exchanges_can_be_written(machine: Machine) -> None:
    mine = machine.home / "mine"
    mine.mkdir()
    view = machine.view(write=(str(mine),))
    assert is_visible(view, str(mine / "file"))
    options = bubblewrap_plan(view, "bwrap")["options"]
    bound, covered = options.index(str(mine)), options.index(str(machine.home))
    assert (options[bound - 1], covered < bound) == ("--bind", True)


def test_a_named_file_in_the_home_is_shown_also_from_a_folder_above(machine: Machine) -> None:
    inner = machine.project / ".exchange"
    (inner / "agents" / "a").mkdir(parents=True)
    (inner / "weather.py").write_text("x")
    machine.home = inner
    view = machine.view(".exchange/weather.py")
    assert is_visible(view, str(inner / "weather.py"))
    options = bubblewrap_plan(view, "bwrap")["options"]
    assert options.index(str(inner)) < options.index(str(inner / "weather.py"))


# --- programs ---------------------------------------------------------------------------------------------------------


def test_a_virtual_environment_comes_with_every_installation_on_its_way(machine: Machine) -> None:
    real = machine.installed("pyenv/versions/3.12.1/bin/python3.12")
    machine.installed("uv/python/3.12/bin/python3")
    link = machine.user / "shared" / "bin" / "python3"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    venv = machine.project / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(link)
    (venv / "pyvenv.cfg").write_text(f"home = {machine.user}/uv/python/3.12/bin\n")
    found = program_paths(str(venv / "bin" / "python"), str(machine.home))
    parts = ("pyenv/versions/3.12.1", "uv/python/3.12", "shared", "project/.venv")
    # `shared` lies right below the home, where only folders of programs are shown.
    assert set(found) == {str(machine.user / part) for part in parts if part != "shared"} | {str(link.parent)}


def test_what_is_installed_for_editing_is_shown(machine: Machine) -> None:
    python = machine.installed("venvs/one/bin/python")
    packages = machine.user / "venvs/one/lib/python3.12/site-packages"
    packages.mkdir(parents=True)
    source = machine.user / "work" / "src"
    source.mkdir(parents=True)
    (packages / "mine.pth").write_text(f"import something\n{source}\n{machine.user}\n/nowhere\n")
    assert set(program_paths(str(python), str(machine.home))) == {str(source), str(machine.user / "venvs/one")}


def test_of_a_folder_of_programs_in_a_home_the_rest_is_not_shown(machine: Machine) -> None:
    program = machine.installed(".local/bin/tool")
    machine.installed(".local/lib/tool.so")
    machine.installed(".local/share/keyrings/login")
    found = program_paths(str(program), str(machine.home))
    assert set(found) == {str(machine.user / ".local" / name) for name in ("bin", "lib")}


def test_programs_in_the_home_itself_do_not_show_it(machine: Machine) -> None:
    assert program_paths(str(machine.installed("bin/tool")), str(machine.home)) == (str(machine.user / "bin"),)
    assert program_paths(str(machine.installed("tool")), str(machine.home)) == (str(machine.user / "tool"),)


def test_the_interpreter_of_a_script_is_shown(machine: Machine) -> None:
    node = machine.installed("nvm/versions/v20/bin/node")
    script = machine.installed("tools/x/run")
    script.write_text(f"#!{node} --flag\n")
    assert str(machine.user / "nvm/versions/v20") in program_paths(str(script), str(machine.home))


def test_links_that_lead_in_a_circle_end(machine: Machine) -> None:
    one, two = machine.project / "one", machine.project / "two"
    one.symlink_to(two)
    two.symlink_to(one)
    assert program_paths(str(one), str(machine.home)) == (str(machine.project),)


# --- what is said when something was missing --------------------------------------------------------------------------


def test_a_path_that_a_failed_agent_named_is_named_with_the_key_to_add(machine: Machine) -> None:
    data = machine.installed("data/table.csv")
    said = f"Traceback:\nFileNotFoundError: [Errno 2] No such file or directory: '{data}'\n"
    assert advice(machine.view(), said) == (
        f'it named {data}, which its sandbox does not show it: add read = ["{data.parent}"] to its [[agent]]'
    )


@pytest.mark.parametrize(
    "error", ["OSError: [Errno 30] Read-only file system", "PermissionError: [Errno 13] Permission denied"]
)
def test_a_path_that_it_may_not_write_asks_for_the_other_key(machine: Machine, error: str) -> None:
    file = machine.project / "out.txt"
    assert advice(machine.view(), f"{error}: '{file}'") == (
        f'it named {file}, which its sandbox shows it to read only: add write = ["{machine.project}"] to its [[agent]]'
    )
    (machine.user / "results").mkdir()
    new = machine.user / "results" / "new"
    assert f'add write = ["{new.parent}"]' in advice(machine.view(), f"{error}: '{new}'")


@pytest.mark.parametrize(
    "line", ["no path at all", "/nowhere/at/all is missing", "/usr/lib is there", "http://x/home", ""]
)
def test_what_no_key_would_help_is_not_advised(machine: Machine, line: str) -> None:
    assert advice(machine.view(), line) == ""


def test_the_last_line_counts(machine: Machine) -> None:
    first, last = machine.installed("one/a"), machine.installed("two/b")
    assert f"it named {last}," in advice(machine.view(), f"cannot open {first}\ncannot open {last}\nbye\n")


def test_what_is_the_exchanges_own_is_never_advised_and_a_file_beside_it_alone(machine: Machine) -> None:
    """An agent writes what is read there: it must not have the operator told to show it the token."""
    for name in ("", "operator.token", "keys"):
        assert advice(machine.view(), f"cannot open {machine.home / name}") == ""
    beside = machine.home / "lib.py"
    beside.write_text("x")
    assert f'add read = ["{beside}"]' in advice(machine.view(cwd=machine.home), f"cannot open {beside}")


def test_an_agents_own_manifest_is_shown_also_where_it_lies_in_the_home_of_the_exchange(machine: Machine) -> None:
    manifest = machine.home / "opensentience.agent.json"
    manifest.write_text("{}")
    assert is_visible(machine.view(manifest=str(manifest)), str(manifest))
    assert not is_visible(machine.view(), str(manifest))
    assert not is_visible(machine.view(manifest=str(manifest)), str(machine.home / "operator.token"))
