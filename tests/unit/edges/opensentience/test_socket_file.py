"""The socket as a file: only its owner reaches it, and nothing in its place is taken for granted."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from tests.requirement import requirement
from trunkline.edges.opensentience import socket_file
from trunkline.errors import ConfigError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@requirement("OS-006")
def test_the_socket_and_a_folder_made_for_it_belong_to_their_owner_alone(short_path: Path) -> None:
    old = os.umask(0)
    try:
        with socket_file.bind(short_path / "run" / "agents.sock"):
            assert mode(short_path / "run") == 0o700
            assert mode(short_path / "run" / "agents.sock") == 0o600
        assert os.umask(0) == 0
    finally:
        os.umask(old)


@requirement("OS-006")
@pytest.mark.parametrize("bits", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused(short_path: Path, bits: int) -> None:
    folder = short_path / "open"
    folder.mkdir()
    folder.chmod(bits)
    with pytest.raises(ConfigError, match="chmod 700"):
        socket_file.bind(folder / "s")
    assert not (folder / "s").exists()


def test_a_folder_behind_a_symbolic_link_is_refused(short_path: Path) -> None:
    (short_path / "real").mkdir(mode=0o700)
    (short_path / "link").symlink_to(short_path / "real")
    with pytest.raises(ConfigError, match="symbolic link"):
        socket_file.bind(short_path / "link" / "s")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(short_path: Path) -> None:
    folder = short_path / "theirs"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(ConfigError, match="user 12345"):
        socket_file.bind(folder / "s")


def test_a_stale_socket_is_replaced(short_path: Path) -> None:
    path = short_path / "s"
    socket_file.bind(path).close()
    stale = socket_file.identity(path)
    with socket_file.bind(path) as bound:
        bound.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert stale is not None


def test_a_socket_that_somebody_answers_is_left_alone(short_path: Path) -> None:
    path = short_path / "s"
    with socket_file.bind(path) as bound:
        bound.listen()
        before = socket_file.identity(path)
        with pytest.raises(ConfigError, match="another exchange"):
            socket_file.bind(path)
        assert socket_file.identity(path) == before


def test_a_symbolic_link_in_the_sockets_place_is_refused_and_kept(short_path: Path) -> None:
    victim = short_path / "victim"
    victim.write_text("precious")
    (short_path / "s").symlink_to(victim)
    with pytest.raises(ConfigError, match="symbolic link"):
        socket_file.bind(short_path / "s")
    assert victim.read_text() == "precious"
    assert (short_path / "s").is_symlink()


def test_a_file_in_the_sockets_place_is_refused_and_kept(short_path: Path) -> None:
    (short_path / "s").write_text("precious")
    with pytest.raises(ConfigError, match="not a socket"):
        socket_file.bind(short_path / "s")
    assert (short_path / "s").read_text() == "precious"


def test_a_path_that_is_too_long_is_named(short_path: Path) -> None:
    with pytest.raises(ConfigError, match="107 bytes"):
        socket_file.bind(short_path / ("x" * 120))


def test_only_our_own_socket_is_removed(short_path: Path) -> None:
    path = short_path / "s"
    with socket_file.bind(path):
        ours = socket_file.identity(path)
        assert ours is not None
        # Kept under another name, so that its inode cannot be given to the next file.
        path.rename(short_path / "kept")
        path.write_text("somebody else's")
        socket_file.remove(path, ours)
        assert path.exists()
        socket_file.remove(short_path / "kept", ours)
        assert not (short_path / "kept").exists()
        socket_file.remove(short_path / "kept", ours)
