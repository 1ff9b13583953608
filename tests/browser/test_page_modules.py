"""The page's pure modules (values as words, forms, differences, stories), by Node's own test runner."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.browser.conftest import PAGE_FOLDER


def test_the_pages_pure_modules_pass_their_tests(node: str) -> None:
    done = subprocess.run(
        (node, "--test", "--test-reporter=tap", str(Path(__file__).with_name("page_modules.test.mjs"))),
        env={**os.environ, "PAGE_FOLDER": str(PAGE_FOLDER), "NODE_NO_WARNINGS": "1"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "\n# pass 0\n" not in done.stdout
