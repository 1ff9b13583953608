"""A browser at the console, as far as the exchange can tell one: a cookie, the page's key, and a live line."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from websockets.exceptions import InvalidStatus

from tests.pylon import Pusher, pusher
from trunkline.edges.console.edge import CONSOLE, ConsoleEdge
from trunkline.edges.edge import Edge
from trunkline.edges.http.edge import HTTP
from trunkline.testing.memory import OPERATOR_TOKEN, MemoryExchange

KEY = "x-trunkline-console"
FEED = "private-feed"


class Browser:
    """One profile of a browser: its cookies, and what the page keeps for its origin."""

    def __init__(self, url: str, token: str = OPERATOR_TOKEN) -> None:
        self.url = url
        self.token = token
        self.key = ""
        # To load certificates, which nobody here has, takes 30 ms.
        self._plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.http = httpx.AsyncClient(base_url=url, timeout=20, verify=self._plain, trust_env=False)

    async def new_code(self) -> str:
        """A code, as `trunkline console` gets one."""
        async with httpx.AsyncClient(base_url=self.url, timeout=20, verify=self._plain, trust_env=False) as program:
            answer = await program.post("/console/code", headers={"authorization": f"Bearer {self.token}"})
        assert answer.status_code == 201, answer.text
        path: str = answer.json()["path"]
        return path.removeprefix("/?code=")

    async def open(self, code: str) -> httpx.Response:
        """Open the address with a code; where that leads is not followed."""
        answer = await self.http.get("/", params={"code": code})
        if answer.status_code == 303:
            self.key = answer.headers["location"].removeprefix("/#key=")
        return answer

    async def sign_in(self) -> Self:
        answer = await self.open(await self.new_code())
        assert answer.status_code == 303, answer.text
        return self

    @property
    def cookie(self) -> str:
        """The header that the browser would send."""
        return "; ".join(f"{name}={value}" for name, value in self.http.cookies.items())

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        """A request of the page."""
        return await self.http.request(method, path, json=body, headers={KEY: self.key, **headers})

    @contextlib.asynccontextmanager
    async def line(self, *channels: str, **options: Any) -> AsyncIterator[Pusher]:
        """A live line with these subscriptions."""
        terms = {"origin": self.url, "additional_headers": {"cookie": self.cookie}, **options}
        async with pusher(self.url.replace("http", "ws", 1), "/console/live", **terms) as client:
            for channel in channels:
                await self.subscribe(client, channel)
            yield client

    async def subscribe(self, client: Pusher, channel: str) -> Any:
        answer = await self.ask("POST", "/console/auth", {"socket_id": client.socket_id, "channel_name": channel})
        return await client.subscribe(channel, **answer.json())

    async def refused_line(self, **options: Any) -> int:
        """The status with which a live line is refused."""
        try:
            async with self.line(**options):
                raise AssertionError("it was let in")
        except InvalidStatus as refused:
            return refused.response.status_code


class Console:
    """The console on an exchange in memory, behind a real listener."""

    def __init__(self, home: Path, edges: Sequence[Edge] = (CONSOLE, HTTP), **options: Any) -> None:
        self.home = home
        self.exchange = MemoryExchange(edges=edges, live=asyncio.get_running_loop(), home=home, **options)
        self._browsers: list[Browser] = []

    @property
    def edge(self) -> ConsoleEdge:
        found = self.exchange.edges._running["console"]
        assert isinstance(found, ConsoleEdge)
        return found

    @property
    def url(self) -> str:
        return str(self.exchange.edges.ready()["http"])

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def browser(self) -> Browser:
        self._browsers.append(Browser(self.url))
        return self._browsers[-1]

    async def signed_in(self) -> Browser:
        return await self.browser().sign_in()

    async def close(self) -> None:
        for browser in self._browsers:
            await browser.http.aclose()
        await self.exchange.edges.stop()
        await self.exchange.edges.stop_last()
        assert self.exchange.died is None


@contextlib.asynccontextmanager
async def console(home: Path, **options: Any) -> AsyncIterator[Console]:
    kit = Console(home, **options)
    await kit.exchange.edges.start()
    try:
        yield kit
    finally:
        await kit.close()
