# SPDX-License-Identifier: Apache-2.0
"""Splitting the ring into steps, comparing steps, and the table of live tensors."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.protocol import Alloc, Boundary, Event
from sentineld.model.records import Records
from sentineld.profile import steps as steps_module
from sentineld.profile.steps import LONG_STEPS_MAX, LiveTable, StepCutter, identical
from tests.unit.trainer import PAGE, Trainer


def run(steps: int, sizes: tuple[int, ...] = (2 * PAGE, PAGE)) -> Trainer:
    """Train this many steps. Each step frees the tensor that the previous step kept, allocates two
    tensors, frees the first of them and keeps the second."""
    trainer = Trainer()
    trainer.alloc(3 * PAGE)
    kept = None
    for _ in range(steps):
        trainer.begin_step()
        if kept is not None:
            trainer.free(kept)
        first = trainer.alloc(sizes[0])
        trainer.boundary(Boundary.FORWARD, "layer")
        kept = trainer.alloc(sizes[1])
        trainer.free(first)
    trainer.finish()
    return trainer


def test_only_complete_steps_are_returned() -> None:
    records = run(3).take_records()
    steps = StepCutter().feed(records)
    assert [step.number for step in steps] == [1, 2, 3]
    for step, after in pairwise(steps):
        assert step.records["event"][0] == Event.STEP
        assert np.count_nonzero(step.records["event"] == Event.STEP) == 1
        assert step.end_ns == after.records["time_ns"][0]
        assert step.end_epoch == after.records["address"][0]


@pytest.mark.parametrize("at_once", [1, 2, 7])
def test_feeding_in_pieces_gives_the_same_steps(at_once: int) -> None:
    records = run(3).take_records()
    whole = StepCutter().feed(records)
    cutter = StepCutter()
    pieces = [
        step
        for at in range(0, len(records), at_once)
        for step in cutter.feed(records[at : at + at_once])
    ]
    assert len(pieces) == len(whole)
    for one, other in zip(pieces, whole, strict=True):
        assert np.array_equal(one.records, other.records)
        assert one.live == other.live


def test_records_before_the_first_step_are_ignored() -> None:
    records = run(3).take_records()
    inside = int(np.flatnonzero(records["event"] == Event.STEP)[1]) - 2
    assert [step.number for step in StepCutter().feed(records[inside:])] == [2, 3]


def test_a_gap_discards_the_current_step() -> None:
    records = run(3).take_records()
    begins = np.flatnonzero(records["event"] == Event.STEP)
    cutter = StepCutter()
    cutter.feed(records[: begins[1] + 3])
    cutter.gap()
    assert [step.number for step in cutter.feed(records[begins[2] :])] == [3]


def with_validation(step: int, records: Records) -> Records:
    """The records with 200 more allocations and frees at the end of this step."""
    born = (records["event"] == Event.ALLOC) & (records["detail"] == Alloc.STEP)
    more = np.repeat(records[born][-1:], 200)
    more["event"][1::2] = Event.FREE
    more["address"] += np.uint64(1 << 40)
    end = int(np.flatnonzero(records["event"] == Event.STEP)[step])
    return np.concatenate([records[:end], more, records[end:]])


@pytest.mark.parametrize("at_once", [1, 7, 50, 150])
def test_a_step_that_is_too_long_is_skipped(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(steps_module, "STEP_RECORDS_MAX", 100)
    records = run(6).take_records()
    plain = StepCutter().feed(records)
    records = with_validation(2, with_validation(5, records))
    cutter = StepCutter()
    found = [
        step
        for at in range(0, len(records), at_once)
        for step in cutter.feed(records[at : at + at_once])
    ]
    assert [step.number for step in found] == [1, 3, 4, 6]
    for step in found:
        same = plain[step.number - 1]
        assert identical(step, same)
        assert {a: t.bytes for a, t in step.live.items()} == {
            a: t.bytes for a, t in same.live.items()
        }


def test_many_steps_in_a_row_that_are_too_long_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps_module, "STEP_RECORDS_MAX", 100)
    records = run(2 * LONG_STEPS_MAX + 2).take_records()
    numbers = [*range(1, LONG_STEPS_MAX + 1), *range(LONG_STEPS_MAX + 2, 2 * LONG_STEPS_MAX + 3)]
    for number in reversed(numbers):
        records = with_validation(number, records)
    cutter, found = StepCutter(), []

    def feed() -> None:
        for at in range(0, len(records), 50):
            found.extend(cutter.feed(records[at : at + 50]))

    with pytest.raises(SentinelError, match="a step of the process has more than 100") as caught:
        feed()
    assert [step.number for step in found] == [LONG_STEPS_MAX + 1]
    assert "docs/troubleshooting.md" in caught.value.hint


def test_identical_steps_may_differ_in_addresses_only() -> None:
    _, second, third = StepCutter().feed(run(3).take_records())
    assert identical(second, third)
    (other,) = StepCutter().feed(run(2, sizes=(2 * PAGE, 2 * PAGE)).take_records())[1:]
    assert not identical(second, other)
    moved = third.records.copy()
    moved["address"] += 7 * PAGE
    moved["time_ns"] += 5
    assert identical(second, type(third)(moved, 9, 0, 0, {}))
    swapped = third.records.copy()
    swapped["layer"][swapped["event"] == Event.BOUNDARY] += 1
    assert not identical(second, type(third)(swapped, 9, 0, 0, {}))


def test_live_table_has_cursors_and_ages() -> None:
    steps = StepCutter().feed(run(3).take_records())
    # The ring does not contain the birth of the tensor of 3 pages, so this tensor's cursor is
    # unknown. The kept tensor was born at cursor 1.
    live = sorted((entry.bytes, entry.cursor, entry.age) for entry in steps[2].live.values())
    assert live == [(PAGE, 1, 1), (3 * PAGE, None, 3)]


def test_live_table_drops_tensors_that_the_shim_does_not_list() -> None:
    # address   0x1000  0x2000
    # table     A       B
    # listed    -       B          with another size, which replaces the size in the table
    table = LiveTable()
    listed = np.zeros(2, run(1).take_records().dtype)
    listed["address"], listed["bytes"] = (0x1000, 0x2000), PAGE
    table.begin_step(listed)
    listed["bytes"][1] = 2 * PAGE
    table.begin_step(listed[1:])
    assert {a: e.bytes for a, e in table.entries().items()} == {0x2000: 2 * PAGE}
