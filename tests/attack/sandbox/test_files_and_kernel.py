"""Files that would do harm later, and doors of the kernel."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.attack.sandbox.conftest import Run, python
from trunkline.errors import WorkspaceError
from trunkline.workspace.files import create_file, delete_file, read_file
from trunkline.workspace.folder import Quota, Workspace
from trunkline.workspace.policy import make_policy

# --- files


@pytest.fixture
def repository(workspace: Workspace) -> Path:
    """A git folder as `git init` makes it, and a file that a shell reads, all the workspace's own."""
    git = workspace.root / ".git"
    (git / "hooks").mkdir(parents=True)
    (git / "config").write_text("[core]\n")
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (workspace.root / ".bashrc").write_text("# mine\n")
    for path in [git, *git.rglob("*"), workspace.root / ".bashrc"]:
        os.chown(path, workspace.uid, workspace.gid)
    return workspace.root


@pytest.mark.parametrize(
    "attack",
    [
        "echo evil > .git/hooks/pre-commit",
        "echo evil >> .git/config",
        "echo evil >> .bashrc",
        "rm -rf .git/hooks && mkdir .git/hooks && echo evil > .git/hooks/pre-commit",
        "mv .git moved && mkdir -p .git/hooks && echo evil > .git/hooks/pre-commit",
        "mv .git/hooks .git/old; mkdir .git/hooks; echo evil > .git/hooks/pre-commit",
        "mv .git/config x; echo evil > .git/config",
        "cp .git/config n; echo evil >> n; mv -f n .git/config",
        "ln -sf /tmp/evil .bashrc; rm -f .bashrc; echo evil > .bashrc",
        "chmod 777 .git/hooks; echo evil > .git/hooks/x",
        "mv .bashrc b; echo evil > .bashrc",
    ],
)
def test_a_command_cannot_change_what_other_programs_would_run(run: Run, repository: Path, attack: str) -> None:
    run(attack)
    assert list((repository / ".git/hooks").iterdir()) == []
    assert (repository / ".git/config").read_text() == "[core]\n"
    assert (repository / ".bashrc").read_text() == "# mine\n"
    assert not (repository / ".bashrc").is_symlink()


@pytest.mark.parametrize("mode", ["000", "100", "300"])
def test_a_folder_that_one_command_closed_is_protected_from_the_next(run: Run, repository: Path, mode: str) -> None:
    assert run(f"chmod {mode} .git").exit_code == 0
    run("chmod 755 .git; echo evil > .git/hooks/pre-commit; echo evil >> .git/config")
    assert list((repository / ".git/hooks").iterdir()) == []
    assert (repository / ".git/config").read_text() == "[core]\n"
    assert run("echo x > .git/index").exit_code == 0


@pytest.mark.parametrize("made", ["echo gitdir: x > .git", "ln -s / .git", "mkdir there; ln -s there .git"])
def test_a_name_of_a_protected_folder_that_is_none_stops_no_command(run: Run, made: str) -> None:
    assert run(made).exit_code == 0
    assert run("echo x > a; cat a").stdout.text == "x\n"


def test_a_protected_folder_of_somebody_else_stops_no_command(run: Run, repository: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives folders away")
    os.chown(repository / ".git", 0, 0)
    (repository / ".git").chmod(0o500)
    assert run("echo x > a; cat a").stdout.text == "x\n"
    assert run("chmod 755 .git").exit_code != 0


def test_the_rest_of_a_repository_can_be_written(run: Run, repository: Path) -> None:
    assert run("echo x > .git/index && echo y > src && ls .git/hooks .git/config").exit_code == 0
    assert (repository / ".git/index").read_text() == "x\n"


@pytest.mark.parametrize(
    "attack",
    [
        "cp /bin/sh s; chmod 4755 s",
        "cp /bin/sh s; chmod u+s s",
        "cp /bin/sh s; chmod g+s s",
        python('import os; os.close(os.open("s", os.O_CREAT | os.O_WRONLY, 0o6755))'),
        python('import os; os.close(os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o4755)); os.mknod("s", 0o104755)'),
        python(
            "import ctypes; c = ctypes.CDLL(None).syscall\nopen('s', 'w').close()\n"
            "c(452, -100, b's', 0o4755, 0); c(268, -100, b's', 0o4755); c(90, b's', 0o4755)\n"
            "how = (ctypes.c_uint64 * 3)(0o101, 0o4755, 0); c(437, -100, b't', how, 24)"
        ),
    ],
)
def test_no_file_gets_a_set_id_bit(run_either: Run, workspace: Workspace, attack: str) -> None:
    run_either(attack)
    for path in workspace.root.iterdir():
        assert not path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)


