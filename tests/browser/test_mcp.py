"""A client of MCP whose call a person is asked about: he approves it at the address that the client was given."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WAIT_MS
from tests.mcp import HANDSHAKE, MODERN, McpClient
from tests.running import Running, attached

pytestmark = pytest.mark.timeout(120)
expect.set_options(timeout=WAIT_MS)


@pytest.mark.parametrize("era", [MODERN, HANDSHAKE])
def test_a_call_is_approved_at_its_address_and_its_repeat_has_the_outcome_of_the_one_execution(
    page: Page, exchange: Running, era: str
) -> None:
    shop = attached(exchange, "tools")
    shop.register({"name": "buy"})
    client = McpClient(exchange, f"editor-{era}", era=era)
    if era == HANDSHAKE:
        client.begin()
    _, listed = client.exchange_messages("tools/list")
    names = {tool["_meta"]["trunkline/tool_id"]: tool["name"] for tool in listed["result"]["tools"]}
    buy, wanted = names[f"{shop.agent_id}/buy"], {"item": "a lamp"}

    told = client.call(buy, wanted)
    # It has its whole answer, and nobody has said anything: no connection waits for a person.
    questions = exchange.request("GET", "/v1/approvals")[1]["approvals"]
    [question] = [one for one in questions if one["tool_id"] == f"{shop.agent_id}/buy"]
    address = f"{exchange.ready['http']}/#/approvals/{question['approval_id']}"
    assert told["isError"]
    assert address in told["content"][0]["text"]

    page.goto(address)
    expect(page.get_by_role("article")).to_contain_text(f"mcp:editor-{era}")
    page.get_by_role("button", name="Approve").click()
    call = shop.wait_for("core.tool.call")
    assert call["payload"]["input"] == wanted
    shop.result(call, output={"bought": 1})

    repeated = client.call(buy, wanted)
    assert repeated["structuredContent"] == {"bought": 1}
    assert repeated["_meta"]["trunkline/call_id"] == question["call_id"]
    accepted = [entry for entry in exchange.entries(kind="call.accepted") if entry["tool_id"] == f"{shop.agent_id}/buy"]
    assert [(one["call_id"], one["caller"]) for one in accepted] == [(question["call_id"], f"mcp:editor-{era}")]
    shop.close()
