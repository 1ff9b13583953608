"""The README's session, run as it is printed: each ``$`` line is a command, the lines below it are what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import play
from tests.running import EXAMPLES, ROOT, Running, running, wait_until

README = (ROOT / "README.md").read_text()


def demo(folder: Path) -> str:
    """The demo's agents, with absolute paths."""
    text = (EXAMPLES / "trunkline.toml").read_text()
    text = re.sub(r'"(\w+\.py)"', lambda m: f'"{EXAMPLES / m[1]}"', text.replace('"agent.py"', '"reporter/agent.py"'))
    text = text.replace('"reporter/agent.py"', f'"{EXAMPLES}/reporter/agent.py"').replace('cwd = "reporter"\n', "")
    text = text.replace('manifest = "reporter', f'manifest = "{EXAMPLES}/reporter')
    return text.replace("node/agent.js", f"{EXAMPLES}/node/agent.js")


@pytest.fixture
def exchange(short_path: Path) -> object:
    """The demo."""
    with running(short_path / "home", demo(short_path)) as found:
        for tool in ("echo/echo", "clock/countdown", "notes/append", "reporter/minute"):
            found.wait_tool(f"com.example.{tool}")
        yield found


def test_the_session_in_the_readme_goes_as_it_is_printed(exchange: Running) -> None:
    def before(command: str) -> None:
        if command == "trunkline calls --last 2":
            wait_until(lambda: len(exchange.entries(kind="call.settled")) >= 2, "both calls are on disk")
        elif command.startswith("trunkline space show"):
            wait_until(lambda: len(exchange.entries(kind="process.step")) >= 2, "the run has ended")

    assert play(README, exchange, exchange.home.parent, before) >= 7


def test_the_page_about_the_configuration_tells_what_each_name_in_the_home_is(exchange: Running) -> None:
    made = exchange.request("POST", "/v1/spaces", {"name": "demo"})
    assert made[0] == 201
    page = (ROOT / "docs" / "configuration.md").read_text()
    table = page.partition("| name | holds |")[2].partition("\n## ")[0]
    told = {name.split("/")[0] for name in re.findall(r"`([\w./-]+)`", table)}
    assert {path.name for path in exchange.home.iterdir()} <= told


def test_the_agent_in_the_readme_works(short_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    (short_path / "home").mkdir(mode=0o700)
    (short_path / "home" / "weather.py").write_text(code[1])
    settings = next(block for block in re.findall(r"```toml\n(.*?)```", README, re.DOTALL) if "weather" in block)
    with running(short_path / "home", settings) as exchange:
        exchange.wait_tool("com.example.weather/forecast")
        answer = exchange.call("com.example.weather/forecast", {"city": "Rome", "days": 2})
        assert answer["output"] == {"city": "Rome", "days": ["sun", "sun"]}
        assert exchange.call("com.example.weather/forecast", {"town": "Rome"})["error"]["code"] == "tool.invalid_input"
