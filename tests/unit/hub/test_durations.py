"""How long calls took: counted by tool, agent and outcome, in a number of series that nobody can drive up."""

from __future__ import annotations

from trunkline.hub.durations import MAX_TOOLS, Durations
from trunkline.model import Status, ToolDefinition
from trunkline.testing.memory import ANY_OBJECT, MemoryExchange


def test_a_call_counts_at_every_bound_that_it_kept() -> None:
    durations = Durations()
    for took_ms in (5, 6, 400_000):
        durations.add("a/b", "a/b", Status.SUCCEEDED, took_ms)
    [one] = durations.figures()
    assert (one["tool"], one["agent"], one["outcome"]) == ("a/b", "a", "succeeded")
    assert (one["below"]["0.005"], one["below"]["0.01"], one["below"]["300"]) == (1, 2, 2)
    assert (one["count"], one["sum_s"]) == (3, 400.011)


def test_tools_beyond_the_bound_are_counted_together() -> None:
    durations = Durations()
    for number in range(MAX_TOOLS + 50):
        durations.add(f"a/{number}", f"a/{number}", Status.FAILED, 1)
    figures = durations.figures()
    assert len(figures) == MAX_TOOLS + 1
    [other] = [one for one in figures if one["tool"] == "other"]
    assert (other["agent"], other["count"]) == ("other", 50)


def test_a_tool_that_is_known_keeps_its_series_for_another_outcome() -> None:
    durations = Durations()
    for number in range(MAX_TOOLS):
        durations.add(f"a/{number}", f"a/{number}", Status.SUCCEEDED, 1)
    durations.add("a/7", "a/7", Status.FAILED, 1)
    assert [one["tool"] for one in durations.figures() if one["outcome"] == "failed"] == ["a/7"]


def test_the_agent_is_the_one_that_served() -> None:
    durations = Durations()
    durations.add("router/any", "worker/do", Status.SUCCEEDED, 1)
    assert durations.figures()[0]["agent"] == "worker"


def test_a_clock_that_was_set_back_takes_nothing_from_the_sum() -> None:
    durations = Durations()
    durations.add("a/b", "a/b", Status.SUCCEEDED, -5000)
    assert durations.figures()[0]["sum_s"] == 0


def test_calls_of_both_ways_through_the_hub_are_counted() -> None:
    exchange = MemoryExchange()
    echo = ToolDefinition("com.x/echo", "Says it.", ANY_OBJECT, side_effects=False)
    exchange.attach("com.x", echo, deliver=lambda agent, effect: agent.finish(effect.input))
    for _ in range(3):
        exchange.call("com.x/echo")
    [one] = exchange.hub.calls.durations.figures()
    assert (one["tool"], one["outcome"], one["count"]) == ("com.x/echo", "succeeded", 3)
