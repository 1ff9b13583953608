from __future__ import annotations

from bench.report import lines
from bench.results import Chiffon, Printed, Results
from tests.unit.bench.made import MACHINE

PRINTED = Printed(10 * 1024**2, 0.8, 50 * 1024**2, 90 * 1024**2)


def test_times_are_told_beside_each_other_and_celery_is_left_out_where_it_is_missing() -> None:
    times = tuple(float(number) for number in range(1, 101))
    both = "\n".join(lines(Results(MACHINE, "standard", chiffon=Chiffon(times, (5.0,), PRINTED))))
    assert "| Chiffon over JetStream |   51.0 |      91.0 |     100.0 |" in both
    assert "| Celery with Redis " in both
    assert both.endswith("takes 0.8 s; the exchange has 50 MiB before and 90 MiB at the most.")
    alone = "\n".join(lines(Results(MACHINE, "standard", chiffon=Chiffon(times, (), PRINTED))))
    assert "Celery" not in alone


def test_no_time_is_no_figure() -> None:
    found = Chiffon((1.0, 3.0, 2.0), (), PRINTED)
    assert (found.median(found.ours_ms), found.median(found.celery_ms)) == (2.0, 0.0)
