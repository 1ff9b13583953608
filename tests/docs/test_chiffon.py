"""The agent of docs/protocols/chiffon.md, as it is printed there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.running import ROOT, running


def test_the_agent_on_the_page_gets_work_and_returns_results() -> None:
    page = (ROOT / "docs/protocols/chiffon.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "urllib" in block]
    folder = Path(tempfile.mkdtemp(prefix="tl-"))
    (folder / "agent.py").write_text(code)
    with running(folder / "home") as exchange:
        token = exchange.request("POST", "/v1/tokens", {"edge": "chiffon", "agent": "infra-1", "type": "infra"})[1][
            "token"
        ]
        environment = {**os.environ, "EXCHANGE": exchange.ready["http"], "TOKEN": token}
        agent = subprocess.Popen([sys.executable, str(folder / "agent.py")], env=environment)
        try:
            exchange.wait_tool("infra-1/greet")
            assert exchange.call("infra-1/greet", {})["output"]["output"] == "hello, whoever you are"
            assert exchange.call("infra-1/greet", {"name": "you"})["output"]["output"] == "hello, you"
            assert exchange.call("chiffon.infra/greet", {"name": "me"})["output"]["output"] == "hello, me"
        finally:
            agent.kill()
            agent.wait()
    shutil.rmtree(folder)
