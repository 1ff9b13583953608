"""MCP clients that people have: where each keeps its servers, in which form, and how one entry is written there.

Owns the table of clients, and changes of their files as texts. Does not own when they are written (``connect``).

Invariant: a change adds or removes the entry ``trunkline`` and leaves everything else, comments included, as it is.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from trunkline.cli import json_text
from trunkline.cli.json_text import NotJson
from trunkline.cli.mcp_import import Found

ENTRY: Final = "trunkline"


class McpClient(NamedTuple):
    """One client. A path begins with a variable of the environment, or with ``~``; the first that is set counts."""

    title: str
    linux: tuple[str, ...]
    macos: str
    windows: str
    # Where its servers stand in its file.
    key: str
    # What tells its kind of server apart, where it wants that said.
    kind: str = ""
    form: str = "json"
    # Where it keeps, by folder, what is for one project only; servers stand there under ``key``, too.
    projects: str = ""

    def file(self, environ: Mapping[str, str], platform: str = sys.platform) -> Path:
        """Its file on this machine."""
        paths = {"darwin": (self.macos,), "win32": (self.windows,)}.get(platform, self.linux)
        for path in paths:
            start, slash, rest = path.partition("/")
            if start == "~":
                return Path(environ.get("HOME") or str(Path.home())) / rest
            if environ.get(start.removeprefix("$")):
                return Path(environ[start.removeprefix("$")]) / rest
            assert slash
        raise KeyError(paths[-1])

    def servers(self, text: str) -> dict[str, dict[str, Any]]:
        """The servers in its file; ``NotJson`` if that cannot be read."""
        found = (_toml(text) if self.form == "toml" else json_text.read(text)) or {}
        servers = found.get(self.key, {}) if isinstance(found, dict) else None
        if not isinstance(servers, dict):
            raise NotJson(f"{self.key} is no table of servers")
        return {str(name): entry for name, entry in servers.items() if isinstance(entry, dict)}

    def entries(self, text: str) -> list[Found]:
        """All servers in its file, those of single projects included."""
        found = [Found(name, entry) for name, entry in self.servers(text).items()]
        projects = json_text.read(text).get(self.projects) if self.projects and text.strip() else None
        for folder, settings in projects.items() if isinstance(projects, dict) else ():
            servers = settings.get(self.key) if isinstance(settings, dict) else None
            for name, entry in servers.items() if isinstance(servers, dict) else ():
                if isinstance(entry, dict):
                    off = settings.get("disabledMcpServers")
                    is_off = isinstance(off, list) and name in off
                    found.append(Found(str(name), {**entry, "disabled": True} if is_off else entry, str(folder)))
        return found

    def with_entry(self, text: str, command: tuple[str, ...]) -> str:
        """Its file with us in it."""
        program, *arguments = command
        entry: dict[str, object] = {"command": program, "args": arguments}
        if self.form == "toml":
            changed = _with_table(self.without_entry(text), f"{self.key}.{ENTRY}", entry)
        else:
            entry = {"type": self.kind, **entry} if self.kind else entry
            changed = json_text.with_member(text, (self.key, ENTRY), entry)
        return self._checked(text, changed)

    def owner_of_entry(self, text: str) -> str | None:
        """Which home the entry of our name is for; empty if it is none of ours, None if there is none."""
        entry = self.servers(text).get(ENTRY)
        return None if entry is None else home_of(entry)

    def without_entry(self, text: str) -> str:
        """Its file without us."""
        if self.form == "toml":
            changed = _without_table(text, self.key)
        else:
            changed = json_text.without_member(text, (self.key, ENTRY))
        return self._checked(text, changed)

    def written(self, entry: Mapping[str, object]) -> str:
        """Our entry alone, as it stands in its file."""
        return _table_text(f"{self.key}.{ENTRY}", entry) if self.form == "toml" else json.dumps(entry, indent=2)

    def _checked(self, before: str, after: str) -> str:
        """Nothing else may have changed."""
        if self._others(before) != self._others(after):
            raise NotJson("it is written in a way that a command cannot change; add the server by hand")
        return after

    def _others(self, text: str) -> tuple[Any, Any]:
        found = _toml(text) if self.form == "toml" else json_text.read(text)
        rest = {name: value for name, value in found.items() if name != self.key}
        return rest, {name: entry for name, entry in self.servers(text).items() if name != ENTRY}


def home_of(entry: Mapping[str, Any]) -> str:
    """Which home an entry of ours is for; empty if it is none of ours."""
    words = [str(word) for word in entry.get("args", ())] if isinstance(entry.get("args"), list) else []
    is_ours = "mcp" in words and "--as" in words and "--home" in words[:-1]
    return words[words.index("--home") + 1] if is_ours else ""


def is_exchange(entry: Mapping[str, Any]) -> bool:
    """Whether an entry starts an exchange's `mcp`, written by us or by hand."""
    return bool(home_of(entry)) or Path(str(entry.get("command", ""))).name == "trunkline"


