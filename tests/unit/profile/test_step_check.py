# SPDX-License-Identifier: Apache-2.0
"""The ring is untrusted: the daemon either refuses its records or can process them
without an error."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.model.protocol import Alloc, Boundary, Event
from sentineld.model.records import Records
from sentineld.plan.cuts import choose_cuts, provisional_layout
from sentineld.profile import steps as steps_module
from sentineld.profile.attribution import build_profile
from sentineld.profile.lifetimes import allocation_profile
from sentineld.profile.step_check import accesses_problem, recorded_completely, step_problem
from sentineld.profile.steps import Step, StepCutter, identical
from tests.unit.trainer import PAGE
from tests.unit.workloads import Network, train

SMALL = Network(blocks=2, weights=1, weight_bytes=2 * PAGE, activation_bytes=3 * PAGE)


def trained() -> tuple[Records, Records, Records]:
    """The ring of some valid steps; the samples and operators' accesses of the last step."""
    trainer = train(SMALL, 3)
    return trainer.take_records(), trainer.take_samples(), trainer.take_ops()


RING, SAMPLES, OPS = trained()


def last_step(ring: Records) -> Step:
    return StepCutter().feed(ring)[-1]


def test_a_valid_step_passes() -> None:
    assert [step_problem(step) for step in StepCutter().feed(RING)] == ["", "", ""]
    assert recorded_completely(last_step(RING))
    assert accesses_problem(OPS) == ""


def boundary(index: int) -> Callable[[Records], Records]:
    return lambda ring: ring[np.flatnonzero(ring["event"] == Event.BOUNDARY)[index]]


def tensor(index: int) -> Callable[[Records], Records]:
    return lambda ring: ring[np.flatnonzero(ring["event"] == Event.ALLOC)[index]]


@pytest.mark.parametrize(
    ("which", "name", "value", "problem"),
    [
        (boundary(-2), "time_ns", 0, "times of step 3 are not ascending"),
        (boundary(-2), "time_ns", 2**64 - 1, "impossible times"),
        (boundary(-2), "address", 1, "epochs of step 3 are not ascending"),
        (boundary(-2), "address", 2**63, "impossible times or epochs"),
        (boundary(-2), "bytes", 0, "boundaries of step 3 have impossible cursors"),
        (boundary(-1), "bytes", 2**40, "boundaries of step 3 have impossible cursors"),
        (tensor(-1), "address", 2**48, "outside the address space"),
        (tensor(-1), "bytes", 2**63, "outside the address space"),
        (tensor(-1), "time_ns", 2**63, "impossible times"),
    ],
)
def test_invalid_values_are_reported(
    which: Callable[[Records], Records], name: str, value: int, problem: str
) -> None:
    ring = RING.copy()
    row = which(ring)
    row[name] = value
    assert problem in step_problem(last_step(ring))


def test_a_missing_allocation_is_found() -> None:
    kept = np.ones(len(RING), np.bool_)
    born = (RING["event"] == Event.ALLOC) & (RING["detail"] == Alloc.STEP)
    kept[np.flatnonzero(born)[-2]] = False
    assert not recorded_completely(last_step(RING[kept]))


NUMBERS = st.sampled_from(
    [0, 1, 5, PAGE, 2**31, 2**32 - 1, 2**47 - PAGE, 2**47, 2**48, 2**62, 2**63, 2**64 - 1]
)
KINDS = st.sampled_from([*Event, *Alloc, *Boundary, 255])


@st.composite
def garbled(draw: st.DrawFn, table: Records) -> Records:
    """A copy of the table in which a few fields are random, a few records are swapped and a few are
    missing."""
    rows = table.copy()
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(rows) - 1))
        name = draw(st.sampled_from(rows.dtype.names))
        bits = 8 * rows.dtype[name].itemsize
        value = draw(KINDS if bits == 8 else NUMBERS)
        if draw(st.booleans()):
            value = int(rows[name][at]) + draw(st.integers(-2, 2))
        rows[name][at] = (
            bool(value) if bits == 8 and name in ("write", "estimated") else (value % 2**bits)
        )
    for _ in range(draw(st.integers(0, 3))):
        one, other = (draw(st.integers(0, len(rows) - 1)) for _ in range(2))
        rows[[one, other]] = rows[[other, one]]
    for _ in range(draw(st.integers(0, 2))):
        begin = draw(st.integers(0, len(rows) - 1))
        length = draw(st.integers(1, 5))
        rows = np.concatenate([rows[:begin], rows[begin + length :]])
        if not len(rows):
            return table[:1].copy()
    return rows


