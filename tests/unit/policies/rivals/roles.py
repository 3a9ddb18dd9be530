# SPDX-License-Identifier: Apache-2.0
"""A step with parameters, a gradient and optimizer state. Its passes are those of passes.py.

Parameter k - 1 belongs to layer k, for k = 1 to 4: layer k uses it in stretch k and in stretch
13 - k, and the optimizer uses it in stretch 13. Tensor 4 is the gradient of layer 4's parameter,
and tensors 5 to 8 are optimizer state. In the drawing, x is a use, [ and ] are birth and death, and
(x) is a use of a persistent tensor.

stretch           0   1   2   3   4   5   6   7   8   9  10  11  12  13
parameter 0          (x)                                         (x) (x)
parameter 1              (x)                                 (x)     (x)
parameter 2                  (x)                         (x)         (x)
parameter 3                      (x)                 (x)             (x)
gradient                                             [x               x]
optimizer state                                                      (x)
"""

from __future__ import annotations

from dataclasses import replace

from sentineld.model.profile import Kind, Profile
from tests.unit.policies.rivals.laps import Life, lap
from tests.unit.policies.rivals.passes import passes

PAGES = 64
"""The size of each parameter and of the gradient. Each tensor of optimizer state has a quarter of
this size."""
PARAMETERS = range(4)
GRADIENT = 4
STATE = range(5, 9)


def training() -> Profile:
    profile = lap(
        14,
        *(Life(PAGES, (k, 13 - k, 13)) for k in range(1, 5)),
        Life(PAGES, (9, 13), (9, 13)),
        *(Life(PAGES // 4, (13,)) for _ in STATE),
    )
    tensors, stretches = profile.tensors.copy(), profile.stretches.copy()
    tensors["kind"][GRADIENT] = Kind.GRADIENT
    for name in ("kind", "layer"):
        stretches[name] = passes().stretches[name]
    return replace(profile, tensors=tensors, stretches=stretches)
