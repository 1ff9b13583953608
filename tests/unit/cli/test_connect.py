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

from trunkline.cli.mcp_clients import CLIENTS, McpClient
from trunkline.cli.mcp_import import imported, is_secret

# No real token: only its form.
SECRET = "ghp_" + "0123456789abcdefghij" * 2


class Person:
    """Somebody with a home folder and some clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "trunkline"
        self.env = {"HOME": str(folder), "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(self, *words: str, code: int = 0) -> Any:
        command = [sys.executable, "-m", "trunkline", "--home", str(self.home), "--json", *words]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == code, done.stdout + done.stderr
        assert SECRET not in done.stdout + done.stderr
        return json.loads(done.stdout)

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


def test_what_a_client_asks_its_person_for_is_named_to_him(tmp_path: Path) -> None:
    servers = {"x": {"command": "x", "env": {"API_KEY": "${input:api-key}", "URL": "http://${HOST}/x"}}}
    (one,) = imported(servers, (), tmp_path)
    assert one.table["env"] == {"API_KEY": "env:API_KEY", "URL": f"file:{tmp_path}/x.URL"}
    assert len(one.remarks) == 2


def test_secrets_among_arguments_are_remarked_on(tmp_path: Path) -> None:
    for words in (["--token", SECRET], [f"--api-key={SECRET}"]):
        (one,) = imported({"x": {"command": "x", "args": words}}, (), tmp_path)
        assert any("secret among its arguments" in remark for remark in one.remarks)
    (one,) = imported({"x": {"command": "x", "args": ["-y", "@scope/server-filesystem", "/a"]}}, (), tmp_path)
    assert one.remarks == []


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
