"""An agent attached to a scripted Core."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.scripted_core import Conversation, ScriptedCore
from trunkline import Agent

Attach = Callable[..., AbstractAsyncContextManager[Conversation]]
TOKEN = "tok-planted-secret-4711"
A = "com.example.test"


@pytest.fixture
def agent() -> Agent:
    return Agent(A, version="1.2.3")


@pytest.fixture
async def core(short_path: Path) -> AsyncIterator[ScriptedCore]:
    async with ScriptedCore(short_path).listening() as listening:
        yield listening


@pytest.fixture
def attach(core: ScriptedCore) -> Attach:
    """``async with attach(agent) as core:`` the agent is welcomed and its tools are registered."""

    @contextlib.asynccontextmanager
    async def attached(agent: Agent, *, home: Path | None = None, **welcome: Any) -> AsyncIterator[Conversation]:
        entering = agent.connected(socket=core.address, token=TOKEN, home=home, grace_s=0.2)
        opening = asyncio.create_task(entering.__aenter__())
        conversation = await core.accept()
        await conversation.greet(**welcome)
        if agent.tools:
            await conversation.take_tools()
        await opening
        try:
            yield conversation
        finally:
            await entering.__aexit__(None, None, None)

    return attached
