"""Looking into a space: folders, the beginning of a file, and nobody but the operator."""

from __future__ import annotations

import hashlib

from tests.unit.edges.spaces.test_routes import Served, served
from tests.unit.edges.spaces.test_undo import create
from trunkline.edges.spaces.browsing import SHOWN_BYTES

__all__ = ["served"]

FILES = "/v1/spaces/demo/files"


async def test_a_folder_is_shown_with_its_folders_first(served: Served) -> None:
    await served.run(create("b.txt", "hello"), create("sub/c.txt"), create("a.txt"))
    found = (await served.client.get(FILES)).json()
    assert [(one["name"], one["kind"]) for one in found["files"]] == [
        ("sub", "folder"),
        ("a.txt", "file"),
        ("b.txt", "file"),
    ]
    assert found["count"] == 3
    assert found["files"][2]["bytes"] == 5
    inside = (await served.client.get(FILES, params={"path": "sub"})).json()
    assert [one["name"] for one in inside["files"]] == ["c.txt"]


async def test_a_file_is_shown_from_its_beginning_with_the_hash_of_all_of_it(served: Served) -> None:
    text = "ä" * SHOWN_BYTES
    await served.run(create("long.txt", text), create("short.txt", "<b>"))
    short = (await served.client.get(FILES, params={"path": "short.txt"})).json()
    assert (short["content"], short["bytes"], short["cut"]) == ("<b>", 3, False)
    long = (await served.client.get(FILES, params={"path": "long.txt"})).json()
    assert long["cut"]
    assert long["content"] == "ä" * (SHOWN_BYTES // 2)
    assert long["sha256"] == hashlib.sha256(text.encode()).hexdigest()


async def test_a_look_stays_in_the_space(served: Served) -> None:
    await served.run(create("a.txt"))
    root = served.spaces.agent("demo").space.workspace.root
    (root / "out").symlink_to("/etc")
    listed = (await served.client.get(FILES)).json()
    assert ("out", "link") in [(one["name"], one["kind"]) for one in listed["files"]]
    for path, status in {"out": 404, "out/passwd": 404, "../home": 400, "/etc": 400, "missing": 404}.items():
        assert (await served.client.get(FILES, params={"path": path})).status_code == status, path


async def test_only_the_operator_looks(served: Served) -> None:
    token = served.exchange.token("http", "somebody")
    answer = await served.client.get(FILES, headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 403
