"""The console: pages that watch while calls run, and how long a browser takes to show the first of it.

How long after an entry was made each of so many pages has it, while agents are called at a steady rate; whether each
page saw the last entry without a gap; and which part of the calls' rate is left beside the same calls with nobody
watching. The pages are in one process and the callers in another (``python -m bench.pages``), so that neither waits for
the other's work. The first paint is chromium's own figure, in a profile that has nothing of the page yet.

Invariant: a page that missed an entry fails the run.
"""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect

from bench.children import Children, Failed
from bench.exchange import Exchange
from bench.plan import Stage
from bench.results import Console, Watched
from trunkline.edges.console.files import page_files

FEED: Final = "private-feed"
CONNECTIONS: Final = 32
READY_S: Final = 60.0
AGENT: Final = """\
from trunkline import Agent

agent = Agent("bench.echo")


@agent.tool(side_effects=False)
def echo(text: str) -> dict:
    return {"text": text}


agent.run()
"""
_SPAN: Final = re.compile(r'\\"after\\":([0-9]+),\\"upto\\":([0-9]+)')
# Chromium as the tests start it: nothing but the page, and no sandbox of its own where it cannot have one.
_QUIET: Final = (
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--disable-dev-shm-usage",
)
_PAINT: Final = "performance.getEntriesByName('first-contentful-paint').map((one) => one.startTime)"


def measure(stage: Stage) -> Console:
    """Both, with one exchange."""
    plan = stage.plan
    with Children(stage.room("console")) as children:
        home = children.folder / "home"
        agent = children.folder / "agent.py"
        agent.write_text(AGENT)
        command = json.dumps(["python", str(agent)])
        exchange = Exchange(children, home, config=f'\n[[agent]]\nid = "bench.echo"\ncommand = {command}\n')
        token = (home / "operator.token").read_text().strip()
        wait_tool(exchange)
        paints = first_paints(stage, exchange.address, token, plan.rounds)
        found = asyncio.run(
            watched(exchange.address, token, plan.watching_pages, plan.watched_calls_a_second, plan.watched_s)
        )
    stage.say(
        f"{found.pages} pages: an entry reaches them after {found.median_ms:.0f} ms, calls keep {found.kept:.2f}; "
        f"first paint {statistics.median(paints) if paints else 0:.0f} ms"
    )
    return Console(found, sum(len(one.data) for one in page_files().values()), tuple(paints))


def wait_tool(exchange: Exchange) -> None:
    """Until the tool can be called."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with exchange.operator() as operator:
            tools = operator.ask("GET", "/v1/tools")["tools"]
        if any(tool["tool_id"] == "bench.echo/echo" and tool["status"] == "available" for tool in tools):
            return
        time.sleep(0.05)
    raise exchange.child.failure("its agent did not come up")


def first_paints(stage: Stage, address: str, token: str, rounds: int) -> list[float]:
    """Milliseconds from opening the address until something is seen, each time in a new profile; nothing without a
    browser.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        stage.say("the first paint is left out: chromium or playwright is not installed")
        return []
    from playwright.sync_api import sync_playwright

    found = []
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=[*_QUIET, *sandbox])
        for _ in range(rounds):
            profile = browser.new_context()
            page = profile.new_page()
            page.goto(f"http://{address}{new_code(address, token)}")
            page.get_by_role("heading", name="Now").wait_for()
            found += page.evaluate(_PAINT)
            profile.close()
        browser.close()
    return found


# --- callers, in a process of their own -------------------------------------------------------------------------------


async def call_steadily(address: str, token: str, rate: float, seconds: float) -> float:
    """Call at this rate for so long over a few connections; how many ended in each second."""
    host, port = address.rsplit(":", 1)
    begun = time.monotonic()
    done = 0
    numbers = iter(range(int(rate * seconds)))

    async def caller() -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection(host, int(port))
        for number in numbers:
            delay = begun + number / rate - time.monotonic()
            if delay > 0:
                await asyncio.sleep(delay)
            body = b'{"tool_id":"bench.echo/echo","input":{"text":"number %d"}}' % number
            writer.write(
                b"POST /v1/calls HTTP/1.1\r\nhost: %b\r\nauthorization: Bearer %b\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%b" % (address.encode(), token.encode(), len(body), body)
            )
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
            answer = await reader.readexactly(size)
            if b'"succeeded"' not in answer:
                raise Failed(answer[:200].decode(errors="replace"))
            done += 1
        writer.close()

    await asyncio.gather(*(caller() for _ in range(CONNECTIONS)))
    return done / (time.monotonic() - begun)


