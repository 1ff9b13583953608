"""``trunkline connect`` and ``import``: files of MCP clients in a home of their own."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from trunkline import key_files
from trunkline.cli import client_files
from trunkline.cli.mcp import token_file
from trunkline.cli.mcp_clients import CLIENTS, McpClient
from trunkline.cli.mcp_import import Found, Import, Importer
from trunkline.cli.mcp_secrets import is_secret, masked_address, masked_words
from trunkline.cli.terminal import CommandFailed
from trunkline.config_file import load
from trunkline.home import Home

pytestmark = pytest.mark.slow

# No real token: only its form.
SECRET = "ghp_" + "0123456789abcdefghij" * 2


class Person:
    """Somebody with a home folder and some clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "trunkline"
        self.env = {"HOME": str(folder), "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.told("--json", *words, code=code).stdout)

    def told(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """What somebody at a terminal reads."""
        command = [sys.executable, "-m", "trunkline", "--home", str(self.home), *words]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == code, done.stdout + done.stderr
        assert SECRET not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def file(self, client: str, text: str | None = None) -> Path:
        path = CLIENTS[client].file(self.env)
        if text is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return path


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


BEFORE = {
    "json": '{\n  // mine\n  "KEY": {\n    "other": {"command": "x", "args": []}\n  },\n  "theme": "dark"\n}\n',
    "toml": '# mine\nmodel = "o5"\n\n[KEY.other]\ncommand = "x"  # why not\n\n[tui]\ntheme = "dark"\n',
}


def before_of(client: McpClient) -> str:
    return BEFORE[client.form].replace("KEY", client.key)


@pytest.mark.parametrize("name", list(CLIENTS))
def test_a_client_learns_of_us_and_forgets_us_and_the_rest_stays_as_it_is(person: Person, name: str) -> None:
    client = CLIENTS[name]
    file = person.file(name, before_of(client))
    file.chmod(0o640)
    shown = person.run("connect", name, "--dry-run")
    assert shown["changed"] is True
    assert file.read_text() == before_of(client)
    done = person.run("connect", name)
    entry = client.servers(file.read_text())["trunkline"]
    assert entry["args"][-4:] == [str(person.home), "mcp", "--as", name]
    assert "# mine" in file.read_text() or "// mine" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert Path(done["backup"]).read_text() == before_of(client)
    assert Path(done["backup"]).name.startswith(f"{file.name}.bak-")
    assert person.run("connect", name)["changed"] is False
    person.run("connect", name, "--undo")
    assert file.read_text() == before_of(client)
    assert person.run("connect", name, "--undo")["changed"] is False


@pytest.mark.parametrize("name", list(CLIENTS))
def test_a_client_without_a_file_gets_one_for_its_owner_only(person: Person, name: str) -> None:
    done = person.run("connect", name)
    file = person.file(name)
    assert done["backup"] is None
    assert list(CLIENTS[name].servers(file.read_text())) == ["trunkline"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", list(CLIENTS))
def test_a_file_that_cannot_be_read_stays_as_it_is(person: Person, name: str) -> None:
    file = person.file(name, "{ [ nothing")
    for verb in ("connect", "import"):
        assert person.run(verb, name, code=2)["error"]["code"] == "config.invalid"
    assert file.read_text() == "{ [ nothing"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_what_was_written_into_the_file_since_stays_when_our_entry_goes(person: Person) -> None:
    file = person.file("codex", '[tui]\ntheme = "dark"\n')
    person.run("connect", "codex")
    file.write_text(file.read_text() + '\n# about history\n\n# and more\n[history]\npersistence = "none"\n')
    person.run("connect", "codex", "--undo")
    after = '[tui]\ntheme = "dark"\n\n# about history\n\n# and more\n[history]\npersistence = "none"\n'
    assert file.read_text() == after
    file = person.file("cursor", '{"mcpServers": {\n"a": {"command": "a"} // about a\n}}')
    person.run("connect", "cursor")
    comma = file.read_text().rindex("}", 0, file.read_text().rindex("}}")) + 1
    file.write_text(file.read_text()[:comma] + ', // ours\n// about b\n"b": {}' + file.read_text()[comma:])
    person.run("connect", "cursor", "--undo")
    assert list(CLIENTS["cursor"].servers(file.read_text())) == ["a", "b"]
    assert all(comment in file.read_text() for comment in ("// about a", "// about b"))


def test_an_entry_of_our_name_that_is_not_ours_or_of_another_home_is_left_alone(person: Person) -> None:
    text = '{"mcpServers": {"trunkline": {"command": "railways", "args": ["serve"]}}}'
    file = person.file("cursor", text)
    for words in ((), ("--undo",)):
        assert "is not ours" in person.run("connect", "cursor", *words, code=2)["error"]["message"]
    assert file.read_text() == text
    file.unlink()
    person.run("connect", "cursor")
    ours = file.read_text()
    person.home = person.folder / "other home"
    refused = person.run("connect", "cursor", "--undo", code=2)["error"]["message"]
    assert f"--undo --home {person.folder / 'trunkline'}" in refused
    assert file.read_text() == ours
    assert person.run("connect", "cursor")["changed"] is True, "another exchange may take its place"


def test_an_inline_table_of_codex_is_left_to_its_owner(person: Person) -> None:
    text = 'mcp_servers = { other = { command = "x" } }\n'
    file = person.file("codex", text)
    person.run("connect", "codex", code=2)
    assert file.read_text() == text


def test_a_file_that_is_a_link_stays_one(person: Person) -> None:
    real = person.folder / "dotfiles.json"
    real.write_text("{}")
    file = person.file("cursor")
    file.parent.mkdir()
    file.symlink_to(real)
    person.run("connect", "cursor")
    assert file.is_symlink()
    assert "trunkline" in real.read_text()


def test_variables_say_where_files_are() -> None:
    environ = {"HOME": "/h", "XDG_CONFIG_HOME": "/x", "CODEX_HOME": "/c", "CLAUDE_CONFIG_DIR": "/d", "APPDATA": "/a"}
    assert str(CLIENTS["vscode"].file(environ, "linux")) == "/x/Code/User/mcp.json"
    assert str(CLIENTS["codex"].file(environ, "linux")) == "/c/config.toml"
    assert str(CLIENTS["claude-code"].file(environ, "linux")) == "/d/.claude.json"
    assert str(CLIENTS["claude-desktop"].file({"HOME": "/h"}, "darwin")).startswith("/h/Library/Application Support/")
    assert str(CLIENTS["claude-desktop"].file(environ, "win32")) == "/a/Claude/claude_desktop_config.json"


# --- import -----------------------------------------------------------------------------------------------------------


SERVERS: dict[str, dict[str, Any]] = {
    "files": {"command": "npx", "args": ["-y", "server-filesystem", "/data"]},
    "Git Hub!": {"command": "gh-mcp", "env": {"GITHUB_TOKEN": SECRET, "LOG_LEVEL": "debug", "FROM": "${env:HOME}"}},
    "remote": {"type": "http", "url": "https://example.com/mcp", "headers": {"Authorization": f"Bearer {SECRET}"}},
    "trunkline": {"command": "trunkline", "args": ["mcp"]},
    "broken": {"nothing": 1},
}


def as_text(client: McpClient) -> str:
    if client.form == "json":
        return json.dumps({client.key: SERVERS})
    lines = []
    for name, entry in SERVERS.items():
        lines.append(f"[{client.key}.{json.dumps(name)}]")
        for key, value in entry.items():
            if isinstance(value, dict):
                inner = ", ".join(f"{json.dumps(part)} = {json.dumps(text)}" for part, text in value.items())
                lines.append(f"{key} = {{ {inner} }}")
            else:
                lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines)


@pytest.mark.parametrize("name", list(CLIENTS))
def test_the_servers_of_a_client_become_ours_without_a_secret_in_the_file(person: Person, name: str) -> None:
    text = as_text(CLIENTS[name])
    file = person.file(name, text)
    person.home.mkdir(mode=0o700)
    config = person.home / "trunkline.toml"
    config.write_text('# mine\n[[mcp]]\nid = "files"\ncommand = ["other"]\n')
    assert person.run("import", name, "--dry-run")["servers"]
    assert not (person.home / "keys").exists()
    done = person.run("import", name)
    tables = tomllib.loads(config.read_text())["mcp"]
    folder = person.home / "keys" / "mcp-servers"
    assert tables == [
        {"id": "files", "command": ["other"]},
        {
            "id": "Git-Hub",
            "command": ["gh-mcp"],
            "env": {"GITHUB_TOKEN": f"file:{folder}/Git-Hub.GITHUB_TOKEN", "LOG_LEVEL": "debug", "FROM": "env:HOME"},
        },
        {
            "id": "remote",
            "url": "https://example.com/mcp",
            "headers": {"Authorization": f"file:{folder}/remote.Authorization"},
        },
    ]
    assert config.read_text().startswith("# mine\n")
    assert SECRET not in config.read_text()
    assert (folder / "Git-Hub.GITHUB_TOKEN").read_text() == SECRET
    assert (folder / "remote.Authorization").read_text() == f"Bearer {SECRET}"
    for secret in folder.iterdir():
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert [server["id"] for server in done["servers"]] == ["Git-Hub", "remote"]
    assert file.read_text() == text
    assert person.run("import", name)["servers"] == []


def imported(servers: dict[str, dict[str, Any]], folder: Path, **environ: str) -> Import:
    importer = Importer(environ, folder, folder / "exchange")
    return importer.servers([Found(name, entry) for name, entry in servers.items()], ())


def test_what_a_client_asks_its_person_for_is_named_to_him(tmp_path: Path) -> None:
    servers = {"x": {"command": "x", "env": {"API_KEY": "${input:api-key}", "URL": "http://${HOST}/x"}}}
    (one,) = imported(servers, tmp_path).servers
    assert one.table["env"] == {"API_KEY": "env:X_API_KEY", "URL": f"file:{tmp_path}/x.URL"}
    assert len(one.remarks) == 2
    assert one.secrets == {}, "a value that is not known is not written"


def test_each_value_that_is_asked_for_has_a_variable_of_its_own_and_says_how_it_begins(tmp_path: Path) -> None:
    def headers(text: str) -> dict[str, Any]:
        return {"url": f"https://{len(text)}.example/", "headers": {"Authorization": text, "X-Key": "${input:tok}"}}

    servers = {"a": headers("Bearer ${input:tok}"), "b": headers("Bearer ${input:tok2}"), "c": headers("x${input:tok}")}
    a, b, c = imported(servers, tmp_path).servers
    assert a.table["headers"] == {"Authorization": "env:A_TOK", "X-Key": "env:A_TOK_2"}
    assert b.table["headers"] == {"Authorization": "env:B_TOK2", "X-Key": "env:B_TOK"}
    assert "set the variable A_TOK for `up`, which begins with `Bearer `: `Bearer TOKEN`" in a.remarks[0]
    assert a.remarks[1].endswith("set the variable A_TOK_2 for `up`")
    assert c.remarks[0].endswith("to the whole text that the client makes of it")


def test_servers_whose_names_differ_only_in_signs_share_no_variable(tmp_path: Path) -> None:
    entry = {"command": "x", "env": {"K": "${input:t}"}}
    found = imported({"my-x": entry, "my.x": {**entry, "args": ["y"]}}, tmp_path).servers
    assert [one.table["env"] for one in found] == [{"K": "env:MY_X_T"}, {"K": "env:MY_X_T_2"}]


def test_a_server_whose_name_is_taken_is_named_and_whether_it_is_the_same(person: Person) -> None:
    config = person.home / "trunkline.toml"
    person.home.mkdir(mode=0o700)
    config.write_text(
        '[[mcp]]\nid = "a"\ncommand = ["one"]\nuntrusted = false\n\n[[mcp]]\nid = "b"\ncommand = ["one"]\n\n'
        '[[mcp]]\nid = "c"\ncommand = ["three"]\n'
    )
    entries = {"a": {"command": "one"}, "b": {"command": "two"}, "c": {"command": "three", "env": {"M": "x"}}}
    person.file("cursor", json.dumps({"mcpServers": {**entries, "trunkline": {"command": "not-ours"}}}))
    done = person.run("import", "cursor", "--dry-run")
    reasons = {one["id"]: one["reason"] for one in done["left_out"]}
    assert reasons == {
        "a": "is in trunkline.toml already",
        "b": "another server has this name in trunkline.toml; give one of them another name",
        "c": "is in trunkline.toml already, where `env` differ; what is there stays as it is",
    }
    assert [one["id"] for one in done["servers"]] == ["trunkline"], "only an entry of ours is none of theirs"
    assert "b is left out: another server has this name" in person.told("import", "cursor").stdout
    person.told("connect", "vscode")
    assert person.run("import", "vscode")["left_out"] == []


def test_each_secret_among_arguments_and_addresses_is_remarked_on_and_none_is_shown(tmp_path: Path) -> None:
    address = "postgresql://admin:correct-horse@db/x"
    words = ["-y", "@scope/server-filesystem", "--api-key", "correct-horse", address, f"--x={SECRET}", "/a", "-v"]
    words += ["--header", "Authorization: Bearer correct-horse", "-e", "DB_PASSWORD=correct-horse"]
    words += ["--pass", "correct-horse", "--api-key", "-correct-horse", "-u", "me:correct-horse"]
    words += ['{"token": "correct-horse"}']
    entries: dict[str, dict[str, Any]] = {
        "here": {"command": "npx", "args": words, "env": {"NAME": "correct-horse"}},
        "there": {"url": "https://a.example/s/0a1B2c3D4e5F6g7H8i9J/mcp?key=correct-horse&correct-horse"},
    }
    here, there = imported(entries, tmp_path).servers
    assert [remark.partition(" (")[0] for remark in here.remarks] == [
        f"argument {at}" for at in (4, 5, 6, 10, 12, 14, 16, 18, 19)
    ]
    assert len(there.remarks) == 1
    for one in (here, there):
        text = one.shown + "".join(one.remarks)
        assert not any(secret in text for secret in (SECRET, "correct-horse", "0a1B2c3D4e5F6g7H8i9J"))
    assert '"@scope/server-filesystem", "--api-key", "[masked]"' in here.shown
    assert "https://a.example/s/[masked]/mcp?key=[masked]&[masked]" in there.shown


def test_ordinary_words_are_shown_as_they_are() -> None:
    words = ["npx", "-y", "@modelcontextprotocol/server-filesystem@2025.11.25", "/home/me/some/long/path/to/Folder1"]
    assert masked_words(words) == words
    assert masked_address("https://mcp.example.com/v1/mcp") == "https://mcp.example.com/v1/mcp"


def test_what_people_read_of_an_import_has_no_value_of_env_or_arguments(person: Person) -> None:
    entry = {"command": "x", "args": ["--password", "correct-horse"], "env": {"ANIMAL": "other-horse"}}
    person.file("cursor", json.dumps({"mcpServers": {"x": entry}}))
    for words in (("--dry-run",), ()):
        done = person.told("import", "cursor", *words)
        assert "horse" not in done.stdout + done.stderr
        assert "argument 2 ([masked]) may be a secret" in done.stdout
        assert "untrusted = false" in done.stdout


def test_a_dry_run_of_connect_shows_our_entry_and_nothing_of_others(person: Person) -> None:
    others = {"x": {"command": "x", "env": {"GITHUB_TOKEN": "correct-horse"}}}
    ours = {"command": "old", "args": ["--home", str(person.home), "mcp", "--as", "x"], "env": {"A": "correct-horse"}}
    for text in (
        json.dumps({"mcpServers": others}),
        json.dumps({"mcpServers": {**others, "trunkline": ours}}, indent=1),
    ):
        person.file("cursor", text)
        for words in ((), ("--undo",)):
            assert "correct-horse" not in person.told("connect", "cursor", "--dry-run", *words).stdout
        assert '+  "command"' in person.told("connect", "cursor", "--dry-run").stdout


def test_a_dry_run_shows_the_entry_as_it_will_stand_in_the_file(person: Person) -> None:
    said = person.told("connect", "codex", "--dry-run").stdout
    added = "\n".join(line[1:] for line in said.splitlines() if line.startswith("+") and not line.startswith("+++"))
    assert tomllib.loads(added)["mcp_servers"]["trunkline"]["args"][-2:] == ["--as", "codex"]


def test_a_token_is_only_spoken_of_where_there_is_one(person: Person) -> None:
    person.told("connect", "codex")
    assert "its token" not in person.told("connect", "codex", "--undo").stderr
    person.told("connect", "codex")
    key_files.write_private(token_file(Home(person.home), "codex"), b"x")
    assert "its token is still good" in person.told("connect", "codex", "--undo").stderr


def test_a_server_with_which_the_exchange_would_not_start_is_left_out_and_named(person: Person) -> None:
    servers = {
        "intranet": {"url": "http://intranet.example/mcp"},
        "half": {"command": "x", "env": {"K": "\ud800"}},
        "good": {"command": "x"},
    }
    person.file("cursor", json.dumps({"mcpServers": servers}))
    done = person.run("import", "cursor")
    assert [one["id"] for one in done["servers"]] == ["good"]
    reasons = {one["id"]: one["reason"] for one in done["left_out"]}
    assert reasons["intranet"].startswith("url: expected https://")
    assert reasons["half"] == "it has a character that is half of one"
    config = load(Home(person.home), None, {})
    assert [server.id for server in config.mcp_servers] == ["good"]
    assert "intranet is left out: url: expected https://" in person.told("import", "cursor").stdout


def test_a_write_that_fails_leaves_nothing_behind(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    file = person.file("cursor", "before")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CommandFailed, match="half of one"):
        client_files.write(file, "\ud800", "before")
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, fail)
            with pytest.raises(CommandFailed, match="No space left"):
                client_files.write(file, "after", "before")
            with pytest.raises(OSError, match="No space left"):
                key_files.write_private(file.with_name("key"), b"x")
    assert {path.name: path.read_text() for path in file.parent.iterdir()} == {file.name: "before"}


def test_what_another_program_wrote_meanwhile_is_not_lost(person: Person) -> None:
    file = person.file("cursor", "of the client")
    with pytest.raises(CommandFailed, match="another program wrote it meanwhile"):
        client_files.write(file, "after", "before")
    assert {path.name: path.read_text() for path in file.parent.iterdir()} == {file.name: "of the client"}


def test_only_a_regular_file_of_some_size_is_read(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    file = person.file("cursor", "x" * 101)
    monkeypatch.setattr(client_files, "MAX_BYTES", 100)
    with pytest.raises(CommandFailed, match="larger than 100 bytes"):
        client_files.text_of(file)
    file.unlink()
    os.mkfifo(file)
    for odd in (file, Path("/dev/zero"), file.parent):
        with pytest.raises(CommandFailed, match="cannot be read"):
            client_files.text_of(odd)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write files of others")
def test_a_file_stays_that_of_its_owner(person: Person) -> None:
    file = person.file("cursor", "before")
    os.chown(file, 1234, 2345)
    file.chmod(0o600)
    backup = client_files.write(file, "after", "before")
    assert backup is not None
    for one in (file, backup):
        assert (one.stat().st_uid, one.stat().st_gid, stat.S_IMODE(one.stat().st_mode)) == (1234, 2345, 0o600)


@pytest.mark.parametrize(("mode", "expected"), [(0o644, 0o600), (0o400, 0o400)])
def test_a_copy_is_for_its_owner_from_its_first_moment(
    person: Person, monkeypatch: pytest.MonkeyPatch, mode: int, expected: int
) -> None:
    file = person.file("cursor", "before")
    file.chmod(mode)
    opened: list[int] = []
    real_open = os.open

    def note_mode(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        opened.extend((mode,) if flags & os.O_CREAT else ())
        return real_open(path, flags, mode, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", note_mode)
        backup = client_files.write(file, "after", "before")
    assert backup is not None
    assert (backup.read_text(), stat.S_IMODE(backup.stat().st_mode)) == ("before", expected)
    assert opened == [expected, expected]
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_servers_of_single_projects_come_over_with_their_folder(person: Person) -> None:
    (person.folder / "work").mkdir()
    text = json.dumps(
        {
            "mcpServers": {"a": {"command": "one"}},
            "projects": {
                str(person.folder / "work"): {
                    "mcpServers": {"a": {"command": "two"}, "b": {"command": "one"}, "c": {"command": "c"}},
                    "disabledMcpServers": ["c"],
                },
                "/nothing": {"history": []},
            },
        }
    )
    person.file("claude-code", text)
    done = person.run("import", "claude-code")
    tables = tomllib.loads((person.home / "trunkline.toml").read_text())["mcp"]
    assert tables == [
        {"id": "a", "command": ["one"]},
        {"id": "a-2", "command": ["two"], "cwd": str(person.folder / "work")},
    ], "an entry that is the same is there once"
    assert "only in the client" in done["servers"][1]["remarks"][0]
    assert done["left_out"] == [
        {"id": "b", "reason": "is the same server as a"},
        {"id": "c", "reason": "is turned off in the client"},
    ]
    assert person.run("import", "claude-code")["servers"] == []


def test_what_is_not_taken_over_is_said(tmp_path: Path) -> None:
    entries: dict[str, dict[str, Any]] = {
        "a": {"command": "x", "envFile": ".env", "alwaysAllow": ["t"]},
        "b": {"command": "x", "args": ["${workspaceFolder}/x"], "cwd": "${workspaceFolder}"},
        "c": {"command": "x", "disabled": True},
        "d": {"url": "https://x.example/mcp", "enabled": False},
        "e": {"nothing": 1},
    }
    found = imported(entries, tmp_path)
    a, b = found.servers
    assert any("(envFile)" in remark and "`env`" in remark for remark in a.remarks)
    assert any(remark.endswith("left out: alwaysAllow") for remark in a.remarks)
    assert [remark.partition(" has")[0] for remark in b.remarks] == ["argument 1", "cwd"]
    assert "cwd" not in b.table
    assert [name for name, _ in found.left_out] == ["c", "d", "e"]


def test_a_server_for_files_may_write_where_it_could(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    keys = tmp_path / "exchange" / "keys"
    keys.mkdir(parents=True)
    words = ["-y", "server-filesystem", str(data), str(tmp_path), str(tmp_path / "none"), str(keys)]
    files, other = imported(
        {"files": {"command": "npx", "args": words}, "other": {"command": "x", "args": [str(data)]}}, tmp_path
    ).servers
    assert files.table["write"] == [str(data)]
    assert any(f"cannot write to {tmp_path}," in remark for remark in files.remarks)
    assert f"cannot write to {keys}, which is the exchange's own" in files.remarks
    assert "write" not in other.table
    assert other.remarks == [f'only reads in {data}: add write = ["{data}"] if it should write there']


def test_variables_are_put_in_where_they_are_no_secrets(tmp_path: Path) -> None:
    entry = {
        "command": "${HOME}/bin/x",
        "args": ["${userHome}/notes", "${TOKEN}"],
        "env": {
            "NOTES_DIR": "${HOME}/notes",
            "MODE": "${MODE:-fast}",
            "AUTH": "Bearer ${TOKEN}",
            "LOST": "${NONE}/x",
            "ALL": "${TOKEN}",
        },
    }
    (one,) = imported({"x": entry}, tmp_path, HOME="/h", TOKEN="correct-horse").servers
    assert one.table["command"] == ["/h/bin/x", "/h/notes", "${TOKEN}"]
    assert one.table["env"] == {
        "NOTES_DIR": "/h/notes",
        "MODE": "fast",
        "AUTH": f"file:{tmp_path}/x.AUTH",
        "LOST": f"file:{tmp_path}/x.LOST",
        "ALL": "env:TOKEN",
    }
    assert one.secrets == {tmp_path / "x.AUTH": "Bearer correct-horse"}
    assert [remark.partition(" ")[0] for remark in one.remarks] == ["argument", "AUTH", "LOST"]


def test_two_secrets_never_share_a_file(tmp_path: Path) -> None:
    entries: dict[str, dict[str, Any]] = {
        "a": {"url": "https://a.example/", "headers": {"X!Token": "one", "X#Token": "two", "b.Token": "three"}},
        "a.b": {"url": "https://b.example/", "headers": {"Token": "four"}},
    }
    found = imported(entries, tmp_path).servers
    assert sorted(secret for one in found for secret in one.secrets.values()) == ["four", "one", "three", "two"]
    assert len({path for one in found for path in one.secrets}) == 4


def test_a_secret_never_takes_the_file_of_an_earlier_import(person: Person) -> None:
    """Also after the first server was given another name, as its message advises, or two names come out alike."""
    remote = {"url": "https://one.example/mcp", "headers": {"Authorization": "Bearer token-of-one"}}
    person.file(
        "cursor", json.dumps({"mcpServers": {"github": remote, "a": {**remote, "headers": {"b.Token": "xyz-1"}}}})
    )
    person.run("import", "cursor")
    config = person.home / "trunkline.toml"
    config.write_text(config.read_text().replace('id = "github"', 'id = "github-one"'))
    other = {"url": "https://two.example/mcp", "headers": {"Authorization": "Bearer token-of-two"}}
    person.file(
        "gemini", json.dumps({"mcpServers": {"github": other, "a.b": {**other, "headers": {"Token": "xyz-2"}}}})
    )
    person.run("import", "gemini")
    tables = {table["id"]: table["headers"] for table in tomllib.loads(config.read_text())["mcp"]}
    texts = {
        name: Path(reference.removeprefix("file:")).read_text()
        for name, headers in tables.items()
        for reference in headers.values()
    }
    assert texts == {
        "github-one": "Bearer token-of-one", "github": "Bearer token-of-two", "a": "xyz-1", "a.b": "xyz-2",
    }  # fmt: skip
    assert person.run("import", "gemini")["left_out"] == [
        {"id": name, "reason": "is in trunkline.toml already"} for name in ("github", "a.b")
    ]


def test_what_a_variable_stands_for_if_it_is_not_set_is_not_said(tmp_path: Path) -> None:
    default = "${GH_TOKEN:-ghp_S3cretDefaultValueAbCdEf1234567890}"
    entry = {"command": "x", "args": [f"--token={default}"], "cwd": f"/a/{default}"}
    made = imported({"one": entry, "two": {"url": f"https://x.example/{default}"}}, tmp_path)
    said = [remark for server in made.servers for remark in server.remarks]
    assert "argument 1 has ${GH_TOKEN:-[masked]}, which is not put in here: write what it stands for" in said
    assert not any("ghp_" in remark for remark in said)


def test_what_reads_like_a_reference_is_no_way_to_files_of_others(tmp_path: Path) -> None:
    (one,) = imported({"x": {"command": "x", "env": {"A": "file:/etc/shadow"}}}, tmp_path).servers
    assert one.table["env"] == {"A": f"file:{tmp_path}/x.A"}
    assert list(one.secrets.values()) == ["file:/etc/shadow"]


@pytest.mark.parametrize("token", ["", "correct-horse"])
def test_a_token_in_a_variable_becomes_a_header(tmp_path: Path, token: str) -> None:
    entry = {
        "url": "https://x.example/mcp",
        "bearer_token_env_var": "TOKEN",
        "env_http_headers": {"X-Team": "TEAM"},
    }
    (one,) = imported({"x": entry}, tmp_path, TOKEN=token).servers
    file = tmp_path / "x.Authorization"
    assert one.table["headers"] == {"X-Team": "env:TEAM", "Authorization": f"file:{file}"}
    assert one.secrets == ({file: f"Bearer {token}"} if token else {})
    assert str(file) in one.remarks[0]


def test_what_is_not_there_is_said_to_be_so(person: Person) -> None:
    assert "settings.json does not exist." in person.told("import", "gemini").stdout
    assert "mcp.json does not exist: nothing to undo." in person.told("connect", "vscode", "--undo").stdout
    person.file("vscode", "{}")
    assert "does not know this exchange: nothing to undo." in person.told("connect", "vscode", "--undo").stdout
    person.file("cursor", json.dumps({"mcpServers": {"x": {"command": "x", "env": {"TOKEN": SECRET}}}}))
    assert "would go to" in person.told("import", "cursor", "--dry-run").stdout
    done = person.told("import", "cursor")
    assert "may be a secret is in" in done.stdout
    assert "they are mounted by trunkline up" in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("DB_PASSWORD", "x", True),
        ("OPENAI_API_KEY", "x", True),
        ("X", SECRET, True),
        ("DATABASE", "postgres://me:pw@host/db", True),
        ("X", "env:HOME", True),
        ("LOG_LEVEL", "debug", False),
        ("ROOT", "/home/me/some/long/path/to/a/folder", False),
        ("ENDPOINT", "https://example.com/a/b/c/d/e/f", False),
    ],
)
def test_what_may_be_a_secret_counts_as_one(name: str, value: str, expected: bool) -> None:
    assert is_secret(name, value) is expected
