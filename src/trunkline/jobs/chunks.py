"""What is in a piece of code: ``oa.code_chunk_analysis.v1``, offline.

Reads the code with tree-sitter: which symbols it defines, what may be wrong in it (``code_faults``), and which files
its imports lead to. Code in a language that is not known is read as text; the summary says so and the confidence is
low. Owns the outputs of the job and its bounds. A model behind an endpoint is ``endpoint``'s.

Blocks while it works; call it in a process of its own. Needs the extra ``jobs``.

Invariant: a line is one of the whole file (``start_line`` counts), inside the chunk; what the constraints leave out is
what matters least: symbols that the task does not speak of, faults of low severity.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from trunkline.jobs import code_faults, languages
from trunkline.jobs.code_faults import Finding
from trunkline.jobs.languages import Language, text_of
from trunkline.jobs.rerank import words_of

MODEL: Final = "tree-sitter"
# What an answer holds if nobody says otherwise: more than a person or a model reads of one chunk.
MAX_SYMBOLS: Final = 200
MAX_FAULTS: Final = 100
MAX_PROBES: Final = 20
MAX_SUMMARY: Final = 1000

PARSED, CUT, BROKEN, NOT_KNOWN = 0.8, 0.6, 0.4, 0.2
_LINE: Final = re.compile(r"\{line:(\d+)\}")
_SHOWN_NAMES: Final = 8


class Symbol(Struct, frozen=True):
    """Something that the code defines; ``row`` counts from 0."""

    name: str
    kind: str
    row: int
    description: str = ""


class Probe(Struct, frozen=True):
    """A file to look at next."""

    path: str
    reason: str
    priority: str


def analyse(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of an analysis job; the inputs are valid and have their defaults."""
    chunk = inputs["chunk"]
    language = languages.language_of(chunk.get("language"), chunk["path"])
    is_part = chunk["start_line"] > 1
    if language is None:
        symbols: list[Symbol] = []
        faults = code_faults.find_in_text(chunk["content"])
        probes: list[Probe] = []
        confidence = NOT_KNOWN
    else:
        root = languages.parse(language, chunk["content"].encode("utf-8", "replace"))
        symbols = list(_symbols(language, root))
        faults = code_faults.find(language, root, is_part=is_part)
        faults += [one for one in code_faults.find_in_text(chunk["content"]) if one.severity == "high"]
        probes = list(_probes(language, root, chunk["path"], chunk["start_line"]))
        confidence = (CUT if is_part else BROKEN) if root.has_error else PARSED
    if is_part:
        reason = f"the chunk begins at line {chunk['start_line']}: what it uses may be defined before"
        probes.append(Probe(chunk["path"], reason, "low"))
    return _outputs(inputs, _summary(inputs, language, symbols, faults), symbols, faults, probes, confidence)


def _outputs(
    inputs: Mapping[str, Any],
    summary: str,
    symbols: list[Symbol],
    faults: list[Finding],
    probes: list[Probe],
    confidence: float,
) -> dict[str, Any]:
    limits = inputs.get("output_constraints") or {}
    first, last = inputs["chunk"]["start_line"], inputs["chunk"]["end_line"]
    longest = limits.get("max_summary_length", MAX_SUMMARY)

    def line(row: int) -> int:
        return min(int(first) + row, int(last))

    task = set(words_of(f"{inputs['task']} {inputs.get('user_task') or ''}"))
    told = _first(
        symbols, limits.get("max_symbols", MAX_SYMBOLS), lambda one: not task.intersection(words_of(one.name))
    )
    faulty = _first(faults, limits.get("max_faults", MAX_FAULTS), lambda one: code_faults.WEIGHT[one.severity])
    next_ones = _first(probes, limits.get("max_next_probes", MAX_PROBES), lambda one: code_faults.WEIGHT[one.priority])
    return {
        "summary": summary if len(summary) <= longest else summary[: longest - 1] + "…",
        "symbols": [
            {"name": one.name, "kind": one.kind, "line": line(one.row)}
            | ({"description": one.description} if one.description else {})
            for one in told
        ],
        "suspected_faults": [
            {
                "line": line(one.row),
                "severity": one.severity,
                "description": _LINE.sub(lambda found: str(line(int(found[1]))), one.description),
            }
            | ({"suggestion": one.suggestion} if one.suggestion else {})
            for one in faulty
        ],
        "recommended_next_probes": [
            {"path": one.path, "reason": one.reason, "priority": one.priority} for one in next_ones
        ],
        "confidence": confidence,
    }


def _first(found: list[Any], most: int, weight: Any) -> list[Any]:
    """So many of them, the weightiest, in the order in which they were found."""
    kept = sorted(range(len(found)), key=lambda at: (weight(found[at]), at))[:most]
    return [found[at] for at in sorted(kept)]


# --- symbols ----------------------------------------------------------------------------------------------------------