def calls_of(address: str, token: str, rate: float, seconds: float) -> subprocess.Popen[bytes]:
    """The callers; they print what they reached."""
    command = [sys.executable, "-m", "bench.pages", address, str(rate), str(seconds)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(token.encode())
    process.stdin.close()
    process.stdin = None
    return process


# --- pages ------------------------------------------------------------------------------------------------------------


class Page:
    """One page: when each batch came, and what it was."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.batches: list[tuple[float, int, int]] = []
        self.texts: list[str] = []
        self.keeps_texts = False
        self._news = asyncio.Event()

    async def watch(self) -> None:
        """Take batches until the connection ends."""
        async for message in self.socket:
            found = _SPAN.search(str(message))
            if found is not None:
                self.batches.append((time.time() * 1000, int(found[1]), int(found[2])))
                if self.keeps_texts:
                    self.texts.append(str(message))
                self._news.set()

    async def wait_entry(self, number: int) -> None:
        """Until it has this entry."""
        while not self.batches or self.batches[-1][2] < number:
            self._news.clear()
            await self._news.wait()


def new_code(address: str, token: str) -> str:
    """The path that signs a browser in once."""
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request("POST", "/console/code", headers={"authorization": f"Bearer {token}"})
        return str(json.loads(connection.getresponse().read())["path"])
    finally:
        connection.close()


class SignedIn:
    """A sign-in of the console, and requests of its page."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request("GET", new_code(address, token))
        answer = connection.getresponse()
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        self.key = answer.headers["location"].removeprefix("/#key=")
        connection.close()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request."""
        connection = http.client.HTTPConnection(self.address, timeout=20)
        try:
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {"cookie": self.cookie, "x-trunkline-console": self.key, "content-type": "application/json"},
            )
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()

    async def page(self) -> Page:
        """A page that follows from now on."""
        socket = await connect(
            f"ws://{self.address}/console/live",
            origin=f"http://{self.address}",  # type: ignore[arg-type]
            additional_headers={"cookie": self.cookie},
            compression=None,
            ping_interval=None,
            max_size=None,
        )
        socket_id = json.loads(json.loads(await socket.recv())["data"])["socket_id"]
        asked = {"socket_id": socket_id, "channel_name": FEED}
        auth = (await asyncio.to_thread(self.ask, "POST", "/console/auth", asked))[1]["auth"]
        await socket.send(json.dumps({"event": "pusher:subscribe", "data": {"channel": FEED, "auth": auth}}))
        await socket.recv()
        await socket.send(json.dumps({"event": "client-feed.follow", "channel": FEED, "data": {}}))
        return Page(socket)


async def watched(address: str, token: str, pages: int, rate: float, seconds: float) -> Watched:
    """Measure."""
    operator = SignedIn(address, token)
    alone = await finished(calls_of(address, token, rate, seconds))
    open_pages = [await operator.page() for _ in range(pages)]
    open_pages[0].keeps_texts = True
    watching = [asyncio.create_task(page.watch()) for page in open_pages]
    calls = await finished(calls_of(address, token, rate, seconds))
    last = operator.ask("GET", "/console/session")[1]["last"]
    async with asyncio.timeout(30):
        for page in open_pages:
            await page.wait_entry(last)
    for page in open_pages:
        await page.socket.close()
    await asyncio.gather(*watching)
    return Watched(pages, calls, alone, *latencies(open_pages))


async def finished(process: subprocess.Popen[bytes]) -> float:
    """What the callers reached."""
    said, _ = await asyncio.to_thread(process.communicate)
    if process.returncode:
        raise Failed(f"the callers ended with {process.returncode}")
    return float(said)


def latencies(pages: list[Page]) -> tuple[float, float]:
    """The median and the 95th percentile of milliseconds from an entry to a page."""
    made = {
        entry["n"]: entry["at"] for text in pages[0].texts for entry in json.loads(json.loads(text)["data"])["entries"]
    }
    found: list[float] = []
    for page in pages:
        for (_, _, end), (_, after, _) in zip(page.batches, page.batches[1:], strict=False):
            if end != after:
                raise Failed(f"a page missed entries {end} to {after}")
        found += [came - made[n] for came, after, upto in page.batches for n in range(after + 1, upto + 1) if n in made]
    found.sort()
    return statistics.median(found), found[int(len(found) * 0.95)]


if __name__ == "__main__":
    _address, _rate, _seconds = sys.argv[1:]
    print(asyncio.run(call_steadily(_address, sys.stdin.read(), float(_rate), float(_seconds))))