def test_a_device_cannot_be_made_or_read_through_a_tool(run_either: Run, workspace: Workspace) -> None:
    assert run_either("mknod d b 8 0 || mknod d c 1 1").exit_code != 0
    assert not (workspace.root / "d").exists()
    if os.geteuid() == 0:
        os.mknod(workspace.root / "memory", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
        with pytest.raises(WorkspaceError, match="not a regular file"):
            read_file(workspace, "memory")
        assert run_either("head -c 1 memory").exit_code != 0


def test_a_pipe_or_a_socket_does_not_hang_a_tool(run: Run, workspace: Workspace) -> None:
    run(python('import os, socket; os.mkfifo("pipe"); s = socket.socket(socket.AF_UNIX); s.bind("socket")'))
    for name in ("pipe", "socket"):
        with pytest.raises(WorkspaceError, match="not a regular file") as refused:
            read_file(workspace, name)
        assert refused.value.kind == "policy"
        with pytest.raises(WorkspaceError, match="not a regular file"):
            create_file(workspace, name, b"x", overwrite=True)
        delete_file(workspace, name)


def test_a_sparse_terabyte_is_cut_and_costs_a_reader_nothing(run: Run, workspace: Workspace) -> None:
    assert run("truncate -s 1T big").exit_code != 0
    assert run("truncate -s 1000M big").exit_code == 0
    with pytest.raises(WorkspaceError, match="larger than"):
        read_file(workspace, "big")


def test_a_million_tiny_files_are_stopped(run: Run, workspace: Workspace) -> None:
    policy = make_policy("standard", {"quota": {"max_files": 3000, "max_bytes": 2**30}})
    ran = run(python("for i in range(1_000_000): open(str(i), 'w').close()"), policy=policy)
    assert ran.ended_by == "disk"
    assert ran.exit_code == 137
    assert len(list(workspace.root.iterdir())) < 500_000
    with pytest.raises(WorkspaceError, match="workspace is full"):
        create_file(workspace, "one-more", b"", quota=Quota(max_files=3000))


# --- kernel surface


@pytest.mark.parametrize(
    "path",
    ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches",
     "/proc/self/oom_score_adj", "/sys/kernel/uevent_helper", "/proc/sys/fs/binfmt_misc/register"],
)  # fmt: skip
def test_a_kernel_setting_cannot_be_written(run_either: Run, path: str) -> None:
    watched = path.endswith(("core_pattern", "modprobe")) and Path(path).exists()
    before = Path(path).read_bytes() if watched else b""
    value = "-1000" if "oom" in path else "x"
    assert run_either(f"echo {value} > {path}").exit_code != 0
    assert before == (Path(path).read_bytes() if watched else b"")


CALLS = {
    "mount": 'c(165, b"none", b"/tmp", b"tmpfs", 0, None)',
    "umount": 'c(166, b"/workspace", 2)',
    "pivot_root": 'c(155, b"/", b"/tmp")',
    "open_tree": 'c(428, -100, b"/", 1)',
    "fsopen": 'c(430, b"tmpfs", 0)',
    "unshare user": "c(272, 0x10000000)",
    "unshare mounts": "c(272, 0x20000)",
    "clone user": "c(56, 0x10000011, 0, 0, 0, 0)",
    "clone3": "c(435, (ctypes.c_uint64 * 8)(0x10000000), 64)",
    "setns": "c(308, 0, 0)",
    "ptrace": "c(101, 0, 0, 0, 0)",
    "process_vm_readv": "c(310, os.getpid(), None, 0, None, 0, 0)",
    "keyctl": "c(250, 0, -3, 1)",
    "add_key": 'c(248, b"user", b"a", b"b", 1, -3)',
    "bpf": "c(321, 0, (ctypes.c_uint64 * 16)(1, 4, 4, 1), 128)",
    "io_uring": "c(425, 1, (ctypes.c_uint64 * 32)())",
    "perf": "c(298, (ctypes.c_uint32 * 32)(1, 128), 0, -1, -1, 0)",
    "kexec": "c(246, 0, 0, None, 0)",
    "init_module": "c(175, None, 0, None)",
    "userfaultfd": "c(323, 1)",
    "open_by_handle_at": "c(304, -100, None, 0)",
    "chroot": 'c(161, b"/tmp")',
    "personality of another machine": "c(0x40000000 + 39)",
    "reboot": "c(169, 0, 0, 0)",
    "syslog": "c(103, 3, None, 0)",
    "acct": 'c(163, b"x")',
    "vsock": "c(41, 40, 1, 0)",
    "packet socket": "c(41, 17, 3, 0)",
    "alg socket": "c(41, 38, 5, 0)",
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86_64")
def test_the_kernel_is_asked_for_nothing_it_need_not_give(run_either: Run) -> None:
    """One process tries all of them, so that each failure is the filter's and not that of a missing program."""
    lines = "\n".join(
        f"ctypes.set_errno(0)\nr = {call}\nif r == 0 and {name!r} == 'clone user': os._exit(0)\n"
        f"print({name!r}, r, ctypes.get_errno(), sep=':')"
        for name, call in CALLS.items()
    )
    ran = run_either(python(f"import ctypes, os\nc = ctypes.CDLL(None, use_errno=True).syscall\n{lines}"))
    found = {line.split(":")[0]: line.split(":")[1:] for line in ran.stdout.text.splitlines()}
    assert found.keys() == CALLS.keys(), ran.stderr.text
    # EPERM, ENOSYS, EAFNOSUPPORT or EACCES: refused as such, not for a bad argument that could be made better.
    assert {name: got for name, got in found.items() if got[0] != "-1" or got[1] not in {"1", "38", "97", "13"}} == {}


def test_a_32_bit_call_ends_the_process(run_either: Run) -> None:
    code = (
        "import ctypes, mmap\n"
        "m = mmap.mmap(-1, 4096, prot=7)\n"
        "m.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')\n"  # getpid by int 0x80
        "address = ctypes.addressof(ctypes.c_char.from_buffer(m))\n"
        "print('got', ctypes.CFUNCTYPE(ctypes.c_int)(address)())"
    )
    if os.uname().machine != "x86_64":
        pytest.skip("only x86_64 has such a second way in")
    ran = run_either(python(code))
    assert "got" not in ran.stdout.text
    assert ran.exit_code == 128 + 31
