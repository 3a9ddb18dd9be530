# SPDX-License-Identifier: Apache-2.0
"""Curves as tables and sentences."""

from __future__ import annotations

from sentineld.advise.curve import Point
from sentineld.advise.words import assumptions, bound_table, sentences, table
from tests.unit.advise.curves import SIZES, curves_of

ALONE: dict[str, list[float | None]] = {
    "cxl": [1.3, 1.08, 1.04, 1.01, 1.0],
    "nvme": [None, 1.9, 1.5, 1.3, 1.2],
}
SHARED: dict[str, list[float | None]] = {
    "cxl": [1.6, 1.4, 1.2, 1.1, 1.049],
    "nvme": [None, 3.0, 2.5, 2.0, 1.9],
}


def test_the_table_has_a_row_for_each_size_and_marks_the_knee() -> None:
    header, rows = table(curves_of(ALONE), 1, 0.05)
    assert header == ["FAST", "BYTES", "cxl", "nvme"]
    assert rows[0] == ["10%", "100.0 MiB", "1.300", "-"]
    assert [row[2] for row in rows] == ["1.300", "1.080", "1.040*", "1.010", "1.000"]
    assert not any("*" in row[3] for row in rows)


def test_steps_that_were_not_simulated_are_marked() -> None:
    _, rows = table(curves_of({"cxl": [1.3, 1.1]}), 1, 0.05)
    assert [row[2] for row in rows] == ["1.300", "1.100", "?", "?", "?"]


def test_a_table_of_bounds() -> None:
    curves = curves_of(ALONE)
    curves.add(Point("cxl", SIZES[1], 1, 1.08, bound=1.07))
    _, rows = bound_table(curves, 1)
    assert rows[1] == ["20%", "200.0 MiB", "1.070", "-"]
    assert rows[0][2:] == ["-", "-"]


def test_sentences_say_how_much_memory_is_enough() -> None:
    cxl, nvme = sentences(curves_of(ALONE), 0.05)
    assert cxl == (
        "cxl: 30% of the peak (300.0 MiB) is enough: 1.040 times all-fast; 20% is not: 1.080 times"
        " all-fast."
    )
    assert nvme == "nvme: 50% of the peak (500.0 MiB) is not enough: 1.200 times all-fast."


def test_sentences_say_what_a_second_training_costs() -> None:
    cxl, nvme = sentences(curves_of(ALONE, SHARED), 0.05)
    assert cxl.endswith(
        "With a second training on the same machine, each: 1.200 times all-fast. For both, 50% of"
        " the peak (500.0 MiB) is enough."
    )
    assert nvme.endswith("each: 1.900 times all-fast. For both, 50% is not enough.")


def test_an_interrupted_simulation_has_sentences_about_its_results_only() -> None:
    (cxl,) = sentences(curves_of({"cxl": [1.01, 1.0], "nvme": []}, {"cxl": []}), 0.05)
    assert cxl == "cxl: 10% of the peak (100.0 MiB) is enough: 1.010 times all-fast."
    (cxl,) = sentences(curves_of({"cxl": [None]}), 0.05)
    assert cxl == "cxl: 10% of the peak (100.0 MiB) is not enough: no plan."


def test_assumptions_name_the_socket_only_if_it_is_too_small() -> None:
    assert assumptions(4, 1) == []
    assert len(assumptions(6, 2)) == 1
    assert "more than 12 threads" in assumptions(7, 2)[1]
