"""Programming languages that code analysis can read: which there are, and what the nodes of their trees mean.

Owns the table, and loading a grammar. Does not own what is looked for (``code_faults``, ``chunks``). The grammars come
with the extra ``jobs``; each is imported when code in its language is read for the first time.

Invariant: what is not in the table is not guessed at.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator


class Language(Struct, frozen=True):
    """One language."""

    name: str
    # Where its grammar is.
    module: str
    factory: str = "language"
    suffixes: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    # Nodes that define something, and what it is called; the name is their field ``name``.
    symbols: dict[str, str] = {}
    # Nodes inside which a function is a method.
    method_owners: frozenset[str] = frozenset()
    # Nodes that hold statements, and statements after which the next one is not reached.
    blocks: frozenset[str] = frozenset()
    leaving: frozenset[str] = frozenset()
    # Definitions that count wherever they stand.
    hoisted: frozenset[str] = frozenset()
    comments: frozenset[str] = frozenset({"comment"})


_SCRIPT_SYMBOLS: Final = {
    "function_declaration": "function",
    "generator_function_declaration": "function",
    "class_declaration": "class",
    "abstract_class_declaration": "class",
    "method_definition": "method",
    "interface_declaration": "interface",
    "type_alias_declaration": "type",
    "enum_declaration": "enum",
}
_SCRIPT_BLOCKS: Final = frozenset({"statement_block", "switch_case"})
_SCRIPT_LEAVING: Final = frozenset({"return_statement", "throw_statement", "break_statement", "continue_statement"})
_SCRIPT_HOISTED: Final = frozenset({"function_declaration", "generator_function_declaration"})


def _script(name: str, module: str, factory: str, suffixes: tuple[str, ...], aliases: tuple[str, ...]) -> Language:
    return Language(
        name,
        module,
        factory,
        suffixes,
        aliases,
        _SCRIPT_SYMBOLS,
        blocks=_SCRIPT_BLOCKS,
        leaving=_SCRIPT_LEAVING,
        hoisted=_SCRIPT_HOISTED,
    )


LANGUAGES: Final = (
    Language(
        "python",
        "tree_sitter_python",
        suffixes=(".py", ".pyi"),
        aliases=("py", "python3"),
        symbols={"function_definition": "function", "class_definition": "class"},
        method_owners=frozenset({"class_definition"}),
        blocks=frozenset({"block", "module"}),
        leaving=frozenset({"return_statement", "raise_statement", "break_statement", "continue_statement"}),
    ),
    _script("javascript", "tree_sitter_javascript", "language", (".js", ".mjs", ".cjs", ".jsx"), ("js", "jsx", "node")),
    _script("typescript", "tree_sitter_typescript", "language_typescript", (".ts", ".mts", ".cts"), ("ts",)),
    _script("tsx", "tree_sitter_typescript", "language_tsx", (".tsx",), ()),
    Language(
        "go",
        "tree_sitter_go",
        suffixes=(".go",),
        aliases=("golang",),
        symbols={
            "function_declaration": "function",
            "method_declaration": "method",
            "type_spec": "type",
            "const_spec": "constant",
        },
        blocks=frozenset({"block", "statement_list", "expression_case", "default_case"}),
        leaving=frozenset({"return_statement", "break_statement", "continue_statement", "goto_statement"}),
        hoisted=frozenset({"labeled_statement"}),
    ),
    Language(
        "rust",
        "tree_sitter_rust",
        suffixes=(".rs",),
        aliases=("rs",),
        symbols={
            "function_item": "function",
            "function_signature_item": "function",
            "struct_item": "struct",
            "enum_item": "enum",
            "trait_item": "trait",
            "mod_item": "module",
            "type_item": "type",
            "const_item": "constant",
            "static_item": "static",
            "macro_definition": "macro",
        },
        method_owners=frozenset({"impl_item", "trait_item"}),
        blocks=frozenset({"block"}),
        leaving=frozenset({"return_expression", "break_expression", "continue_expression"}),
        hoisted=frozenset(
            {"function_item", "struct_item", "enum_item", "const_item", "static_item", "use_declaration", "impl_item"}
        ),
        comments=frozenset({"line_comment", "block_comment"}),
    ),
)

_BY_NAME: Final = {name: language for language in LANGUAGES for name in (language.name, *language.aliases)}
_BY_SUFFIX: Final = {suffix: language for language in LANGUAGES for suffix in language.suffixes}


def is_here() -> bool:
    """Whether the parser is installed. It is not loaded."""
    return importlib.util.find_spec("tree_sitter") is not None


def language_of(name: str | None, path: str) -> Language | None:
    """The language that somebody named, or that the path's suffix tells; None if it is not in the table."""
    if name:
        return _BY_NAME.get(name.strip().lower())
    return _BY_SUFFIX.get(PurePosixPath(path).suffix.lower())


@functools.cache
def _parser(name: str) -> Any:
    import tree_sitter

    language = _BY_NAME[name]
    grammar = getattr(importlib.import_module(language.module), language.factory)()
    return tree_sitter.Parser(tree_sitter.Language(grammar))


def parse(language: Language, content: bytes) -> Any:
    """The root of the tree that this text is."""
    return _parser(language.name).parse(content).root_node


def walk(root: Any) -> Iterator[Any]:
    """All nodes, each before those inside it, in the order of the text. Not recursive: code may be nested deeply."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(node.children))


def text_of(node: Any) -> str:
    """What stands at a node; empty if there is none."""
    return "" if node is None else node.text.decode("utf-8", "replace")
