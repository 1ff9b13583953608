"""The pages are checked against the code, so that they stay true."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from trunkline import strictjson
from trunkline.config import BUILTIN_RULES, AgentProgram, Config, McpServer, RuleLine
from trunkline.config_file import load
from trunkline.edges.known import EDGES, UNBUILT
from trunkline.edges.opensentience import messages
from trunkline.edges.opensentience.manifest import read_manifest
from trunkline.home import Home

ROOT = Path(__file__).parents[2]
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
OPENSENTIENCE = (ROOT / "docs" / "protocols" / "opensentience.md").read_text(encoding="utf-8")

DEFAULTS, AGENT, MCP, RULE = re.findall(r"```toml\n(.*?)```", CONFIGURATION, re.DOTALL)
EXAMPLES = re.findall(r"```json\n(.*?)```", OPENSENTIENCE, re.DOTALL)


def keys_on_page(text: str) -> set[str]:
    return set(re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE))


def test_the_page_shows_every_key_with_its_default() -> None:
    shown = msgspec.convert(tomllib.loads(DEFAULTS), Config)
    assert shown == Config()
    sections = [field for field in msgspec.structs.fields(Config) if isinstance(field.default, msgspec.Struct)]
    keys = {key for field in sections for key in all_keys(field.default)}
    assert keys_on_page(DEFAULTS) == keys - {"rule"}


def all_keys(section: msgspec.Struct) -> Iterator[str]:
    """The keys of a section, and instead of a table in it those of that table."""
    for key in msgspec.structs.fields(section):
        value = getattr(section, key.name)
        if isinstance(value, msgspec.Struct):
            yield from all_keys(value)
        else:
            yield key.name


def test_the_page_shows_every_key_of_an_agent_with_its_default() -> None:
    (shown,) = msgspec.convert(tomllib.loads(AGENT)["agent"], tuple[AgentProgram, ...])
    assert shown == AgentProgram(id=shown.id, command=shown.command)
    assert keys_on_page(AGENT) == set(AgentProgram.__struct_fields__)


def test_the_page_shows_every_key_of_an_mcp_server_with_its_default() -> None:
    (shown,) = msgspec.convert(tomllib.loads(MCP)["mcp"], tuple[McpServer, ...])
    assert shown == McpServer(id=shown.id, command=shown.command)
    assert keys_on_page(MCP) == set(McpServer.__struct_fields__)


def test_the_servers_on_the_page_of_mounts_can_be_used(tmp_path: Path) -> None:
    [text] = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "mcp-mounts.md").read_text(), re.DOTALL)
    (tmp_path / "trunkline.toml").write_text(text)
    config = load(Home(Path("/h")), tmp_path / "trunkline.toml", {})
    assert [server.agent_id for server in config.mcp_servers] == ["mcp.files", "mcp.issues"]


def test_the_page_shows_every_key_of_a_rule_and_every_built_in_one(tmp_path: Path) -> None:
    assert keys_on_page(RULE) == set(RuleLine.__struct_fields__)
    assert re.findall(r"^\| `(builtin-[a-z-]+)`", CONFIGURATION, re.MULTILINE) == [rule.id for rule in BUILTIN_RULES]


def test_all_that_the_page_shows_can_be_used_together(tmp_path: Path) -> None:
    file = tmp_path / "trunkline.toml"
    file.write_text(re.sub(r"^# (\w+ = )", r"\1", AGENT + RULE, flags=re.MULTILINE))
    load(Home(Path("/h")), file, {})


def test_the_page_names_each_section_that_a_reload_cannot_change() -> None:
    told = next(line for line in CONFIGURATION.splitlines() if "is refused as a whole and names each" in line)
    assert [edge.section for edge in EDGES if edge.section and f"`[{edge.section}]`" not in told] == []


def sections_shown(page: Path) -> set[str]:
    """The sections that need a restart and that an example on this page sets."""
    examples = "\n".join(re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    # That who listens elsewhere has to be started anew nobody needs to be told.
    fixed = {edge.section for edge in EDGES if edge.section} - {"http"} | {"otel"}
    return fixed.intersection(re.findall(r"^\[\[?(\w+)", examples, re.MULTILINE))


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_a_page_that_shows_a_section_which_needs_a_restart_says_so(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if text != CONFIGURATION:
        said = set(re.findall(r"change of (?:a )?`\[+(\w+)\]+` (?:and its parts )?needs a restart", text))
        assert said == sections_shown(page)


def test_the_page_marks_each_section_that_this_release_does_not_have_and_no_other() -> None:
    marked = re.findall(r"^\[(\w+)\] +# not part of this release: no effect$", DEFAULTS, re.MULTILINE)
    assert set(marked) == set(UNBUILT)


def test_the_manifest_on_the_page_asks_for_a_permission(tmp_path: Path) -> None:
    [text] = re.findall(r"```json\n(\{\n  \"id\".*?)```", CONFIGURATION, re.DOTALL)
    (tmp_path / "opensentience.agent.json").write_text(text)
    manifest = read_manifest(tmp_path / "opensentience.agent.json", "com.example.reporter")
    assert manifest.permissions == ("notes:write",)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: re.search(r'"type": "([^"]+)"', text)[1])
def test_each_example_message_is_one_that_we_would_take(example: str) -> None:
    strictjson.check(example.encode())
    envelope = messages.envelope(example.encode())
    kind = (messages.FROM_AGENT | messages.FROM_CORE)[envelope.type]
    read = messages.payload(kind, envelope)
    for tool in getattr(read, "tools", ()):
        assert not isinstance(problem := messages.part(messages.Tool, tool), str), problem


def test_the_table_has_all_160_rows_in_order() -> None:
    ids = re.findall(r"^\| (OS-\d{3}) \| (?:MUST|SHOULD|MAY) \|", OPENSENTIENCE, re.MULTILINE)
    assert ids == [f"OS-{number:03}" for number in range(1, 161)]


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]), ids=lambda path: path.name)
def test_a_link_to_a_file_leads_to_one(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "protocols").glob("*.md")), ids=lambda page: page.name)
def test_the_files_that_a_protocols_page_names_are_there(page: Path) -> None:
    text = page.read_text()
    folders = [ROOT / name for name in re.findall(r"`(src/trunkline/[\w/]+/)`", text)]
    rows = [line.split("|")[1] for line in text.splitlines() if re.match(r"\| `[\w./]+\.py`", line)]
    named = {file for row in rows for file in re.findall(r"`([\w./]+\.py)`", row)}
    assert named
    assert {file for file in named if not any((folder / file).exists() for folder in folders)} == set()


def test_each_dependency_is_listed_with_the_version_that_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["test"]]
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| ([a-z0-9-]+) \| ([0-9][^ ]*) \|", page, re.MULTILINE))
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements" / "test.txt").read_text(), re.MULTILINE))
    names = [re.split("[>=<]", line)[0] for line in wanted]
    assert listed == {name: pinned[name] for name in names}


@pytest.mark.parametrize("name", ["base.txt", "test.txt"])
def test_each_requirement_has_hashes_and_no_line_names_a_host(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    assert "://" not in text
    assert "--index" not in text
    for pin in re.findall(r"^[a-z].*(?:\n    .*)*", text, re.MULTILINE):
        assert "--hash=sha256:" in pin, pin


def test_decisions_stand_in_the_order_of_their_numbers_and_the_page_names_those_that_are_not_used() -> None:
    page = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", page, re.MULTILINE)]
    unused = {int(number) for number in re.findall(r"(\d+) is not used", page)}
    # A list of Markdown counts on from its first number: one that is out of order would be shown as another.
    assert numbers == [number for number in range(1, numbers[-1] + 1) if number not in unused]