@given(garbled(RING), garbled(SAMPLES), garbled(OPS), st.integers(1, 400), st.booleans())
def test_random_records_are_refused_or_usable(
    ring: Records, samples: Records, ops: Records, chunk: int, cut: bool
) -> None:
    """For any records, the daemon's computations before planning raise only SentinelError."""
    cutter = StepCutter()
    before: Step | None = None
    for begin in range(0, len(ring), chunk):
        try:
            ended = cutter.feed(ring[begin : begin + chunk])
            for step in ended:
                if step_problem(step) or accesses_problem(ops):
                    continue
                rough = allocation_profile(step, [""])
                assert rough.peak_bytes >= 0
                cuts = choose_cuts(step, rough.peak_bytes // 5)
                provisional_layout(step, cuts)
                if before is not None:
                    identical(before, step)
                profile = build_profile(
                    step, samples, ops, [""], cuts=cuts if cut else (), timed=before
                )
                assert np.all(profile.accesses["tensor"] < len(profile.tensors))
                assert np.all(profile.accesses["stretch"] < len(profile.stretches))
                before = step
        except SentinelError:
            continue


def test_events_before_the_first_boundary_belong_to_the_first_stretch() -> None:
    begin = int(np.flatnonzero(RING["event"] == Event.BOUNDARY)[0])
    free = int(np.flatnonzero(RING["event"] == Event.FREE)[0])
    order = np.insert(np.delete(np.arange(len(RING)), free), begin, free)
    step = StepCutter().feed(RING[order])[0]
    profile = allocation_profile(step, [""])
    for name in ("birth_stretch", "death_stretch"):
        assert np.all(profile.tensors[name] < len(profile.stretches))


def test_a_step_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "STEP_RECORDS_MAX", 1000)
    monkeypatch.setattr(steps_module, "SKIPPED_RECORDS_MAX", 10_000)
    cutter = StepCutter()
    cutter.feed(RING[:3])
    endless = np.repeat(RING[RING["event"] == Event.ALLOC][:1], 600)
    for _ in range(16):
        cutter.feed(endless)
    with pytest.raises(SentinelError, match="more than 1000 records"):
        cutter.feed(endless)


def test_too_many_live_tensors_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps_module, "LIVE_MAX", 100)
    many = np.repeat(RING[RING["event"] == Event.ALLOC][:1], 200)
    many["address"] += np.arange(200, dtype=np.uint64) * np.uint64(PAGE)
    many["detail"] = Alloc.STEP
    with pytest.raises(SentinelError, match="more than 100 live tensors"):
        StepCutter().feed(many)


def test_overlapping_tensors_do_not_exhaust_memory() -> None:
    ring = RING.copy()
    begin = np.flatnonzero(ring["event"] == Event.STEP)[2]
    head, tail = ring[: begin + 2], ring[-1:]
    count = 6000
    born = np.repeat(ring[ring["event"] == Event.ALLOC][-1:], count)
    born["detail"], born["value"] = Alloc.STEP, np.arange(count)
    # Each tensor overlaps all the others.
    born["address"] = np.uint64(1 << 40) + np.arange(count, dtype=np.uint64) * np.uint64(PAGE)
    born["bytes"] = np.uint64(1 << 36)
    step = last_step(np.concatenate([head, born, tail]))
    assert step_problem(step) == ""
    with pytest.raises(SentinelError, match="tensors of the step overlap"):
        build_profile(step, SAMPLES, OPS, [""])
