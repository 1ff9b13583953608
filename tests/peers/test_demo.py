"""``up --demo``, as ``make run`` starts it: the example agents, besides what the user's own file says."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import Running, wait_until

AGENT = """
from trunkline import Agent

agent = Agent("com.me.talker")


@agent.tool(side_effects=False)
def talk() -> dict[str, bool]:
    print("talked")
    return {"talked": True}


agent.run()
"""


@pytest.fixture
def demo() -> Iterator[Running]:
    folder = Path(tempfile.mkdtemp(prefix="tl-"))
    exchange = Running(folder / "home")
    exchange.flags = ("--demo",)
    exchange.start()
    try:
        yield exchange
    finally:
        assert exchange.stop() == 0
        shutil.rmtree(folder)


def test_an_agent_of_the_users_own_file_comes_beside_the_examples_and_what_it_prints_is_in_its_log(
    demo: Running,
) -> None:
    demo.wait_tool("com.example.echo/echo")
    assert f" --home {demo.home} tools\n" in demo.said(), "what it says to try finds this home"
    script = demo.home / "talker.py"
    script.write_text(AGENT)
    with demo.config_file.open("a") as config:
        config.write(f'[[agent]]\nid = "com.me.talker"\ncommand = ["python", {json.dumps(str(script))}]\n')
    assert demo.request("POST", "/v1/reload")[0] == 200
    demo.wait_tool("com.me.talker/talk")
    assert demo.call("com.example.echo/echo", {"text": "hi"})["output"] == {"text": "hi"}
    assert demo.call("com.me.talker/talk")["output"] == {"talked": True}

    def printed() -> bool:
        logs = (demo.home / "logs" / "com.me.talker").glob("*.log")
        return any("talked" in log.read_text() for log in logs)

    wait_until(printed, "what the agent printed, while it runs")


def test_a_file_that_cannot_be_used_is_refused_also_then(demo: Running) -> None:
    with demo.config_file.open("a") as config:
        config.write("nonsense = \n")
    status, answer = demo.request("POST", "/v1/reload")
    assert status == 400, answer
    demo.wait_tool("com.example.echo/echo")
