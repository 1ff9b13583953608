"""What may be wrong in code, found in its tree: one function for each kind of fault.

Owns the findings of all languages in ``languages``. Each is something that a reviewer would point at, and is found by
what the code *is*, not by its spelling: a comparison in a string is none. Does not own how many are shown.

Invariant: a finding has the row of the node that it is about, and the same code has the same findings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from trunkline.jobs.languages import Language, text_of, walk

Severity = Literal["low", "medium", "high"]
# The order in which findings are dropped if there are too many: the last first.
WEIGHT: Final[Mapping[str, int]] = {"high": 0, "medium": 1, "low": 2}

_MARKER: Final = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
_CONFLICT: Final = re.compile(r"^(<{7}|>{7}) .*$", re.MULTILINE)
# Of a marker's text: what fits a line.
_SHOWN: Final = 120


class Finding(Struct, frozen=True):
    """Something that may be wrong. ``row`` counts from 0, from the beginning of the chunk."""

    row: int
    severity: Severity
    description: str
    suggestion: str = ""


Rule = Callable[[Any], Iterator[Finding]]


def find(language: Language, root: Any, *, is_part: bool) -> list[Finding]:
    """All findings, in the order of the text. ``is_part``: the code may begin or end in the middle of something."""
    rules = _RULES.get(language.name, {})
    found: list[Finding] = []
    for node in walk(root):
        if node.is_error or node.is_missing:
            found.append(_unreadable(node, is_part=is_part))
        if node.type in language.comments:
            found += _marked(node)
        if node.type in language.blocks:
            found += _unreached(language, node)
        for rule in rules.get(node.type, ()):
            found += rule(node)
    return sorted(set(found), key=lambda finding: (finding.row, WEIGHT[finding.severity], finding.description))


def find_in_text(content: str) -> list[Finding]:
    """What can be told of a text in whatever language."""
    found = []
    for row, line in enumerate(content.splitlines()):
        if _MARKER.search(line):
            found.append(Finding(row, "low", f"left to be done: {line.strip()[:_SHOWN]}"))
        if _CONFLICT.match(line):
            found.append(Finding(row, "high", "a merge conflict was left in", "decide which side is meant"))
    return found


def _row(node: Any) -> int:
    return int(node.start_point[0])


# --- every language ---------------------------------------------------------------------------------------------------


def _unreadable(node: Any, *, is_part: bool) -> Finding:
    if is_part:
        return Finding(_row(node), "low", "this does not parse; the chunk may begin or end in the middle of something")
    what = f"{node.type!r} is missing here" if node.is_missing else "this does not parse"
    return Finding(_row(node), "high", what, "it is a syntax error: nothing in this file can run")


def _marked(node: Any) -> Iterator[Finding]:
    for row, line in enumerate(text_of(node).splitlines()):
        if _MARKER.search(line):
            yield Finding(_row(node) + row, "low", f"left to be done: {line.strip()[:_SHOWN]}")


def _statement(node: Any) -> Any:
    """A statement itself, where some grammars wrap it."""
    return node.children[0] if node.type == "expression_statement" and node.children else node


def _unreached(language: Language, block: Any) -> Iterator[Finding]:
    left_at = -1
    for child in block.named_children:
        if child.type in language.comments or child.type in language.hoisted:
            continue
        if left_at >= 0 and child.type not in {"case_clause", "switch_default"}:
            text = f"this is never reached: line {{line:{left_at}}} leaves"
            yield Finding(_row(child), "medium", text, "remove it, or mend the condition above")
            return
        if _statement(child).type in language.leaving:
            left_at = _row(child)


# --- Python -----------------------------------------------------------------------------------------------------------

_MUTABLE: Final = frozenset({"list", "dictionary", "set", "list_comprehension", "dictionary_comprehension"})
_LITERALS: Final = frozenset({"string", "integer", "float", "tuple", "list", "dictionary"})
_USELESS: Final = frozenset({"comparison_operator", "binary_operator", "boolean_operator", "identifier", "attribute"})


def _python_except(node: Any) -> Iterator[Finding]:
    parts = [child for child in node.named_children if child.type != "comment"]
    caught, body = parts[:-1], parts[-1] if parts else None
    if not caught:
        text = "bare `except:` also catches KeyboardInterrupt and SystemExit"
        yield Finding(_row(node), "medium", text, "name the exceptions that are meant")
    is_broad = any(text_of(one).split(" ")[0] in {"Exception", "BaseException"} for one in caught)
    statements = [child.type for child in body.named_children if child.type != "comment"] if body is not None else []
    if statements == ["pass_statement"] and (is_broad or not caught):
        text = "every error is swallowed without a trace"
        yield Finding(_row(node), "medium", text, "catch what is expected, or log it")


def _python_comparison(node: Any) -> Iterator[Finding]:
    operators = {text_of(child) for child in node.children if not child.is_named}
    kinds = {child.type for child in node.named_children}
    if operators & {"==", "!="} and "none" in kinds:
        yield Finding(_row(node), "low", "comparison with None by value", "write `is None` or `is not None`")
    if any(word in {"is", "is not"} for word in operators) and kinds & _LITERALS:
        text = "`is` compares identity, and whether equal literals are one object is not defined"
        yield Finding(_row(node), "medium", text, "write `==`")


def _python_default(node: Any) -> Iterator[Finding]:
    value = node.child_by_field_name("value")
    if value is not None and value.type in _MUTABLE:
        text = "a mutable default is made once and shared by all calls"
        yield Finding(_row(node), "medium", text, "default to None and make it inside")


def _python_statement(node: Any) -> Iterator[Finding]:
    inner = node.named_children[0] if len(node.named_children) == 1 else None
    if inner is not None and inner.type in _USELESS:
        text = "the result of this expression is not used"
        yield Finding(_row(node), "medium", text, "assign it, call it, or remove it")


def _python_assert(node: Any) -> Iterator[Finding]:
    if [child.type for child in node.named_children] == ["tuple"]:
        text = "this assertion is a tuple, which is always true"
        yield Finding(_row(node), "high", text, "take the brackets away")


def _python_call(node: Any) -> Iterator[Finding]:
    name = text_of(node.child_by_field_name("function"))
    if name in {"eval", "exec"}:
        yield Finding(_row(node), "medium", f"`{name}` runs whatever it is given", "parse the value instead")
    for argument in node.named_children[-1].named_children if node.named_children else ():
        if argument.type == "keyword_argument" and text_of(argument).replace(" ", "") == "shell=True":
            text = "a shell reads this command: whoever has a say in it can run others"
            yield Finding(_row(argument), "medium", text, "pass a list of words without `shell=True`")


def _python_finally(node: Any) -> Iterator[Finding]:
    for inner in walk(node):
        if inner.type == "return_statement":
            yield Finding(_row(inner), "medium", "a return in `finally` swallows the exception on its way")
            return


# --- JavaScript and TypeScript ----------------------------------------------------------------------------------------


def _script_binary(node: Any) -> Iterator[Finding]:
    operator = text_of(node.child_by_field_name("operator"))
    sides = [text_of(node.child_by_field_name(side)) for side in ("left", "right")]
    if operator in {"==", "!=", "===", "!=="} and "NaN" in sides:
        yield Finding(_row(node), "high", "nothing equals NaN", "write `Number.isNaN(…)`")
    elif operator in {"==", "!="} and not {"null", "undefined"}.intersection(sides):
        yield Finding(_row(node), "low", f"`{operator}` converts its sides before it compares", f"write `{operator}=`")


def _script_catch(node: Any) -> Iterator[Finding]:
    body = node.child_by_field_name("body")
    if body is not None and not body.named_children:
        yield Finding(_row(node), "medium", "every error is swallowed without a trace", "handle it, or log it")


def _script_condition(node: Any) -> Iterator[Finding]:
    condition = node.child_by_field_name("condition")
    inner = condition.named_children[0] if condition is not None and condition.named_children else None
    if inner is not None and inner.type == "assignment_expression":
        yield Finding(_row(inner), "medium", "an assignment as a condition", "write `===` if a comparison is meant")


def _script_var(node: Any) -> Iterator[Finding]:
    yield Finding(_row(node), "low", "`var` belongs to the whole function", "write `const` or `let`")


def _script_debugger(node: Any) -> Iterator[Finding]:
    yield Finding(_row(node), "medium", "a `debugger` statement was left in", "remove it")


def _script_call(node: Any) -> Iterator[Finding]:
    if text_of(node.child_by_field_name("function")) == "eval":
        yield Finding(_row(node), "medium", "`eval` runs whatever it is given", "parse the value instead")


def _script_statement(node: Any) -> Iterator[Finding]:
    inner = node.named_children[0] if node.named_children else None
    useless = {"binary_expression", "identifier", "member_expression"}
    if inner is not None and inner.type in useless:
        text = "the result of this expression is not used"
        yield Finding(_row(node), "medium", text, "assign it, call it, or remove it")


# --- Go and Rust ------------------------------------------------------------------------------------------------------


def _go_if(node: Any) -> Iterator[Finding]:
    body = node.child_by_field_name("consequence")
    condition = text_of(node.child_by_field_name("condition")).replace(" ", "")
    is_empty = body is not None and not [child for child in body.named_children if child.type != "comment"]
    if condition.endswith("!=nil") and is_empty:
        yield Finding(_row(node), "medium", "an error is found and nothing is done about it", "return or handle it")


def _go_discarded(node: Any) -> Iterator[Finding]:
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if left is None or right is None or not any(child.type == "call_expression" for child in right.named_children):
        return
    if "_" in [text_of(child) for child in left.named_children]:
        text = "a result of this call is discarded; it may be its error"
        yield Finding(_row(node), "low", text, "look at the error")


def _go_loop(node: Any) -> Iterator[Finding]:
    body = node.child_by_field_name("body")
    waiting = [body] if body is not None else []
    while waiting:
        inner = waiting.pop()
        if inner.type == "defer_statement":
            text = "`defer` in a loop runs when the function ends, not the round"
            yield Finding(_row(inner), "medium", text, "put the round into a function of its own")
        elif inner.type != "func_literal":
            waiting.extend(inner.children)


def _rust_call(node: Any) -> Iterator[Finding]:
    function = node.child_by_field_name("function")
    name = text_of(function.child_by_field_name("field")) if function is not None else ""
    if name in {"unwrap", "expect"}:
        yield Finding(_row(node), "low", f"`{name}` panics where there is no value", "return the error with `?`")


def _rust_macro(node: Any) -> Iterator[Finding]:
    name = text_of(node.child_by_field_name("macro"))
    if name in {"todo", "unimplemented"}:
        yield Finding(_row(node), "medium", f"`{name}!` panics: this is not written yet")


def _rust_let(node: Any) -> Iterator[Finding]:
    pattern, value = node.child_by_field_name("pattern"), node.child_by_field_name("value")
    if text_of(pattern) == "_" and value is not None and value.type == "call_expression":
        yield Finding(_row(node), "low", "the result of this call is discarded; it may be an error", "look at it")


def _rust_unsafe(node: Any) -> Iterator[Finding]:
    yield Finding(_row(node), "low", "an unsafe block: the compiler does not check what is inside")


_SCRIPT: Final[Mapping[str, tuple[Rule, ...]]] = {
    "binary_expression": (_script_binary,),
    "catch_clause": (_script_catch,),
    "if_statement": (_script_condition,),
    "while_statement": (_script_condition,),
    "variable_declaration": (_script_var,),
    "debugger_statement": (_script_debugger,),
    "call_expression": (_script_call,),
    "expression_statement": (_script_statement,),
}
_RULES: Final[Mapping[str, Mapping[str, tuple[Rule, ...]]]] = {
    "python": {
        "except_clause": (_python_except,),
        "comparison_operator": (_python_comparison,),
        "default_parameter": (_python_default,),
        "typed_default_parameter": (_python_default,),
        "expression_statement": (_python_statement,),
        "assert_statement": (_python_assert,),
        "call": (_python_call,),
        "finally_clause": (_python_finally,),
    },
    "javascript": _SCRIPT,
    "typescript": _SCRIPT,
    "tsx": _SCRIPT,
    "go": {
        "if_statement": (_go_if,),
        "assignment_statement": (_go_discarded,),
        "short_var_declaration": (_go_discarded,),
        "for_statement": (_go_loop,),
    },
    "rust": {
        "call_expression": (_rust_call,),
        "macro_invocation": (_rust_macro,),
        "let_declaration": (_rust_let,),
        "unsafe_block": (_rust_unsafe,),
    },
}
