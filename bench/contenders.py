"""Who is measured: how each is brought up, in processes of its own, until its caller takes loads.

Owns the two lists, which are the order of the rows of their tables. It does not measure.
"""

from __future__ import annotations

import shutil
import socket
import sysconfig
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from bench.children import START_S, Child, Children, Failed, child_of
from bench.exchange import Exchange
from bench.loads import Attach, Attached, Done, Target

_POLL_S: Final = 0.02


class Running(Struct):
    """A contender that is up."""

    caller: Child
    # The processes that a call goes through, by what they are.
    pids: dict[str, int]
    # What its caller calls.
    tools: tuple[str, ...] = ("bench.provider/echo",)
    # Waits until it has nothing left to do; for how long that was.
    wait_quiet: Callable[[], float] = lambda: 0.0


class Contender(Struct, frozen=True):
    """One row of the table."""

    name: str
    title: str
    start: Callable[[Children], Running]


def start_ends(children: Children, name: str) -> tuple[Child, Child]:
    """A provider and a caller that are not connected yet."""
    provider = children.ours(f"{name}-provider", "bench.ends", "provider")
    caller = children.ours(f"{name}-caller", "bench.ends", "caller")
    for end in (provider, caller):
        end.wait(Done)
    return provider, caller


def start_relay(children: Children) -> Running:
    """The bare relay between the raw ends."""
    path = str(children.folder / "relay.sock")
    relay = children.ours("relay", "bench.relay", path)
    provider, caller = start_ends(children, "relay")
    relay.wait(Done)
    # The relay takes the first to connect for the provider.
    provider.ask(Attach(path), Attached)
    caller.ask(Attach(path), Attached)
    return Running(caller, {"relay": relay.pid, "caller": caller.pid, "provider": provider.pid})


def start_trunkline(children: Children, *, side_effects: bool) -> Running:
    """A new exchange between the raw ends."""
    name = "durable" if side_effects else "read-only"
    exchange = Exchange(children, children.folder / name, name)
    return attach_ends(children, exchange, name, side_effects=side_effects)


def attach_ends(children: Children, exchange: Exchange, name: str, *, side_effects: bool) -> Running:
    """The raw ends at an exchange that is up."""
    provider, caller = start_ends(children, name)
    agent, calling = f"bench.{name}", f"bench.{name}.caller"
    offer = Attach(exchange.socket, exchange.identities(agent), tool="echo", side_effects=side_effects)
    provider.ask(offer, Attached)
    caller.ask(Attach(exchange.socket, exchange.identities(calling)), Attached)
    pids = {"exchange": exchange.pid, "writer": exchange.writer_pid, "caller": caller.pid, "provider": provider.pid}
    return Running(caller, pids, (f"{agent}/echo",), exchange.wait_quiet)


def start_http_caller(children: Children, name: str, target: Target) -> Child:
    """A caller over HTTP that knows whom to call."""
    caller = children.ours(f"{name}-caller", "bench.http_caller")
    caller.wait(Done)
    caller.ask(target, Done)
    return caller


def start_bare_answer(children: Children) -> Running:
    """The HTTP server of an exchange with nothing behind it."""
    port = free_port()
    server = children.ours("bare-answer", "bench.bare_answer", str(port))
    server.wait(Done)
    # Nobody looks at the token, but it is read: as long as those of an exchange.
    caller = start_http_caller(children, "bare-answer", Target(f"127.0.0.1:{port}", f"tlk_{'0' * 43}"))
    return Running(caller, {"server": server.pid, "caller": caller.pid})


def start_http(children: Children, *, side_effects: bool) -> Running:
    """A new exchange between a caller over HTTP and the raw provider on the socket."""
    name = "http-durable" if side_effects else "http-read-only"
    agent = f"bench.{name}"
    exchange = Exchange(children, children.folder / name, name)
    provider = children.ours(f"{name}-provider", "bench.ends", "provider")
    provider.wait(Done)
    provider.ask(Attach(exchange.socket, exchange.identities(agent), tool="echo", side_effects=side_effects), Attached)
    caller = start_http_caller(children, name, Target(exchange.address, exchange.http_token(f"{agent}.caller")))
    pids = {"exchange": exchange.pid, "writer": exchange.writer_pid, "caller": caller.pid, "provider": provider.pid}
    return Running(caller, pids, (f"{agent}/echo",), exchange.wait_quiet)


