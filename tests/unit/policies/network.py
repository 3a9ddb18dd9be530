# SPDX-License-Identifier: Apache-2.0
"""A training step for tests of the policies."""

from __future__ import annotations

from functools import cache

from sentineld.model.profile import Profile
from sentineld.plan.cuts import choose_cuts
from tests.unit.trainer import MIB
from tests.unit.workloads import Network, profiled

NETWORK = Network(blocks=8, weight_bytes=MIB // 2, activation_bytes=MIB, bytes_per_s=120e6)
RATE = 150e6 / 2
"""A migration bandwidth at which the pages that a step uses can't all be moved in time."""


@cache
def training_step() -> Profile:
    """A step of 8 blocks with forward, backward and an optimizer with two states per parameter. Its
    peak is 64.5 MiB."""
    profile, step = profiled(NETWORK)
    cuts = choose_cuts(step, profile.peak_bytes // 5)
    return profiled(NETWORK, tuple(cuts.tolist()))[0]