def _symbols(language: Language, root: Any) -> Iterator[Symbol]:
    for node in languages.walk(root):
        kind = language.symbols.get(node.type, "")
        if kind:
            name = text_of(node.child_by_field_name("name"))
            if kind == "function" and _is_method(language, node):
                kind = "method"
            if name:
                yield Symbol(name, kind, int(node.start_point[0]), _docstring(node))
        elif node.type == "variable_declarator":
            value = node.child_by_field_name("value")
            if value is not None and value.type in {"arrow_function", "function_expression"}:
                name = text_of(node.child_by_field_name("name"))
                yield Symbol(name, "function", int(node.start_point[0]))
        elif node.type == "assignment" and node.parent.parent is not None and node.parent.parent.parent is None:
            name = text_of(node.child_by_field_name("left"))
            if re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
                yield Symbol(name, "constant", int(node.start_point[0]))


def _is_method(language: Language, node: Any) -> bool:
    above = node.parent
    while above is not None and above.type not in language.symbols and above.type not in language.method_owners:
        above = above.parent
    return above is not None and above.type in language.method_owners


def _docstring(node: Any) -> str:
    """The first line of a Python docstring."""
    body = node.child_by_field_name("body")
    first = body.named_children[0] if body is not None and body.named_children else None
    if first is None or first.type != "expression_statement" or not first.named_children:
        return ""
    inner = first.named_children[0]
    if inner.type != "string":
        return ""
    lines = text_of(inner).strip("rRuUbBfF").strip("\"'").strip().splitlines()
    return lines[0][:200] if lines else ""


# --- where to look next -----------------------------------------------------------------------------------------------


def _probes(language: Language, root: Any, path: str, first_line: int) -> Iterator[Probe]:
    seen: set[str] = set()
    for node in languages.walk(root):
        for target, priority in _imports(language, node, path):
            if target not in seen:
                seen.add(target)
                yield Probe(target, f"imported at line {first_line + int(node.start_point[0])}", priority)


def _imports(language: Language, node: Any, path: str) -> Iterator[tuple[str, str]]:
    """The files that an import leads to, as far as its words tell."""
    folder = posixpath.dirname(path)
    match language.name, node.type:
        case "python", "import_statement":
            for name in node.named_children:
                target = name.child_by_field_name("name") if name.type == "aliased_import" else name
                yield from _python_module(text_of(target), folder)
        case "python", "import_from_statement":
            yield from _python_module(text_of(node.child_by_field_name("module_name")), folder)
        case (("javascript" | "typescript" | "tsx"), "import_statement"):
            yield from _script_module(text_of(node.child_by_field_name("source")), folder, path)
        case "rust", "mod_item" if node.child_by_field_name("body") is None:
            yield posixpath.join(folder, text_of(node.child_by_field_name("name")) + ".rs"), "high"
        case "rust", "use_declaration":
            words = re.split(r"::|\{", text_of(node.child_by_field_name("argument")))
            if words[0] == "crate" and len(words) > 1 and words[1].strip().isidentifier():
                yield f"src/{words[1].strip()}.rs", "medium"
        case "go", "import_spec":
            name = text_of(node.child_by_field_name("path")).strip('"`')
            if "." in name.partition("/")[0]:
                yield name, "low"
        case _:
            pass


def _python_module(name: str, folder: str) -> Iterator[tuple[str, str]]:
    dots = len(name) - len(name.lstrip("."))
    if dots:
        base = posixpath.normpath(posixpath.join(folder, *[".."] * (dots - 1)))
        rest = name[dots:].replace(".", "/")
        yield posixpath.normpath(posixpath.join(base, f"{rest}.py" if rest else "__init__.py")), "high"
    elif name and name.partition(".")[0] not in sys.stdlib_module_names:
        yield f"{name.replace('.', '/')}.py", "medium"


def _script_module(source: str, folder: str, path: str) -> Iterator[tuple[str, str]]:
    name = source.strip("\"'`")
    if name.startswith("."):
        target = posixpath.normpath(posixpath.join(folder, name))
        yield target if posixpath.splitext(target)[1] else target + posixpath.splitext(path)[1], "high"


# --- in words ---------------------------------------------------------------------------------------------------------


def _summary(inputs: Mapping[str, Any], language: Language | None, symbols: list[Symbol], faults: list[Finding]) -> str:
    chunk = inputs["chunk"]
    where = f"{chunk['path']}, lines {chunk['start_line']} to {chunk['end_line']}"
    if language is None:
        named = chunk.get("language")
        what = f"the language {named} is not known here" if named else "its language is not known here"
        text = f"{where}: {what}, so it was read as text."
    else:
        kinds = Counter(one.kind for one in symbols)
        parts = [f"{count} {kind}{'s' if count > 1 and kind[-1] != 's' else 'es' if count > 1 else ''}"
                 for kind, count in kinds.items()]  # fmt: skip
        text = f"{where}: {language.name} with {', '.join(parts) or 'no definitions'}."
        if symbols:
            shown = ", ".join(one.name for one in symbols[:_SHOWN_NAMES])
            text += f" Defines {shown}{', …' if len(symbols) > _SHOWN_NAMES else ''}."
    by_severity = Counter(one.severity for one in faults)
    told = ", ".join(f"{by_severity[level]} {level}" for level in ("high", "medium", "low") if by_severity[level])
    return f"{text} Suspected faults: {told or 'none'}."
