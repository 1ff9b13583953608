"""The grammar of a POSIX shell, as far as it is needed to see which simple commands a line may run.

Pure: text in, commands out, in every list, pipeline, subshell, function body, substitution and here-document. It does
not run, expand or judge anything, nor look into ``sh -c``, ``env`` and the like: that is ``commands``.

Invariant: what this does not understand for certain, or what two shells read in two ways, is ``NotUnderstood``. A
reader that goes on after an error, as editors want it, would drop commands here. Why no library: docs/workspace.md.
"""

from __future__ import annotations

import re
from typing import Final

from trunkline.workspace.shell_sources import Unseen, gives_names, source_of, substitution_at
from trunkline.workspace.shell_texts import backticks_at, document_at
from trunkline.workspace.shell_words import (
    ANYTHING,
    FILE_NAMES,
    NUMBER,
    Assignment,
    Command,
    Kind,
    NotUnderstood,
    Script,
    Word,
)

# A person has to read the question; nothing that people write by hand is longer.
MAX_COMMAND_CHARACTERS: Final = 65_536
MAX_NESTING: Final = 40
# More simple commands than this are not read on, whatever else a text has: 30 µs each, and judging them as much again.
MAX_COMMANDS: Final = 2_000

_BLANK: Final = " \t"
# `{}` stands for a file in `find`; `{},a}` is two words to some shells.
_BARE_BRACES: Final = re.compile(r"\}[^, \t\n;&|()<>]{0,64}(?:[ \t\n;&|()<>]|$)")
# From a place outside of single quotes, as far as no other kind of quoting, no comment and no new line can begin.
_JOINABLE: Final = re.compile(r"(?:[^'\"`#\n\\]|\\\n)+")
_ENDS_WORD: Final = frozenset(" \t\n;&|()<>")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REDIRECTION: Final = re.compile(r"[0-9]*(<<-|<<|<>|<&|<|>>|>\||>&|>)")
_RESERVED: Final = re.compile(
    r"(?:if|then|else|elif|fi|do|done|case|esac|while|until|for|in|[{}!])(?=[ \t\n;&|()<>]|$)"
)
# What an arithmetic expansion may hold if it is to be taken for one.
_ARITHMETIC: Final = re.compile(r"[\w\s+\-*/%<>=!&|^~?:(),$]*")
# Words that begin a construct of some shells and are commands in others.
_DIALECT: Final = frozenset({"function", "select", "coproc", "namespace"})


def parse(text: str) -> Script:
    """Every simple command in the text, the innermost first."""
    if len(text) > MAX_COMMAND_CHARACTERS:
        raise NotUnderstood("it is too long")
    if "\0" in text or "\r" in text:
        raise NotUnderstood("it contains a null byte or a carriage return")
    if "$\\\n" in text:
        raise NotUnderstood("a line is broken inside an expansion")
    parser = _Parser(text)
    parser.script()
    found = parser.assignments, parser.numbers, parser.functions, parser.doubts
    return Script(tuple(parser.commands), parser.plain, *map(tuple, found))  # type: ignore[arg-type]


