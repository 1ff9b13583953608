"""The page for people: it stands alone, and what an endpoint said in it is text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from tests.unit.check.test_report import report, result
from trunkline.check.page import page

EVIL = '<script>alert(1)</script>" onmouseover="x'


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_tells_score_failures_with_advice_and_everything_that_was_checked() -> None:
    made = page(report(result("a.one"), result("b.two", "failed", "HTTP 200"), result("a.three", "skipped", "no key")))
    text = " ".join(Tags(made).text.split())
    assert "50 % 1 of 2 passed, 1 could not be tried." in text
    for part in ("https://127.0.0.1:7413", "ab" * 32, "b.two", "HTTP 200", "Mend it.", "no key", "It must be so."):
        assert part in text


def test_the_page_tells_one_cause_of_several_failures_once() -> None:
    text = Tags(page(report(result("a.one", "failed", "HTTP 200"), result("b.two", "failed", "HTTP 200")))).text
    assert text.count("HTTP 200") == text.count("Mend it.") == 1
    assert "a.one" in text
    assert "b.two" in text


def test_what_an_endpoint_said_is_text() -> None:
    tags = Tags(page(report(result("a.one", "failed", EVIL))))
    assert EVIL in tags.text
    assert "script" not in [tag for tag, _ in tags.found]
    assert not any("onmouseover" in attributes for _, attributes in tags.found)


def test_the_page_loads_nothing() -> None:
    made = page(report(result("a.one")))
    assert not re.findall(r"src=|href=|url\(|@import", made)
