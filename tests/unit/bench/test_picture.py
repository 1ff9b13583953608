from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from bench.picture import OURS, PEERS, THE_RELAY, WIDTH, svg
from tests.unit.bench.made import results

SVG = "{http://www.w3.org/2000/svg}"


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - made a moment ago


def bars(text: str) -> dict[str, float]:
    """The lengths of the bars, by colour; the one in white is the paper."""
    found = parsed(text).findall(f"{SVG}rect")
    return {bar.attrib["fill"]: float(bar.attrib["width"]) for bar in found if bar.attrib["fill"] != "#ffffff"}


def texts(text: str) -> list[str]:
    return ["".join(one.itertext()) for one in parsed(text).findall(f"{SVG}text")]


def test_a_bar_is_as_long_as_its_ratio() -> None:
    lengths = bars(svg(results(relay=(1000.0,), read_only=(500.0,), nats=(125.0,))))
    assert lengths[OURS] == pytest.approx(lengths[THE_RELAY] / 2, abs=0.1)
    assert lengths[PEERS] == pytest.approx(lengths[THE_RELAY] / 8, abs=0.1)


def test_a_bar_longer_than_the_relays_still_fits() -> None:
    picture = svg(results(relay=(100.0,), grpc=(400.0,)))
    lengths = bars(picture)
    assert lengths[PEERS] == pytest.approx(lengths[THE_RELAY] * 4, abs=0.5)
    assert max(lengths.values()) < WIDTH / 2
    for line in parsed(picture).findall(f"{SVG}line"):
        assert 0 <= float(line.attrib["x2"]) <= WIDTH


def test_each_panel_names_its_load_and_each_bar_its_contender_and_figure() -> None:
    said = texts(svg(results(relay=(100.0, 100.0, 100.0), nats=(20.0, 10.0, 30.0))))
    assert {"64 × 200 B", "Bare relay", "NATS request-reply", "0.20 (0.10–0.30)"} <= set(said)


def test_a_name_from_outside_does_not_break_the_picture() -> None:
    assert any("Some <CPU> & more" in text for text in texts(svg(results(relay=(1.0,)))))
