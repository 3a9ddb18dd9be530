# SPDX-License-Identifier: Apache-2.0
"""A training step for tests of the policies."""

from __future__ import annotations

from functools import cache

from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.cuts import choose_cuts
from sentineld.policies.bounds.fast_share import FastShareBound, fast_share_bound
from sentineld.policies.registry import policy
from tests.unit.plan.toys import two_tiers
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


@cache
def step_plan(name: str, share: float = 0.2, rate: float = RATE) -> Plan:
    """A policy's plan of the training step. share: the budget as a share of the peak. rate:
    migration bandwidth. Planning takes much time, so several tests use the same plans."""
    training = training_step()
    return policy(name).plan(training, two_tiers(rate), int(training.peak_bytes * share))


@cache
def step_bound(share: float = 0.2) -> FastShareBound:
    """The fast-share bound of the training step at RATE. share: see step_plan()."""
    training = training_step()
    return fast_share_bound(training, int(training.peak_bytes * share), RATE)
