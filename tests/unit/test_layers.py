from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from trunkline.edges.known import EDGES

ROOT = Path(__file__).parents[2]
# Protocols that are not edges of their own.
SPOKEN_INSIDE_OTHERS = {"openagents", "pusher", "a2a"}
# Names of edges that are words of the whole exchange: its own name, and what the hub itself is asked to tell of.
WORDS_OF_ALL = {"trunkline", "topics"}
# The same letters with another meaning: white space, places of the kernel's file systems; and the line of `up --demo`
# that tells a newcomer which of the printed addresses is for a browser.
OTHER_MEANINGS = re.compile(r"_NOT_SPACE|private mounts|Open the console's address")


def test_every_layer_imports_only_what_is_below_it() -> None:
    # A process of its own: it silences every logger that is there.
    command = [sys.executable, "-c", "import sys; from importlinter.cli import lint_imports_command as main; main()"]
    done = subprocess.run(
        [*command, "--config", "pyproject.toml", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_hub_and_the_host_name_no_protocol() -> None:
    """A new protocol must not need a line there; the list of edges is ``edges/known.py``."""
    of_edges = {edge.name for edge in EDGES} | {edge.make.__module__.split(".")[-2] for edge in EDGES}
    assert not SPOKEN_INSIDE_OTHERS & of_edges, "it is an edge of its own by now"
    protocols = (of_edges | SPOKEN_INSIDE_OTHERS) - WORDS_OF_ALL
    # Also as a part of a name, but not of another word: `mcp_servers`, not `workspace`.
    names = re.compile(rf"(?i)(?<![a-z])({'|'.join(sorted(protocols))})(?![a-z])")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for room in ("hub", "host")
        for path in sorted((ROOT / "src" / "trunkline" / room).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if names.search(OTHER_MEANINGS.sub("", line))
    ]
    assert found == []


def test_the_page_of_the_console_does_nothing_by_the_name_of_an_edge() -> None:
    """What is different for some agents, ``/v1/agents`` says of each of them (``steerable``)."""
    compared = re.compile(r"\bedge\s*[!=]==?\s*[\"'`]|[\"'`]\s*[!=]==?\s*[\w.]*\bedge\b")
    page = ROOT / "src" / "trunkline" / "edges" / "console" / "page"
    found = [str(path.relative_to(page)) for path in page.rglob("*.js") if compared.search(path.read_text())]
    assert found == []


def test_the_hub_and_the_edges_are_told_the_time() -> None:
    """By the loop, or by what they are given: in a simulation both are of its own clock, and a seed is the same story
    on a slow machine. Who makes a certificate needs the date; the relay is a process of its own.
    """
    reads = re.compile(r"\b(time|monotonic|perf_counter|process_time)(_ns)?\(\)")
    of_the_loop = re.compile(r"(loop|get_running_loop\(\)|clock|_?stopwatch)\.time\(\)|time=")
    found = {
        str(path.relative_to(ROOT / "src" / "trunkline"))
        for room in ("hub", "edges", "money")
        for path in sorted((ROOT / "src" / "trunkline" / room).rglob("*.py"))
        for line in path.read_text().splitlines()
        if reads.search(of_the_loop.sub("", line))
    }
    assert found == {"edges/nostr/relay.py", "edges/ossa/edge.py", "edges/pylon/edge.py"}


def test_a_word_of_all_is_the_name_of_one_thing() -> None:
    """A class of ``model.py`` or ``shown.py`` is called like no other one: who reads `Policy` knows which. A protocol's
    own words stay in the types of its wire, an agent's author and a checker have theirs.
    """
    source = ROOT / "src" / "trunkline"
    own = {"messages.py", "mcp_words.py"}
    named: dict[str, list[str]] = {}
    for path in sorted(source.rglob("*.py")):
        room = path.relative_to(source)
        if path.name not in own and room.parts[0] not in {"sdk", "check"}:
            for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
                named.setdefault(name, []).append(room.as_posix())
    of_all = {name: places for name, places in named.items() if {"model.py", "shown.py"} & set(places)}
    assert {name: places for name, places in of_all.items() if len(places) > 1} == {}
