"""Each edge is in every list of edges that tests, benchmarks and pages have, or it is written here why it is not.

The lists are looked at as they are: what a module imports, what a table has as keys. So an edge that is added to
``edges.known`` fails here with the name of each list that it is missing in, and so does an exception that is over.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from bench.__main__ import SECTIONS
from tests.fuzz import all_edges, failing, test_failing_alone
from tests.unit.edges import test_pairs
from tools import soak
from trunkline.edges.edge import Edge
from trunkline.edges.known import EDGES
from trunkline.testing import edges as simulated

ROOT = Path(__file__).parents[3]
NAMES = frozenset(edge.name for edge in EDGES)
# What a list calls an edge, where that is not the edge's own name.
SPELLED = {
    "topics": "trunkline",
    "spaces": "space",
    "market": "nostr",
    "openagents": "nostr",
    "wallet": "nostr",
    "agents": "opensentience",
}


def named_by(module: ModuleType) -> set[str]:
    """The edges whose values a module has."""
    return {value.name for value in vars(module).values() if isinstance(value, Edge)}


def read_as(words: set[str]) -> set[str]:
    return {SPELLED.get(word, word) for word in words} & NAMES


def ids_on_page() -> set[str]:
    page = (ROOT / "docs" / "edges.md").read_text()
    table = page.partition("## Ids, keys and bodies from outside")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


def covered_in(folder: str, using: str = "") -> set[str]:
    """Edges that a test module of this folder is about, by its name; if something is said, only modules that use it."""
    files = [file for file in (ROOT / folder).glob("test_*.py") if using in file.read_text()]
    return read_as({word for file in files for word in file.stem.split("_")})


def in_stories() -> set[str]:
    """Edges that take part in ``simulate``, or have a seeded story of their own."""
    return named_by(simulated) | {"trunkline"} | covered_in("tests/simulation")


def with_rows_tried() -> set[str]:
    """Edges for whose rules there are modules: `test_<protocol>_<subject>.py`."""
    return read_as({file.stem.split("_")[1] for file in (ROOT / "tests" / "requirements").glob("test_*.py")})


def folder_of(edge: Edge) -> str:
    return edge.make.__module__.split(".")[-2]


def with_a_page() -> set[str]:
    return read_as({page.stem for page in (ROOT / "docs" / "protocols").glob("*.md")})


def pages_of(name: str) -> list[str]:
    """The pages about an edge: that of its protocol, the one for those who use it, the one that an exception names."""
    pages = [page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")]
    own = [page for page in pages if SPELLED.get(Path(page).stem, Path(page).stem) == name]
    return own + re.findall(r"docs/[\w-]+\.md", EXCEPTIONS["docs/protocols"].get(name, ""))


def linked_in(file: str) -> set[str]:
    """Edges to whose page a file leads."""
    text = (ROOT / file).read_text()
    return {name for name in NAMES if any(f"]({page}" in text for page in pages_of(name))}


def named_in(file: str) -> set[str]:
    """Edges whose name, or that of their folder, stands in a text for people."""
    text = (ROOT / file).read_text()
    words = {edge.name: {edge.name, folder_of(edge).removesuffix("s")} - {"trunkline"} for edge in EDGES}
    return {name for name in NAMES if any(re.search(rf"(?i)\b{word}", text) for word in words[name])}


def tried_where(looks: str, file: str, tried: str) -> set[str]:
    """Edges whose folder has no such look at the views, and those that a test of this file tries."""
    text = (ROOT / "tests" / "unit" / "edges" / file).read_text()
    folders = {edge.name: ROOT / "src" / "trunkline" / "edges" / folder_of(edge) for edge in EDGES}
    return {
        name
        for name, folder in folders.items()
        if re.search(tried.format(name=name), text)
        or not any(re.search(looks, source.read_text()) for source in folder.glob("*.py"))
    }


def without_words_of_tools() -> set[str]:
    """Edges that never look at a tool, and those whose showing of it is tried while its definition is not approved."""
    tried = r"_{name}_reads_it|edges[./]{name}\b"
    return tried_where(r"views\.tools?(_named)?\(", "test_unapproved_definitions.py", tried)


def without_calls_of_others() -> set[str]:
    """Edges that never look a call up by its id, and those where it is tried to name somebody else's."""
    return tried_where(r"views\.call\b", "test_calls_of_others.py", "def test_over_{name}_")


def simulated_on_page() -> set[str]:
    page = (ROOT / "docs" / "testing.md").read_text()
    table = page.partition("| edge | simulated | left out |")[2].partition("\n\n")[0]
    return read_as({word.lower() for word in re.findall(r"^\| ([\w ]+) \|", table, re.MULTILINE)})


def folders_on_map() -> set[str]:
    rooms = (ROOT / "ARCHITECTURE.md").read_text().partition("## The rooms")[2].partition("\n## ")[0]
    return {edge.name for edge in EDGES if re.search(rf"(?<!\S){folder_of(edge)}/", rooms)}


