"""``docs/protocols/spaces.md`` is true: its routes, its figures, its examples, its rows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.routing import Route, WebSocketRoute

from trunkline.config_file import load
from trunkline.edges.spaces import messages, process, routes
from trunkline.edges.spaces.store import SpaceFile
from trunkline.errors import RemoteProtocolError
from trunkline.home import Home
from trunkline.model import Decision
from trunkline.tomlfile import TomlFile
from trunkline.workspace import files, output
from trunkline.workspace.policy import PRESETS, SpacePolicy, make_policy

PAGE = (Path(__file__).parents[4] / "docs" / "protocols" / "spaces.md").read_text(encoding="utf-8")


def test_every_route_is_documented_and_no_other() -> None:
    documented = set(re.findall(r"^\| `([A-Z]+) (/[^`]*)` \|", PAGE, re.MULTILINE))
    nobody: Any = None
    found = set()
    for route in routes.SpacesApi(nobody, nobody, nobody).app().routes:
        if isinstance(route, Route):
            found |= {(method, route.path) for method in (route.methods or ()) if method != "HEAD"}
        elif isinstance(route, WebSocketRoute):
            found.add(("WS", route.path))
    assert documented == found
    assert all(path.startswith(routes.PREFIXES) for _, path in found)


def test_the_figures_are_those_of_the_code() -> None:
    limits = PAGE.partition("## Limits")[2].partition("## How")[0].replace(",", "")
    for figure in (
        messages.MAX_MESSAGE_BYTES,
        messages.MAX_OPERATIONS,
        messages.MAX_EDITS,
        files.READ_LIMIT_BYTES,
        files.WRITE_LIMIT_BYTES,
        output.KEPT_BYTES,
        process.LONGEST_TIMEOUT_MS,
        process.MAX_QUEUED,
        process.MAX_OPEN,
    ):
        assert re.search(rf"\b{figure}\b", limits), figure


def test_the_presets_are_all_there() -> None:
    assert re.findall(r"^\| `(\w+)` \| (?:reading|allowed)", PAGE, re.MULTILINE) == list(PRESETS)


def test_the_example_of_a_space_toml_can_be_used(tmp_path: Path) -> None:
    text, _ = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "space.toml"
    file.write_text(text)
    file.chmod(0o600)
    read = TomlFile(file, required=True).convert(SpaceFile)
    policy = make_policy(read.preset, read.policy)
    assert set(tomllib.loads(text)["policy"]) == set(policy.__struct_fields__)


def test_the_example_of_the_validators_works() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with pytest.raises(RemoteProtocolError, match="must be one of"):
        exec(code, {})  # noqa: S102  (the page's own lines)


def test_the_table_has_all_84_rows_in_order() -> None:
    ids = re.findall(r"^\| (SP-\d{3}) \| (?:MUST|SHOULD|MAY) \|", PAGE, re.MULTILINE)
    assert ids == [f"SP-{number:03}" for number in range(1, 85)]


def test_the_page_has_every_key_of_a_space_toml() -> None:
    table = PAGE.partition("| key | means |")[2].partition("\n\n")[0]
    found, section = set(), ""
    first_column = "\n".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE))
    for name in re.findall(r"`(policy\.[a-z_.]+|\.[a-z_]+|preset|at)`", first_column):
        section = name.rpartition(".")[0] if name.startswith("policy.") else section
        found.add(f"{section}{name}" if name.startswith(".") else name)
    sections = {field.name: field.type for field in msgspec.structs.fields(SpacePolicy)}
    keys = {f"policy.{name}.{key}" for name, kind in sections.items() for key in kind.__struct_fields__}
    assert found == keys | {"preset", "at"}


def test_the_rule_on_the_page_lets_an_agent_work_in_its_space(tmp_path: Path) -> None:
    _, text = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "trunkline.toml").write_text(text)
    rule = load(Home(tmp_path), None, {}).policy().rules[0]
    assert (rule.caller, rule.tool, rule.decision) == (
        "opensentience:com.example.coder",
        "space.demo/*",
        Decision.ALLOW,
    )
