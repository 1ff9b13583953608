from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[2]


def test_every_layer_imports_only_what_is_below_it() -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, said.getvalue()


def test_the_hub_and_the_host_name_no_protocol() -> None:
    """A new protocol must not need a line there; the list of edges is ``edges/known.py``."""
    names = re.compile(r"(?i)opensentience|openagents|chiffon|\bspaces?\b|\bossa\b|nostr|pylon|\bmcp\b|\ba2a\b|http")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for room in ("hub", "host")
        for path in sorted((ROOT / "src" / "trunkline" / room).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if names.search(line)
    ]
    assert found == []