LISTS: dict[str, Callable[[], set[str]]] = {
    "tests/fuzz/all_edges.py": lambda: named_by(all_edges),
    "tests/fuzz/failing.py: DRIVES": lambda: set(failing.DRIVES),
    "tests/fuzz/test_failing_alone.py: KINDS": lambda: set(test_failing_alone.KINDS),
    "tests/unit/edges/test_pairs.py: ENTRANCES": lambda: set(test_pairs.ENTRANCES),
    "tests/unit/edges/test_pairs.py: EXITS": lambda: {name.partition(" ")[0] for name in test_pairs.EXITS},
    "trunkline/testing/edges.py": lambda: named_by(simulated),
    "tests/attack": lambda: covered_in("tests/attack"),
    "tests/attack: planted secrets": lambda: covered_in("tests/attack", using="tests.attack.secrets"),
    "tests/crash": lambda: covered_in("tests/crash"),
    "tests/simulation": in_stories,
    "tests/requirements": with_rows_tried,
    "tools/soak.py: JOBS": lambda: read_as({job.name for job in soak.JOBS}),
    "bench/__main__.py: SECTIONS": lambda: read_as(set(SECTIONS)),
    "tests/unit/edges/test_unapproved_definitions.py": without_words_of_tools,
    "tests/unit/edges/test_calls_of_others.py": without_calls_of_others,
    "docs/edges.md: ids": ids_on_page,
    "docs/protocols": with_a_page,
    "docs/testing.md: simulated": simulated_on_page,
    "ARCHITECTURE.md: rooms": folders_on_map,
    "README.md": lambda: linked_in("README.md"),
    "CHANGELOG.md": lambda: linked_in("CHANGELOG.md"),
    "SECURITY.md": lambda: named_in("SECURITY.md"),
}

