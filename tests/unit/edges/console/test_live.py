from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.console import FEED, Browser, Console, console
from tests.pylon import Pusher
from trunkline.edges.console import live
from trunkline.entries import CallAccepted, Noticed


async def batches(client: Pusher, upto: int) -> list[dict[str, Any]]:
    """The entries of all batches up to an entry; each batch begins where the one before ended."""
    found, at = [], None
    while at is None or at < upto:
        batch = await client.next("feed.batch")
        assert at is None or batch["after"] == at
        at = batch["upto"]
        found += batch["entries"]
    return found


async def output(client: Pusher) -> list[dict[str, Any]]:
    """The pieces of output of the next batch that has some."""
    while True:
        batch = await client.next("feed.batch")
        if batch["output"]:
            found: list[dict[str, Any]] = batch["output"]
            return found


def echo(kit: Console) -> None:
    kit.exchange.attach("com.example.echo", "echo", deliver=lambda agent, effect: agent.finish(effect.input))


async def call(browser: Browser, value: object) -> str:
    answer = await browser.ask("POST", "/v1/calls", {"tool_id": "com.example.echo/echo", "input": value})
    found: str = answer.json()["call_id"]
    return found


async def follow(client: Pusher, **terms: object) -> None:
    """Follow, and be sure that the exchange has heard it."""
    await client.send("client-feed.follow", terms, FEED)
    await client.send("pusher:ping")
    await client.next("pusher:pong")


