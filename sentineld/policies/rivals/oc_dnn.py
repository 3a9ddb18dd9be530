# SPDX-License-Identifier: Apache-2.0
"""Policy `oc-dnn`: prefetch the next operators' blocks, and evict past operators' blocks first.

Based on OC-DNN (Awan et al., HiPC 2018), which is Caffe on unified memory. Only the paper's
abstract and other authors' descriptions were available. Before each layer, the framework prefetches
the buffers that the layer uses, asynchronously, while the layer before it runs. After a layer, the
framework advises the driver that the layer's buffers may be evicted. Other pages are fetched by
page faults, and the driver evicts the least recently migrated blocks. In the paper's naive version,
all pages are fetched by page faults.

Adapted to memory tiers: operators are stretches, and blocks are the simulator's cells. The policy
has the order of the operators from the start and, from the second step on, the blocks that each
operator uses. With a setting of 0 operators (see SETTINGS), blocks are fetched on demand: the moves
of an operator's blocks begin when the operator begins. On paged tiers, the operator's accesses wait
for these blocks, as published. On other tiers, a page whose move is late is accessed in slow
memory. The demotions that make room are requested together with the promotions, when an operator
begins: there are no faults at which a driver could make room.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sentineld.model.arrays import Integers
from sentineld.model.profile import Profile
from sentineld.plan.policy import Observation, Reactor
from sentineld.policies.registry import register
from sentineld.policies.rivals.prefetching import Prefetcher, StepOrder
from sentineld.policies.rivals.reactive import FirstTouchPolicy

SETTINGS = ((1, True), (0, True), (2, True), (4, True), (1, False), (0, False))
"""(number of operators, after the one that begins, for which blocks are prefetched; whether past
operators' blocks are evicted first). The first setting is that of the paper; the last one is that
of the paper's naive version."""


@register()
class OcDnn(FirstTouchPolicy):
    """Policy `oc-dnn`; see the module's docstring."""

    name = "oc-dnn"

    def reactors(self, profile: Profile) -> Sequence[tuple[str, Reactor]]:
        """A prefetcher for each of SETTINGS; see Reactive."""
        return [
            (
                f"operators ahead: {ahead}, with{'' if advises else 'out'} advice to evict",
                Adviser(profile.stretch_count, ahead, advises),
            )
            for ahead, advises in SETTINGS
        ]


class Adviser(Prefetcher):
    """A prefetcher that has the order of the operators and advises which blocks to evict."""

    def __init__(self, operators: int, ahead: int, advises: bool) -> None:
        """operators: number of operators in a step. ahead, advises: see SETTINGS."""
        super().__init__(ahead + 1, StepOrder(operators))
        self._advises = advises

    def _victims(self, idle: Integers, observation: Observation) -> Integers:
        """See Prefetcher."""
        victims = super()._victims(idle, observation)
        advised = self._advises & (observation.accesses[victims] > 0)
        return victims[np.argsort(~advised, kind="stable")]
