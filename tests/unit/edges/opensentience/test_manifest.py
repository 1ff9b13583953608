from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from tests.requirement import requirement
from trunkline.edges.opensentience.manifest import FILE_NAME, MAX_BYTES, read_manifest
from trunkline.errors import ConfigError

AGENT = "com.example.echo"

FULL = {
    "id": AGENT,
    "name": "Echo",
    "version": "1.2.3-rc.1+build.5",
    "description": "Says it again.",
    "source": {"git_url": "https://example.com/echo.git", "ref": "v1.2.3"},
    "entrypoint": {"type": "command", "value": "python echo.py"},
    "permissions": ["filesystem:read:~/Projects/*", "network:egress", "graph:*", "net:connect:host:443"],
    "capabilities": ["streaming"],
    "something_new": {"later": True},
}


def manifest(folder: Path, content: object) -> Path:
    path = folder / FILE_NAME
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


@requirement("OS-062")
def test_a_manifest_gives_the_hash_of_its_bytes_and_the_permissions_it_asks_for(tmp_path: Path) -> None:
    path = manifest(tmp_path, FULL)
    found = read_manifest(path, AGENT)
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found.permissions == tuple(FULL["permissions"])


def test_only_the_id_is_needed_and_null_is_the_same_as_absent(tmp_path: Path) -> None:
    assert read_manifest(manifest(tmp_path, {"id": AGENT}), AGENT).permissions == ()
    nothing = dict.fromkeys(FULL, None) | {"id": AGENT}
    assert read_manifest(manifest(tmp_path, nothing), AGENT).permissions == ()


def test_another_spelling_of_the_same_manifest_is_another_hash(tmp_path: Path) -> None:
    first = read_manifest(manifest(tmp_path, FULL), AGENT)
    second = read_manifest(manifest(tmp_path, json.dumps(FULL, indent=1).encode()), AGENT)
    assert first.sha256 != second.sha256
    assert first.permissions == second.permissions


def test_a_permission_named_twice_is_asked_for_once(tmp_path: Path) -> None:
    assert read_manifest(
        manifest(tmp_path, {"id": AGENT, "permissions": ["a:b", "c:d", "a:b"]}), AGENT
    ).permissions == (
        "a:b",
        "c:d",
    )


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "must have 1 to 256000 bytes"),
        (b" " * (MAX_BYTES + 1), "must have 1 to 256000 bytes"),
        (b"[]", "object"),
        (b'{"id": "com.example.echo"', ""),
        (b'\xef\xbb\xbf{"id": "com.example.echo"}', ""),
        (b'{"id": "com.example.echo", "id": "com.example.echo"}', "twice"),
        (b'{"id": "com.example.echo"} {}', ""),
        (b'{"id": "com.example.echo", "x": NaN}', ""),
        ({}, "missing required field `id`"),
        ({"id": 7}, "at `$.id`"),
        ({"id": "com.example.other"}, "belongs to 'com.example.other', but is configured for 'com.example.echo'"),
        ({"id": "COM.example.echo"}, "at `$.id`"),
        ({"id": AGENT, "name": 1}, "at `$.name`"),
        ({"id": AGENT, "version": "1.0"}, "'1.0' is not a semantic version such as '1.0.0' - at `$.version`"),
        ({"id": AGENT, "version": "01.0.0"}, "at `$.version`"),
        ({"id": AGENT, "version": "1.0.0\n"}, "at `$.version`"),
        ({"id": AGENT, "source": "here"}, "at `$.source`"),
        ({"id": AGENT, "source": {"ref": 1}}, "at `$.source.ref`"),
        ({"id": AGENT, "entrypoint": {}}, "at `$.entrypoint`"),
        ({"id": AGENT, "entrypoint": {"type": "docker"}}, "at `$.entrypoint.type`"),
        ({"id": AGENT, "entrypoint": {"type": "mix_task"}}, "'mix_task' cannot be launched here, only 'command'"),
        ({"id": AGENT, "entrypoint": {"type": "release"}}, "'release' cannot be launched here, only 'command'"),
        ({"id": AGENT, "permissions": "a:b"}, "at `$.permissions`"),
        ({"id": AGENT, "permissions": ["a:b", 1]}, "at `$.permissions[1]`"),
        ({"id": AGENT, "permissions": ["a:b"] * 501}, "at `$.permissions`"),
        ({"id": AGENT, "permissions": ["a:b", "a:b:" + "é" * 150]}, "longer than 300 bytes - at `$.permissions[1]`"),
        ({"id": AGENT, "permissions": ["read"]}, "'read' is not domain:action or domain:action:pattern"),
        ({"id": AGENT, "permissions": ["a:"]}, "at `$.permissions[0]`"),
        ({"id": AGENT, "permissions": [":b"]}, "at `$.permissions[0]`"),
        ({"id": AGENT, "permissions": ["a:b:"]}, "at `$.permissions[0]`"),
        ({"id": AGENT, "permissions": ["a b:c"]}, "at `$.permissions[0]`"),
        ({"id": AGENT, "permissions": ["a:b:c\n"]}, "at `$.permissions[0]`"),
        ({"id": AGENT, "capabilities": [1]}, "at `$.capabilities[0]`"),
    ],
)
def test_a_bad_manifest_is_refused_with_its_file_and_the_place(tmp_path: Path, content: object, fault: str) -> None:
    path = manifest(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        read_manifest(path, AGENT)
    assert str(caught.value).startswith(f"{path}: ")
    assert fault in str(caught.value)


def test_the_largest_allowed_manifest_and_the_longest_lists_are_taken(tmp_path: Path) -> None:
    content = {"id": AGENT, "permissions": [f"a:b:{n:0295d}" for n in range(500)]}
    data = json.dumps(content).encode()
    found = read_manifest(manifest(tmp_path, data + b" " * (MAX_BYTES - len(data))), AGENT)
    assert len(found.permissions) == 500
    assert len(found.permissions[0]) == 299


def test_only_a_regular_file_of_that_name_is_a_manifest(tmp_path: Path) -> None:
    other = tmp_path / "agent.json"
    other.write_text(json.dumps(FULL))
    with pytest.raises(ConfigError, match=r"must be named opensentience\.agent\.json"):
        read_manifest(other, AGENT)
    path = tmp_path / FILE_NAME
    with pytest.raises(ConfigError, match="No such file"):
        read_manifest(path, AGENT)
    path.symlink_to(other)
    with pytest.raises(ConfigError, match="is a symbolic link"):
        read_manifest(path, AGENT)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="not a regular file"):
        read_manifest(path, AGENT)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a regular file"):
        read_manifest(path, AGENT)
