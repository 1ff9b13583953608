"""Overload and slowness, each as a function with its figures: ``tests/load`` runs small ones, ``tools/soak.py`` large.

None of them judges a time: what is counted is who was served, what was answered, and what memory it took.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import struct
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.load.guests import Guest, ask, join, percentile, rss, sessions, wait_sessions, with_exchange
from tests.running import Running, wait_until
from trunkline.ledger.verify import verify

MIB = 1_048_576
READ_ONLY: dict[str, Any] = {"side_effects": False}


class Served(NamedTuple):
    """What came of a load."""

    calls: int
    p50_ms: float
    p99_ms: float
    rss_mib: float
    # After the first third, and since then.
    grown: float

    def __str__(self) -> str:
        return f"p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms, {self.rss_mib:.0f} MiB, {self.grown:+.1%}"


def _served(callers: list[Guest], calls: int, before: int, after: int) -> Served:
    latencies = [taken for caller in callers for taken in caller.latencies]
    assert len(latencies) == calls
    return Served(
        calls, percentile(latencies, 0.5), percentile(latencies, 0.99), after / MIB, (after - before) / before
    )


def steady(home: Path, *, agents: int, calls_a_second: int, seconds: float) -> Served:
    """P-C1: a tenth of the agents works, the others call, evenly; every call is answered once, as it was asked."""

    async def load(exchange: Running) -> Served:
        workers = await join(exchange, "worker", max(2, agents // 10), **READ_ONLY)
        callers = await join(exchange, "caller", agents - len(workers))
        interval_s = len(callers) / calls_a_second
        each = max(3, round(seconds / interval_s))
        third = each // 3

        async def part(first: int, calls: int) -> None:
            async def one(number: int, caller: Guest) -> None:
                await asyncio.sleep(interval_s * number / len(callers))
                await ask(caller, workers, calls, interval_s, first)

            await asyncio.gather(*(one(number, caller) for number, caller in enumerate(callers)))

        await part(0, third)
        before = rss(exchange)
        await part(third, each - third)
        calls = each * len(callers)
        ran = sum((worker.ran for worker in workers), start=type(workers[0].ran)())
        assert ran.total() == len(ran) == calls, "a call ran twice, or not at all"
        served = _served(callers, calls, before, rss(exchange))
        for guest in (*workers, *callers):
            guest.close()
        wait_until(lambda: not exchange.request("GET", "/v1/status")[1]["backlog"], "everything on the disk")
        settled = [entry["call_id"] for entry in exchange.entries(kind="call.settled")]
        assert len(settled) == len(set(settled)) == calls, "calls are missing on record, or twice"
        return served

    served: Served = with_exchange(home, load)
    verify(home / "ledger.sqlite")
    return served


def herd(home: Path, agents: int) -> int:
    """P-C2: all connect before anybody is answered, greet, and are welcomed."""

    async def load(exchange: Running) -> int:
        tokens = await asyncio.to_thread(lambda: [exchange.new_token(f"com.test.h{n}") for n in range(agents)])
        found = [Guest(f"com.test.h{number}", token) for number, token in enumerate(tokens)]
        loop = asyncio.get_running_loop()
        # The exchange is held, so that all of them stand in the queue at once.
        assert exchange.process is not None
        process = psutil.Process(exchange.process.pid)
        process.suspend()
        try:
            sockets = []
            for _ in found:
                one = socket.socket(socket.AF_UNIX)
                one.setblocking(False)
                one.connect(exchange.ready["socket"])
                sockets.append(one)
        finally:
            process.resume()
        for guest, one in zip(found, sockets, strict=True):
            await loop.create_unix_connection(lambda guest=guest: guest, sock=one)  # type: ignore[misc]
        await asyncio.gather(*(guest.greet() for guest in found))
        status = (await asyncio.to_thread(exchange.request, "GET", "/v1/status"))[1]
        assert status["sessions"] >= agents
        for guest in found:
            guest.close()
        return agents

    outcome: int = with_exchange(home, load)
    return outcome


def slow(home: Path, *, strangers: int, clients: int, calls: int) -> int:
    """P-C3: strangers who send a byte now and then are ended all the same; others are served meanwhile."""
    frame = json.dumps({"v": 1, "type": "agent.hello", "id": "1", "ts": "2026-01-16T12:00:00Z", "payload": {}}).encode()
    head = b"POST /v1/calls HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"x-a: b\r\n" * 1000

    async def trickle(data: bytes, open_: Any) -> int:
        reader, writer = await open_
        sent = 0
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(data[sent : sent + 1])
                await writer.drain()
                sent += 1
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.25):
                        await reader.read(1000)
        writer.close()
        return sent

    async def load(exchange: Running) -> int:
        at_rest = await asyncio.to_thread(sessions, exchange)
        (worker,) = await join(exchange, "worker", 1, **READ_ONLY)
        (caller,) = await join(exchange, "caller", 1)
        host, _, port = exchange.ready["http"].removeprefix("http://").rpartition(":")
        wire = struct.pack(">I", len(frame)) + frame
        tasks = [
            *(
                asyncio.create_task(trickle(wire, asyncio.open_unix_connection(exchange.ready["socket"])))
                for _ in range(strangers)
            ),
            *(asyncio.create_task(trickle(head, asyncio.open_connection(host, int(port)))) for _ in range(clients)),
        ]
        await ask(caller, [worker], calls)
        early = sum(task.done() for task in tasks)
        assert early < len(tasks), "all were gone before anybody else was served"
        async with asyncio.timeout(40):
            sent = await asyncio.gather(*tasks)
        # Nobody got to the end of what he had to say, and everybody was still saying it.
        assert all(3 <= count < len(wire) for count in sent), sorted(sent)
        await ask(caller, [worker], 10, first=calls)
        for guest in (worker, caller):
            guest.close()
        await asyncio.to_thread(wait_sessions, exchange, at_rest)
        return len(tasks)

    outcome: int = with_exchange(home, load)
    return outcome


def stuck(home: Path, *, readers: int, calls: int) -> Served:
    """P-C4: agents that do not read are ended with their calls, hold no more than their share, and harm nobody."""
    size = 900_000

    async def load(exchange: Running) -> Served:
        at_rest = await asyncio.to_thread(sessions, exchange)
        (worker,) = await join(exchange, "worker", 1, **READ_ONLY)
        deaf = await join(exchange, "deaf", readers)
        for guest in deaf:
            await guest.offer()
            guest._transport.pause_reading()
        callers = await join(exchange, "caller", readers)
        before = rss(exchange)
        # 8 MiB may wait for one reader; two more are asked for, and held by the hub.
        each = 8 * MIB // size + 2
        text = "x" * size
        asked = [
            asyncio.create_task(caller.call(f"{guest.agent_id}/echo", {"text": text}))
            for caller, guest in zip(callers, deaf, strict=True)
            for _ in range(each)
        ]
        (witness,) = await join(exchange, "witness", 1)
        await ask(witness, [worker], calls)
        highest = before
        async with asyncio.timeout(60):
            while not all(guest.is_lost.done() for guest in deaf):
                highest = max(highest, rss(exchange))
                for guest in deaf:
                    # One whose socket is not read does not notice that it is closed.
                    if not guest.is_lost.done() and _is_cut(guest):
                        guest._transport.abort()
                await ask(witness, [worker], 5, first=10_000)
                await asyncio.sleep(0.05)
        for guest in deaf:
            guest.close()
        results = await asyncio.gather(*asked)
        assert {result["status"] for result in results} == {"failed"}
        codes = {result["error"]["code"] for result in results}
        assert codes <= {"tool.disconnected", "agent.lost", "tool.unavailable"}, codes
        # Once in its buffer, once in the hub until the call is settled, once on its way to the disk.
        share = readers * each * size * 3
        assert highest - before < share + 64 * MIB, f"{(highest - before) / MIB:.0f} MiB for {share / MIB:.0f}"
        served = _served([witness], len(witness.latencies), before, highest)
        for guest in (worker, witness, *callers):
            guest.close()
        await asyncio.to_thread(wait_sessions, exchange, at_rest)
        return served

    config = "\n[limits]\nopen_calls = 0\nopen_bytes = 0\n"
    served: Served = with_exchange(home, load, _with(config))
    return served


def _is_cut(guest: Guest) -> bool:
    """Whether the other side has closed: the kernel says so without anything being read."""
    import select

    poll = select.poll()
    poll.register(guest._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def _with(more: str) -> str:
    from tests.load.guests import CONFIG

    return CONFIG + more


def noisy(home: Path, *, normals: int, calls: int) -> tuple[int, int]:
    """P-C5: one caller floods; those who call normally are all served. Their calls, and those of the flood refused."""

    async def load(exchange: Running) -> tuple[int, int]:
        workers = await join(exchange, "worker", 4, **READ_ONLY)
        (loud,) = await join(exchange, "loud", 1)
        callers = await join(exchange, "caller", normals)
        stop = asyncio.Event()
        refused = 0

        async def flood() -> None:
            nonlocal refused
            while not stop.is_set():
                asked = [loud.call(f"{workers[0].agent_id}/echo", {"n": n}) for n in range(200)]
                for result in await asyncio.gather(*asked):
                    error = result.get("error")
                    if error is not None:
                        assert error["code"] in {"tool.throttled", "limit.rate", "protocol.throttled"}, error
                        assert error["details"]["retry_after_ms"] > 0
                        refused += 1

        flooding = asyncio.create_task(flood())
        await asyncio.gather(*(ask(caller, workers, calls, 0.02) for caller in callers))
        stop.set()
        await flooding
        for guest in (loud, *workers, *callers):
            guest.close()
        return normals * calls, refused

    outcome: tuple[int, int] = with_exchange(home, load, _with("\n[limits]\ncalls_per_s = 100\n"))
    return outcome


def oversize(home: Path, connections: int) -> int:
    """P-D2: a length of 2^32-1 and as many bytes as are taken: ended at once, nothing kept."""

    async def load(exchange: Running) -> int:
        (worker,) = await join(exchange, "worker", 1, **READ_ONLY)
        (caller,) = await join(exchange, "caller", 1)
        before = rss(exchange)
        junk = b"\xff\xff\xff\xff" + b"x" * MIB
        for number in range(connections):
            known = number % 2 == 0
            if known:
                (guest,) = await join(exchange, f"big{number}-", 1)
                guest._transport.write(junk)
                await asyncio.wait_for(guest.is_lost, 20)
            else:
                _, writer = await asyncio.open_unix_connection(exchange.ready["socket"])
                with contextlib.suppress(ConnectionError):
                    writer.write(junk)
                    await writer.drain()
                writer.close()
        await ask(caller, [worker], 20)
        grown = rss(exchange) - before
        assert grown < 16 * MIB, f"{grown / MIB:.1f} MiB"
        for guest in (worker, caller):
            guest.close()
        notices = exchange.entries(kind="notice")
        large = [entry for entry in notices if entry["code"] == "protocol.frame_too_large"]
        assert len(large) >= connections // 2
        assert all("4294967295" in entry["detail"] and "xxx" not in json.dumps(entry) for entry in large)
        return connections

    outcome: int = with_exchange(home, load)
    return outcome


def heavy(home: Path, *, frames: int) -> int:
    """P-C7, P-C9: frames made to be slow, and tools made to be heavy, by one agent; another is served meanwhile."""
    depth = b"[" * 60 + b"]" * 60
    bodies = [
        b'{"a":[' + b",".join([b"1.5"] * 1_000_000) + b"]}",
        b'{"a":[' + b",".join([b"{}"] * 190_000) + b"]}",
        b'{"a":[' + b",".join([depth] * 3_000) + b"]}",
        b'{"a":"' + b"\\u0041" * 600_000 + b'"}',
        b"{" + b",".join(b'"k%d":1' % n for n in range(300_000)) + b"}",
        b'{"a":"' + b"x" * 4_000_000 + b'"}',
    ]
    patterns = [{"pattern": f"^.{{1,{900 - n}}}$"} for n in range(32)]

    async def load(exchange: Running) -> int:
        workers = await join(exchange, "worker", 2, **READ_ONLY)
        (mean,) = await join(exchange, "mean", 1)
        (caller,) = await join(exchange, "caller", 1)
        before = rss(exchange)
        asking = asyncio.create_task(ask(caller, workers, 100, 0.02))
        for number in range(frames):
            body = bodies[number % len(bodies)]
            mean.send_frame(
                b'{"v":1,"type":"agent.later","id":"1","ts":"2026-01-16T12:00:00Z","payload":' + body + b"}"
            )
        tools = [
            {"tool_id": f"{mean.agent_id}/t{n}", "name": f"t{n}", "description": "A tool.", "input_schema": schema}
            for n, schema in enumerate([{"allOf": patterns}, {"pattern": "^.{1,900}$"}] * 500)
        ]
        mean.send("agent.tools.register", {"tools": tools})
        answer = (await mean.hear("core.tools.registered"))["payload"]
        assert len(answer["registered"]) == 25
        codes = {rejection["error"]["code"] for rejection in answer["rejected"]}
        assert codes <= {"tool.schema_invalid", "tool.schema_too_large"}, codes
        assert len(answer["rejected"]) == len(tools) - 25
        assert await asking == 100
        grown = rss(exchange) - before
        assert grown < 200 * MIB, f"{grown / MIB:.0f} MiB"
        for guest in (mean, caller, *workers):
            guest.close()
        return frames

    outcome: int = with_exchange(home, load)
    return outcome


class Relay(Guest):
    """An agent whose tool calls the tool of the next."""

    next_id = ""

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "core.tool.call":
            self._passing = asyncio.create_task(self._pass_on(message))
        else:
            super()._take(message)

    async def _pass_on(self, message: dict[str, Any]) -> None:
        call = message["payload"]
        self.ran[call["call_id"]] += 1
        below = await self.call(f"{self.next_id}/echo", call["input"])
        output = below.get("output") or {"refused": below["error"]["code"]}
        echoed = {name: message[name] for name in ("request_id", "correlation_id") if name in message}
        result = {"call_id": call["call_id"], "status": "succeeded", "output": {"below": output}}
        self.send("agent.tool.result", result, **echoed)


def cascade(home: Path, *, agents: int, is_ring: bool) -> tuple[int, str]:
    """P-C11: each agent calls the next. How many calls ran, and why the first that did not was refused."""

    async def load(exchange: Running) -> tuple[int, str]:
        tokens = await asyncio.to_thread(lambda: [exchange.new_token(f"com.test.r{n}") for n in range(agents)])
        relays = [Relay(f"com.test.r{number}", token) for number, token in enumerate(tokens)]
        for number, relay in enumerate(relays):
            relay.next_id = relays[(number + 1) % agents].agent_id if is_ring or number + 1 < agents else "com.test.end"
            await relay.connect(exchange.ready["socket"])
            await relay.offer(**READ_ONLY)
        (caller,) = await join(exchange, "caller", 1)
        result = await caller.call(f"{relays[0].agent_id}/echo", {})
        output = result["output"]
        depth = 0
        while "below" in output:
            output = output["below"]
            depth += 1
        assert sum(relay.ran.total() for relay in relays) == depth
        for guest in (caller, *relays):
            guest.close()
        return depth, output["refused"]

    outcome: tuple[int, str] = with_exchange(home, load)
    return outcome


class Mute(Guest):
    """An agent that takes calls and never answers one."""

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] != "core.tool.call":
            super()._take(message)


def greedy(home: Path, *, requests: int, contexts: int) -> tuple[int, int]:
    """P-C12: one token and one agent take all they get; the operator and others are served meanwhile.

    How many requests of the token were let wait, and how many calls with a context of 3.9 MB.
    """
    context = {"x": "y" * 3_900_000}

    async def load(exchange: Running) -> tuple[int, int]:
        tokens = await asyncio.to_thread(
            lambda: [exchange.new_token(name) for name in ("com.test.mute", "com.test.big")]
        )
        mute, big = Mute("com.test.mute", tokens[0]), Guest("com.test.big", tokens[1])
        for guest in (mute, big):
            await guest.connect(exchange.ready["socket"])
        await mute.offer(**READ_ONLY)
        workers = await join(exchange, "worker", 1, **READ_ONLY)
        (caller,) = await join(exchange, "caller", 1)
        greedy_token = await asyncio.to_thread(exchange.new_token, "greedy", "http")
        host, _, port = exchange.ready["http"].removeprefix("http://").rpartition(":")
        body = json.dumps({"tool_id": "com.test.mute/echo", "input": {}}).encode()
        head = (
            f"POST /v1/calls HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {greedy_token}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        before = rss(exchange)
        held = []
        for _ in range(requests):
            held.append(await asyncio.open_connection(host, int(port)))
            held[-1][1].write(head.encode() + body)
        answers = {number: asyncio.create_task(reader.read(12)) for number, (reader, _) in enumerate(held)}
        # Who is served meanwhile; by then whoever is refused has heard it.
        await ask(caller, workers, 100, 0.01)
        assert (await asyncio.to_thread(exchange.request, "GET", "/v1/status"))[0] == 200
        calls = [asyncio.create_task(_with_context(big, context, number)) for number in range(contexts)]
        # 64 MiB have room for 17; all others hear no.
        for refusal in itertools.islice(asyncio.as_completed(calls, timeout=60), contexts - 17):
            await refusal
        await ask(caller, workers, 100, 0.01)
        status, told = await asyncio.to_thread(exchange.request, "GET", "/v1/status")
        assert status == 200
        refused = sum(task.done() for task in answers.values())
        assert {task.result() for task in answers.values() if task.done()} <= {b"HTTP/1.1 429", b"HTTP/1.1 503", b""}
        codes = [task.result() for task in calls if task.done()]
        assert set(codes) == {"protocol.throttled"}, told
        grown = rss(exchange) - before
        assert grown < 300 * MIB, f"{grown / MIB:.0f} MiB"
        for task in (*answers.values(), *calls):
            task.cancel()
        for _, writer in held:
            writer.transport.abort()
        for guest in (mute, big, caller, *workers):
            guest.close()
        return requests - refused, contexts - len(codes)

    outcome: tuple[int, int] = with_exchange(home, load)
    return outcome


async def _with_context(guest: Guest, context: dict[str, Any], number: int) -> str:
    """Call one who never answers; the code of the refusal, if it comes to that."""
    result = await guest.call("com.test.mute/echo", {"n": number}, context=context)
    return str(result["error"]["code"])
