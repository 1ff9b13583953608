"""Pages that watch while calls run: ``python -m bench.pages [PAGES] [CALLS_A_SECOND] [SECONDS]``.

How long after an entry was made each of so many pages of the console has it, while agents are called at a steady rate;
whether each page saw the last entry without a gap; and which part of the calls' rate is left beside the same calls with
nobody watching. The pages are in one process and the callers in another, so that neither waits for the other's work.

Invariant: a page that missed an entry fails the run.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect

FEED: Final = "private-feed"
CONNECTIONS: Final = 32
READY_S: Final = 60.0
CONFIG: Final = """\
[http]
listen = "127.0.0.1:0"

[[agent]]
id = "bench.echo"
command = ["python", "agent.py"]
"""
AGENT: Final = """\
from trunkline import Agent

agent = Agent("bench.echo")


@agent.tool(side_effects=False)
def echo(text: str) -> dict:
    return {"text": text}


agent.run()
"""
_SPAN: Final = re.compile(r'\\"after\\":([0-9]+),\\"upto\\":([0-9]+)')


class Watched(Struct, frozen=True):
    """What came of one run."""

    pages: int
    calls_a_second: float
    # The same with nobody watching.
    alone_a_second: float
    median_ms: float
    high_ms: float

    @property
    def kept(self) -> float:
        """The part of the calls' rate that is left."""
        return self.calls_a_second / self.alone_a_second


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
                raise RuntimeError(answer[:200])
            done += 1
        writer.close()

    await asyncio.gather(*(caller() for _ in range(CONNECTIONS)))
    return done / (time.monotonic() - begun)


def calls_of(address: str, token: str, rate: float, seconds: float) -> subprocess.Popen[bytes]:
    """The callers; they print what they reached."""
    command = [sys.executable, "-m", "bench.pages", "--call", address, str(rate), str(seconds)]
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


class SignedIn:
    """A sign-in of the console, and requests of its page."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        code = self.ask("POST", "/console/code", headers={"authorization": f"Bearer {token}"})[1]["path"]
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request("GET", code)
        answer = connection.getresponse()
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        self.key = answer.headers["location"].removeprefix("/#key=")
        connection.close()

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """One request."""
        connection = http.client.HTTPConnection(self.address, timeout=20)
        try:
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                headers or {"cookie": self.cookie, "x-trunkline-console": self.key, "content-type": "application/json"},
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
        raise RuntimeError(f"the callers ended with {process.returncode}")
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
                raise RuntimeError(f"a page missed entries {end} to {after}")
        found += [came - made[n] for came, after, upto in page.batches for n in range(after + 1, upto + 1) if n in made]
    found.sort()
    return statistics.median(found), found[int(len(found) * 0.95)]


def main() -> None:
    """Run, and print the row."""
    if sys.argv[1:2] == ["--call"]:
        token = sys.stdin.read()
        print(asyncio.run(call_steadily(sys.argv[2], token, float(sys.argv[3]), float(sys.argv[4]))))
        return
    pages, rate, seconds = (float(value) for value in (*sys.argv[1:4], *("100", "1000", "5")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "trunkline.toml").write_text(CONFIG)
        (home / "agent.py").write_text(AGENT)
        exchange = subprocess.Popen(
            [sys.executable, "-m", "trunkline", "up", "--home", folder], stderr=subprocess.DEVNULL
        )
        try:
            address, token = wait_ready(home)
            found = asyncio.run(watched(address, token, int(pages), rate, seconds))
        finally:
            exchange.terminate()
            exchange.wait(30)
    print("| pages | calls a second | beside nobody watching | an entry reaches a page: median | 95 % |")
    print("|---:|---:|---:|---:|---:|")
    print(
        f"| {found.pages} | {found.calls_a_second:,.0f} | {found.kept:.2f} | {found.median_ms:.0f} ms "
        f"| {found.high_ms:.0f} ms |"
    )


def wait_ready(home: Path) -> tuple[str, str]:
    """Address and token, once the tool can be called."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        time.sleep(0.05)
        if not (home / "ready.json").exists():
            continue
        address = json.loads((home / "ready.json").read_text())["http"].removeprefix("http://")
        token = (home / "operator.token").read_text().strip()
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request("GET", "/v1/tools", headers={"authorization": f"Bearer {token}"})
        tools = json.loads(connection.getresponse().read())["tools"]
        connection.close()
        if any(tool["tool_id"] == "bench.echo/echo" and tool["status"] == "available" for tool in tools):
            return address, token
    raise RuntimeError("the exchange did not come up")


if __name__ == "__main__":
    main()
