from __future__ import annotations

import os

import pytest

from bench.children import peak_rss_bytes, reset_peak_rss, rss_bytes
from bench.plan import STANDARD
from bench.spaces import file_operations
from trunkline.edges.spaces import validate_operations_message

MIB = 1024**2


@pytest.mark.parametrize("count", [1, 4, 100, STANDARD.file_operations])
def test_file_operations_are_a_message_that_a_space_takes(count: int) -> None:
    made = file_operations(count)
    assert len(made) == count
    assert validate_operations_message({"protocolVersion": "1.0", "operations": made})["success"]


def test_each_file_is_made_read_edited_and_deleted() -> None:
    made = file_operations(8)
    assert [one["type"] for one in made] == ["createFile", "readFile", "editFile", "deleteFile"] * 2
    assert [len({one["path"] for one in made[at : at + 4]}) for at in (0, 4)] == [1, 1]
    assert len({one["path"] for one in made}) == 2


def test_the_standard_run_has_what_the_goals_speak_of() -> None:
    assert STANDARD.shell_starts >= 100
    assert (STANDARD.file_operations, STANDARD.output_bytes) == (1000, 1024**3)


def test_the_most_memory_is_seen_after_it_was_given_back() -> None:
    reset_peak_rss(os.getpid())
    before = rss_bytes(os.getpid())
    held = bytearray(os.urandom(64)) * MIB
    del held
    assert peak_rss_bytes(os.getpid()) - before > 48 * MIB
    reset_peak_rss(os.getpid())
    assert peak_rss_bytes(os.getpid()) - before < 48 * MIB
