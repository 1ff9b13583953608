"""A report as one page of HTML that needs nothing else: no script, no font, no picture from elsewhere.

Owns the page and nothing of what it says. What an endpoint answered stands in it, so every text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from trunkline.check.report import Report, Tally
from trunkline.check.suite import FAILED, PASSED, Result

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #cf222e; --pale: #8889; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .3rem .6rem .3rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top; } td.number, th.number { text-align: right; }
code { font: .88em ui-monospace, monospace; overflow-wrap: anywhere; } .pale { color: var(--pale); }
.passed { color: var(--good); } .failed { color: var(--bad); } .skipped { color: var(--pale); }
.score { font-size: 2.5rem; font-weight: 600; } meter { width: 8rem; }
section.fault { border-left: 4px solid var(--bad); padding: .2rem 0 .2rem 1rem; margin: 1.2rem 0; }
dl { display: grid; grid-template-columns: 5rem 1fr; margin: .4rem 0; } dt { color: var(--pale); }
dd { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
summary { cursor: pointer; margin: 1rem 0 .3rem; }
"""


def page(report: Report) -> str:
    """The whole page."""
    return "\n".join(_parts(report)) + "\n"


def _parts(report: Report) -> Iterator[str]:
    tally = report.tally
    status = PASSED if report.is_passed else FAILED
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(report.protocol)}: {status}</title><style>{_STYLE}</style></head><body>"
    yield f"<h1>{escape(report.protocol)}: <code>{escape(report.endpoint)}</code></h1>"
    yield f'<p class="pale">{report.when}, level {report.level}, {report.duration_s:.1f} s,'
    yield f" {report.messages} messages looked at.<br>Certificate SHA-256 <code>{report.fingerprint}</code></p>"
    yield f'<p><span class="score {status}">{tally.rate:g} %</span> {_sentence(tally)}</p>'
    yield '<table><tr><th>Category<th class="number">Passed<th class="number">Failed<th class="number">Skipped<th></tr>'
    for category, results in report.categories.items():
        yield _row(category, Tally.of(results))
    yield "</table>"
    if report.failures:
        yield "<h2>What failed, and what to mend</h2>"
        yield from map(_cause, report.causes)
    yield "<h2>Everything that was checked</h2>"
    for category, results in report.categories.items():
        yield f"<details><summary>{escape(category)} ({len(results)})</summary><table>"
        yield from map(_line, results)
        yield "</table></details>"
    yield "</body></html>"


def _sentence(tally: Tally) -> str:
    skipped = f", {tally.skipped} could not be tried" if tally.skipped else ""
    return f"{tally.passed} of {tally.passed + tally.failed} passed{skipped}."


def _row(category: str, tally: Tally) -> str:
    failed = f'<b class="failed">{tally.failed}</b>' if tally.failed else "0"
    return (
        f'<tr><td>{escape(category)}<td class="number">{tally.passed}<td class="number">{failed}'
        f'<td class="number">{tally.skipped}<td><meter min="0" max="100" low="99.9" optimum="100" value="{tally.rate}">'
        f"{tally.rate:g} %</meter></tr>"
    )


def _cause(cases: Sequence[Result]) -> str:
    """What was seen once, below all the cases that it fails."""
    first = cases[0]
    return (
        f'<section class="fault">{"".join(map(_broken, cases))}'
        f"<dl><dt>seen</dt><dd>{escape(first.seen)}</dd><dt>mend</dt><dd>{escape(first.mend)}</dd></dl></section>"
    )


def _broken(one: Result) -> str:
    return (
        f'<div id="{escape(one.id)}"><b><code>{escape(one.id)}</code></b>'
        f' <span class="pale">{escape(one.level)}, {escape(", ".join(one.rows))}</span><br>{escape(one.must)}</div>'
    )


def _line(one: Result) -> str:
    note = f'<br><span class="pale">{escape(one.seen)}</span>' if one.status not in {PASSED, FAILED} else ""
    return (
        f'<tr><td class="{one.status}">{one.status}<td><code>{escape(one.id)}</code><br>{escape(one.must)}{note}'
        f'<td class="pale">{escape(one.level)}<td class="pale">{escape(" ".join(one.rows))}</tr>'
    )
