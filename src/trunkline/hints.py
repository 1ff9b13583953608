"""Commands that a text names for its reader to type: completed so that they mean the home that the text is about.

Owns the form of such a hint and its completion. In texts of the exchange a hint stands between backticks
(```trunkline approvals```), because whoever writes the text need not know which home is meant; whoever shows it to a
person does. Does not own when a home has to be named: that is known by the command line and by the host.

Invariant: a hint that names a home stays as it is.
"""

from __future__ import annotations

import re
from typing import Final

_HINT: Final = re.compile(r"`(trunkline [a-z][^`\n]*)`")


def command(words: str, home: str | None) -> str:
    """``trunkline WORDS``, with ``--home`` where one has to be named."""
    if not home or "--home" in words.split():
        return f"trunkline {words}"
    import shlex

    return f"trunkline {words} --home {shlex.quote(home)}"


# Codes of faults whose words are a tool's own: what it tells people to type is not made fit to be typed.
STRANGERS_WORDS: Final = frozenset({"tool.failed"})


def completed(text: str, home: str | None) -> str:
    """The text with this home in each of its hints."""
    if not home or "`trunkline " not in text:
        return text
    return _HINT.sub(lambda hint: f"`{command(hint[1].removeprefix('trunkline '), home)}`", text)