async def test_a_page_is_told_of_a_call_as_it_happens(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        echo(kit)
        browser = await kit.signed_in()
        async with browser.line() as line:
            told = await browser.subscribe(line, FEED)
            assert told == {"last": kit.exchange.views.last_entry()}
            await follow(line)
            call_id = await call(browser, {"text": "hello"})
            entries = await batches(line, told["last"] + 2)
            assert [entry["kind"] for entry in entries if entry.get("call_id") == call_id] == [
                "call.accepted",
                "call.settled",
            ]
            assert entries[0]["input"] == {"text": "hello"}


async def test_a_page_that_comes_back_is_told_what_it_missed_without_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.edges.console.feed.MAX_READ", 7)
    async with console(tmp_path) as kit:
        echo(kit)
        browser = await kit.signed_in()
        for n in range(20):
            await call(browser, {"n": n})
        last = kit.exchange.views.last_entry()
        async with browser.line(FEED) as line:
            await line.send("client-feed.follow", {"after": 3}, FEED)
            await call(browser, {"n": 20})
            entries = await batches(line, last + 2)
        assert [entry["n"] for entry in entries] == list(range(4, last + 3))


async def test_kinds_and_a_call_narrow_what_is_told_and_leave_no_gap(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        echo(kit)
        browser = await kit.signed_in()
        wanted = await call(browser, {"n": 1})
        await call(browser, {"n": 2})
        last = kit.exchange.views.last_entry()
        for terms, kinds in (
            ({"kinds": ["call.accepted"]}, {"call.accepted"}),
            ({"kinds": ["call.*", "token.issued"]}, {"call.accepted", "call.settled"}),
        ):
            async with browser.line(FEED) as line:
                await line.send("client-feed.follow", {"after": 0, **terms}, FEED)
                assert {entry["kind"] for entry in await batches(line, last)} == kinds
        async with browser.line(FEED) as line:
            await line.send("client-feed.follow", {"after": 0, "call_id": wanted}, FEED)
            assert [entry["call_id"] for entry in await batches(line, last)] == [wanted, wanted]


async def test_secrets_are_masked_before_long_values_are_cut(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        echo(kit)
        browser = await kit.signed_in()
        secret = "tlk_" + "s" * 43
        async with browser.line(FEED) as line:
            await follow(line)
            # The secret lies across the place of the cut.
            await call(browser, {"a": "x" * 210 + secret, "b": "y" * 3000})
            entries = await batches(line, kit.exchange.views.last_entry())
        cut = entries[0]["input"]
        assert cut["bytes"] > 3000
        assert "sss" not in str(entries)


async def test_nothing_is_told_before_it_is_on_disk(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        echo(kit)
        browser = await kit.signed_in()
        async with browser.line() as line:
            told = await browser.subscribe(line, FEED)
            await follow(line)
            kit.exchange.disk_rests = True
            kit.exchange.call("com.example.echo/echo", {})
            assert kit.exchange.recorded(CallAccepted)
            # By then the round of batches has begun, and waits for the disk.
            begun = asyncio.Event()
            kit.exchange.feed.call_later(2 * live.BATCH_S, begun.set)
            await asyncio.wait_for(begun.wait(), 10)
            assert kit.edge.live._batch is None
            await line.send("pusher:ping")
            await line.next("pusher:pong")
            assert not [frame for frame in line.seen if frame["event"] == "feed.batch"]
            kit.exchange.disk_rests = False
            kit.exchange.store()
            assert (await line.next("feed.batch"))["after"] == told["last"]


async def test_a_page_that_does_not_read_is_told_to_resume_and_costs_nobody_else_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "ENOUGH_WAITING_BYTES", 1)
    async with console(tmp_path) as kit:
        echo(kit)
        browser = await kit.signed_in()
        async with browser.line(FEED) as slow, browser.line(FEED) as other:
            for line in (slow, other):
                await follow(line)
            page = next(page for page in kit.edge.live.pages.values() if page.session.socket_id == slow.socket_id)
            await call(browser, {})
            last = kit.exchange.views.last_entry()
            await batches(other, last)
            await batches(slow, last)
            # It has a position, and what comes after it is not kept any more.
            page.follower.at = 0
            page.follower.is_reading = False
            await call(browser, {})
            told = await slow.next("feed.behind")
            assert told["after"] == 0
            await batches(other, kit.exchange.views.last_entry())
            await slow.send("client-feed.follow", {"after": told["after"]}, FEED)
            assert [entry["n"] for entry in await batches(slow, last)][:3] == [1, 2, 3]


async def test_who_asks_for_entries_that_are_not_there_yet_is_told_where_the_record_ends(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        browser = await kit.signed_in()
        async with browser.line(FEED) as line:
            await line.send("client-feed.follow", {"after": 10**6}, FEED)
            last = kit.exchange.views.last_entry()
            assert await line.next("feed.behind") == {"after": last, "last": last}


@pytest.mark.parametrize(
    "data",
    [[], "x", {"after": -1}, {"after": "1"}, {"after": True}, {"kinds": "call.*"}, {"kinds": [1]},
     {"kinds": ["k"] * 65}, {"kinds": [""]}, {"call_id": 1}, {"call_id": "c" * 129}, {"output": 1}],
)  # fmt: skip
async def test_what_cannot_be_followed_is_refused_and_the_line_stays(tmp_path: Path, data: object) -> None:
    async with console(tmp_path) as kit:
        browser = await kit.signed_in()
        async with browser.line(FEED) as line:
            await line.send("client-feed.follow", data, FEED)
            assert (await line.next("pusher:error"))["code"] == 4300
            await line.send("pusher:ping")
            await line.next("pusher:pong")


async def test_the_registry_is_told_whole_and_then_by_its_changes(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        echo(kit)
        browser = await kit.signed_in()
        async with browser.line("private-registry") as line:
            first = await line.next("registry.changed")
            assert "com.example.echo" in [agent["agent_id"] for agent in first["agents"]]
            assert "com.example.echo/echo" in [tool["tool_id"] for tool in first["tools"]]
            agent = kit.exchange.attach("com.example.more", "more")
            second = await line.next("registry.changed")
            assert [one["agent_id"] for one in second["agents"]] == ["com.example.more"]
            agent.leave()
            third = await line.next("registry.changed")
            assert (third["gone"], third["tools_gone"]) == (["com.example.more"], [])


async def test_figures_are_told(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        browser = await kit.signed_in()
        async with browser.line("private-figures") as line:
            figures = await line.next("figures")
            assert figures["entries"] == kit.exchange.views.last_entry()
            assert (figures["pages"], figures["open_calls"]) == (1, 0)


async def test_a_line_needs_a_cookie_and_our_origin(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        browser = await kit.signed_in()
        assert await browser.refused_line(additional_headers={}) == 401
        assert await browser.refused_line(additional_headers={"cookie": f"trunkline_{kit.port}=guessed"}) == 401
        assert await browser.refused_line(origin="http://evil.example") == 403
        assert await browser.refused_line(origin=f"http://127.0.0.1:{kit.port + 1}") == 403
        assert await browser.refused_line(origin=None) == 401


async def test_a_subscription_needs_the_pages_key(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        browser, other = await kit.signed_in(), await kit.signed_in()
        async with browser.line() as line, other.line() as theirs:
            for auth in ("", "console:0", "nonsense"):
                await line.send("pusher:subscribe", {"channel": FEED, "auth": auth})
                assert (await line.next("pusher:subscription_error"))["status"] == 401
            # One for another connection, or made by another sign-in for this one.
            for signer, socket_id in ((browser, theirs.socket_id), (other, line.socket_id)):
                made = await signer.ask("POST", "/console/auth", {"socket_id": socket_id, "channel_name": FEED})
                await line.send("pusher:subscribe", {"channel": FEED, **made.json()})
                assert (await line.next("pusher:subscription_error"))["status"] == 401
            await line.send("pusher:subscribe", {"channel": "feed"})
            assert (await line.next("pusher:error"))["code"] == 4300


async def test_a_piece_of_output_is_told_once_however_many_wait_for_its_call(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        exchange = kit.exchange
        agent = exchange.attach("com.example.slow", "run")
        browser = await kit.signed_in()
        async with browser.line(FEED) as line:
            await follow(line)
            # Nobody: who asked was told the id and left, as with `wait: false` or after a question.
            asked = await browser.ask(
                "POST", "/v1/calls", {"tool_id": "com.example.slow/run", "input": {}, "wait": False}
            )
            assert asked.status_code == 202
            agent.show("stdout", {"text": "nobody waits"})
            told = await output(line)
            assert [(piece["call_id"], piece["data"]) for piece in told] == [
                (asked.json()["call_id"], {"text": "nobody waits"})
            ]
            # Two: the second asked with the key of the first.
            first, second = (exchange.call("com.example.slow/run", key="k") for _ in range(2))
            assert first.call_id == second.call_id
            agent.show("stdout", {"text": "two wait"})
            assert [piece["data"] for piece in await output(line)] == [{"text": "two wait"}]
            assert len(first.progress) == len(second.progress) == 1


async def test_output_that_comes_while_a_page_still_reads_the_record_is_told_with_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.edges.console.feed.MAX_READ", 1)
    async with console(tmp_path) as kit:
        agent = kit.exchange.attach("com.example.slow", "run")
        browser = await kit.signed_in()
        async with browser.line(FEED) as line:
            await follow(line, after=0)
            called = kit.exchange.call("com.example.slow/run")
            begun = kit.exchange.views.last_entry()
            agent.show("stdout", {"text": "while it reads"})
            at = 0
            while not (batch := await line.next("feed.batch"))["output"]:
                assert batch["after"] == at
                at = batch["upto"]
            assert at < begun <= batch["upto"] or begun <= at, "with its call, or after it"
            assert [(piece["call_id"], piece["data"]) for piece in batch["output"]] == [
                (called.call_id, {"text": "while it reads"})
            ]


async def test_signing_out_ends_the_lines_of_that_sign_in_only(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        browser, other = await kit.signed_in(), await kit.signed_in()
        async with browser.line(FEED) as line, browser.line() as second, other.line(FEED) as theirs:
            await browser.ask("DELETE", "/console/session")
            assert await line.closed() == 4009
            assert await second.closed() == 4009
            await theirs.send("pusher:ping")
            await theirs.next("pusher:pong")


async def test_only_so_many_pages_are_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_PAGES", 1)
    async with console(tmp_path) as kit:
        browser = await kit.signed_in()
        async with browser.line(), browser.line(welcome=False) as second:
            assert await second.closed() == 4100


async def test_pages_hear_that_the_exchange_stops(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        browser = await kit.signed_in()
        async with browser.line(FEED) as line:
            await follow(line)
            await kit.exchange.edges.stop()
            assert await line.closed() == 4101
        assert not kit.exchange.feed._watchers


async def test_a_defect_met_while_one_page_is_told_ends_that_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with console(tmp_path) as kit:
        echo(kit)
        browser = await kit.signed_in()
        async with browser.line(FEED) as broken, browser.line(FEED, "private-figures") as other:
            await follow(other)
            await follow(broken)
            page = kit.edge.live.pages[broken.socket_id]

            def fail(frame: bytes) -> None:
                raise RuntimeError(len(frame))

            monkeypatch.setattr(page.session, "say_frame", fail)
            for n in range(3):
                last = kit.exchange.views.last_entry()
                await call(browser, {"n": n})
                await batches(other, last + 2)
            assert await broken.closed() == 4200
        assert "defect" in [notice.code for notice in kit.exchange.recorded(Noticed)]


async def test_entries_that_were_not_watched_are_read_from_the_record(tmp_path: Path) -> None:
    async with console(tmp_path) as kit:
        echo(kit)
        browser = await kit.signed_in()
        async with browser.line(FEED) as line:
            await follow(line)
            await call(browser, {"n": 1})
            last = kit.exchange.views.last_entry()
            assert len(await batches(line, last)) == 2
            # A defect elsewhere took the watcher away.
            kit.exchange.feed._watchers.clear()
            await call(browser, {"n": 2})
            told = await line.next("feed.behind")
            assert told["after"] == last
            await follow(line, after=last)
            assert [entry["n"] for entry in await batches(line, last + 2)] == [last + 1, last + 2]
