"""The command line against the real HTTP edge in front of an exchange in memory, in a thread of its own."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from tests.inhabited import Inhabited, Script
from trunkline.cli.main import main
from trunkline.edges.http.edge import HttpEdge
from trunkline.events import Event
from trunkline.testing.memory import OPERATOR_TOKEN


class Said(NamedTuple):
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class _Screen(io.TextIOWrapper):
    """What takes itself for a terminal."""

    def isatty(self) -> bool:
        return True


def trunkline(*arguments: str, stdin: bytes = b"", columns: int = 0) -> Said:
    """Run one command line in this process; with ``columns``, on a terminal of that width, without its colours."""
    if columns:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", str(columns))
            said = _run(*arguments, stdin=stdin, screen=_Screen)
        return said._replace(out=click.unstyle(said.out))
    return _run(*arguments, stdin=stdin, screen=io.TextIOWrapper)


def _run(*arguments: str, stdin: bytes, screen: type[io.TextIOWrapper]) -> Said:
    streams = sys.stdin, sys.stdout, sys.stderr
    out, err = io.BytesIO(), io.BytesIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    text_out, text_err = screen(out, "utf-8"), io.TextIOWrapper(err, "utf-8")
    sys.stdout, sys.stderr = text_out, text_err
    try:
        main(list(arguments))
    except SystemExit as end:
        code = int(str(end.code))
    finally:
        text_out.flush()
        text_err.flush()
        sys.stdin, sys.stdout, sys.stderr = streams
    return Said(code, out.getvalue().decode(), err.getvalue().decode())


class Running:
    """A home folder with an exchange in it that answers over HTTP."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.exchange = Inhabited()
        self.loop = asyncio.new_event_loop()
        self.edge = HttpEdge(self.exchange.surroundings())
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.do(self.edge.start())
        (home / "operator.token").write_text(OPERATOR_TOKEN + "\n")
        self.write_ready(pid=os.getpid())

    def write_ready(self, **change: Any) -> None:
        ready = {
            "pid": os.getpid(),
            **self.edge.ready(),
            "socket": "/x/agents.sock",
            "pylon": None,
            "relay": None,
        }
        (self.home / "ready.json").write_text(json.dumps({**ready, **change}))

    def do(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(5)

    def later(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Do something on the exchange's loop."""
        self.loop.call_soon_threadsafe(function, *arguments)

    @property
    def script(self) -> dict[type[Event], Script]:
        """What is answered instead of the hub."""
        return self.exchange.answering.script

    @property
    def fed(self) -> list[Event]:
        """What was asked of the exchange."""
        return self.exchange.answering.fed

    @property
    def watchers(self) -> list[Any]:
        """Who looks on."""
        return self.exchange.feed._watchers

    def run(self, *arguments: str, stdin: bytes = b"", columns: int = 0) -> Said:
        """With the home in the environment, as people have it; hints need not repeat it then."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRUNKLINE_HOME", str(self.home))
            return trunkline(*arguments, stdin=stdin, columns=columns)

    def stop(self) -> None:
        self.do(self.edge.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()


@pytest.fixture
def running(short_path: Path) -> Iterator[Running]:
    one = Running(short_path)
    yield one
    one.stop()
