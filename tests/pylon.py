"""A client of Pusher's protocol, written from its documentation, for tests of the Pylon bridge."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

WAIT_S = 20.0
SYSTEM = "pylon.system"
CODEX = "pylon.codex"


class Pusher:
    """One connection. What arrived and was not asked for is kept in ``seen``."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.socket_id = ""
        self.seen: list[dict[str, Any]] = []

    async def frame(self) -> dict[str, Any]:
        """The next message, its data decoded."""
        async with asyncio.timeout(WAIT_S):
            found: dict[str, Any] = json.loads(await self.socket.recv())
        if isinstance(found.get("data"), str):
            found["data"] = json.loads(found["data"])
        return found

    async def next(self, event: str, **fields: Any) -> Any:
        """The data of the next such event in which these fields are so."""

        def is_it(frame: dict[str, Any]) -> bool:
            return frame["event"] == event and all(frame["data"].get(name) == fields[name] for name in fields)

        for frame in self.seen:
            if is_it(frame):
                self.seen.remove(frame)
                return frame["data"]
        while True:
            frame = await self.frame()
            if is_it(frame):
                return frame["data"]
            self.seen.append(frame)

    async def send(self, event: str, data: object = None, channel: str | None = None) -> None:
        message = {"event": event, "data": data, "channel": channel}
        await self.raw(json.dumps({name: value for name, value in message.items() if value is not None}))

    async def raw(self, text: str | bytes) -> None:
        await self.socket.send(text)

    async def subscribe(self, channel: str, **more: object) -> Any:
        await self.send("pusher:subscribe", {"channel": channel, **more})
        return await self.next("pusher_internal:subscription_succeeded")

    async def codex(self, event: str, **payload: object) -> None:
        await self.send(f"client-codex.{event}", payload, CODEX)

    async def closed(self) -> int:
        """The code with which the server closed."""
        try:
            while True:
                self.seen.append(await self.frame())
        except ConnectionClosed:
            assert self.socket.close_code is not None
            return self.socket.close_code


@contextlib.asynccontextmanager
async def pusher(
    url: str,
    path: str = "/app/local-key?protocol=7&client=test&version=1",
    *,
    context: ssl.SSLContext | None = None,
    welcome: bool = True,
    **options: Any,
) -> AsyncIterator[Pusher]:
    """A client that is connected."""
    terms = {"max_size": None, "ping_interval": None, **options}
    async with connect(url + path, ssl=context, **terms) as socket:
        client = Pusher(socket)
        if welcome:
            found = await client.frame()
            assert found["event"] == "pusher:connection_established", found
            client.socket_id = found["data"]["socket_id"]
        yield client
