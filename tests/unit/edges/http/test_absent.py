"""What is said of a question or a process that is not there."""

from __future__ import annotations

import pytest

from trunkline.edges.http import absent
from trunkline.shown import AgentView


@pytest.mark.parametrize(
    ("approval_id", "told"),
    [
        ("a12", "no such open question: it was answered"),
        ("a13", "there never was"),
        ("zzz", "there never was such a question"),
        ("a", "there never"),
    ],
)
def test_a_question_that_never_was_is_not_said_to_have_been_answered(approval_id: str, told: str) -> None:
    found = absent.question(approval_id, 12)
    assert (found.code, found.message.startswith(told)) == ("not_found", True)


@pytest.mark.parametrize(
    ("resident", "told"), [(True, "x.y lives in the exchange: "), (False, "x.y connected by itself: ")]
)
def test_of_an_agent_that_is_here_it_is_said_why_it_has_no_process_to_steer(resident: bool, told: str) -> None:
    found = absent.process("x.y", AgentView("x.y", "e", "ready", resident=resident))
    assert (found.code, found.message.startswith(told)) == ("state.conflict", True)
    assert absent.process("x.y", None).code == "not_found"
