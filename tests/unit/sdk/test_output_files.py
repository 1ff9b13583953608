"""Results kept as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.requirement import requirement
from trunkline.sdk import output_files
from trunkline.sdk.output_files import KEPT_FILES, OutputFiles


@requirement("OS-152", "OS-153")
def test_the_newest_are_kept_and_the_oldest_forgotten(tmp_path: Path) -> None:
    kept = OutputFiles(tmp_path, "com.example.a")
    references = [kept.try_keep(f"call/../{n}", b'{"n":%d}' % n) for n in range(KEPT_FILES + 3)]
    files = [Path(str(reference["$file"])) for reference in references if reference is not None]
    assert len(files) == KEPT_FILES + 3
    assert {file.parent for file in files} == {tmp_path / "outputs" / "com.example.a"}
    assert [file.exists() for file in files] == [False] * 3 + [True] * KEPT_FILES
    assert files[-1].read_bytes() == b'{"n":%d}' % (KEPT_FILES + 2)


def test_what_is_too_large_even_for_a_file_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_files, "MAX_OUTPUT_BYTES", 10)
    assert OutputFiles(tmp_path, "a").try_keep("c", b"x" * 11) is None
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_a_result_is_not_followed(tmp_path: Path) -> None:
    kept = OutputFiles(tmp_path, "a")
    reference = kept.try_keep("c", b"{}")
    assert reference is not None
    file, victim = Path(str(reference["$file"])), tmp_path / "victim"
    file.unlink()
    file.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        kept.try_keep("c", b"{}")
    assert not victim.exists()
