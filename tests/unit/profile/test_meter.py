# SPDX-License-Identifier: Apache-2.0
"""The meter, on a step that is small enough to count by hand.

epoch      10        11        12        13 (next step)
boundary    0         1         2
page 1   fast       fast       slow
page 2   slow(w)     .         node unknown       (w): a write, dot: no access
resident  2+1        1+2       1+2        (pages on node 0 + node 1)
"""

from __future__ import annotations

import numpy as np

from sentineld.model.protocol import Event
from sentineld.model.records import (
    ACCESS_AGAIN,
    ACCESS_RESIDENCY,
    ACCESS_UNKNOWN,
    ACCESS_WRITE,
    RECORD_DTYPE,
    SAMPLE_DTYPE,
)
from sentineld.model.tiers import Tier, Tiers
from sentineld.profile.meter import meter_residency, meter_step
from sentineld.profile.steps import Step
from tests.unit.plan.toys import toy_profile

TIERS = Tiers((Tier((0,), 1 << 30), Tier((1,), 1 << 30)), 1e8, "test")


def step() -> tuple[np.ndarray, np.ndarray]:
    boundaries = np.zeros(4, RECORD_DTYPE)
    boundaries["address"] = [10, 11, 12, 13]
    boundaries["time_ns"] = [100, 150, 170, 300]
    boundaries["layer"] = [0, 7, 8, 0]
    samples = np.array(
        [
            (99, 9, 0, 0, 0),  # the step before
            (1, 10, 0, 0, 0),
            (2, 10, 1, ACCESS_WRITE, 0),
            (2, 10, 0, ACCESS_RESIDENCY, 0),
            (1, 10, 1, ACCESS_RESIDENCY, 0),
            (1, 11, 0, 0, 0),
            (1, 11, 0, ACCESS_RESIDENCY, 0),
            (2, 11, 1, ACCESS_RESIDENCY, 0),
            (5, 11, 255, ACCESS_UNKNOWN, 3),  # the unknown pages 5 to 8
            (1, 12, 1, 0, 0),
            (1, 12, 0, ACCESS_WRITE | ACCESS_AGAIN, 0),  # a later write to the same page
            (1, 12, 255, ACCESS_UNKNOWN | ACCESS_AGAIN, 0),
            (2, 12, 255, 0, 0),  # node unknown to the module
            (1, 12, 0, ACCESS_RESIDENCY, 0),
            (2, 12, 1, ACCESS_RESIDENCY, 0),
            (99, 13, 0, 0, 0),  # in the next step
        ],
        SAMPLE_DTYPE,
    )
    return boundaries, samples


def test_a_record_of_a_huge_page_counts_as_all_its_pages() -> None:
    boundaries, samples = step()
    samples["more_pages"][5] = 511  # page 1 in stretch 1
    metered = meter_step(5, boundaries, samples, TIERS, 4096, 0, 0, 0)
    assert (metered.accesses, metered.fast_accesses) == (5 + 511, 2 + 511)
    assert [s.accesses for s in metered.stretches] == [2, 512, 2]
    # The record represents the pages 1 to 512. So page 1 is touched in 3 stretches, page 2 in 3,
    # and pages 3 to 512 in 1.
    assert metered.page_touches == (0, 510, 0, 2)


def test_the_meter_counts_pages_by_stretch_and_tier() -> None:
    boundaries, samples = step()
    metered = meter_step(5, boundaries, samples, TIERS, 4096, 1000, 8192, 1)
    assert (metered.accesses, metered.fast_accesses, metered.unknown_node) == (5, 2, 1)
    assert metered.unknown_pages == 4
    assert metered.fast_share == 0.4
    assert metered.charged_bytes_max == 2 * 4096 + 1000
    assert [s.accesses for s in metered.stretches] == [2, 1, 2]
    assert [s.fast_accesses for s in metered.stretches] == [1, 1, 0]
    assert [s.resident_bytes for s in metered.stretches] == [
        (2 * 4096, 4096),
        (4096, 2 * 4096),
        (4096, 2 * 4096),
    ]
    assert [s.time_ns for s in metered.stretches] == [50, 20, 130]
    assert [s.layer for s in metered.stretches] == [0, 7, 8]
    assert metered.page_touches == (0, 0, 1, 1)
    assert metered.to_json()["fast_share"] == 0.4


def test_a_step_without_accesses_has_no_share() -> None:
    boundaries, samples = step()
    metered = meter_step(5, boundaries, samples[:0], TIERS, 4096, 0, 0, 0)
    assert (metered.accesses, metered.fast_share, metered.charged_bytes_max) == (0, 0.0, 0)


def emulated_step(served: int = 4) -> Step:
    """Four stretches of the toy step. served: number of boundaries with SERVED and SERVED_FAST
    records, in which the shim reports residency, page accesses and delay; see protocol.h."""
    rows = [(100, 0, 7, 0, 0, Event.STEP, 0)]
    for at in range(4):
        if at:
            rows.append((100 + 10 * at, 0, 0, at, at, Event.BOUNDARY, 1))
        if at < served:
            rows.append((101, 4096 * (5 - at), 4096 * at, 6, at, Event.SERVED, 0))
            rows.append((101, 1000 * at, 50, 6 - at, at, Event.SERVED_FAST, 0))
    records = np.array(rows, RECORD_DTYPE)
    return Step(records, 7, 150, 0, {})


def test_emulated_tiers_are_metered_by_the_shim_s_records() -> None:
    metered = meter_residency(emulated_step(), toy_profile(), 1000, 8192, 1)
    assert metered is not None
    assert (metered.step, metered.time_ns) == (7, 50)
    assert (metered.accesses, metered.fast_accesses) == (24, 18)
    assert (metered.charged_bytes_max, metered.moved_bytes) == (5 * 4096 + 1000, 8192)
    assert (metered.unknown_node, metered.unknown_pages, metered.late_moves) == (0, 0, 1)
    assert (metered.delay_owed_ns, metered.paid_before_ns) == (6000, 50)
    # 5 pages (scratch 1, state 4) are accessed in one stretch, 4 pages (activation 2, gradient 2)
    # in two stretches, and 2 pages (parameter) in three.
    assert metered.page_touches == (0, 5, 4, 2)
    assert [one.time_ns for one in metered.stretches] == [10, 10, 10, 20]
    assert [one.layer for one in metered.stretches] == [0, 1, 2, 3]
    assert metered.stretches[3].resident_bytes == (2 * 4096, 3 * 4096)


def test_a_step_without_all_served_records_is_not_metered() -> None:
    assert meter_residency(emulated_step(served=3), toy_profile(), 0, 0, 0) is None
    assert meter_residency(emulated_step(served=0), toy_profile(), 0, 0, 0) is None
