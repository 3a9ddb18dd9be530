# SPDX-License-Identifier: Apache-2.0
"""Which stretches are part of which pass. test_vdnn.py tests the layers, test_flashneuron.py the
saved tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.protocol import Boundary
from sentineld.policies.rivals.passes import passes
from tests.unit.policies.rivals.laps import Life, lap


def test_a_cut_belongs_to_the_pass_around_it() -> None:
    profile = lap(10, Life(16, (0, 8)))
    kinds = [
        Boundary.STEP,
        Boundary.CUT,
        Boundary.FORWARD,
        Boundary.OUTSIDE,
        Boundary.BACKWARD,
        Boundary.CUT,
        Boundary.OPTIMIZER,
        Boundary.CUT,
        Boundary.FORWARD,
        Boundary.BACKWARD,
    ]
    stretches = profile.stretches.copy()
    stretches["kind"] = kinds
    forward, backward = passes(replace(profile, stretches=stretches))
    assert np.flatnonzero(forward).tolist() == [0, 1, 2, 3, 8]
    assert np.flatnonzero(backward).tolist() == [4, 5, 9]
