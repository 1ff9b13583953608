"""What is said of something that a path names and that is not there: a call, a question, the process of an agent.

Owns these words, which say why where that is known. Does not own the looking.
"""

from __future__ import annotations

import re
from typing import Final

from trunkline.edges.bodies import clip
from trunkline.model import Fault, fault
from trunkline.shown import AgentView

CALL: Final = fault("not_found", "no such call, or not one of yours")
# As the hub names them: by the number of the entry that opened them.
_QUESTION_ID: Final = re.compile(r"a([0-9]{1,19})")
_NOT_OPEN: Final = fault(
    "not_found",
    "no such open question: it was answered, withdrawn, or has expired; `trunkline approvals` lists what is open",
)
_NEVER_ASKED: Final = fault("not_found", "there never was such a question; `trunkline approvals` lists what is open")


def question(approval_id: str, last_entry: int) -> Fault:
    """Of a question that is not open, in a record that ends with this entry."""
    number = _QUESTION_ID.fullmatch(approval_id)
    return _NOT_OPEN if number is not None and int(number[1]) <= last_entry else _NEVER_ASKED


def process(agent_id: str, found: AgentView | None) -> Fault:
    """Of an agent without a process that the exchange could start or stop; ``found`` is that agent, if it is here."""
    if found is None:
        return fault("not_found", "the exchange launches no agent of this id; `trunkline agents` lists all")
    if found.resident:
        text = "lives in the exchange: it has no process of its own, and is there as long as the exchange runs"
    else:
        text = "connected by itself: the exchange did not launch it, so it is stopped and started where it was launched"
    return fault("state.conflict", clip(f"{agent_id} {text}"))
