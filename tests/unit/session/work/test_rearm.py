# SPDX-License-Identifier: Apache-2.0
"""The period of re-arming, for steps with stretches of given times."""

from __future__ import annotations

import pytest

from sentineld.model.protocol import Event
from sentineld.profile.steps import Step
from sentineld.session.work.rearm import rearm_period_us
from tests.unit.profile.test_attribution import ring

MS = 1_000_000


def step_of(*stretches_ms: int) -> Step:
    entries = [(Event.STEP, 1, 1, 0)]
    begins = [sum(stretches_ms[:at]) * MS for at in range(len(stretches_ms))]
    entries += [(Event.BOUNDARY, 1, 0, at) for at in range(len(stretches_ms))]
    records = ring(*entries)
    records["time_ns"][records["event"] == Event.BOUNDARY] = begins
    return Step(records, 1, sum(stretches_ms) * MS, 0, {})


@pytest.mark.parametrize(
    ("stretches_ms", "period_us"),
    [
        ((40,), 10_000),
        ((8, 8, 8), 2000),
        ((1, 1, 1, 1, 20), 5000),  # most of the time is in the long stretch
        ((1, 2, 1), 1000),  # not below the module's minimum
        ((100_000,), 10_000_000),
    ],
)
def test_a_typical_stretch_has_four_periods(stretches_ms: tuple[int, ...], period_us: int) -> None:
    assert rearm_period_us(step_of(*stretches_ms)) == period_us
