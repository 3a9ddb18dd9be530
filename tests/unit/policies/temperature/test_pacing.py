# SPDX-License-Identifier: Apache-2.0
"""The interval between scans, computed by hand."""

from __future__ import annotations

import pytest

from sentineld.policies.temperature.pacing import Pacing


def test_the_interval_keeps_the_share() -> None:
    pacing = Pacing(0.02, 1.0, 60.0)
    assert pacing.interval_s == 1.0
    pacing.note(0.1)
    assert pacing.interval_s == pytest.approx(5.0)
    # The mean CPU time rises by a quarter (WEIGHT) of the difference: from 0.1 s to 0.125 s.
    pacing.note(0.2)
    assert pacing.interval_s == pytest.approx(6.25)


def test_the_interval_has_limits() -> None:
    pacing = Pacing(0.02, 1.0, 60.0)
    pacing.note(0.001)
    assert pacing.interval_s == 1.0
    pacing.note(100.0)
    assert pacing.interval_s == 60.0
