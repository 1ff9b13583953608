"""The page's pure modules (values as words, forms, differences, stories), by Node's own test runner."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.browser.conftest import PAGE_FOLDER
from trunkline.model import Decision
from trunkline.workspace.policy import judge_command, make_policy

# What the rules of a space find in a command, in the words of the page's mark.
MARKED = {
    "rm -r build": "destructive command",
    "runner 'rm -r build'": "has a program run a command",
    'echo "$(': "cannot be read with certainty",
}


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


def test_the_page_marks_a_command_by_what_the_rules_of_a_space_say_of_it(node: str) -> None:
    """It knows them by their first words: other words there would take the mark away, and nobody would see it."""
    verdicts = {command: judge_command(make_policy("standard"), command) for command in MARKED}
    assert {(one.decision, one.rule) for one in verdicts.values()} == {(Decision.ASK, "shell.approvalRequired")}
    asked = {command: {"rule": one.rule, "reason": one.reason} for command, one in verdicts.items()}
    script = (
        f"const {{ summary }} = await import({json.dumps((PAGE_FOLDER / 'danger.js').as_uri())});"
        f"const asked = Object.entries({json.dumps(asked)});"
        "console.log(JSON.stringify(asked.map(([command, why]) => [command, summary({ command }, why)[0]])));"
    )
    done = subprocess.run(
        (node, "--input-type=module", "-e", script),
        env={**os.environ, "NODE_NO_WARNINGS": "1"},
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert dict(json.loads(done.stdout)) == MARKED
