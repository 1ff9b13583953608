"""What in an entry of an MCP client may be a secret, and how such an entry is shown without one.

Owns the judgement of values by their name, their place and their looks; what secrets of known issuers look like is
known by the ledger's rules (``ledger.masking``), which are asked, too. People put secrets into variables, headers,
arguments and addresses, and nothing of an entry says which of them is one: so values of variables and headers are never
shown, nor users, passwords and queries of addresses.

Invariant: no value that may be a secret is in what ``shown`` returns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from trunkline.secret_references import is_reference

if TYPE_CHECKING:
    from trunkline.ledger.masking import Masker

HIDDEN: Final = "[masked]"
# Tables whose every value is hidden.
_HIDDEN_TABLES: Final = frozenset({"env", "headers", "http_headers"})
_SECRET_NAME: Final = re.compile(
    r"token|secret|passw|pass$|pwd|credential|api.?key|access.?key|private|auth|cookie|bearer|dsn|connection|[_-]key$|^-*key$|_pat$",
    re.IGNORECASE,
)
# Long and without spaces, and neither a path nor an address without a user in it.
_SECRET_VALUE: Final = re.compile(r"[A-Za-z0-9+/_=.-]{20,}|[a-z+]+://[^/\s]*:[^/\s]*@.*")
_REFERENCE: Final = re.compile(r"(?:env|file|keyring|literal):")
# The user of an address may have any character in its password: everything up to the last @.
_USER: Final = re.compile(r"(?<=://)\S*@")
_QUERY: Final = re.compile(r"(?<=[?&;])([^=&;#\s]*)(=?)[^&;#\s]*")
_FRAGMENT: Final = re.compile(r"#\S+")
_SEGMENT: Final = re.compile(r"(?<=[/=:,])[A-Za-z0-9+_=.-]{20,}(?=[/?#]|$)")
# `--name=value`, `NAME=value`, `Name: value`.
_NAMED: Final = re.compile(r"(-{0,2}[A-Za-z][A-Za-z0-9_.-]*)(=|:[ \t]*)(?!//)(.+)", re.DOTALL)
# Options whose value is a name and a password.
_USERS: Final = frozenset({"-u", "--user", "--proxy-user"})
SHORT_OPTION_CHARS: Final = 3
_HEX: Final = re.compile(r"[0-9a-fA-F-]{32,}")


def is_secret(name: str, value: str) -> bool:
    """Whether a value may be one, by its name or by its looks. What would be read as a reference counts as one."""
    if _REFERENCE.match(value) or _SECRET_NAME.search(name):
        return True
    looks_so = _SECRET_VALUE.fullmatch(value) is not None and not value.startswith(("/", "./", "~"))
    return looks_so or _masker().mask_text(value) != value


def masked_words(words: Sequence[str]) -> list[str]:
    """The words of a command; those that may hold a secret differ from what they were."""
    return [_masked_word(before, word) for before, word in zip(("", *words), words, strict=False)]


def masked_address(url: str) -> str:
    """An address without its user, the values of its query, and parts of its path that look made by a machine."""
    place, mark, query = _USER.sub(f"{HIDDEN}@", url).partition("?")
    place = _SEGMENT.sub(lambda part: HIDDEN if _looks_random(part[0]) else part[0], _FRAGMENT.sub("", place))
    hidden = _QUERY.sub(lambda part: f"{part[1]}={HIDDEN}" if part[2] else HIDDEN if part[1] else "", mark + query)
    return _masker().mask_text(place + _FRAGMENT.sub("", hidden))


def shown(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A server's entry, as it may be shown."""
    return {key: _shown(key, value) for key, value in entry.items()}


def _shown(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        if key in _HIDDEN_TABLES:
            return {name: text if _is_shown(text) else HIDDEN for name, text in value.items()}
        return shown(value)
    if isinstance(value, list):
        return masked_words(list(map(str, value)))
    return _masked_word("", value) if isinstance(value, str) else value


def _is_shown(value: object) -> bool:
    return isinstance(value, str) and is_reference(value)


def _masked_word(before: str, word: str) -> str:
    # A value may begin like a short option, and no option is as long as that.
    is_option = word.startswith("--") or (word.startswith("-") and len(word) <= SHORT_OPTION_CHARS)
    if before.startswith("-") and not is_option and _SECRET_NAME.search(before):
        return HIDDEN
    if before in _USERS and ":" in word:
        return f"{word.partition(':')[0]}:{HIDDEN}"
    if word.lstrip().startswith(("{", "[")) and _SECRET_NAME.search(word):
        return HIDDEN
    if (named := _NAMED.fullmatch(word)) is not None and _SECRET_NAME.search(named[1]):
        return f"{named[1]}{named[2]}{HIDDEN}"
    if "://" in word:
        return masked_address(word)
    if _looks_random(word) or (named is not None and _looks_random(named[3])):
        return HIDDEN if named is None else f"{named[1]}{named[2]}{HIDDEN}"
    return _masker().mask_text(word)


def _looks_random(text: str) -> bool:
    """Long, of letters of both cases and digits; or long and hexadecimal."""
    if _HEX.fullmatch(text):
        return True
    kinds = (str.isupper, str.islower, str.isdigit)
    return bool(_SECRET_VALUE.fullmatch(text)) and "/" not in text and all(any(map(kind, text)) for kind in kinds)


@functools.cache
def _masker() -> Masker:
    # A quarter of a second, for those commands that show something.
    from trunkline.ledger.masking import Masker

    return Masker()
