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


def checkpointed() -> Profile:
    """A step of the same layers, but each of them is checkpointed. In the backward pass, layer k
    runs again in stretch 19 - 2 * k, where it uses its input, and then backward in the next
    stretch."""
    again = {k: 19 - 2 * k for k in range(1, 7)}
    profile = lap(
        20,
        *(
            Life(PAGES, (k - 1, k, again[k], again[k] + 1), (k - 1, again[k] + 1), (k - 1,))
            for k in range(2, 7)
        ),
    )
    stretches = profile.stretches.copy()
    for k, stretch in again.items():
        stretches["layer"][stretch : stretch + 2] = k
        stretches["kind"][stretch + 1] = Boundary.BACKWARD
    stretches["kind"][19] = Boundary.OPTIMIZER
    return replace(profile, stretches=stretches)


def passes(times: int = 1) -> Profile:
    """times: how often the step makes both passes, as in gradient accumulation. Pass i makes the
    stretches 1 to 12 of the diagram 12 * i stretches later, with the tensors 5 * i to 5 * i + 4."""
    begins, layers = [12 * i for i in range(times)], range(1, 7)
    profile = lap(
        12 * times + 2,
        *(
            Life(
                PAGES,
                (b + k - 1, b + k, b + 13 - k),
                (b + k - 1, b + 13 - k),
                (b + k - 1,),
            )
            for b in begins
            for k in layers[1:]
        ),
    )
    stretches = profile.stretches.copy()
    for begin in begins:
        for k in layers:
            stretches["layer"][[begin + k, begin + 13 - k]] = k
            stretches["kind"][begin + 13 - k] = Boundary.BACKWARD
    stretches["kind"][12 * times + 1] = Boundary.OPTIMIZER
    return replace(profile, stretches=stretches)
