"""A person at the console: signing in, watching, answering, canceling, searching, trying a tool, losing it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.conftest import VIEWS, WAIT_MS, new_address, signed_in, visit
from tests.running import WAIT_S, RawAgent, Running, attached, calling, running, wait_until
from tests.unit.cli.conftest import trunkline

pytestmark = pytest.mark.timeout(120)
expect.set_options(timeout=WAIT_MS)

PRICE = {
    "type": "object",
    "properties": {
        "item": {"type": "string", "description": "What is bought."},
        "count": {"type": "integer", "minimum": 1, "maximum": 9, "default": 2},
        "gift": {"type": "boolean"},
        "order": {"type": "integer"},
    },
    "required": ["item"],
    "additionalProperties": False,
}


TALKER = """
from trunkline import Agent

agent = Agent("com.me.talker")


@agent.tool(side_effects=False)
def talk() -> dict[str, bool]:
    print("<i>talked</i>", flush=True)
    return {"talked": True}


agent.run()
"""


@pytest.fixture
def shop(exchange: Running) -> Iterator[RawAgent]:
    """An agent whose answers the test gives."""
    agent = attached(exchange, "tools", "tool_streaming", "cancellation")
    answer = agent.register(
        {"name": "buy", "input_schema": PRICE},
        {"name": "look", "side_effects": False, "capabilities": ["streaming", "cancellation"]},
    )
    assert not answer["payload"].get("rejected"), answer
    yield agent
    agent.close()


def asked(exchange: Running, shop: RawAgent, token: str, **value: Any) -> dict[str, Any]:
    """A call that waits for a person; the answer that names the question."""
    status, answer = exchange.request(
        "POST", "/v1/calls", {"tool_id": f"{shop.agent_id}/buy", "input": {"item": "a lamp", **value}}, token=token
    )
    assert status == 202, answer
    found: dict[str, Any] = answer
    return found


def tell(shop: RawAgent, call: dict[str, Any], seq: int, text: str) -> None:
    """A piece of what a call shows."""
    piece = {"call_id": call["payload"]["call_id"], "seq": seq, "channel": "stdout", "data": {"text": text}}
    echoed = {name: call[name] for name in ("request_id", "correlation_id", "causation_id") if name in call}
    shop.send("agent.tool.stream", piece, **echoed)


def outcome(exchange: Running, call_id: str) -> dict[str, Any]:
    """A call that has ended."""

    def ended() -> dict[str, Any] | None:
        call: dict[str, Any] = exchange.request("GET", f"/v1/calls/{call_id}")[1]
        return call if call["status"] in ("succeeded", "failed", "canceled", "unknown") else None

    found: dict[str, Any] = wait_until(ended, f"the outcome of {call_id}")
    return found


# -- signing in --------------------------------------------------------------------------------------------------------


def test_a_code_signs_in_once_and_a_second_browser_is_told_what_to_do(browser: Browser, exchange: Running) -> None:
    address = new_address(exchange)
    first, second = browser.new_context(), browser.new_context()
    try:
        page = first.new_page()
        page.goto(address)
        expect(page.get_by_role("heading", name="Now")).to_be_visible()
        assert "code" not in page.url
        assert "key" not in page.url
        other = second.new_page()
        other.goto(address)
        expect(other.locator("body")).to_contain_text("trunkline console")
        other.goto(exchange.ready["http"])
        expect(other.get_by_role("heading", name="Sign in")).to_be_visible()
        expect(other.get_by_role("navigation").get_by_role("link")).to_have_count(0)
    finally:
        first.close()
        second.close()


def test_signing_out_ends_it_for_every_page_of_the_browser(browser: Browser, exchange: Running) -> None:
    profile = browser.new_context()
    try:
        page, other = signed_in(profile, exchange), profile.new_page()
        other.goto(exchange.ready["http"])
        expect(other.get_by_role("heading", name="Now")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="You are signed out")).to_be_visible()
        expect(other.get_by_role("heading", name="You are signed out")).to_be_visible()
        page.goto(exchange.ready["http"])
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    finally:
        profile.close()


def test_the_views_are_links_by_their_names(page: Page) -> None:
    first, *others = VIEWS.values()
    assert len(others) == page.get_by_role("navigation").get_by_role("link").count() - 1, (
        "each view is found in main.js"
    )
    for name in (*others, first):
        page.get_by_role("navigation").get_by_role("link", name=name).click()
        expect(page.get_by_role("heading", name=name, exact=True, level=1)).to_be_visible()
        expect(page).to_have_title(f"{name} · Trunkline")


# -- watching and canceling --------------------------------------------------------------------------------------------


def test_a_call_is_watched_while_it_streams(page: Page, exchange: Running, shop: RawAgent) -> None:
    answer = calling(exchange, f"{shop.agent_id}/look")
    call = shop.wait_for("core.tool.call")
    row = page.get_by_role("article").filter(has_text=f"{shop.agent_id}/look")
    expect(row).to_contain_text("running")
    tell(shop, call, 1, "on the first shelf\n")
    expect(row).to_contain_text("on the first shelf")
    tell(shop, call, 2, "on the second shelf\n")
    expect(row.get_by_role("log")).to_have_text("on the first shelf\non the second shelf\n")
    shop.result(call, output={"found": 2})
    expect(row).to_have_count(0)
    assert answer.result(WAIT_S)["output"] == {"found": 2}


def test_a_call_that_nobody_waits_for_is_watched_while_it_streams(
    page: Page, exchange: Running, shop: RawAgent
) -> None:
    call_id = exchange.call(f"{shop.agent_id}/look", wait=False, idempotency_key="alone")["call_id"]
    call = shop.wait_for("core.tool.call")
    row = page.locator(f'[data-call="{call_id}"]')
    tell(shop, call, 1, "nobody waits\n")
    expect(row.get_by_role("log")).to_have_text("nobody waits\n")
    # A second one joins it, and a third: each piece is still shown once.
    for _ in range(2):
        exchange.call(f"{shop.agent_id}/look", wait=False, idempotency_key="alone")
    page.get_by_role("link", name=f"{shop.agent_id}/look").click()
    tell(shop, call, 2, "and still not\n")
    expect(page.get_by_label("Output so far")).to_have_text("nobody waits\nand still not\n")
    shop.result(call, output={"found": 1})
    expect(page.locator(".timeline li").last).to_contain_text("Succeeded")


def test_a_call_is_canceled_where_it_is_watched(page: Page, exchange: Running, shop: RawAgent) -> None:
    call_id = exchange.call(f"{shop.agent_id}/look", wait=False)["call_id"]
    call = shop.wait_for("core.tool.call")
    page.locator(f'[data-call="{call_id}"]').get_by_role("button", name="Cancel").click()
    shop.wait_for("core.tool.cancel")
    shop.result(call, "canceled", error={"code": "tool.canceled", "message": "stopped"})
    assert outcome(exchange, call_id)["status"] == "canceled"
    visit(page, exchange, f"calls/{call_id}")
    expect(page.locator(".timeline li").last).to_contain_text("Canceled")


# -- questions ---------------------------------------------------------------------------------------------------------


def test_a_question_shows_what_would_run_and_an_approval_lets_it_run(
    page: Page, exchange: Running, shop: RawAgent, buyer: str
) -> None:
    waiting = asked(exchange, shop, buyer, item="a lamp; rm -rf /srv/stock", count=3)
    expect(page).to_have_title("(1) Now · Trunkline")
    page.get_by_role("link", name="Approvals").click()
    question = page.get_by_role("article")
    expect(question).to_contain_text(f"{shop.agent_id}/buy")
    expect(question).to_contain_text("http:buyer")
    expect(question).to_contain_text("a buyer is asked about")
    # The name of an item is no command, whatever it reads like.
    expect(question.locator("mark, .tag.bad")).to_have_count(0)
    expect(question.locator("dt")).to_have_text(["item", "count"])
    page.get_by_role("button", name="Approve").click()
    call = shop.wait_for("core.tool.call")
    assert call["payload"]["input"] == {"item": "a lamp; rm -rf /srv/stock", "count": 3}
    expect(page.get_by_text("Nobody waits for you.")).to_be_visible()
    expect(page).to_have_title("Approvals · Trunkline")
    page.get_by_role("link", name="Watch it run").click()
    expect(page.get_by_role("main")).to_contain_text("running")
    tell(shop, call, 1, "wrapping three lamps\n")
    expect(page.get_by_label("Output so far")).to_have_text("wrapping three lamps\n")
    shop.result(call, output={"bought": 3})
    assert outcome(exchange, waiting["call_id"])["status"] == "succeeded"
    expect(page.locator(".timeline li").last).to_contain_text("Succeeded")


def test_a_question_shows_a_number_that_no_double_holds_as_it_was_given(
    page: Page, exchange: Running, shop: RawAgent, buyer: str
) -> None:
    waiting = asked(exchange, shop, buyer, order=9007199254740993)
    page.get_by_role("link", name="Approvals").click()
    expect(page.get_by_role("article").locator("dd").filter(has_text="9007199254740993")).to_have_count(1)
    page.get_by_role("button", name="Approve").click()
    call = shop.wait_for("core.tool.call")
    assert call["payload"]["input"]["order"] == 9007199254740993
    shop.result(call, output={"order": 9007199254740995})
    outcome(exchange, waiting["call_id"])
    page.get_by_role("link", name="Watch it run").click()
    expect(page.get_by_role("main")).to_contain_text("9007199254740995")


# A page in front of which nobody is, and a desk that keeps the notes it is handed.
AWAY = """
Object.defineProperty(Document.prototype, "hidden", { get: () => globalThis.is_away === true });
globalThis.notes = [];
globalThis.Notification = class extends EventTarget {
  static permission = "default";
  static async requestPermission() { return (Notification.permission = "granted"); }
  constructor(title, options) { super(); globalThis.notes.push({ title, ...options, note: this }); }
  close() { this.is_closed = true; }
};
"""


def test_somebody_who_looks_elsewhere_is_notified_and_the_note_leads_to_the_question(
    context: BrowserContext, exchange: Running, shop: RawAgent, buyer: str
) -> None:
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.add_init_script(AWAY)
    page.goto(f"{exchange.ready['http']}/#/approvals")
    page.get_by_role("button", name="Notify me when somebody asks").click()
    expect(page.get_by_role("button", name="Notify me when somebody asks")).to_have_count(0)
    visit(page, exchange, "calls")
    # In front of the page a line on it is enough.
    first = asked(exchange, shop, buyer, count=1)
    expect(page.locator("#notices")).to_contain_text(f"1 question for you: {shop.agent_id}/buy")
    expect(page).to_have_title("(1) Calls · Trunkline")
    assert page.evaluate("notes.length") == 0
    page.evaluate("globalThis.is_away = true")
    second = asked(exchange, shop, buyer, count=2)
    expect(page).to_have_title("(2) Calls · Trunkline")
    expect(page.locator("link[rel=icon]")).to_have_attribute("href", "/console/page/icon-waiting.svg")
    assert page.evaluate("notes.map(({ title, body }) => [title, body])") == [
        ["Somebody asks for your approval", f"http:buyer: {shop.agent_id}/buy"]
    ]
    page.evaluate("notes[0].note.dispatchEvent(new Event('click'))")
    expect(page.locator(f'[data-question="{second["approval_id"]}"]')).to_be_visible()
    assert page.evaluate("notes[0].note.is_closed")
    for one in (first, second):
        exchange.request("POST", f"/v1/approvals/{one['approval_id']}", {"decision": "denied"})
    expect(page).to_have_title("Approvals · Trunkline")
    expect(page.locator("link[rel=icon]")).to_have_attribute("href", "/console/page/icon.svg")
    assert page.evaluate("notes.length") == 1, "what is answered is no news"
    page.close()


def test_a_denial_has_the_reason_that_was_given_and_nothing_runs(
    page: Page, exchange: Running, shop: RawAgent, buyer: str
) -> None:
    waiting = asked(exchange, shop, buyer)
    visit(page, exchange, f"approvals/{waiting['approval_id']}")
    page.get_by_label("Reason").fill("too many lamps")
    page.get_by_role("button", name="Deny").click()
    ended = outcome(exchange, waiting["call_id"])
    assert ended["status"] == "failed"
    assert ended["error"]["code"] == "policy.denied"
    closed = exchange.wait_entry("question.closed", approval_id=waiting["approval_id"])
    assert (closed["how"], closed["reason"], closed["by"]) == ("denied", "too many lamps", "operator")
    visit(page, exchange, f"calls/{waiting['call_id']}")
    expect(page.get_by_text("too many lamps", exact=True)).to_be_visible()


def test_several_questions_are_answered_at_once(page: Page, exchange: Running, shop: RawAgent, buyer: str) -> None:
    waiting = [asked(exchange, shop, buyer, count=count) for count in (1, 2, 3)]
    visit(page, exchange, "approvals")
    for one in waiting[:2]:
        page.get_by_label(f"Select {one['approval_id']}").check()
    page.get_by_role("button", name="Deny selected").click()
    expect(page.get_by_role("article")).to_have_count(1)
    assert [outcome(exchange, one["call_id"])["status"] for one in waiting[:2]] == ["failed", "failed"]
    assert exchange.request("GET", f"/v1/calls/{waiting[2]['call_id']}")[1]["status"] == "waiting_approval"
    page.get_by_role("button", name="Deny", exact=True).click()
    expect(page.get_by_role("article")).to_have_count(0)


def test_keys_answer_the_question_that_has_the_focus_and_no_other(
    page: Page, exchange: Running, shop: RawAgent, buyer: str
) -> None:
    first, second = (asked(exchange, shop, buyer, count=count) for count in (1, 2))
    visit(page, exchange, "approvals")
    expect(page.get_by_role("article")).to_have_count(2)
    page.keyboard.press("a")
    # Who came by a link has the focus nowhere.
    page.keyboard.press("j")
    expect(page.locator(f'[data-question="{first["approval_id"]}"]')).to_be_focused()
    page.keyboard.press("j")
    expect(page.locator(f'[data-question="{second["approval_id"]}"]')).to_be_focused()
    page.keyboard.press("d")
    page.keyboard.type("a key was pressed")
    page.keyboard.press("Enter")
    expect(page.get_by_role("article")).to_have_count(1)
    assert exchange.wait_entry("question.closed", approval_id=second["approval_id"])["reason"] == "a key was pressed"
    page.locator(f'[data-question="{first["approval_id"]}"]').focus()
    page.keyboard.press("a")
    call = shop.wait_for("core.tool.call")
    assert call["payload"]["input"]["count"] == 1
    shop.result(call, output={})


def test_what_is_typed_stays_while_other_questions_come(
    page: Page, exchange: Running, shop: RawAgent, buyer: str
) -> None:
    first = asked(exchange, shop, buyer, count=1)
    visit(page, exchange, "approvals")
    page.get_by_label("Reason").fill("half a reas")
    second = asked(exchange, shop, buyer, count=2)
    expect(page.get_by_role("article")).to_have_count(2)
    expect(page.get_by_label("Reason").first).to_have_value("half a reas")
    for one in (first, second):
        exchange.request("POST", f"/v1/approvals/{one['approval_id']}", {"decision": "denied"})
    expect(page.get_by_role("article")).to_have_count(0)


# -- calls and tools ---------------------------------------------------------------------------------------------------


def test_a_tool_is_tried_with_a_form_from_its_schema(page: Page, exchange: Running, shop: RawAgent) -> None:
    visit(page, exchange, f"tools/{shop.agent_id}%2Fbuy")
    page.get_by_role("button", name="Call").click()
    expect(page.get_by_role("alert")).to_contain_text("item: is needed")
    page.get_by_label("item").fill("a <b>lamp</b>")
    page.get_by_label("gift").check()
    page.get_by_label("count").fill("40")
    page.get_by_role("button", name="Call").click()
    expect(page.get_by_role("alert")).to_contain_text("count: at most 9")
    page.get_by_label("count").fill("4")
    page.get_by_role("button", name="Call").click()
    call = shop.wait_for("core.tool.call")
    assert call["payload"]["input"] == {"item": "a <b>lamp</b>", "count": 4, "gift": True}
    shop.result(call, output={"total": "12.00"})
    expect(page.get_by_label("Output")).to_have_text('{\n  "total": "12.00"\n}')


def test_a_tool_that_is_tried_shows_its_output_as_it_comes_and_is_canceled(
    page: Page, exchange: Running, shop: RawAgent
) -> None:
    visit(page, exchange, f"tools/{shop.agent_id}%2Flook")
    page.get_by_role("button", name="Call").click()
    call = shop.wait_for("core.tool.call")
    tell(shop, call, 1, "looking\n")
    expect(page.get_by_role("log")).to_contain_text("looking")
    page.get_by_role("button", name="Cancel").click()
    shop.wait_for("core.tool.cancel")
    shop.result(call, "canceled", error={"code": "tool.canceled", "message": "stopped"})
    expect(page.get_by_text("canceled", exact=True)).to_be_visible()


def test_a_calls_story_is_told_entry_by_entry_and_its_replay_can_be_kept(
    page: Page, exchange: Running, shop: RawAgent, tmp_path: Path
) -> None:
    call_id = exchange.call(f"{shop.agent_id}/look", {"a": 1}, wait=False, correlation_id="shelf-7")["call_id"]
    call = shop.wait_for("core.tool.call")
    visit(page, exchange, f"calls/{call_id}")
    expect(page.get_by_text("operator calls, and it is allowed")).to_be_visible()
    shop.result(call, output={"found": "nothing"})
    expect(page.get_by_text("Succeeded", exact=False).first).to_be_visible()
    expect(page.get_by_label("Output")).to_contain_text("nothing")
    expect(page.locator(".waterfall a")).to_have_count(1)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download replay").click()
    kept = tmp_path / "kept.jsonl"
    download.value.save_as(kept)
    assert [json.loads(line)["event"] for line in kept.read_text().splitlines()][:2] == ["ReplayHeader", "SessionStart"]


def test_calls_are_found_by_words_and_narrowed_by_status(page: Page, exchange: Running, shop: RawAgent) -> None:
    for word, status in (("heliotrope", "succeeded"), ("heliotrope", "failed"), ("mignonette", "succeeded")):
        call_id = exchange.call(f"{shop.agent_id}/look", {"for": word}, wait=False)["call_id"]
        failed = {"error": {"code": "shop.closed", "message": "closed"}} if status == "failed" else {"output": {}}
        shop.result(shop.wait_for("core.tool.call"), status, **failed)
        outcome(exchange, call_id)
    wait_until(
        lambda: len(exchange.request("GET", "/v1/calls?search=heliotrope")[1]["calls"]) == 2, "the index to have them"
    )
    visit(page, exchange, "calls")
    page.get_by_label("Search").fill("heliotrope")
    rows = page.get_by_role("table", name="Calls").locator("tbody tr")
    expect(rows).to_have_count(2)
    page.get_by_label("Status").select_option("failed")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("shop.closed")
    rows.get_by_role("link").click()
    expect(page.get_by_role("main")).to_contain_text("heliotrope")
    visit(page, exchange, "calls?search=nobodysaidthis")
    expect(page.get_by_text("No call matches.")).to_be_visible()


def test_a_calls_hashes_are_computed_again_and_fit(page: Page, exchange: Running, shop: RawAgent) -> None:
    value = {"b": [1, 2.5, "ä\u2028"], "a": None}
    call_id = exchange.call(f"{shop.agent_id}/look", value, wait=False, correlation_id="hashes-1")["call_id"]
    shop.result(shop.wait_for("core.tool.call"), output={"z": 1e-7, "é": "", "B": -0.5})
    outcome(exchange, call_id)
    visit(page, exchange, f"calls/{call_id}")
    expect(page.locator('[data-check="input"]')).to_contain_text("checked, it fits")
    expect(page.locator('[data-check="output"]')).to_contain_text("checked, it fits")


def test_allow_from_now_on_shows_the_rule_before_it_is_written(
    page: Page, exchange: Running, shop: RawAgent, buyer: str
) -> None:
    stranger = exchange.new_token("regular", edge="http")
    waiting = asked(exchange, shop, stranger)
    visit(page, exchange, f"approvals/{waiting['approval_id']}")
    page.get_by_role("button", name="Allow from now on").click()
    rule = page.get_by_label("The rule")
    expect(rule).to_contain_text("[[policy.rule]]")
    expect(rule).to_contain_text('caller = "http:regular"')
    shown = (rule.text_content() or "").strip()
    assert "http:regular" not in exchange.config_file.read_text()
    page.get_by_role("button", name="Write this rule").click()
    shop.result(shop.wait_for("core.tool.call"), output={})
    assert outcome(exchange, waiting["call_id"])["status"] == "succeeded"
    assert shown in exchange.config_file.read_text()
    status, _ = exchange.request(
        "POST", "/v1/calls", {"tool_id": f"{shop.agent_id}/buy", "input": {"item": "b"}, "wait": False}, token=stranger
    )
    assert status == 202
    shop.result(shop.wait_for("core.tool.call"), output={})


def test_policy_says_what_would_happen_if(page: Page, exchange: Running, shop: RawAgent) -> None:
    visit(page, exchange, "policy")
    expect(page.get_by_role("table", name="Rules")).to_contain_text("a buyer is asked about")
    page.get_by_label("this caller").fill("http:buyer")
    page.get_by_label("called this tool").fill(f"{shop.agent_id}/buy")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_text("A person would be asked first.")).to_be_visible()
    page.get_by_label("this caller").fill("operator")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_text("It would be allowed.")).to_be_visible()


def test_a_run_of_a_space_shows_its_edits_and_is_undone(page: Page, exchange: Running) -> None:
    assert exchange.request("POST", "/v1/spaces", {"name": "desk"})[0] == 201
    edit = {"oldContent": "one", "newContent": "two"}
    operations = [
        [{"type": "createFile", "path": "a.txt", "content": "line\none\n"}],
        [{"type": "editFile", "path": "a.txt", "edits": [edit]}],
    ]
    for some in operations:
        message = {"protocolVersion": "1.0", "operations": some}
        assert exchange.request("POST", "/v1/spaces/desk/runs?wait=10", message)[1]["status"] == "completed"
    wait_until(lambda: len(exchange.request("GET", "/v1/calls?tool=space.desk/")[1]["calls"]) == 2, "the index")
    visit(page, exchange, "spaces")
    page.get_by_role("link", name="desk").click()
    runs = page.get_by_role("table", name="Runs").get_by_role("link")
    expect(runs).to_have_count(2)
    address = page.url
    page.get_by_role("button", name="a.txt").click()
    expect(page.get_by_label("Content")).to_have_text("line\ntwo\n")
    runs.first.click()
    expect(page.locator(".diff .removed")).to_have_text(["one"])
    expect(page.locator(".diff .added")).to_have_text(["two"])
    page.goto(address)
    page.get_by_role("table", name="Snapshots").get_by_role("button", name="Undo").first.click()
    expect(page.get_by_text("Would be changed back")).to_be_visible()
    page.get_by_role("button", name="Undo now").click()
    expect(page.get_by_text("desk is as it was before")).to_be_visible()
    assert (exchange.home / "spaces" / "desk" / "files" / "a.txt").read_text() == "line\none\n"


def test_labels_of_filters_stand_on_one_line(page: Page, exchange: Running) -> None:
    page.set_viewport_size({"width": 1200, "height": 844})
    visit(page, exchange, "calls")
    labels = page.locator(".filters label")
    expect(labels).to_have_count(6)
    tops = {box["y"] for box in (one.bounding_box() for one in labels.all()) if box is not None}
    assert len(tops) == 1, tops


def test_a_command_that_failed_is_not_shown_as_a_success(page: Page, exchange: Running) -> None:
    made = exchange.request("POST", "/v1/spaces", {"name": "fails"})[1]
    if not made["shell"]:
        pytest.skip(f"no sandbox holds here: {made['note']}")
    message = {"protocolVersion": "1.0", "operations": [{"type": "shell", "command": "exit 4"}]}
    run = exchange.request("POST", "/v1/spaces/fails/runs?wait=10", message)[1]
    wait_until(lambda: bool(exchange.request("GET", "/v1/calls?tool=space.fails/")[1]["calls"]), "the index")
    listed = exchange.request("GET", "/v1/calls?tool=space.fails/")[1]["calls"][0]
    assert (listed["status"], listed["failed_with"]) == ("succeeded", 4)
    for view in (
        "spaces/fails",
        f"spaces/fails/runs/{run['runId']}",
        "calls?tool=space.fails",
        f"calls/{listed['call_id']}",
    ):
        visit(page, exchange, view)
        expect(page.locator("main .state.bad").filter(has_text="ended with 4").first).to_be_visible()
        expect(page.locator("main .state.good").filter(has_text="succeeded")).to_have_count(0)
    said = trunkline("--home", str(exchange.home), "calls", "--tool", "space.fails").out
    assert "ended with 4" in said
    assert "succeeded" not in said


def test_a_question_of_a_spaces_own_rules_is_marked_by_them_and_offers_no_standing_rule(
    page: Page, exchange: Running
) -> None:
    made = exchange.request("POST", "/v1/spaces", {"name": "asks"})[1]
    if not made["shell"]:
        pytest.skip(f"no sandbox holds here: {made['note']}")
    message = {"protocolVersion": "1.0", "operations": [{"type": "shell", "command": "find . -delete"}]}
    run = exchange.request("POST", "/v1/spaces/asks/runs?wait=10", message)[1]
    approval_id = run["events"][-1]["details"]["approvalId"]
    try:
        visit(page, exchange, f"approvals/{approval_id}")
        card = page.locator(f'[data-question="{approval_id}"]')
        expect(card.locator(".tag.bad")).to_have_text(["destructive command"])
        expect(card.get_by_text("Nothing of this kind was carried out for it before.")).to_be_visible()
        expect(card.get_by_role("button", name="Allow from now on")).to_have_count(0)
    finally:
        exchange.request("POST", f"/v1/approvals/{approval_id}", {"decision": "denied"})
    wait_until(lambda: bool(exchange.request("GET", "/v1/calls?tool=space.asks/&status=failed")[1]["calls"]), "its end")
    call_id = exchange.request("GET", "/v1/calls?tool=space.asks/")[1]["calls"][0]["call_id"]
    visit(page, exchange, "calls?tool=space.asks")
    expect(page.get_by_role("table", name="Calls").locator("tbody tr td:nth-child(5)")).to_have_text([""])
    visit(page, exchange, f"calls/{call_id}")
    expect(page.locator('[data-check="input"]')).to_be_visible()
    expect(page.locator('[data-check="output"]')).to_have_count(0)


def test_calls_and_runs_of_a_space_have_names_that_differ_and_undo_fits_its_column(
    page: Page, exchange: Running
) -> None:
    assert exchange.request("POST", "/v1/spaces", {"name": "ids"})[0] == 201
    for number in range(2):
        # Outside of any run, as an agent makes them: all of these ids begin alike.
        exchange.call("space.ids/create_file", {"path": f"{number}.txt", "content": "x"})
    message = {"protocolVersion": "1.0", "operations": [{"type": "createFile", "path": "a.txt", "content": "x"}]}
    assert exchange.request("POST", "/v1/spaces/ids/runs?wait=10", message)[1]["status"] == "completed"
    wait_until(lambda: len(exchange.request("GET", "/v1/calls?tool=space.ids/")[1]["calls"]) == 3, "the index")
    # A day later: what is shown of a time is as long as it can be.
    page.clock.set_fixed_time(time.time() + 86_400)
    for width in (800, 900, 1200):
        page.set_viewport_size({"width": width, "height": 844})
        visit(page, exchange, "spaces/ids")
        names = page.get_by_role("table", name="Runs").get_by_role("link")
        expect(names).to_have_count(3)
        texts = names.all_inner_texts()
        assert len(set(texts)) == 3, texts
        undo = page.get_by_role("table", name="Snapshots").get_by_role("button", name="Undo")
        for button in undo.all():
            box, sheet = button.bounding_box(), page.locator(".sheet").filter(has=button).last.bounding_box()
            assert box is not None
            assert sheet is not None
            assert box["height"] < 30, "on one line"
            assert box["x"] + box["width"] <= sheet["x"] + sheet["width"] - 8, "within its column"


def test_an_address_that_is_none_says_so(page: Page, exchange: Running) -> None:
    visit(page, exchange, "nonsense")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such page")
    expect(page.get_by_role("main")).to_contain_text("#/nonsense")
    expect(page).to_have_title("No such page · Trunkline")
    expect(page.locator("#views [aria-current]")).to_have_count(0)
    page.get_by_role("main").get_by_role("link", name="Now").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Now")


def test_the_old_address_of_a_question_leads_to_where_it_is_asked_now(
    page: Page, exchange: Running, shop: RawAgent, buyer: str
) -> None:
    old = asked(exchange, shop, buyer)["approval_id"]
    before = exchange.config_file.read_text()
    other = '\n[[policy.rule]]\ncaller = "http:nobody"\ntool = "*"\ndecision = "deny"\n'
    exchange.config_file.write_text(before + other)
    assert exchange.request("POST", "/v1/reload")[0] == 200
    [asked_now] = wait_until(lambda: exchange.request("GET", "/v1/approvals")[1]["approvals"], "it is asked again")
    new = asked_now["approval_id"]
    assert new != old
    visit(page, exchange, f"approvals/{old}")
    expect(page).to_have_url(f"{exchange.ready['http']}/#/approvals/{new}")
    page.locator(f'[data-question="{new}"]').get_by_role("button", name="Deny").click()
    expect(page.get_by_text("Nobody waits for you.")).to_be_visible()
    exchange.config_file.write_text(before)
    assert exchange.request("POST", "/v1/reload")[0] == 200


def test_a_question_by_a_rule_without_a_reason_names_the_rule(page: Page, exchange: Running, shop: RawAgent) -> None:
    before = exchange.config_file.read_text()
    exchange.config_file.write_text(f'{before}\n[[policy.rule]]\ncaller = "http:curt"\ntool = "*"\ndecision = "ask"\n')
    assert exchange.request("POST", "/v1/reload")[0] == 200
    waiting = asked(exchange, shop, exchange.new_token("curt", edge="http"))["approval_id"]
    rule = exchange.request("GET", f"/v1/approvals/{waiting}")[1]["rule"]
    visit(page, exchange, f"approvals/{waiting}")
    expect(page.locator(f'[data-question="{waiting}"]')).to_contain_text(f"the rule {rule} asks; it gives no reason")
    exchange.request("POST", f"/v1/approvals/{waiting}", {"decision": "denied"})
    exchange.config_file.write_text(before)
    assert exchange.request("POST", "/v1/reload")[0] == 200


def test_an_agents_log_is_read_and_the_agent_restarted(page: Page, exchange: Running) -> None:
    script = exchange.home / "talker.py"
    script.write_text(TALKER)
    with exchange.config_file.open("a") as config:
        config.write(f'\n[[agent]]\nid = "com.me.talker"\ncommand = ["python", {json.dumps(str(script))}]\n')
    assert exchange.request("POST", "/v1/reload")[0] == 200
    exchange.wait_tool("com.me.talker/talk")
    exchange.call("com.me.talker/talk")
    visit(page, exchange, "agents")
    page.get_by_role("link", name="com.me.talker").click()
    expect(page.get_by_role("heading", name="com.me.talker")).to_be_visible()
    expect(page.get_by_role("log")).to_contain_text("<i>talked</i>")
    before = exchange.wait_entry("agent.launched", agent_id="com.me.talker")["n"]
    page.get_by_role("button", name="Restart").click()
    wait_until(
        lambda: exchange.wait_entry("agent.launched", agent_id="com.me.talker")["n"] > before, "another start of it"
    )
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Start", exact=True)).to_be_visible()


def test_an_empty_exchange_says_what_to_do_next(browser: Browser, short_path: Path) -> None:
    with running(short_path / "home") as fresh:
        profile = browser.new_context()
        page = signed_in(profile, fresh)
        for view, words in {
            "now": "Try a tool",
            "approvals": "Nobody waits for you",
            "calls": "No call was made yet",
            "spaces": "trunkline space new demo",
        }.items():
            visit(page, fresh, view)
            expect(page.get_by_role("main")).to_contain_text(words)
        profile.close()


# -- the line ----------------------------------------------------------------------------------------------------------


def seen(page: Page) -> dict[str, int]:
    """What the page says that it has seen of the record."""
    place = page.locator("#seen")
    return {name: int(place.get_attribute(f"data-{name}") or 0) for name in ("first", "last", "gaps")}


def seen_up_to(page: Page, number: int) -> None:
    """Asked from outside: the page's own policy forbids what Playwright does to ask again inside."""

    def is_seen() -> bool:
        page.wait_for_timeout(20)  # its events are handled meanwhile
        return seen(page)["last"] >= number

    wait_until(is_seen, f"entry {number} on the page")


