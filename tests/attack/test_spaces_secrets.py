"""Secrets in what is asked of a space are in its own files, where they were written to, and in no other (P-H1)."""

from __future__ import annotations

from pathlib import Path

from tests.attack.secrets import forms
from tests.running import running
from tests.spaces import SpaceOf


def canary(name: str) -> str:
    return f"tlk_{name}-5f0e71c01d77aa93b25f0e71c01d77aa93b2"


def test_secrets_in_each_field_of_operations_are_in_no_file_but_those_of_the_space(short_path: Path) -> None:
    names = ("content", "path", "id", "command", "output", "env", "field", "question")
    with running(short_path / "home") as exchange:
        space = SpaceOf(exchange)
        space.run(
            {"type": "createFile", "path": "a.txt", "content": canary("content"), "id": canary("id")},
            {"type": "createFile", "path": canary("path"), "content": "x"},
            {"type": "shell", "command": f"echo {canary('command')}"},
            {"type": "shell", "command": "cat a.txt; echo $HIDDEN", "env": {"HIDDEN": canary("env")}},
            {"type": "shell", "command": f"printf {canary('output')}; exit 0"},
        )
        space.ask({"type": "createFile", "path": "b.txt", "content": "x", canary("field"): canary("field")})
        status, answer = space.ask({"type": "shell", "command": f"rm -rf {canary('question')}"}, query="?wait=10")
        assert (status, answer["status"]) == (200, "awaiting_approval"), answer
        assert exchange.stop() == 0
    own = exchange.home / "spaces" / space.name
    files = [path for path in [*exchange.home.rglob("*"), exchange.output] if path.is_file()]
    for name in names:
        planted = forms(canary(name))
        found = [path for path in files if any(form in path.read_bytes() for form in planted)]
        assert [path.name for path in found if own not in path.parents] == [], name
        assert bool(found) is (name == "content"), "what is looked for would be found"
