"""How the page holds up: on small and large screens, with hostile texts, for people who cannot see it; its weight."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.conftest import PAGE_FOLDER, VIEWS, WAIT_MS, visit
from tests.browser.crowded import look
from tests.npm import installed, npm_of
from tests.running import RawAgent, Running, attached
from trunkline.entries import AnyEntry

pytestmark = pytest.mark.timeout(150)
expect.set_options(timeout=WAIT_MS)

MAX_PAGE_BYTES = 300_000
NARROW, WIDE = 390, 1280

# Each would do something if it became markup, a link, a script, a template, or a name of the page's own.
HOSTILE = (
    "<script>window.struck=1</script>",
    "<img src=x onerror='window.struck=1'>",
    "<svg onload=window.struck=1>",
    "</pre></td></table><script>window.struck=1</script>",
    "javascript:window.struck=1",
    "data:text/html,<script>parent.struck=1</script>",
    "\"><iframe srcdoc='<script>parent.struck=1</script>'>",
    "' onmouseover='window.struck=1' x='",
    "${window.struck=1}{{constructor.constructor('window.struck=1')()}}",
    "<a href='javascript:window.struck=1'>Approve</a>",
    "<button>Approve</button>",
    "<style>*{display:none}</style>",
    "<base href='http://elsewhere.test/'>",
    "<meta http-equiv=refresh content='0;url=http://elsewhere.test/'>",
    "__proto__",
    "safe\u202egnp.exe",
    "nothing\u200b\u200bhere\u0007",
    "\u001b]0;owned\u0007\u001b[2J",
    "line one\nline two\r\n\tAllowed by the operator",
    "W" * 3000,
)


# What nothing of the page's own makes inside a view.
BROUGHT = ", ".join(
    f"main {one}"
    for one in (
        *("script", "img", "iframe", "style", "base", "meta", "object", "embed"),
        *("a[href^=javascript]", "a[href^=data]"),
    )
)


@pytest.fixture(scope="module")
def hostile(exchange: Running) -> Iterator[RawAgent]:
    """An agent that says such things wherever it may say something."""
    agent = attached(exchange, "tools", "tool_streaming", "cancellation")
    # Characters that cannot be seen are refused there before anybody is shown them.
    text = " ".join(HOSTILE[:15])
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            **{one: {"type": "string", "description": one} for one in HOSTILE[:15]},
            "choice": {"enum": list(HOSTILE[:15])},
        },
    }
    tools = (
        {"name": "say", "description": text, "input_schema": schema, "side_effects": False, "tags": [HOSTILE[1]]},
        {"name": "do", "description": HOSTILE[1]},
    )
    answer = agent.register(*tools)
    assert not answer["payload"].get("rejected"), answer
    yield agent
    agent.close()


@pytest.fixture(scope="module")
def told(exchange: Running, hostile: RawAgent, buyer: str) -> dict[str, str]:
    """Such texts as input, output, fault, progress, correlation, reason and question; ids by what they are."""
    given = {one: one for one in HOSTILE}
    found: dict[str, str] = {}
    for number, (name, status, payload) in enumerate(
        (
            ("good", "succeeded", {"output": {"all": list(HOSTILE), **given}}),
            ("bad", "failed", {"error": {"code": "tool.failed", "message": " ".join(HOSTILE[:14])}}),
        )
    ):
        asked = {"tool_id": f"{hostile.agent_id}/say", "input": {"choice": HOSTILE[number]}}
        correlation = HOSTILE[number][:100]
        answer = exchange.request("POST", "/v1/calls", {**asked, "wait": False, "correlation_id": correlation})[1]
        found[name] = answer["call_id"]
        hostile.result(hostile.wait_for("core.tool.call"), status, **payload)
        exchange.wait_entry("call.settled", call_id=found[name])
    status_code, answer = exchange.request(
        "POST", "/v1/calls", {"tool_id": f"{hostile.agent_id}/do", "input": given}, token=buyer
    )
    assert status_code == 202, answer
    found["approval"], found["waiting"] = answer["approval_id"], answer["call_id"]
    # Refused with the text as the tool's name.
    exchange.call(HOSTILE[1])
    return found


def addresses(hostile: RawAgent, told: dict[str, str]) -> list[str]:
    """All views, and one thing of each kind."""
    return [
        *VIEWS,
        f"approvals/{told['approval']}",
        *(f"calls/{told[name]}" for name in ("good", "bad", "waiting")),
        f"tools/{hostile.agent_id}%2Fsay",
        f"agents/{hostile.agent_id}",
    ]


def settled(page: Page) -> None:
    """Wait until the view has what it asked for."""
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_text("Looking …")).to_have_count(0)


# -- texts -------------------------------------------------------------------------------------------------------------


def test_hostile_texts_are_shown_harmlessly_in_every_field(
    page: Page, exchange: Running, hostile: RawAgent, told: dict[str, str]
) -> None:
    for address in addresses(hostile, told):
        visit(page, exchange, address)
        settled(page)
        assert page.evaluate("window.struck") is None, address
        # The page's own elements only: nothing that a text brought.
        found = page.evaluate("names => [...document.querySelectorAll(names)].map((one) => one.outerHTML)", BROUGHT)
        assert found == [], address
        # A link leads into the page, never out of it.
        leads = page.evaluate("[...document.querySelectorAll('a')].map((one) => one.getAttribute('href'))")
        assert [lead for lead in leads if lead is not None and not lead.startswith("#")] == [], address
    visit(page, exchange, f"approvals/{told['approval']}")
    question = page.locator(f'[data-question="{told["approval"]}"]')
    for text in HOSTILE[:14]:
        expect(question).to_contain_text(text)
    expect(question.get_by_role("button", name="Approve")).to_have_count(1)
    # What has no shape of its own is shown by its number.
    expect(question).to_contain_text("safe⟨202E⟩gnp.exe")
    visit(page, exchange, f"calls/{told['good']}")
    output = page.get_by_label("Output")
    for text in HOSTILE[:14]:
        expect(output).to_contain_text(text.replace('"', '\\"'))


def test_a_hostile_text_in_the_address_or_a_search_is_only_text(page: Page, exchange: Running) -> None:
    for text in HOSTILE[:14]:
        page.evaluate("text => { location.hash = `#/calls/${encodeURIComponent(text)}`; }", text)
        settled(page)
        page.evaluate("text => { location.hash = `#/${text}`; }", text)
        settled(page)
    visit(page, exchange, "tools")
    page.get_by_label("Search").fill(f"{HOSTILE[0]}, and nobody says that")
    expect(page.get_by_role("main")).to_contain_text("No tool matches")
    assert page.evaluate("window.struck") is None


# -- screens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_no_view_is_wider_than_the_screen(
    page: Page, exchange: Running, hostile: RawAgent, told: dict[str, str], width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    for address in addresses(hostile, told):
        visit(page, exchange, address)
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address


def test_many_agents_and_a_long_record_come_in_pages_and_are_searched(short_path: Path, browser: Browser) -> None:
    looked = look(short_path / "home", browser, agents=120, calls=1_200)
    assert len(looked.steps) == 13


def test_light_and_dark_follow_the_system_until_somebody_chooses(context: BrowserContext, exchange: Running) -> None:
    page = context.new_page()
    colour = "getComputedStyle(document.documentElement).backgroundColor"
    page.emulate_media(color_scheme="dark")
    page.goto(exchange.ready["http"])
    dark = page.evaluate(colour)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(colour)
    assert dark != light
    page.get_by_role("button", name="Dark colours").click()
    assert page.evaluate(colour) == dark
    page.reload()
    assert page.evaluate(colour) == dark
    page.evaluate("localStorage.removeItem('trunkline-console-theme')")
    page.close()


# -- barriers ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def axe(node: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """axe-core as the lock names it; left out where no registry can be reached."""
    folder = installed(npm_of(node), Path(__file__).with_name("axe"), tmp_path_factory.mktemp("axe"), "axe-core")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(
    page: Page, exchange: Running, hostile: RawAgent, told: dict[str, str], axe: str, scheme: Any
) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.evaluate(axe)
    for address in addresses(hostile, told):
        visit(page, exchange, address)
        settled(page)
        found = page.evaluate("axe.run().then(({ violations }) => violations)")
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert [(one["id"], one["nodes"][0]["html"][:200]) for one in serious] == [], address


def test_the_page_in_docs_tells_what_each_view_is_for() -> None:
    page = (PAGE_FOLDER.parents[4] / "docs" / "console.md").read_text()
    table = page.partition("| view | what it is for |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| ([\w ]+) \|", table, re.MULTILINE) == list(VIEWS.values())


def test_every_kind_of_entry_has_words() -> None:
    told = (PAGE_FOLDER / "story.js").read_text()
    kinds = {kind.__struct_config__.tag for kind in get_args(AnyEntry)}
    # Steps between subscriptions and events, which are told as they are.
    plain = {"topic.unsubscribed", "event.taken", "event.dropped", "agents.labelled"}
    assert {kind for kind in kinds if not re.search(rf'(?m)^  "?{re.escape(str(kind))}"?: ', told)} == plain


# -- weight ------------------------------------------------------------------------------------------------------------


def test_the_page_weighs_less_than_300_kb_and_uses_nothing_that_makes_markup_of_texts() -> None:
    files = [path for path in PAGE_FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_PAGE_BYTES
    makes_markup = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function")
    forbidden = (*makes_markup, "http://", "https://")
    for path in files:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert [word for word in forbidden if word in text] == [], path.name


def test_the_first_paint_is_quick(browser: Browser, context: BrowserContext, exchange: Running) -> None:
    # Of a profile that has no process yet.
    page = browser.new_page(storage_state=context.storage_state())
    page.goto(exchange.ready["http"])
    expect(page.get_by_role("heading", name="Now")).to_be_visible()
    paints = page.evaluate("performance.getEntriesByType('paint').map((one) => one.startTime)")
    page.close()
    assert paints
    # A second on a quiet machine is the promise that `make bench` measures; a busy one is given more.
    assert max(paints) < 5000
