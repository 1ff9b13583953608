"""What may be wrong in code: each kind of fault is found, and code like it that is right is left alone."""

from __future__ import annotations

import pytest

from trunkline.jobs import code_faults, languages

FOUND = [
    ("python", "try:\n    f()\nexcept:\n    raise\n", 2, "bare `except:`"),
    ("python", "try:\n    f()\nexcept Exception:\n    pass\n", 2, "swallowed"),
    ("python", "if x == None:\n    f()\n", 0, "comparison with None"),
    ("python", "if x is 'a':\n    f()\n", 0, "identity"),
    ("python", "def f(x=[]):\n    return x\n", 0, "mutable default"),
    ("python", "def f(x: dict = {}):\n    return x\n", 0, "mutable default"),
    ("python", "def f():\n    return 1\n    g()\n", 2, "never reached: line {line:1}"),
    ("python", "while x:\n    break\n    g()\n", 2, "never reached"),
    ("python", "x == 3\n", 0, "not used"),
    ("python", "assert (x, 'text')\n", 0, "always true"),
    ("python", "eval(x)\n", 0, "`eval`"),
    ("python", "run(x, shell=True)\n", 0, "shell"),
    ("python", "try:\n    f()\nfinally:\n    return 1\n", 3, "finally"),
    ("python", "# TODO: mend\nf()\n", 0, "left to be done: # TODO: mend"),
    ("python", "def f(:\n", 0, "is missing here"),
    ("python", "x = = 1\n", 0, "does not parse"),
    ("javascript", "if (x == 3) f()\n", 0, "converts"),
    ("javascript", "if (x === NaN) f()\n", 0, "NaN"),
    ("javascript", "try { f() } catch (e) {}\n", 0, "swallowed"),
    ("javascript", "if (x = 3) f()\n", 0, "assignment as a condition"),
    ("javascript", "var x = 1\n", 0, "`var`"),
    ("javascript", "debugger\n", 0, "`debugger`"),
    ("javascript", "eval(x)\n", 0, "`eval`"),
    ("typescript", "function f(): number { return 1\n g() }\n", 1, "never reached"),
    ("typescript", "x.y\n", 0, "not used"),
    ("tsx", "// FIXME\nconst a = <p>hi</p>\n", 0, "FIXME"),
    ("go", "package a\nfunc f() {\n if err != nil {\n }\n}\n", 2, "nothing is done"),
    ("go", "package a\nfunc f() {\n x, _ := g()\n h(x)\n}\n", 2, "discarded"),
    ("go", "package a\nfunc f() {\n for {\n  defer g()\n }\n}\n", 3, "`defer` in a loop"),
    ("go", "package a\nfunc f() {\n return\n g()\n}\n", 3, "never reached"),
    ("rust", "fn f() { x.unwrap(); }\n", 0, "`unwrap` panics"),
    ("rust", "fn f() { todo!() }\n", 0, "`todo!`"),
    ("rust", "fn f() { let _ = g(); }\n", 0, "discarded"),
    ("rust", "fn f() { unsafe { g() } }\n", 0, "unsafe"),
    ("rust", "fn f() {\n return;\n g();\n}\n", 2, "never reached"),
]
CLEAN = [
    (
        "python",
        'def f(x=None, y=()):\n    """Text."""\n    try:\n        return g(x)\n    except ValueError:\n        pass\n',
    ),
    ("python", "if x is None or x == 'a':\n    f()\nassert x, 'text'\nyield_ = '# TODO in a string'\n"),
    ("python", "def f():\n    if x:\n        return 1\n    return 2\nclass A:\n    x: int\n    ...\n"),
    ("javascript", "function f() { return g(); function g() { return 1 } }\nif (x == null) f()\nconst s = 'TODO'\n"),
    ("typescript", "const f = (x: number): number => { if (x === 1) { return 1 }\n return 2 }\n"),
    ("go", "package a\nfunc f() error {\n if err := g(); err != nil {\n  return err\n }\n defer h()\n return nil\n}\n"),
    ("rust", "fn f() -> Option<u8> { let x = g()?; Some(x) }\n"),
]


def findings(name: str, code: str, *, is_part: bool = False) -> list[code_faults.Finding]:
    language = languages.language_of(name, "")
    assert language is not None
    return code_faults.find(language, languages.parse(language, code.encode()), is_part=is_part)


@pytest.mark.parametrize(("name", "code", "row", "text"), FOUND)
def test_a_fault_is_found_where_it_is(name: str, code: str, row: int, text: str) -> None:
    found = [one for one in findings(name, code) if text in one.description]
    assert [one.row for one in found] == [row]


@pytest.mark.parametrize(("name", "code"), CLEAN)
def test_code_that_is_right_is_left_alone(name: str, code: str) -> None:
    assert findings(name, code) == []


def test_what_does_not_parse_is_a_grave_fault_unless_the_code_may_be_cut() -> None:
    assert findings("python", "def f(:\n")[0].severity == "high"
    assert findings("python", "def f(:\n", is_part=True)[0].severity == "low"


def test_in_a_text_of_whatever_language_notes_and_conflicts_are_found() -> None:
    found = code_faults.find_in_text("a\n* TODO b\n<<<<<<< HEAD\n")
    assert [(one.row, one.severity) for one in found] == [(1, "low"), (2, "high")]


def test_code_that_is_nested_ten_thousand_deep_is_read() -> None:
    assert isinstance(findings("python", "(" * 10_000 + ")" * 10_000), list)