def start_sdk(children: Children) -> Running:
    """A new exchange between two agents written with the SDK."""
    exchange = Exchange(children, children.folder / "sdk", "sdk")
    ends = []
    for role, agent in (("provider", "bench.sdk"), ("caller", "bench.sdk.caller")):
        end = children.ours(f"sdk-{role}", "bench.peers.sdk_ends", role)
        end.wait(Done)
        end.ask(Attach(exchange.socket, exchange.identities(agent)), Attached)
        ends.append(end)
    provider, caller = ends
    pids = {"exchange": exchange.pid, "writer": exchange.writer_pid, "caller": caller.pid, "provider": provider.pid}
    return Running(caller, pids, wait_quiet=exchange.wait_quiet)


def start_nats(children: Children) -> Running:
    """A server between requester and responder."""
    port = free_port()
    server = children.start("nats-server", _program("nats-server"), "--addr", "127.0.0.1", "--port", str(port))
    _wait_listening(server, port)
    address = f"nats://127.0.0.1:{port}"
    provider = children.ours("nats-provider", "bench.peers.nats_ends", "provider", address)
    provider.wait(Done)
    caller = children.ours("nats-caller", "bench.peers.nats_ends", "caller", address)
    caller.wait(Done)
    return Running(caller, {"nats-server": server.pid, "caller": caller.pid, "provider": provider.pid})


def start_grpc(children: Children) -> Running:
    """A server and its client."""
    path = str(children.folder / "grpc.sock")
    provider = children.ours("grpc-provider", "bench.peers.grpc_ends", "provider", path)
    provider.wait(Done)
    caller = children.ours("grpc-caller", "bench.peers.grpc_ends", "caller", path)
    caller.wait(Done)
    return Running(caller, {"caller": caller.pid, "provider": provider.pid})


def start_mcp_stdio(children: Children) -> Running:
    """A client that starts its server."""
    caller = children.ours("mcp-stdio", "bench.peers.mcp_ends", "stdio-caller")
    caller.wait(Done)
    return Running(caller, {"caller": caller.pid, "provider": child_of(caller.pid, "stdio-server")})


def start_mcp_http(children: Children) -> Running:
    """A server on loopback and its client."""
    port = free_port()
    server = children.ours("mcp-http-server", "bench.peers.mcp_ends", "http-server", str(port))
    server.wait(Done)
    caller = children.ours("mcp-http", "bench.peers.mcp_ends", "http-caller", f"http://127.0.0.1:{port}/mcp")
    caller.wait(Done)
    return Running(caller, {"caller": caller.pid, "provider": server.pid})


def start_read_only(children: Children) -> Running:
    """A new exchange, and a tool without side effects."""
    return start_trunkline(children, side_effects=False)


def start_durable(children: Children) -> Running:
    """A new exchange, and a tool with side effects."""
    return start_trunkline(children, side_effects=True)


def start_http_read_only(children: Children) -> Running:
    """A new exchange that is called over HTTP, and a tool without side effects."""
    return start_http(children, side_effects=False)


def start_http_durable(children: Children) -> Running:
    """A new exchange that is called over HTTP, and a tool with side effects."""
    return start_http(children, side_effects=True)


# What each does with a request: docs/performance.md, "What is compared".
RELAY: Final = Contender("relay", "Bare relay", start_relay)
MCP_HTTP: Final = Contender("mcp-http", "MCP SDK, streamable HTTP", start_mcp_http)
CONTENDERS: Final = (
    RELAY,
    Contender("read-only", "Trunkline, read-only call", start_read_only),
    Contender("durable", "Trunkline, call with side effects", start_durable),
    Contender("sdk", "Trunkline, read-only call, its SDK at both ends", start_sdk),
    Contender("nats", "NATS request-reply", start_nats),
    Contender("grpc", "grpc.aio", start_grpc),
    Contender("mcp-stdio", "MCP SDK, stdio", start_mcp_stdio),
    MCP_HTTP,
)
# Those of the table over HTTP, whose 1.00 is the bare answer.
BARE_ANSWER: Final = Contender("bare-answer", "Bare answer over HTTP", start_bare_answer)
HTTP_CONTENDERS: Final = (
    BARE_ANSWER,
    Contender("http-read-only", "Trunkline over HTTP, read-only call", start_http_read_only),
    Contender("http-durable", "Trunkline over HTTP, call with side effects", start_http_durable),
    MCP_HTTP,
)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _program(name: str) -> str:
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        raise Failed(f"{name} is not installed: `make bench` installs it")
    return found


def _wait_listening(child: Child, port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if child.has_ended() or time.monotonic() > deadline:
            raise child.failure("it does not listen")
        time.sleep(_POLL_S)
