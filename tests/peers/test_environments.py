"""Environments for other programs: uv is told what pip knows, and pip does what uv cannot."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from tests import environments

CONFIGURED = """:env:.cert='/certificates.pem'
:env:.find-links='/wheels /more wheels'
global.cert='/of-the-file.pem'
global.extra-index-url='file:///one\\nfile:///two'
global.index-url='file:///index'
install.no-index='true'
list.format='columns'
"""


def test_uv_looks_where_pip_looks() -> None:
    assert environments.told_to_uv(CONFIGURED) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "file:///index",
        "UV_INDEX": "file:///one file:///two",
        "UV_FIND_LINKS": "/wheels,/more,wheels",
        "SSL_CERT_FILE": "/certificates.pem",
        "UV_NO_INDEX": "true",
    }


def test_where_nothing_is_configured_both_look_at_their_own_index() -> None:
    assert environments.told_to_uv("") == {"UV_INDEX_STRATEGY": "unsafe-best-match"}


@pytest.mark.parametrize("uv", ["that works", "that fails"])
def test_an_environment_has_what_was_installed_whoever_did_it(
    uv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if uv == "that fails":
        monkeypatch.setattr(environments, "_uv", lambda: ("/bin/false", {}))
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("tiny.py", "WORD = 'here'\n")
        file.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        file.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("tiny-1.0.dist-info/RECORD", "")
    place = tmp_path / "environment"
    environments.make(place)
    done = environments.install(place, "--no-deps", "--no-index", str(wheel))
    assert done.returncode == 0, done.stdout + done.stderr
    command = (str(place / "bin" / "python"), "-I", "-c", "import tiny; print(tiny.WORD)")
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "here\n"
