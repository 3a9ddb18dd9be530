# SPDX-License-Identifier: Apache-2.0
"""Knees of curves (see knee_of() in advise/curve.py), and the points of a small trace's curve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.advise.curve import Question, knee_of, point_of
from sentineld.advise.machines import Machine
from sentineld.host.presets import preset_tiers
from sentineld.profile.trace import profile_of
from sentineld.profile.trace_file import save_trace
from tests.bench import policies
from tests.unit.advise.curves import SIZES, curves_of, points
from tests.unit.traces import recorded
from tests.unit.trainer import MIB
from tests.unit.workloads import Network

NETWORK = Network(blocks=3, weight_bytes=MIB // 4, activation_bytes=MIB // 2, bytes_per_s=4e9)


@pytest.mark.parametrize(
    ("slowdowns", "knee", "below"),
    [
        ([1.3, 1.2, 1.05, 1.02, 1.0], 2, 1),
        ([1.04, 1.02, 1.0, 1.0, 1.0], 0, None),
        ([1.3, 1.2, 1.1, 1.08, 1.06], None, None),
        # At the second size, the slowdown is within the limit, 1.05. But this size is not the knee:
        # at the third, larger size, the slowdown exceeds the limit.
        ([1.3, 1.04, 1.06, 1.01, 1.0], 3, 2),
        ([None, None, 1.01, 1.0, 1.0], 2, 1),
        ([1.0, 1.0, 1.0, 1.0, None], None, None),
        ([], None, None),
    ],
)
def test_the_knee_is_the_least_memory_from_which_on_all_steps_are_within_the_limit(
    slowdowns: list[float | None], knee: int | None, below: int | None
) -> None:
    found = knee_of(points("cxl", slowdowns), 0.05)
    if knee is None:
        assert found is None
        return
    assert found is not None
    assert found.point.fast_bytes == SIZES[knee]
    assert (None if found.below is None else found.below.fast_bytes) == (
        None if below is None else SIZES[below]
    )


def test_a_smaller_limit_needs_more_memory() -> None:
    curve = points("cxl", [1.3, 1.2, 1.05, 1.02, 1.0])
    sizes = [found.point.fast_bytes for part in (0.2, 0.05, 0.0) if (found := knee_of(curve, part))]
    assert sizes == [SIZES[1], SIZES[2], SIZES[4]]


def test_curves_ask_for_single_trainings_first_and_sort_the_answers() -> None:
    curves = curves_of({"cxl": [], "nvme": []}, {})
    asked = curves.questions()
    assert len(asked) == len(set(asked)) == 2 * 2 * len(SIZES)
    assert [one.trainings for one in asked] == sorted(one.trainings for one in asked)
    for point in reversed(points("nvme", [1.5, 1.4, 1.3])):
        curves.add(point)
    assert [point.slowdown for point in curves.curve("nvme", 1)] == [1.5, 1.4, 1.3]
    assert curves.curve("cxl", 1) == curves.curve("nvme", 2) == []
    assert curves.share(SIZES[1]) == pytest.approx(0.2)


@pytest.mark.parametrize(("preset", "fraction"), [("cxl", 0.3), ("optane", 0.2), ("nvme", 0.4)])
def test_a_point_equals_the_cell_of_bench_policies(
    tmp_path: Path, preset: str, fraction: float
) -> None:
    trace = replace(recorded(NETWORK), facts={"threads": 2})
    file = tmp_path / "bert.npz"
    save_trace(trace, file)
    (row,) = policies.cell_rows(file, preset, fraction, ["auto"])
    profile = profile_of(trace)
    machine = Machine(preset, preset_tiers(preset, trace.threads), trace.threads)
    asked = Question(machine, int(fraction * profile.peak_bytes), 1)
    point = point_of(profile, "auto", asked, with_bound=True)
    assert point.slowdown is not None
    assert point.bound is not None
    assert point.slowdown > 1.001
    fast_s = row["fast_only_seconds"]
    assert point.slowdown * fast_s == pytest.approx(row["step_seconds"], rel=1e-9)
    assert point.bound * fast_s == pytest.approx(row["bound_seconds"], rel=1e-9)
    assert (point.bytes_promoted, point.bytes_demoted) == (
        row["bytes_promoted"],
        row["bytes_demoted"],
    )


def test_two_trainings_have_half_of_the_memory_and_bandwidth() -> None:
    profile = profile_of(recorded(NETWORK))
    machine = Machine("cxl", preset_tiers("cxl", 1), 1)
    whole = int(0.6 * profile.peak_bytes)
    alone, each = (point_of(profile, "auto", Question(machine, whole, n), False) for n in (1, 2))
    half = Machine("half", machine.share(2))
    same = point_of(profile, "auto", Question(half, whole // 2, 1), False)
    assert alone.slowdown is not None
    assert each.slowdown is not None
    assert each.slowdown > alone.slowdown
    assert each.slowdown == same.slowdown


def test_a_point_without_a_plan_has_the_reason() -> None:
    profile = profile_of(recorded(NETWORK))
    machine = Machine("cxl", preset_tiers("cxl", 1), 1)
    point = point_of(profile, "sentinel", Question(machine, 4096, 1), True)
    assert point.slowdown is None
    assert point.bound is None
    assert point.error is not None
    assert "infeasible" in point.error.message
