"""What clients of one place may have together: others find room, and nobody is asked without end."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.pylon import CODEX, pusher
from tests.unit.edges.pylon.kit import started
from trunkline.edges.pylon import origins
from trunkline.edges.pylon.origins import (
    ASKS_PER_MINUTE,
    MAX_OF_ORIGIN,
    MAX_PROGRAMS,
    MINUTE_S,
    PROGRAMS,
    THIS_MACHINE,
    Origins,
    origin_of,
)

PAGE = "https://app.example"


def test_one_place_has_its_share_of_the_connections_and_others_the_rest() -> None:
    known = Origins()
    for origin, most in ((PROGRAMS, MAX_PROGRAMS), (PAGE, MAX_OF_ORIGIN)):
        for _ in range(most):
            assert known.has_room(origin)
            known.came(origin)
        assert not known.has_room(origin)
    assert known.has_room("http://localhost:5173")
    known.left(PAGE)
    assert known.has_room(PAGE)


def test_pages_of_this_machine_are_one_place_whichever_port_they_are_of() -> None:
    assert origin_of([], (PAGE,)) == PROGRAMS
    assert origin_of([PAGE.upper()], (PAGE,)) == PAGE
    assert origin_of(["http://localhost:1"], (PAGE,)) == origin_of(["https://127.0.0.1:2"], (PAGE,)) == THIS_MACHINE


def test_a_person_is_asked_so_many_times_a_minute_for_one_place() -> None:
    known = Origins()
    assert [known.try_ask(PAGE, 0.0) for _ in range(ASKS_PER_MINUTE + 1)] == [True] * ASKS_PER_MINUTE + [False]
    assert known.try_ask(PROGRAMS, 0.0)
    assert not known.try_ask(PAGE, MINUTE_S - 1)
    assert known.try_ask(PAGE, MINUTE_S + 1)
    known.try_ask("other", 10 * MINUTE_S)
    assert list(known._asked) == ["other"], "who asked long ago is not kept"


async def test_programs_that_take_all_their_places_keep_no_page_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origins, "MAX_PROGRAMS", 3)
    async with started(tmp_path) as kit, AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(kit.client())
        async with pusher(kit.url, welcome=False) as fourth:
            assert await fourth.closed() == 4100
        async with kit.client(origin="http://localhost:5173") as page:
            assert page.socket_id
        await stack.aclose()
        await kit.until(lambda: not kit.edge.server.clients)
        async with kit.client() as again:
            assert again.socket_id


async def test_connecting_again_and_again_asks_nobody_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origins, "ASKS_PER_MINUTE", 2)
    async with started(tmp_path) as kit:
        for turn in range(3):
            async with kit.client(CODEX) as client:
                await client.codex("connect", workspaceId="ws_1", cwd="/w")
                if turn < 2:
                    await kit.question("pylon.codex/connect")
                else:
                    assert "too often" in (await client.next("pylon.codex.error"))["message"]
            await kit.until(lambda: not kit.exchange.views.questions())
        async with kit.client(CODEX, origin="http://localhost:5173") as page:
            await page.codex("connect", workspaceId="ws_1", cwd="/w")
            await kit.question("pylon.codex/connect")
