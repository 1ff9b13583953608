from __future__ import annotations

import contextlib
import io
from pathlib import Path

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[2]


def test_every_layer_imports_only_what_is_below_it() -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, said.getvalue()
