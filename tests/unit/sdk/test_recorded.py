from __future__ import annotations

import pytest

from tests.unit.ledger.made import accepted, settled
from tests.unit.trajectory.made import failed, trajectory
from trunkline.errors import ToolError
from trunkline.sdk.recorded import NOT_RECORDED, definition_of, stand_in
from trunkline.trajectory.standin import Recording

ECHO = "com.example.echo/echo"


def made() -> tuple[Recording, str]:
    recording = Recording.of(
        trajectory(
            accepted(1, b'{"x":1}'), settled(2, 1, b'{"y":1.0}'), accepted(3, b'{"x":2}'), failed(4, 3, "shop.closed")
        )
    )
    return recording, "replay.com.example.echo/echo"


async def test_a_stand_in_answers_from_the_recording_and_makes_nothing_up() -> None:
    recording, tool_id = made()
    definition = definition_of(tool_id, ECHO, recording.tools[ECHO])
    agent = stand_in("replay.com.example.echo", recording, {ECHO: definition})
    tool = agent.tools[tool_id]
    given = tool.signature.read(b'{ "x": 1 }')
    assert isinstance(given, dict)
    assert tool.signature.write(await tool.function(**given)) == b'{"y":1.0}'
    with pytest.raises(ToolError, match=r"no call of com\.example\.echo/echo with this input is recorded") as unknown:
        await tool.function(params=b'{"x":3}')
    assert unknown.value.fault.code == NOT_RECORDED
    with pytest.raises(ToolError) as failing:
        await tool.function(params=b'{"x":2}')
    assert failing.value.fault.code == "shop.closed"


def test_a_stand_in_of_which_nothing_but_the_name_is_known_changes_nothing_and_takes_any_object() -> None:
    recording, tool_id = made()
    definition = definition_of(tool_id, ECHO, recording.tools[ECHO])
    assert not definition.side_effects
    assert bytes(definition.input_schema) == b'{"type":"object"}'
    assert "2 different inputs" in definition.description
