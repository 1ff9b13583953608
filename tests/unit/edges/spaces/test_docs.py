"""``docs/protocols/spaces.md`` is true: its routes, its figures, its examples, its rows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route, WebSocketRoute

from trunkline.edges.spaces import messages, process, routes
from trunkline.edges.spaces.store import SpaceFile
from trunkline.errors import RemoteProtocolError
from trunkline.tomlfile import TomlFile
from trunkline.workspace import files, output
from trunkline.workspace.policy import PRESETS, make_policy

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
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
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
