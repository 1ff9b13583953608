"""``edges.mounts``: a mounted server as an agent, in an exchange in memory; a test speaks for the server."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from msgspec import Raw, structs

from tests.unit.edges.mounts.kit import ECHO, Programs, Server, mounted
from trunkline.config import Config, McpServer
from trunkline.edges.framing.lines import MAX_LINE_BYTES
from trunkline.edges.mounts import mount as module
from trunkline.edges.mounts.edge import MOUNTS
from trunkline.effects import Answer
from trunkline.entries import AgentAdmitted, AgentHealthChanged, CallSettled, ToolPinned
from trunkline.model import Status
from trunkline.testing.memory import MemoryExchange


def answers(exchange: MemoryExchange) -> list[Answer]:
    return [effect for effect in exchange.effects if isinstance(effect, Answer)]


async def test_a_server_comes_in_when_its_tools_are_known_and_not_before() -> None:
    exchange, server = await mounted()
    server.begin()
    assert exchange.views.agent("mcp.x") is None
    assert exchange.edges.status()["edges"]["mounts"] == {"state": "on", "servers": 1, "ready": 0}
    server.answers(server.one(), {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}})
    server.answers(server.one(), {"tools": [ECHO]})
    [admitted] = exchange.recorded(AgentAdmitted)
    assert (admitted.agent_id, admitted.edge, admitted.credential) == ("mcp.x", "mcp", "run:run-1")
    assert [pin.definition.tool_id for pin in exchange.recorded(ToolPinned)] == ["mcp.x/echo"]
    assert exchange.edges.status()["edges"]["mounts"]["ready"] == 1


async def test_a_call_is_a_request_and_its_result_the_output() -> None:
    exchange, server = await mounted()
    server.comes_in(ECHO)
    exchange.call("mcp.x/echo", Raw(b'{"a": 1}'))
    request = server.one()
    assert (request["method"], request["params"]["name"], request["params"]["arguments"]) == (
        "tools/call",
        "echo",
        {"a": 1},
    )
    server.says(b'{"jsonrpc":"2.0","id":%d,"result":{"content": [ ],"x":1}}' % request["id"])
    [settled] = exchange.recorded(CallSettled)
    assert (settled.status, bytes(settled.output or b"")) == (Status.SUCCEEDED, b'{"content": [ ],"x":1}')


async def test_what_a_server_that_ends_had_not_finished_is_unknown_and_it_comes_back() -> None:
    exchange, server = await mounted()
    server.comes_in(ECHO)
    exchange.call("mcp.x/echo", Raw(b"{}"))
    server.end()
    [settled] = exchange.recorded(CallSettled)
    assert settled.status is Status.UNKNOWN
    assert exchange.views.agent("mcp.x") is None
    server.comes_in(ECHO)
    assert exchange.views.agent("mcp.x") is not None
    exchange.call("mcp.x/echo", Raw(b"{}"))
    server.answers(server.one(), {"content": []})
    assert exchange.recorded(CallSettled)[-1].status is Status.SUCCEEDED


async def test_a_call_that_only_reads_is_sent_again_to_the_next_run() -> None:
    exchange, server = await mounted(McpServer(id="x", command=("x",), trust_annotations=True))
    tool = {**ECHO, "annotations": {"readOnlyHint": True}}
    server.comes_in(tool)
    exchange.call("mcp.x/echo", Raw(b"{}"))
    server.end()
    assert exchange.recorded(CallSettled) == []
    server.comes_in(tool)
    exchange.advance(3)
    server.answers(server.one(), {"content": []})
    [settled] = exchange.recorded(CallSettled)
    assert settled.status is Status.SUCCEEDED


async def test_a_changed_definition_is_held_back_also_while_it_runs() -> None:
    exchange, server = await mounted()
    server.comes_in(ECHO)
    server.says({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    exchange.advance(2)
    server.answers(server.one(), {"tools": [{**ECHO, "description": "Echo, and more."}]})
    tool = exchange.views.tool("mcp.x/echo")
    assert tool is not None
    assert tool.status == "suspended"
    [question] = exchange.views.questions()
    assert question.subject == "definition"


async def test_a_server_answers_no_call_of_another() -> None:
    servers = [McpServer(id=name, command=(name,)) for name in ("x", "y")]
    exchange, x = await mounted(*servers)
    y = Server(exchange, x._programs, "y")
    x.comes_in(ECHO)
    y.comes_in(ECHO)
    for server in (x, y):
        server.read()
    exchange.call("mcp.x/echo", Raw(b"{}"))
    asked = x.one()
    for message in ({"result": {"content": []}}, {"error": {"code": 1, "message": "no"}}):
        y.says({"jsonrpc": "2.0", "id": asked["id"], **message})
    y.says({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": asked["id"]}})
    assert exchange.recorded(CallSettled) == []
    x.answers(asked, {"content": []})
    assert exchange.recorded(CallSettled)[-1].status is Status.SUCCEEDED


CHANGES: dict[str, object] = {
    "description": "Echo, and more.",
    "title": "Other",
    "inputSchema": {"type": "object", "properties": {"a": {"description": "other"}}},
    "outputSchema": {"type": "object", "description": "other"},
    "annotations": {"readOnlyHint": True},
    "annotations ": {"title": "Other", "unheardOf": True},
    "_meta": {"note": "other"},
    "icons": [{"src": "https://other.example/"}],
    "execution": {"taskSupport": "required"},
    "title ": "T" * 5000,
}


@pytest.mark.parametrize("name", CHANGES)
async def test_what_is_shown_of_a_tool_is_what_its_fingerprint_covers(name: str) -> None:
    exchange, server = await mounted(McpServer(id="x", command=("x",), pin_definitions=False))
    server.comes_in(ECHO)
    before = exchange.views.tool("mcp.x/echo")
    server.says({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    exchange.advance(2)
    server.answers(server.one(), {"tools": [{**ECHO, name.strip(): CHANGES[name]}]})
    after = exchange.views.tool("mcp.x/echo")
    assert before is not None
    assert after is not None
    is_same = structs.replace(before, fingerprint="") == structs.replace(after, fingerprint="")
    assert is_same is (before.fingerprint == after.fingerprint), "nothing that is shown can change unseen"


async def test_a_server_that_says_all_the_time_that_its_tools_changed_is_asked_once_a_second() -> None:
    exchange, server = await mounted()
    server.comes_in(ECHO)
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    asked = 0
    for _ in range(30):
        server.says(*[changed] * 10)
        exchange.advance(0.1)
        for request in server.read():
            asked += 1
            server.answers(request, {"tools": [ECHO]})
    assert 2 <= asked <= 4


async def test_its_results_are_untrusted_unless_the_mount_says_otherwise() -> None:
    servers = (McpServer(id="x", command=("x",)), McpServer(id="y", command=("y",), untrusted=False))
    exchange, server = await mounted(*servers)
    other = Server(exchange, server._programs, "y")
    for one in (server, other):
        one.comes_in(ECHO)
        exchange.call(f"{one.agent_id}/echo", Raw(b"{}"))
        one.answers(one.one(), {"content": []})
    assert [settled.untrusted for settled in exchange.recorded(CallSettled)] == [True, False]


async def test_a_call_runs_out_of_time_and_a_server_that_does_not_answer_a_ping_is_silent_until_it_does() -> None:
    exchange, server = await mounted(McpServer(id="x", command=("x",), timeout_s=5))
    server.comes_in(ECHO)
    exchange.call("mcp.x/echo", Raw(b"{}"))
    request = server.one()
    exchange.advance(5.1)
    cancel, ping = server.read()
    assert (cancel["method"], cancel["params"]["requestId"]) == ("notifications/cancelled", request["id"])
    exchange.advance(5.1)
    [settled] = exchange.recorded(CallSettled)
    assert settled.status is Status.UNKNOWN
    exchange.advance(6)
    assert [one.health for one in exchange.recorded(AgentHealthChanged)] == ["silent"]
    assert exchange.call("mcp.x/echo", Raw(b"{}")) is not None
    server.answers(ping, {})
    assert [one.health for one in exchange.recorded(AgentHealthChanged)] == ["silent", "ok"]


async def test_progress_is_shown_no_faster_than_anybody_reads() -> None:
    exchange, server = await mounted()
    server.comes_in(ECHO)
    exchange.call("mcp.x/echo", Raw(b"{}"))
    number = server.one()["id"]
    shown = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": number, "progress": 1}}
    server.says(*[shown] * 100)
    exchange.advance(1)
    server.says(*[shown] * 100)
    server.says({"jsonrpc": "2.0", "id": number, "result": {"content": []}})
    [settled] = exchange.recorded(CallSettled)
    assert settled.stream is not None
    assert settled.stream.chunks == 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"x" * (MAX_LINE_BYTES + 1), f"a line has more than {MAX_LINE_BYTES} bytes"),
        (b'{"jsonrpc":"2.0","id":2,"result":{"tools":7}}\n', "its list of tools cannot be read"),
    ],
)
async def test_a_server_that_cannot_be_spoken_with_is_ended_as_one_that_hangs(data: bytes, reason: str) -> None:
    _, server = await mounted()
    server.begin()
    server.answers(server.one(), {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}})
    assert server.one()["id"] == 2
    server.owner.received(data)
    assert server.run.endings == [reason]


async def test_a_server_that_does_not_read_is_ended() -> None:
    exchange, server = await mounted()
    server.comes_in(ECHO)
    server.run.reads = False
    exchange.call("mcp.x/echo", Raw(b"{}"))
    assert server.run.endings == ["it does not read what it is sent"]


async def test_a_defect_of_ours_costs_the_calls_and_the_agent_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, server = await mounted()
    server.comes_in(ECHO)
    exchange.call("mcp.x/echo", Raw(b"{}"))
    request = server.one()

    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as patched:
        patched.setattr(module.translate, "outcome", fail)
        server.answers(request, {"content": []})
    [settled] = exchange.recorded(CallSettled)
    assert settled.status is Status.UNKNOWN
    assert exchange.views.agent("mcp.x") is None
    exchange.advance(1.1)
    assert exchange.views.agent("mcp.x") is not None
    server.read()
    exchange.call("mcp.x/echo", Raw(b"{}"))
    server.answers(server.one(), {"content": []})
    assert exchange.recorded(CallSettled)[-1].status is Status.SUCCEEDED


async def test_another_configuration_adds_changes_and_lets_go_of_servers() -> None:
    exchange, server = await mounted()
    server.comes_in(ECHO)
    programs: Programs = server._programs
    first = programs.kept["mcp.x"]
    config = exchange.config

    def configure(*servers: McpServer) -> dict[str, list[str]]:
        exchange.edges.reload(structs.replace(config, mcp_servers=servers), "")
        done: dict[str, list[str]] = {"started": ["com.a"]}
        exchange.edges.configured(done)
        return done

    done = configure(*config.mcp_servers, McpServer(id="y", command=("y",)))
    assert done == {"started": ["com.a", "mcp.y"], "restarted": [], "stopped": []}
    assert programs.kept["mcp.x"] is first, "one that stays goes on"
    done = configure(McpServer(id="x", command=("x", "-v")))
    assert done == {"started": ["com.a"], "restarted": ["mcp.x"], "stopped": ["mcp.y"]}
    assert set(programs.kept) == {"mcp.x"}
    assert programs.kept["mcp.x"][0].command == ("x", "-v")
    programs.problems["mcp.z"] = "its script /gone/z.py does not exist"
    done = configure(McpServer(id="z", command=("python", "/gone/z.py")))
    assert (done["started"], done["cannot_start"]) == (["com.a"], ["mcp.z: its script /gone/z.py does not exist"])
    configure()
    assert programs.kept == {}


async def test_what_the_host_is_told_of_a_server_is_what_its_table_says() -> None:
    table: dict[str, Any] = {
        "command": ("run", "it"),
        "cwd": "/c",
        "env": {"A": "env:B"},
        "restart": "never",
        "isolation": "sandbox",
        "read": ("/r",),
        "write": ("/w",),
        "network": False,
        "stop_grace_s": 1.0,
        "max_log_bytes": 7,
    }
    _, server = await mounted(McpServer(id="x", **table))
    program = server._programs.kept["mcp.x"][0]
    assert {name: getattr(program, name) for name in table} == table


async def test_stopping_settles_what_runs() -> None:
    exchange, server = await mounted()
    server.comes_in(ECHO)
    exchange.call("mcp.x/echo", Raw(b"{}"))
    await exchange.edges.stop()
    [settled] = exchange.recorded(CallSettled)
    assert settled.status is Status.UNKNOWN


async def test_without_servers_nothing_is_there() -> None:
    exchange = MemoryExchange(edges=(MOUNTS,), config=Config())
    await exchange.edges.start()
    assert exchange.edges.status()["edges"]["mounts"] == {"state": "on", "servers": 0, "ready": 0}
    assert (exchange.edges.agents(), exchange.edges.steer("mcp.x", "stop")) == ([], False)
    await exchange.edges.stop()


@pytest.mark.slow
def test_a_configuration_without_servers_imports_nothing_that_speaks_with_them() -> None:
    code = (
        "import sys; import trunkline.edges.known; "
        "found = {n for n in sys.modules if n.startswith('trunkline.edges.mounts.') or n.split('.')[0] in"
        " ('mcp', 'mcp_types', 'httpx', 'httpx2', 'pydantic', 'keyring')}; print(sorted(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "['trunkline.edges.mounts.edge', 'trunkline.edges.mounts.names']"