CLIENTS: Final = {
    "claude-desktop": McpClient(
        "Claude Desktop",
        ("$XDG_CONFIG_HOME/Claude/claude_desktop_config.json", "~/.config/Claude/claude_desktop_config.json"),
        "~/Library/Application Support/Claude/claude_desktop_config.json",
        "$APPDATA/Claude/claude_desktop_config.json",
        "mcpServers",
    ),
    "claude-code": McpClient(
        "Claude Code",
        ("$CLAUDE_CONFIG_DIR/.claude.json", "~/.claude.json"),
        "~/.claude.json",
        "$USERPROFILE/.claude.json",
        "mcpServers",
        "stdio",
        projects="projects",
    ),
    "codex": McpClient(
        "Codex",
        ("$CODEX_HOME/config.toml", "~/.codex/config.toml"),
        "~/.codex/config.toml",
        "$USERPROFILE/.codex/config.toml",
        "mcp_servers",
        form="toml",
    ),
    "cursor": McpClient(
        "Cursor", ("~/.cursor/mcp.json",), "~/.cursor/mcp.json", "$USERPROFILE/.cursor/mcp.json", "mcpServers"
    ),
    "vscode": McpClient(
        "Visual Studio Code",
        ("$XDG_CONFIG_HOME/Code/User/mcp.json", "~/.config/Code/User/mcp.json"),
        "~/Library/Application Support/Code/User/mcp.json",
        "$APPDATA/Code/User/mcp.json",
        "servers",
        "stdio",
    ),
    "gemini": McpClient(
        "Gemini CLI",
        ("~/.gemini/settings.json",),
        "~/.gemini/settings.json",
        "$USERPROFILE/.gemini/settings.json",
        "mcpServers",
    ),
}


# --- TOML -------------------------------------------------------------------------------------------------------------


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NotJson(str(error)) from None


def _table_text(name: str, entry: Mapping[str, object]) -> str:
    inner = {key: value for key, value in entry.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(entry[key], ensure_ascii=False)}" for key in entry if key not in inner]
    texts = ["\n".join([f"[{name}]", *lines]) + "\n", *(_table_text(f"{name}.{key}", inner[key]) for key in inner)]
    return "\n".join(texts)


def _with_table(text: str, name: str, entry: Mapping[str, object]) -> str:
    table = _table_text(name, entry)
    return f"{text.rstrip()}\n\n{table}" if text.strip() else table


def _without_table(text: str, key: str) -> str:
    """Without our table and what belongs to it: from its head to the next one."""
    ours = re.compile(rf'[ \t]*\[[ \t]*{key}[ \t]*\.[ \t]*"?{ENTRY}"?[ \t]*(?:\.[^\]]*)?\]')
    kept: list[str] = []
    # Lines behind the last one of our table so far: comments there are about what follows.
    behind: list[str] = []
    is_ours = was_there = False
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("["):
            is_ours = ours.match(line) is not None
            was_there = was_there or is_ours
            kept += [] if is_ours else behind
            behind = []
        if not is_ours:
            kept.append(line)
        elif line.lstrip().startswith("#") or (behind and not line.strip()):
            behind.append(line)
        else:
            behind = []
    changed = "".join(kept + behind)
    # The empty line that was made before it.
    return changed.rstrip() + ("\n" if changed.strip() else "") if was_there else changed
