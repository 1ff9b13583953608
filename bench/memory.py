"""What one more agent and one more call cost in the exchange's process, and whether it grows as calls go by.

Memory is what the kernel counts as resident. It is compared between two sizes, both above zero, so that what is used
once (code, pools, the first page of everything) is not counted.
"""

from __future__ import annotations

from typing import Final

from bench.children import Children, rss_bytes, wait_steady_rss
from bench.contenders import attach_ends, start_ends
from bench.exchange import Exchange
from bench.loads import SMALL, Attach, Attached, Done, Identity, Load, Measured, Open, Run
from bench.plan import USUAL, Stage
from bench.results import Flat, Memory

# An agent takes 256 calls at once; a few less, so that none waits in a queue.
CALLS_AN_AGENT: Final = 250


def measure(stage: Stage) -> Memory:
    """An idle connection, the same with a tool, a call in flight."""
    idle, empty = _connections(stage, "idle", None)
    stage.say(f"an idle connection: {idle / 1024:.1f} KiB")
    with_tool, _ = _connections(stage, "offering", "echo")
    stage.say(f"a connection with a tool: {with_tool / 1024:.1f} KiB")
    call = _open_calls(stage)
    stage.say(f"a call in flight: {call / 1024:.1f} KiB")
    return Memory(idle, with_tool, call, empty)


def _connections(stage: Stage, name: str, tool: str | None) -> tuple[float, int]:
    few, many = stage.plan.idle_connections
    with Children(stage.room(f"memory-{name}")) as children:
        exchange = Exchange(children, children.folder / "home")
        empty = wait_steady_rss(exchange.pid)
        provider, _ = start_ends(children, name)
        identities = _identities(exchange, many)
        provider.ask(Attach(exchange.socket, identities[:few], tool), Attached)
        exchange.wait_quiet()
        before = wait_steady_rss(exchange.pid)
        provider.ask(Attach(exchange.socket, identities[few:], tool), Attached)
        exchange.wait_quiet()
        return (wait_steady_rss(exchange.pid) - before) / (many - few), empty


def _open_calls(stage: Stage) -> float:
    few, many = stage.plan.open_calls
    with Children(stage.room("memory-calls")) as children:
        exchange = Exchange(children, children.folder / "home")
        provider, caller = start_ends(children, "calls")
        providers = _identities(exchange, -(-many // CALLS_AN_AGENT))
        provider.ask(Attach(exchange.socket, providers, "echo", hold=True), Attached)
        caller.ask(Attach(exchange.socket, exchange.identities("bench.caller")), Attached)
        tools = tuple(f"{one.agent}/echo" for one in providers)
        caller.ask(Open(Load(few, SMALL), tools), Done)
        exchange.wait_open_calls(few)
        exchange.wait_quiet()
        before = wait_steady_rss(exchange.pid)
        caller.ask(Open(Load(many - few, SMALL), tools), Done)
        exchange.wait_open_calls(many)
        exchange.wait_quiet()
        after = wait_steady_rss(exchange.pid)
        # Nothing here will ever be answered: a clean stop would wait for it.
        exchange.child.process.kill()
        return (after - before) / (many - few)


def measure_flat(stage: Stage) -> Flat:
    """Read-only calls, one after the other, and the memory ten times on the way."""
    total = stage.plan.flat_calls
    with Children(stage.room("flat")) as children:
        exchange = Exchange(children, children.folder / "home")
        running = attach_ends(children, exchange, "flat", side_effects=False)
        done = 0
        calls: list[int] = []
        rss: list[int] = []
        while done < total:
            measured = running.caller.ask(Run(USUAL, 0.0, 1.0, running.tools), Measured)
            done += measured.total
            if done >= total * (len(calls) + 1) / 10:
                exchange.wait_quiet()
                calls.append(done)
                rss.append(rss_bytes(exchange.pid))
                stage.say(f"{done:,} calls: {rss[-1] / 1024 / 1024:.1f} MiB")
        return Flat(tuple(calls), tuple(rss))


def _identities(exchange: Exchange, count: int) -> tuple[Identity, ...]:
    return exchange.identities(*(f"bench.agent-{number}" for number in range(count)))
