"""What is in a piece of code, within the bounds that were asked for."""

from __future__ import annotations

from typing import Any

import pytest

from trunkline.jobs import consistency
from trunkline.jobs.chunks import analyse
from trunkline.jobs.schemas import ANALYSIS, job_types

JOB = job_types()[ANALYSIS]
PYTHON = '''import os
from . import helper
from ..base.core import thing
import numpy.linalg

LIMIT = 3


class Account:
    """Money of somebody."""

    def pay(self, to=[]):
        # TODO: check
        return to


def interest(rate):
    return rate == None
'''


def analysed(content: str, path: str = "pkg/sub/a.py", start: int = 1, task: str = "t", **more: Any) -> dict[str, Any]:
    lines = max(1, len(content.splitlines()))
    language = {"language": more.pop("language")} if "language" in more else {}
    chunk = {"path": path, "start_line": start, "end_line": start + lines - 1, "content": content, **language}
    inputs = JOB.filled({"task": task, "chunk": chunk, **more})
    assert JOB.input_problem(inputs) == ""
    outputs = analyse(inputs)
    assert JOB.output_problem(outputs) == ""
    assert consistency.output_problem(ANALYSIS, inputs, outputs) == ""
    return outputs


def test_symbols_have_kind_line_and_the_first_line_of_their_docstring() -> None:
    assert analysed(PYTHON)["symbols"] == [
        {"name": "LIMIT", "kind": "constant", "line": 6},
        {"name": "Account", "kind": "class", "line": 9, "description": "Money of somebody."},
        {"name": "pay", "kind": "method", "line": 12},
        {"name": "interest", "kind": "function", "line": 17},
    ]


@pytest.mark.parametrize(
    ("path", "content", "symbols"),
    [
        ("a.js", "class A { m() {} }\nconst f = () => 1\nfunction g() {}\n", "A:class m:method f:function g:function"),
        ("a.ts", "interface I {}\ntype T = string\nenum E { A }\n", "I:interface T:type E:enum"),
        ("a.go", "package a\nfunc (t T) M() {}\nfunc F() {}\ntype T struct{}\n", "M:method F:function T:type"),
        ("a.rs", "impl A { fn m(&self) {} }\nfn f() {}\nstruct S;\nenum E {}\n", "m:method f:function S:struct E:enum"),
    ],
)
def test_symbols_of_the_other_languages(path: str, content: str, symbols: str) -> None:
    assert [f"{one['name']}:{one['kind']}" for one in analysed(content, path)["symbols"]] == symbols.split()


def test_lines_are_those_of_the_whole_file_also_inside_a_description() -> None:
    outputs = analysed("def f():\n    return 1\n    g()\n", start=100)
    assert outputs["symbols"][0]["line"] == 100
    (fault,) = outputs["suspected_faults"]
    assert (fault["line"], fault["description"]) == (102, "this is never reached: line 101 leaves")
    assert outputs["recommended_next_probes"][-1]["reason"].startswith("the chunk begins at line 100")


def test_imports_lead_to_the_files_to_look_at_next() -> None:
    probes = analysed(PYTHON)["recommended_next_probes"]
    assert [(probe["path"], probe["priority"]) for probe in probes] == [
        ("pkg/sub/__init__.py", "high"),
        ("pkg/base/core.py", "high"),
        ("numpy/linalg.py", "medium"),
    ]
    scripted = analysed('import a from "../x"\nimport b from "react"\n', "src/ui/a.ts")["recommended_next_probes"]
    assert [probe["path"] for probe in scripted] == ["src/x.ts"]
    rusty = analysed("mod b;\nuse crate::c::D;\nfn f() {}\n", "src/a.rs")["recommended_next_probes"]
    assert [probe["path"] for probe in rusty] == ["src/b.rs", "src/c.rs"]


def test_constraints_leave_out_what_matters_least() -> None:
    limits = {"max_summary_length": 20, "max_symbols": 1, "max_faults": 1, "max_next_probes": 1}
    outputs = analysed(PYTHON, task="how is interest computed", output_constraints=limits)
    assert len(outputs["summary"]) == 20
    assert [one["name"] for one in outputs["symbols"]] == ["interest"]
    assert [one["severity"] for one in outputs["suspected_faults"]] == ["medium"]
    assert len(outputs["recommended_next_probes"]) == 1
    nothing = dict.fromkeys(("max_symbols", "max_faults", "max_next_probes"), 0)
    assert analysed(PYTHON, output_constraints=nothing)["symbols"] == []


def test_a_language_that_is_not_known_is_said_to_be_and_lowers_the_confidence() -> None:
    outputs = analysed("IDENTIFICATION DIVISION.\n* TODO\n", "a.cob")
    assert "its language is not known here" in outputs["summary"]
    assert outputs["confidence"] < analysed("x(\n")["confidence"] < analysed("x()\n")["confidence"]
    assert "the language cobol is not known here" in analysed("x", "a.py", language="cobol")["summary"]
    assert "javascript" in analysed("f()\n", "a.txt", language="JS")["summary"]
