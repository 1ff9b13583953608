from __future__ import annotations

from bench.paid import Paid, lines


def test_a_paid_job_stands_beside_the_same_one_for_nothing() -> None:
    found = Paid((10.0, 20.0, 30.0), (30.0, 50.0, 90.0))
    assert found.times == 2.5
    assert [row.split(" | ")[0] for row in lines(found)[2:]] == ["| for nothing", "| paid"]
    assert lines(found)[3].endswith("| 2.5 |")