def test_a_lost_exchange_is_regained_without_a_gap_in_entry_numbers(browser: Browser, short_path: Path) -> None:
    with running(short_path / "home") as found:
        # The page comes back to the address that it knows.
        found.config_file.write_text(
            found.config_file.read_text().replace("127.0.0.1:0", found.ready["http"].removeprefix("http://"), 1)
        )
        profile = browser.new_context()
        page = signed_in(profile, found)
        visit(page, found, "ledger")
        found.call("trunkline/publish", {"topic": "a.b", "payload": 1})
        seen_up_to(page, 1)
        found.kill()
        expect(page.get_by_text("lost, trying again")).to_be_visible()
        found.start()
        for number in range(20):
            found.call("trunkline/publish", {"topic": "a.b", "payload": number})
        last = found.entries()[-1]["n"]
        seen_up_to(page, last)
        now = seen(page)
        assert now["gaps"] == 0
        assert now["first"] == 1
        expect(page.get_by_role("status").get_by_text("live")).to_be_visible()
        profile.close()


# -- others ------------------------------------------------------------------------------------------------------------


def test_a_page_of_another_origin_gets_nothing(context: BrowserContext, exchange: Running) -> None:
    """In the same browser, signed in: the cookie is there, and counts for nothing."""
    page = context.new_page()
    home = exchange.ready["http"]
    page.route("http://elsewhere.test/", lambda route: route.fulfill(content_type="text/html", body="<p>elsewhere"))
    page.goto("http://elsewhere.test/")
    found = page.evaluate(
        """async (home) => {
          const read = (options) => fetch(`${home}/v1/agents`, { credentials: "include", ...options })
            .then(async (answer) => `${answer.status} ${await answer.text()}`, () => "nothing");
          const line = new Promise((resolve) => {
            const socket = new WebSocket(`${home.replace("http", "ws")}/console/live`);
            socket.onmessage = (message) => resolve(message.data);
            socket.onclose = () => resolve("nothing");
          });
          const frame = document.createElement("iframe");
          frame.src = home;
          document.body.append(frame);
          await new Promise((resolve) => (frame.onload = resolve));
          let inside = "nothing";
          try { inside = frame.contentDocument?.body?.textContent || "nothing"; } catch { inside = "nothing"; }
          return [await read({}), await read({ headers: { "x-trunkline-console": "guess" } }), await line, inside];
        }""",
        home,
    )
    assert found == ["nothing"] * 4
    answers: list[int] = []
    page.on("response", lambda response: response.url.startswith(home) and answers.append(response.status))
    page.evaluate(
        """async (home) => {
          const form = Object.assign(document.createElement("form"), { method: "post", action: `${home}/v1/reload` });
          document.body.append(form);
          form.submit();
        }""",
        home,
    )
    wait_until(lambda: page.wait_for_timeout(20) or answers, "the answer to the form")
    assert answers[0] in (401, 403)
    page.close()


def test_no_request_leaves_the_origin(context: BrowserContext, exchange: Running) -> None:
    page = context.new_page()
    asked_for: list[str] = []
    page.on("request", lambda request: asked_for.append(request.url))
    page.on("websocket", lambda socket: asked_for.append(socket.url.replace("ws", "http", 1)))
    for view in VIEWS:
        visit(page, exchange, view)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.close()
    assert len(asked_for) > 20
    home = exchange.ready["http"]
    assert [url for url in asked_for if not url.startswith(f"{home}/")] == []
