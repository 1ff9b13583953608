"""``docs/http.md`` names every route, with what it needs, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.edges.http.test_routes import WATCH, WAYS
from trunkline.model import FAULTS

DOCS = Path(__file__).parents[4] / "docs" / "http.md"
FAULT = re.compile(r"^\| `([a-z_.]+)` \| (\d+)[^|]* \| (yes|no) \| (\d) \| (.*) \|$", re.MULTILINE)
ROW = re.compile(r"^\| `([A-Z]+) (/[^`]*)` \| ([^|]*) \|", re.MULTILINE)


def nameless(path: str) -> str:
    """A path whatever its variable parts are called."""
    return re.sub(r"\{.*?\}", "x", path.split("?", maxsplit=1)[0])


def test_every_documented_route_is_one_that_is_tested_with_the_same_permission() -> None:
    documented = {}
    for method, path, needs in ROW.findall(DOCS.read_text()):
        documented[method, nameless(path)] = needs.strip("` ").replace("a token", "")
    tested = {("GET", "/"): "nothing", ("GET", "/healthz"): "nothing"}
    tested |= {(way.method, nameless(way.path)): way.needs for way in (*WAYS, WATCH)}
    assert documented == tested


def test_the_table_of_faults_is_on_the_page() -> None:
    documented = [
        (code, int(http), retry == "yes", int(end), text)
        for code, http, retry, end, text in FAULT.findall(DOCS.read_text())
    ]
    assert documented == [(code, row.http, row.retryable, row.exit_code, row.text) for code, row in FAULTS.items()]
