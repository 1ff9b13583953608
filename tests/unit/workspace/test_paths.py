"""The rules on the text of a path, and the walk to a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.descriptors import open_descriptors
from tests.requirement import requirement
from trunkline.errors import WorkspaceError
from trunkline.workspace.folder import Workspace
from trunkline.workspace.paths import check_cwd, check_path, open_folder

REFUSED = {
    "": "empty",
    "/etc/passwd": "relative",
    "/": "relative",
    "../x": "'..'",
    "a/../b": "'..'",
    "a..b": "'..'",
    "a/..": "'..'",
    "a\0b": "null byte",
    "x" * 256: "255",
    ".": "name a file",
    "./": "name a file",
    "a/": "slash or a dot",
    "a/.": "slash or a dot",
    "a\\b": "backslash",
    "C:x": "drive letter",
    "a\nb": "control",
    "a\x7fb": "control",
    "a\x85b": "control",
    "a\ud800b": "control",
}


@requirement("SP-076", "SP-077", "SP-078", "SP-079")
@pytest.mark.parametrize(("path", "text"), REFUSED.items())
def test_a_bad_path_is_refused_with_its_reason(path: str, text: str) -> None:
    with pytest.raises(WorkspaceError) as refused:
        check_path(path)
    assert refused.value.kind == "validation"
    assert text in refused.value.message


@requirement("SP-079")
def test_a_path_of_exactly_255_characters_is_accepted_however_many_bytes_it_has() -> None:
    assert check_path("ä" * 255) == ("ä" * 255,)
    assert check_path("/".join("x" * 128)) == ("x",) * 128


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("a", ("a",)),
        ("./a", ("a",)),
        ("a//b", ("a", "b")),
        ("a/./b", ("a", "b")),
        (".git/x", (".git", "x")),
        ("~", ("~",)),
    ],
)
def test_a_good_path_becomes_its_names(path: str, names: tuple[str, ...]) -> None:
    assert check_path(path) == names


def test_only_a_working_folder_may_be_a_dot_or_end_in_a_slash() -> None:
    assert check_cwd(".") == ()
    assert check_cwd("src/") == ("src",)
    for bad in ("", "..", "/", "/tmp", "a/../b", "//"):
        with pytest.raises(WorkspaceError):
            check_cwd(bad)


@given(st.text(max_size=300))
def test_whatever_is_accepted_has_only_plain_names(path: str) -> None:
    try:
        names = check_path(path)
    except WorkspaceError:
        return
    assert names
    assert len(path) <= 255
    for name in names:
        assert name
        assert name not in {".", ".."}
        assert not set(name) & set("/\\\0\n")
        assert name.encode()


def test_the_walk_makes_missing_folders_only_if_it_is_told_to(workspace: Workspace) -> None:
    with pytest.raises(WorkspaceError, match="not found"), open_folder(workspace.fd, ("a", "b")):
        pass
    with workspace.acting(), open_folder(workspace.fd, ("a", "b"), make=True) as folder:
        made = os.fstat(folder).st_ino
    assert made == (workspace.root / "a/b").stat().st_ino


def test_the_walk_refuses_a_link_and_says_so_and_a_file_otherwise(workspace: Workspace, tmp_path: Path) -> None:
    (workspace.root / "link").symlink_to(tmp_path)
    (workspace.root / "file").write_text("x")
    with pytest.raises(WorkspaceError, match="symbolic link") as refused, open_folder(workspace.fd, ("link",)):
        pass
    assert refused.value.kind == "policy"
    with pytest.raises(WorkspaceError, match="not a directory") as refused, open_folder(workspace.fd, ("file",)):
        pass
    assert refused.value.kind == "execution"


@pytest.mark.slow
def test_no_descriptor_is_left_open_whether_the_walk_succeeds_or_not(workspace: Workspace) -> None:
    before = open_descriptors()
    with workspace.acting(), open_folder(workspace.fd, ("a", "b", "c"), make=True):
        pass
    for names in (("a", "nothing"), ("nothing",)):
        with pytest.raises(WorkspaceError), open_folder(workspace.fd, names):
            pass
    assert open_descriptors() == before
