"""The page about the SDK: its agents run beside its configuration, and its session goes as it is printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import trunkline
from tests.docs.pages import files, play
from tests.running import ROOT, Running, running, wait_until
from trunkline import sdk
from trunkline.edges.opensentience.manifest import _Document
from trunkline.testing.agent_client import AgentClient

PAGE = (ROOT / "docs" / "sdk.md").read_text()


@pytest.fixture
def exchange(short_path: Path) -> Iterator[Running]:
    home = short_path / "home"
    home.mkdir(mode=0o700)
    for name, code in files(PAGE).items():
        (home / name).write_text(code)
    [settings], [manifest] = (re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("toml", "json"))
    (home / "opensentience.agent.json").write_text(manifest)
    with running(home, f'{settings}\n[ossa]\nlisten = "127.0.0.1:0"\n') as found:
        found.wait_tool("com.example.library/find")
        found.wait_tool("com.example.desk/borrow")
        yield found


def test_the_session_goes_as_it_is_printed(exchange: Running) -> None:
    assert play(PAGE, exchange, exchange.home) >= 15
    agents = {one["agent_id"]: one for one in exchange.request("GET", "/v1/agents")[1]["agents"]}
    assert agents["com.example.library"]["health"] == "degraded"


def test_an_agent_that_asks_for_a_directive_goes_on_when_a_person_agrees(exchange: Running) -> None:
    def questions() -> list[str]:
        found = exchange.request("GET", "/v1/approvals")[1]["approvals"]
        return [one["approval_id"] for one in found if one["subject"] == "directive"]

    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(exchange.call, "com.example.desk/clear", {"title": "Dune"})
        [question] = wait_until(questions, "a person is asked for the directive")
        assert exchange.request("POST", f"/v1/approvals/{question}", {"decision": "approved"})[0] == 200
        assert calling.result(20)["output"] == {"discarded": "Dune"}


def test_every_public_name_is_on_the_page() -> None:
    names = {*trunkline.__all__, *sdk.__all__, *(name for name in dir(trunkline.Agent) if not name.startswith("_"))}
    names |= {name for name in dir(AgentClient) if not name.startswith("_")}
    assert [name for name in sorted(names) if not re.search(rf"`[^`]*\b{name}\b[^`]*`", PAGE)] == []


def test_every_field_of_a_manifest_is_on_the_page() -> None:
    table = PAGE.partition("| in the manifest |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table.replace("`1.0.0`", ""))) == set(_Document.__struct_fields__)