class _Parser:
    """Reads a text from left to right: one method for each construct of the grammar."""

    def __init__(self, text: str, depth: int = 0) -> None:
        self.text = text
        self.at = 0
        self.depth = depth
        self.joined_to = 0  # up to here no line is continued any more
        self.commands: list[Command] = []
        self.assignments: list[Assignment] = []
        self.numbers: list[str] = []
        self.functions: list[str] = []
        self.doubts: list[str] = []
        self.plain = True
        self.fed_by = ""  # what the pipeline gives the command that is read
        self.unseen = Unseen()  # of the word that is read
        self.documents: list[tuple[str, bool, bool]] = []  # here-documents whose text begins after this line

    # --- lists and pipelines

    def script(self) -> None:
        self.list_until(frozenset())
        if self.at < len(self.text):
            raise NotUnderstood(f"'{self.text[self.at]}' is not expected")
        if self.documents:
            self.read_documents()

    def list_until(self, ends: frozenset[str]) -> None:
        """Commands up to one of these reserved words, a closing parenthesis, ``;;`` or the end."""
        self.deeper()
        self.skip_lines()
        while not self.at_list_end(ends):
            self.and_or()
            self.skip_blanks()
            if self.peek("&>"):
                raise NotUnderstood("'&>' means different things to different shells")
            if self.peek(";;") or not (self.take(";") or self.take("&") or self.peek("\n")):
                break
            self.skip_lines()
        self.depth -= 1

    def deeper(self) -> None:
        """One level further in. Whatever calls itself goes through here: a stack that is full would be no question."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise NotUnderstood("it is nested too deeply")

    def check_count(self) -> None:
        if len(self.commands) > MAX_COMMANDS:
            raise NotUnderstood("it has too many commands")

    def at_list_end(self, ends: frozenset[str]) -> bool:
        if self.at >= len(self.text) or self.peek(")") or self.peek(";;"):
            return True
        return self.reserved() in ends

    def and_or(self) -> None:
        self.pipeline()
        while True:
            self.skip_blanks()
            if not (self.take("&&") or self.take("||")):
                return
            self.skip_lines()
            self.pipeline()

    def pipeline(self) -> None:
        self.skip_blanks()
        while self.reserved() == "!":
            self.at += 1
            self.skip_blanks()
        outer, self.fed_by = self.fed_by, ""
        is_simple = self.command()
        while True:
            self.skip_blanks()
            if self.peek("||") or not self.take("|"):
                self.fed_by = outer
                return
            if self.peek("&"):
                raise NotUnderstood("'|&' means different things to different shells")
            self.skip_lines()
            self.fed_by = gives_names(self.commands[-1]) if is_simple and self.commands else ""
            is_simple = self.command()

    # --- commands

    def command(self) -> bool:
        """One command, and whether it is a simple one that is not redirected."""
        self.skip_blanks()
        if self.peek("("):
            self.plain = False
            if self.peek("(("):
                self.doubts.append("'((' is arithmetic to some shells")
            self.subshell()
        elif (word := self.reserved()) is not None:
            self.plain = False
            self.at += len(word)
            self.compound(word)
        else:
            return self.simple()
        while self.redirection() is not None:
            pass
        return False

    def subshell(self) -> None:
        self.expect("(")
        start, pending, self.documents = self.at, self.documents, []
        self.list_until(frozenset())
        self.skip_lines()
        self.expect(")")
        if self.documents:
            raise NotUnderstood("a here-document begins in parentheses and ends outside them")
        if pending and "\n" in self.text[start : self.at]:
            raise NotUnderstood("a here-document begins before parentheses and its text inside them")
        self.documents = pending

    def compound(self, word: str) -> None:
        if word == "{":
            self.list_until(frozenset({"}"}))
            self.expect_word("}")
        elif word == "if":
            self.branches()
        elif word in {"while", "until"}:
            self.list_until(frozenset({"do"}))
            self.expect_word("do")
            self.list_until(frozenset({"done"}))
            self.expect_word("done")
        elif word == "for":
            self.for_loop()
        elif word == "case":
            self.case()
        else:
            raise NotUnderstood(f"'{word}' is not expected")

    def branches(self) -> None:
        while True:
            self.list_until(frozenset({"then"}))
            self.expect_word("then")
            self.list_until(frozenset({"elif", "else", "fi"}))
            if self.reserved() != "elif":
                break
            self.at += len("elif")
        if self.reserved() == "else":
            self.at += len("else")
            self.list_until(frozenset({"fi"}))
        self.expect_word("fi")

    def for_loop(self) -> None:
        self.skip_blanks()
        if not (name := _NAME.match(self.text, self.at)):
            raise NotUnderstood("'for' is not followed by a name")
        self.at = name.end()
        self.skip_lines()
        if self.reserved() == "in":
            self.at += len("in")
            self.skip_blanks()
            while self.at < len(self.text) and self.text[self.at] not in ";\n":
                self.assignments.append(Assignment(name.group(), self.word()))
                self.skip_blanks()
        else:
            self.assignments.append(Assignment(name.group(), Word("", Kind.UNKNOWN, ("@",))))
        self.take(";")
        self.skip_lines()
        self.expect_word("do")
        self.list_until(frozenset({"done"}))
        self.expect_word("done")

    def case(self) -> None:
        self.skip_blanks()
        self.word()
        self.skip_lines()
        self.expect_word("in")
        self.skip_lines()
        while self.reserved() != "esac":
            self.take("(")
            self.skip_blanks()
            self.word()
            self.skip_blanks()
            while self.take("|"):
                self.skip_blanks()
                self.word()
                self.skip_blanks()
            self.expect(")")
            self.list_until(frozenset({"esac"}))
            if not self.take(";;") and self.reserved() != "esac":
                raise NotUnderstood("a branch of 'case' has no end")
            self.skip_lines()
        self.expect_word("esac")

    def simple(self) -> bool:
        words: list[Word] = []
        began = self.at
        reads, fed_by, is_alone = "", self.fed_by, True
        while True:
            self.skip_blanks()
            before = self.at
            if (file := self.redirection()) is not None:
                if file != ">":
                    reads, fed_by = file, ""
                is_alone = is_alone and self.text[before : self.at] == "2>/dev/null"
                continue
            if not words and (assignment := _ASSIGNMENT.match(self.text, self.at)):
                self.plain = False
                self.at = assignment.end()
                if self.peek("("):
                    raise NotUnderstood("an array is not known to every shell")
                value = Word("")
                if self.at < len(self.text) and self.text[self.at] not in _ENDS_WORD:
                    value = self.word()
                self.assignments.append(Assignment(assignment.group().rstrip("+="), value))
                continue
            if self.at >= len(self.text) or self.text[self.at] in _ENDS_WORD:
                break
            start = self.at
            words.append(self.word())
            if len(words) == 1 and self.function(self.text[start : self.at]):
                return False
        if self.at == began:
            found = f"'{self.text[self.at]}'" if self.at < len(self.text) else "the end"
            raise NotUnderstood(f"{found} is not expected")
        if words and words[0].text in _DIALECT:
            raise NotUnderstood(f"'{words[0].text}' means different things to different shells")
        if words:
            self.commands.append(Command(tuple(words), fed_by, reads))
            self.check_count()
        return bool(words) and is_alone

    def function(self, name: str) -> bool:
        self.skip_blanks()
        if not self.peek("("):
            return False
        self.at += 1
        self.skip_blanks()
        self.expect(")")
        if not re.fullmatch(r"[\w.:+-]+", name):
            raise NotUnderstood("a function has an unusual name")
        self.plain = False
        self.functions.append(name)
        self.skip_lines()
        self.deeper()
        self.command()
        self.depth -= 1
        return True

    def redirection(self) -> str | None:
        """The file that is read, `>` if it is for writing, nothing for another; None if none stands here."""
        self.skip_blanks()
        found = _REDIRECTION.match(self.text, self.at)
        if found is None:
            return None
        self.plain = False
        self.at = found.end()
        operator = found.group(1)
        if self.peek("(") or (operator == "<<" and self.peek("<")):
            raise NotUnderstood("a process substitution or here-string is not known to every shell")
        self.skip_blanks()
        if self.at >= len(self.text) or self.text[self.at] in _ENDS_WORD:
            raise NotUnderstood("a redirection leads nowhere")
        start = self.at
        word = self.word()
        if operator in {"<<", "<<-"}:
            raw = self.text[start : self.at]
            if word.kind is not Kind.LITERAL or "\n" in word.text:
                raise NotUnderstood("the end of a here-document is not written out")
            self.documents.append((word.text, raw == word.text, operator == "<<-"))
        if operator.startswith(">"):
            return ">"
        return word.text if found.group() in {"<", "0<"} and word.kind is Kind.LITERAL else ""

    # --- words

    def word(self) -> Word:
        """One word; commands in its substitutions are noted on the way."""
        known: list[str] = []
        kind = Kind.LITERAL
        outer, self.unseen = self.unseen, Unseen()
        start = self.at
        self.join_lines()
        while self.at < len(self.text) and (character := self.text[self.at]) not in _ENDS_WORD:
            place = len(self.unseen.later)
            part, part_kind = self.part(character, at_start=self.at == start)
            if kind is Kind.LITERAL:
                known.append(part)
            else:
                self.unseen.later.insert(place, part)
            if part_kind is Kind.UNKNOWN or kind is Kind.UNKNOWN:
                kind = Kind.UNKNOWN
            elif part_kind is Kind.OPERAND:
                kind = Kind.OPERAND
            self.join_lines()
        if self.at == start:
            raise NotUnderstood("a word is missing")
        if self.documents and "\n" in self.text[start : self.at]:
            raise NotUnderstood("a word goes on in the next line, where the text of a here-document begins")
        text = "".join(known)
        if kind is Kind.OPERAND and (not text or text.startswith("-")):
            kind = Kind.UNKNOWN
        word = Word(text, kind, self.unseen.all_sources(text), self.unseen.several, "".join(self.unseen.later))
        self.unseen = outer
        return word

    def part(self, character: str, *, at_start: bool) -> tuple[str, Kind]:
        if character == "\\":
            self.at += 2
            escaped = self.text[self.at - 1 : self.at]
            if not escaped:
                raise NotUnderstood("it ends in a backslash")
            return ("" if escaped == "\n" else escaped), Kind.LITERAL
        if character == "'":
            end = self.text.find("'", self.at + 1)
            if end < 0:
                raise NotUnderstood("a quote is not closed")
            start, self.at = self.at + 1, end + 1
            return self.text[start:end], Kind.LITERAL
        if character == '"':
            self.at += 1
            return self.double_quoted()
        if character == "$":
            return self.dollar(quoted=False)
        if character == "`":
            self.backticks()
            return self.made_of(ANYTHING, Kind.UNKNOWN, several=True)
        self.at += 1
        if character == "{" and not _BARE_BRACES.match(self.text, self.at):
            return self.made_of(ANYTHING, Kind.UNKNOWN, several=True)  # `{a,b}` is two words to some shells
        if character == "[" and at_start and self.text[self.at : self.at + 1] in _BLANK:
            return character, Kind.LITERAL  # the command of this name
        if character == "~" and at_start:
            return self.made_of(ANYTHING, Kind.UNKNOWN)  # `HOME=-rf; rm ~`
        if character == "~" and self.text[self.at - 2 : self.at - 1] in {"=", ":"}:
            return self.made_of(ANYTHING, Kind.OPERAND)
        if character in "*?[":
            return self.made_of(FILE_NAMES, Kind.OPERAND, several=True)
        return character, Kind.LITERAL

    def made_of(self, source: str, kind: Kind, *, several: bool = False) -> tuple[str, Kind]:
        """A part of a word that is not known here, and what is known about it."""
        self.unseen.add(source, several=several)
        return "", kind

    def double_quoted(self) -> tuple[str, Kind]:
        """Up to the closing quote, which may hold expansions."""
        known: list[str] = []
        kind = Kind.LITERAL
        while True:
            self.join_lines()
            character = self.text[self.at : self.at + 1]
            if not character:
                raise NotUnderstood("a quote is not closed")
            if character == '"':
                self.at += 1
                return "".join(known), kind
            part, part_kind = self.quoted_part(character)
            (known if kind is Kind.LITERAL else self.unseen.later).append(part)
            if part_kind is not Kind.LITERAL and kind is not Kind.UNKNOWN:
                kind = part_kind

    def quoted_part(self, character: str) -> tuple[str, Kind]:
        if character == "\\":
            escaped = self.text[self.at + 1 : self.at + 2]
            self.at += 2
            if escaped in {"$", "`", '"', "\\"}:
                return escaped, Kind.LITERAL
            return ("" if escaped == "\n" else "\\" + escaped), Kind.LITERAL
        if character == "$":
            return self.dollar(quoted=True)
        if character == "`":
            self.backticks()
            return self.made_of(ANYTHING, Kind.OPERAND)
        self.at += 1
        return character, Kind.LITERAL

    def dollar(self, *, quoted: bool) -> tuple[str, Kind]:
        """An expansion. Quoted it stays one word (but for ``$@``), so what stands before it is the word's beginning."""
        self.at += 1
        self.join_lines()
        following = self.text[self.at : self.at + 1]
        kind = Kind.OPERAND if quoted else Kind.UNKNOWN
        if self.peek("(("):
            self.arithmetic()
            source = NUMBER
        elif following == "(":
            source = substitution_at(self.text, self.at)
            self.subshell()
        elif following == "{":
            inside = self.parameter()
            source = source_of(inside)
            if "@" in inside:
                kind = Kind.UNKNOWN
        elif following == "[":
            raise NotUnderstood("'$[' is arithmetic to some shells")
        elif following and following in "'\"" and not quoted:
            raise NotUnderstood("a quote after '$' means different things to different shells")
        elif name := _NAME.match(self.text, self.at):
            source, self.at = name.group(), name.end()
        elif following and following in "0123456789@*#?-$!":
            source = NUMBER if following in "#?-$!" else following.replace("*", "@")
            kind = Kind.UNKNOWN if following == "@" else kind
            self.at += 1
        else:
            return "$", Kind.LITERAL
        self.plain = False
        return self.made_of(source, kind, several=kind is Kind.UNKNOWN)

    def arithmetic(self) -> None:
        self.expect("((")
        start, depth = self.at, 0
        while depth >= 0:
            character = self.text[self.at : self.at + 1]
            if not character:
                raise NotUnderstood("a parenthesis is not closed")
            depth += {"(": 1, ")": -1}.get(character, 0)
            self.at += 1
        inside = self.text[start : self.at - 1]
        # `$((a) | (b))` is two subshells to some shells: the inner parenthesis must be the last but one.
        if not self.take(")") or not _ARITHMETIC.fullmatch(inside) or "$(" in inside:
            raise NotUnderstood("'$((' may be arithmetic or a command")
        self.numbers.extend(re.findall(r"[A-Za-z_]\w*|(?<=\$)[0-9@*]", inside))

    def parameter(self) -> str:
        """What stands between the braces; its own expansions are noted like those of a word."""
        self.expect("{")
        self.deeper()
        start, several = self.at, self.unseen.several
        while True:
            self.join_lines()
            character = self.text[self.at : self.at + 1]
            if not character:
                raise NotUnderstood("a brace is not closed")
            if character == "}":
                break
            if character in "'\"":
                # Inside double quotes some shells take it for a quote and some do not.
                raise NotUnderstood("a quote inside '${' means different things to different shells")
            self.part(character, at_start=False)
        inside = self.text[start : self.at]
        if sets := re.match(r"(\w+):?=", inside):
            self.assignments.append(Assignment(sets.group(1), Word("", Kind.UNKNOWN, (ANYTHING,))))
        self.at += 1
        self.depth -= 1
        self.unseen.several = several
        return inside

    def backticks(self) -> None:
        inner, end = backticks_at(self.text, self.at)
        self.inside(inner)
        self.at = end

    def inside(self, text: str) -> None:
        self.plain = False
        parser = _Parser(text, self.depth + 1)
        parser.script()
        self.absorb(parser)

    def absorb(self, parser: _Parser) -> None:
        self.commands.extend(parser.commands)
        self.assignments.extend(parser.assignments)
        self.numbers.extend(parser.numbers)
        self.functions.extend(parser.functions)
        self.doubts.extend(parser.doubts)
        self.check_count()

    # --- blanks, lines and here-documents

    def join_lines(self) -> None:
        """Take out each backslash with a line break after it, as the shell does first, up to where quoting begins."""
        if self.at >= self.joined_to and (found := _JOINABLE.match(self.text, self.at)):
            joined = found.group().replace("\\\n", "")
            if len(joined) < len(found.group()):
                self.text = self.text[: self.at] + joined + self.text[found.end() :]
            self.joined_to = self.at + len(joined)

    def skip_blanks(self) -> None:
        self.join_lines()
        while self.at < len(self.text):
            if self.text[self.at] in _BLANK:
                self.at += 1
                self.join_lines()
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def skip_lines(self) -> None:
        self.skip_blanks()
        while self.peek("\n"):
            self.at += 1
            self.read_documents()
            self.skip_blanks()

    def read_documents(self) -> None:
        documents, self.documents = self.documents, []
        for end, expands, strips in documents:
            body, self.at = document_at(self.text, self.at, end, expands=expands, strips=strips)
            if expands:
                self.document(body)

    def document(self, body: str) -> None:
        # Before it looks at quotes and comments inside, bash takes this out everywhere, and dash does not.
        if "\\\n" in body and ("$(" in body.replace("\\\n", "") or "`" in body):
            raise NotUnderstood("a line is continued in a here-document that runs commands")
        parser = _Parser(body, self.depth + 1)
        parser.join_lines()
        while parser.at < len(parser.text):
            parser.quoted_part(parser.text[parser.at])
            parser.join_lines()
        self.absorb(parser)

    # --- small steps

    def peek(self, text: str) -> bool:
        self.join_lines()
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        if not self.peek(text):
            return False
        self.at += len(text)
        return True

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise NotUnderstood(f"'{text}' is missing")

    def reserved(self) -> str | None:
        self.join_lines()
        found = _RESERVED.match(self.text, self.at)
        return found.group() if found else None

    def expect_word(self, word: str) -> None:
        self.skip_lines()
        if self.reserved() != word:
            raise NotUnderstood(f"'{word}' is missing")
        self.at += len(word)
