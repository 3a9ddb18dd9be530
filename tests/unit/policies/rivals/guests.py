# SPDX-License-Identifier: Apache-2.0
"""A step of three persistent tensors and one transient tensor, the guest."""

from __future__ import annotations

from sentineld.model.profile import Profile
from tests.unit.policies.rivals.laps import Life, lap


def with_guest() -> Profile:
    return lap(6, Life(64, (0, 5)), Life(64, (0, 3)), Life(64, (2, 3)), Life(64, (2, 3), (2, 3)))
