# SPDX-License-Identifier: Apache-2.0
"""A step with a forward and a backward pass over six layers.

Layer k runs forward in stretch k and backward in stretch 13 - k. Stretch 0 begins the step, and
stretch 13 is the optimizer's. For k = 2 to 6, tensor k - 2 is the input of layer k: it is born in
stretch k - 1, used in stretch k, and used again in stretch 13 - k, after which it dies.

stretch    1   2   3   4   5   6   7   8   9  10  11
input 2   [x   x                                   x]
input 3       [x   x                           x]
input 4           [x   x                   x]
input 5               [x   x           x]
input 6                   [x   x   x]
"""

from __future__ import annotations

from dataclasses import replace

from sentineld.model.profile import Profile
from sentineld.model.protocol import Boundary
from tests.unit.policies.rivals.laps import Life, lap

PAGES = 64
"""The size of each input."""


def passes() -> Profile:
    profile = lap(
        14,
        *(Life(PAGES, (k - 1, k, 13 - k), (k - 1, 13 - k), (k - 1,)) for k in range(2, 7)),
    )
    stretches = profile.stretches.copy()
    for k in range(1, 7):
        stretches["layer"][13 - k] = k
        stretches["kind"][13 - k] = Boundary.BACKWARD
    stretches["kind"][13] = Boundary.OPTIMIZER
    return replace(profile, stretches=stretches)
