"""``docs/http.md`` names every route, with what it needs, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from tests.inhabited import Inhabited
from tests.unit.edges.http.test_routes import WATCH, WAYS
from trunkline.edges.http.routes import Api
from trunkline.edges.waiting import Requests
from trunkline.model import FAULTS

DOCS = Path(__file__).parents[4] / "docs" / "http.md"
FAULT = re.compile(r"^\| `([a-z_.]+)` \| (\d+)[^|]* \| (yes|no) \| (\d) \| (.*) \|$", re.MULTILINE)
ROW = re.compile(r"^\| `([A-Z]+) (/[^`]*)` \| ([^|]*) \|", re.MULTILINE)


def nameless(path: str) -> str:
    """A path whatever its variable parts are called."""
    return re.sub(r"\{.*?\}", "x", path.split("?", maxsplit=1)[0])


def test_every_route_is_documented_and_tested_with_the_permission_that_it_needs() -> None:
    exchange = Inhabited()
    api = Api(exchange.feed, exchange.views, exchange.operator, Requests(exchange.feed))
    served = {
        (method, nameless(path)): needs
        for path, methods in api.table().items()
        for method, (needs, _) in methods.items()
    }
    documented = {}
    for method, path, needs in ROW.findall(DOCS.read_text()):
        documented[method, nameless(path)] = "" if needs == "nothing" else needs.strip("` ").replace("a token", "")
    tested = {(way.method, nameless(way.path)): way.needs for way in (*WAYS, WATCH)}
    open_to_all = {("GET", "/"): "", ("GET", "/healthz"): ""}
    assert served == tested | open_to_all
    assert served == documented


def test_the_table_of_faults_is_on_the_page() -> None:
    documented = [
        (code, int(http), retry == "yes", int(end), text)
        for code, http, retry, end, text in FAULT.findall(DOCS.read_text())
    ]
    assert documented == [(code, row.http, row.retryable, row.exit_code, row.text) for code, row in FAULTS.items()]