ALONE = "it is fuzzed alone, in"
PAGES = "it shows a person what the exchange says, over the door of HTTP, and takes his word as that does"
OWN_AGENT = "its tools are those of an agent of the exchange itself, which any entrance calls"
NOT_SIMULATED: dict[str, str] = {
    "mcp": "its callers ask as those of `http` do; sessions and repeats are tried in tests/unit/edges/mcp",
    "mounts": "seeded stories of its own, in tests/simulation/test_mounts_story.py",
    "trunkline": "events are simulated by trunkline/testing/topics.py, without their HTTP door",
}
IS_OURS = "it is our own protocol, without numbered rows of anybody's:"
EXCEPTIONS: dict[str, dict[str, str]] = {
    "tests/fuzz/all_edges.py": {
        "mcp": f"{ALONE} tests/fuzz/mcp.py",
        "mounts": f"{ALONE} tests/fuzz/mounts.py",
        "console": f"{ALONE} tests/fuzz/console.py",
        "ossa": f"{ALONE} tests/fuzz/ossa.py",
        "nostr": f"{ALONE} tests/fuzz/nostr.py and tests/fuzz/market.py",
        "jobs": f"{ALONE} tests/fuzz/jobs.py",
        "pylon": f"{ALONE} tests/fuzz/pylon.py",
    },
    "tests/fuzz/failing.py: DRIVES": {
        "console": PAGES,
        "ossa": "a sink of it that raises is tried in tests/unit/edges/ossa/test_serve.py",
    },
    "tests/fuzz/test_failing_alone.py: KINDS": {
        "console": PAGES,
        "ossa": "as in DRIVES",
    },
    "tests/unit/edges/test_pairs.py: ENTRANCES": {
        "mcp": "its ids stay in its conversation, and are fuzzed in tests/fuzz/mcp.py",
        "mounts": "it brings tools and no callers",
        "console": PAGES,
        "ossa": "ids of its messages are checked by its own rules: tests/requirements/test_ossa_wire.py",
        "nostr": "a job has no ids but the event's own hash",
        "pylon": "its requests reach codex alone, and its ids stay in the conversation",
        "trunkline": OWN_AGENT,
        "jobs": OWN_AGENT,
    },
    "tests/unit/edges/test_pairs.py: EXITS": {
        "mcp": "it brings callers and no tools",
        "mounts": "what servers answer is fuzzed in tests/fuzz/mounts.py",
        "console": PAGES,
        "http": "nobody serves tools over it",
        "ossa": "its agents are exits in tests/requirements/test_ossa_patterns.py",
        "nostr": "what it buys has its own bounds: tests/unit/edges/nostr/test_buyer.py",
        "pylon": OWN_AGENT,
        "trunkline": OWN_AGENT,
        "jobs": OWN_AGENT,
    },
    "trunkline/testing/edges.py": NOT_SIMULATED,
    "docs/testing.md: simulated": NOT_SIMULATED,
    "tests/attack": {
        "http": "its callers and tokens are those of tests/attack/policy.py and tests/attack/test_tokens.py",
        "opensentience": "its callers and tokens are those of tests/attack/policy.py and tests/attack/test_claims.py",
        "jobs": "its commands run in the sandbox of tests/attack/sandbox; who may have what, in tests/unit/edges/jobs",
    },
    "tests/attack: planted secrets": {
        "http": "every field of its calls, in tests/attack/secrets.py",
        "opensentience": "every field of its messages, in tests/attack/secrets.py",
        "chiffon": "seeds plant them in what its agents are asked: trunkline/testing/choices.py",
        "mounts": "tokens of servers and of sign-ins are looked for in tests/peers/test_mounts.py",
        "trunkline": "what an event holds is looked for in tests/attack/test_sensitive_events.py",
        "jobs": OWN_AGENT,
    },
    "tests/crash": {
        "http": "its calls are among those of tests/crash/kill9.py",
        "opensentience": "its agents are those of tests/crash/kill9.py and tests/crash/power_loss.py",
        "chiffon": "exchange, agent and broker are killed in tests/requirements/test_chiffon_queue.py",
        "pylon": "the exchange is killed in tests/requirements/test_pylon.py; nothing of a page outlives it",
        "mounts": "it is killed in tests/peers/test_mounts.py, and by seeds in tests/simulation/mounts_story.py",
    },
    "tools/soak.py: JOBS": {
        "http": "the jobs `fuzz` and `routes` are about it",
        "jobs": "tests/fuzz/jobs.py takes the time of a worker for each case",
        "trunkline": "the job `lossy` publishes events",
    },
    "bench/__main__.py: SECTIONS": {
        "mcp": "the section `mounts` measures both: bench/mounts.py",
        "trunkline": "part of the section `pieces`: bench/topics.py",
        "pylon": "the time of a request is codex's",
        "jobs": "the time of a job is the work's",
    },
    "tests/simulation": {
        "mcp": "its callers ask as those of `http` do; sessions and repeats are tried in tests/unit/edges/mcp",
    },
    "tests/requirements": {
        "mcp": "its rows are tied to tests in tests/unit/edges/mcp; its own suite runs against us: docs/conformance.md",
        "mounts": "its protocol is that of `mcp`; servers of others answer it in tests/peers/test_mounts.py",
        "console": f"{IS_OURS} docs/console.md, tried in tests/unit/edges/console",
        "http": f"{IS_OURS} docs/http.md, held by tests/unit/edges/http/test_docs.py",
        "trunkline": f"{IS_OURS} docs/topics.md, tried in tests/unit/edges/topics",
        "jobs": "its rows are those of OpenAgents, which tests/requirements/test_openagents_nostr.py tries",
    },
    "docs/edges.md: ids": {
        "mounts": "its rows are those of `mcp`, and names of its tools those of all",
    },
    "tests/unit/edges/test_unapproved_definitions.py": {
        "chiffon": "it looks for tools by their names, and shows none of their words",
        "ossa": "it looks whether a tool is there",
        "jobs": "it looks whether a tool is there",
        "trunkline": "it looks whether a tool is there",
        "console": "pages are told ids and states; what a tool says of itself they ask `http` for",
    },
    "tests/unit/edges/test_calls_of_others.py": {
        "chiffon": "it looks up calls that this agent was sent, or that are its own conversation's",
        "ossa": "it looks up calls that it keeps itself, by the messages of who made them or of who was sent them",
        "nostr": "it looks up calls that its own record of orders names",
    },
    "docs/protocols": {
        "http": "it is ours: docs/http.md",
        "console": "it is ours: docs/console.md",
        "trunkline": "it is ours: docs/topics.md",
        "jobs": "its protocol is that of `nostr`, and what can be asked for is in docs/jobs.md",
        "mounts": "its protocol is that of `mcp`, and how it is used is in docs/mcp-mounts.md",
    },
}


@pytest.mark.parametrize("name", LISTS)
def test_each_edge_is_in_the_list_or_it_is_written_why_not(name: str) -> None:
    exceptions = EXCEPTIONS.get(name, {})
    present = LISTS[name]() & NAMES
    missing = NAMES - present - exceptions.keys()
    assert not missing, f"{name} has no {', '.join(sorted(missing))}: add it there, or write here why not"
    over = present & exceptions.keys()
    assert not over, f"{name} has {', '.join(sorted(over))} by now: take the exception away"
    unknown = exceptions.keys() - NAMES
    assert not unknown, f"{', '.join(sorted(unknown))}: there is no such edge"


def test_what_an_exception_names_is_there() -> None:
    for reasons in EXCEPTIONS.values():
        for reason in reasons.values():
            for path in re.findall(r"(?:tests|bench|docs|trunkline)/[\w/-]+(?:\.py|\.md)?", reason):
                place = ROOT / ("src" if path.startswith("trunkline") else "") / path
                assert place.exists(), f"{path} is not there"
