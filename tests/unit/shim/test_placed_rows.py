# SPDX-License-Identifier: Apache-2.0
"""The shim reports the placed tensors only if they have changed since the last report."""

from __future__ import annotations

from sentineld.shim.placed_rows import SETTLING_STEPS, PlacedRows


class Library:
    """Stands in for Native."""

    def __init__(self) -> None:
        self.placement_changes = 0
        self.found: list[tuple[int, int]] = []
        self.reads = 0

    def placed(self, rows_max: int) -> list[tuple[int, int]]:
        self.reads += 1
        return list(self.found)


def test_rows_are_read_for_some_steps_after_a_change() -> None:
    library = Library()
    rows = PlacedRows(library)  # type: ignore[arg-type]
    assert [rows.changed() for _ in range(5)] == [False] * 5
    assert library.reads == SETTLING_STEPS
    library.placement_changes += 1
    assert not rows.changed()  # the placed tensor was born in this step, so it has no row yet
    library.found = [(4096, 1)]
    assert rows.changed()
    assert rows.rows == [(4096, 1)]
    assert not rows.changed()
    assert library.reads == 2 * SETTLING_STEPS


def test_placements_that_come_and_go_within_a_step_are_not_reported() -> None:
    library = Library()
    rows = PlacedRows(library)  # type: ignore[arg-type]
    for _ in range(5):
        library.placement_changes += 2
        assert not rows.changed()
