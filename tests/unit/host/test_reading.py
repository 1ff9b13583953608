from __future__ import annotations

from trunkline.shown import LISTED_OUTPUT_BYTES
from trunkline.testing.memory import MemoryExchange


def test_a_command_that_failed_is_shown_of_a_call_in_memory_and_of_one_on_record() -> None:
    """Alone and in lists, also where a list leaves the output out."""
    exchange = MemoryExchange(edges=())
    large = {"exitCode": 5, "stdout": "x" * LISTED_OUTPUT_BYTES}
    outputs = iter([{"exitCode": 0}, {"exitCode": 4}, large])
    exchange.attach(
        "space.a", "shell", deliver=lambda agent, _: agent.finish(next(outputs)), edge="space", is_resident=True
    )
    made = [exchange.call("space.a/shell", {"command": "false"}).call_id for _ in range(3)]
    exchange.store()
    for is_recent in (True, False):
        if not is_recent:
            exchange.hub.state.recent.clear()
        assert [exchange.views.call(call_id).failed_with for call_id in made] == [None, 4, 5]  # type: ignore[union-attr]
        listed, _ = exchange.views.calls(10, None)
        assert {view.call_id: view.failed_with for view in listed} == dict(zip(made, (None, 4, 5), strict=True))
        assert [view.output for view in listed if view.call_id == made[2]] == [None]


def test_the_output_of_another_tool_says_nothing_of_a_command() -> None:
    exchange = MemoryExchange(edges=())
    exchange.attach("com.example.echo", "echo", deliver=lambda agent, _: agent.finish({"exitCode": 4}))
    call = exchange.call("com.example.echo/echo", {"text": "hi"})
    exchange.store()
    assert exchange.views.call(call.call_id).failed_with is None  # type: ignore[union-attr]
