"""The table as a picture: one panel for each load, one bar for each contender, the bare relay at 1.00.

Plain SVG, made here: a rectangle, a line and a text are all it takes. Pure. Axes begin at zero, so that a bar twice as
long is twice as fast; the thin line on a bar goes from the lowest round to the highest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.sax.saxutils import escape

from bench.contenders import CONTENDERS, RELAY
from bench.loads import Load
from bench.plan import LOADS
from bench.report import ratio
from bench.results import Results

WIDTH: Final = 1080
PANELS_A_ROW: Final = 2
MARGIN: Final = 24
TITLE_HEIGHT: Final = 64
NAME_WIDTH: Final = 196
# Room for the longest figure behind the longest bar.
FIGURE_WIDTH: Final = 118
BAR_HEIGHT: Final = 15
ROW_HEIGHT: Final = 22
PANEL_HEAD: Final = 34
PANEL_GAP: Final = 22

FONT: Final = "system-ui, Segoe UI, Helvetica, Arial, sans-serif"
INK: Final = "#1f2328"
FAINT: Final = "#6e7781"
OURS: Final = "#0969da"
PEERS: Final = "#afb8c1"
THE_RELAY: Final = "#57606a"


def svg(results: Results) -> str:
    """The whole picture."""
    names = [one.name for one in CONTENDERS if any(cell.contender == one.name for cell in results.cells)]
    loads = [load for load in LOADS if any(cell.load == load for cell in results.cells)]
    panel_width = (WIDTH - 2 * MARGIN - PANEL_GAP) // PANELS_A_ROW
    panel_height = PANEL_HEAD + ROW_HEIGHT * len(names)
    rows = -(-len(loads) // PANELS_A_ROW)
    height = TITLE_HEIGHT + rows * (panel_height + PANEL_GAP) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="{FONT}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(MARGIN, 32, "Calls a second, bare relay = 1.00", size=20, weight="600"),
        _text(MARGIN, 52, _subtitle(results), size=12, fill=FAINT),
    ]
    for at, load in enumerate(loads):
        left = MARGIN + at % PANELS_A_ROW * (panel_width + PANEL_GAP)
        top = TITLE_HEIGHT + at // PANELS_A_ROW * (panel_height + PANEL_GAP)
        parts += _panel(results, load, names, left, top, panel_width)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _subtitle(results: Results) -> str:
    machine = results.machine
    rounds = max((len(cell.rates) for cell in results.cells), default=0)
    return (
        f"medians of {rounds} rounds, lowest to highest as a line · {machine.cores} × {machine.cpu}, "
        f"Python {machine.python}, {machine.disk} · {machine.date} UTC"
    )


def _panel(results: Results, load: Load, names: list[str], left: int, top: int, width: int) -> Iterator[str]:
    ratios = {name: results.ratio(name, load) for name in names}
    longest = max([1.0, *(found.high for found in ratios.values() if found is not None)])
    start = left + NAME_WIDTH
    scale = (width - NAME_WIDTH - FIGURE_WIDTH) / longest
    yield _text(left, top + 18, load.title, size=14, weight="600")
    bottom = top + PANEL_HEAD + len(names) * ROW_HEIGHT - (ROW_HEIGHT - BAR_HEIGHT)
    yield _rule(start + scale, top + PANEL_HEAD - 4, start + scale, bottom + 2, FAINT, dashed=True)
    for number, name in enumerate(names):
        found = ratios[name]
        y = top + PANEL_HEAD + number * ROW_HEIGHT
        middle = y + BAR_HEIGHT / 2
        title = next(one.title for one in CONTENDERS if one.name == name)
        yield _text(start - 8, middle + 4, title, size=12, anchor="end")
        if found is not None:
            length = _px(found.median * scale)
            yield f'<rect x="{start}" y="{y}" width="{length}" height="{BAR_HEIGHT}" fill="{_fill(name)}"/>'
            yield _rule(start + found.low * scale, middle, start + found.high * scale, middle, INK)
            yield _text(start + found.high * scale + 6, middle + 4, ratio(found), size=11, fill=FAINT)


def _fill(name: str) -> str:
    if name == RELAY.name:
        return THE_RELAY
    return OURS if name in {"read-only", "durable", "sdk"} else PEERS


def _text(
    x: float, y: float, text: str, *, size: int, weight: str = "400", fill: str = INK, anchor: str = "start"
) -> str:
    return (
        f'<text x="{_px(x)}" y="{_px(y)}" font-size="{size}" font-weight="{weight}" fill="{fill}" '
        # The white edge keeps a figure readable where a line goes through it.
        f'text-anchor="{anchor}" stroke="#ffffff" stroke-width="3" paint-order="stroke">{escape(text)}</text>'
    )


def _rule(x1: float, y1: float, x2: float, y2: float, stroke: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="3 3"' if dashed else ""
    return f'<line x1="{_px(x1)}" y1="{_px(y1)}" x2="{_px(x2)}" y2="{_px(y2)}" stroke="{stroke}"{dash}/>'


def _px(value: float) -> str:
    return f"{value:.1f}"
