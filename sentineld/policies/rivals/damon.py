# SPDX-License-Identifier: Apache-2.0
"""Policy `damon`: DAMON's schemes migrate_hot and migrate_cold, tuned to keep the fast tier full.

Based on the kernel's sample module for two tiers (samples/damon/mtier.c): the regions of the slow
node that were accessed are promoted, the hottest first; the regions of the fast node that were not
accessed are demoted, the coldest first. A region's hotness is the mean of two scores
(damon_hot_score() in mm/damon/ops-common.c). One is the share of the region's samples with an
access. The other is the binary logarithm of the region's age, which is the number of seconds since
this share last changed noticeably (CHANGED_SAMPLES). For an idle region, the logarithm is negated.
Each scheme has a quota of at most 200 MiB a second. The quotas are tuned to goals: promotions aim
at 99.7 % memory in use on the fast node, and demotions aim at 0.5 % free memory. Published
aggregation interval: 100 ms; HMSDK (SK hynix's software for tiered memory) uses 2 s.

Here, a region is a cell of the simulator. Its number of samples with an access is its number of
accesses per page, rounded up, but at most the 20 samples of an interval. The feedback loop that
tunes the quotas is replaced by its goals, which limit the moves of each tick directly. The sample
module's filters let a scheme promote only pages whose accessed bit is set, and demote only pages
whose accessed bit is clear. They would change nothing here, because all pages of a cell are
accessed alike. Left out: the merging and splitting of regions, the tuning of the intervals, and the
cost of sampling. All of these omissions favour the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.plan.policy import MoveRequest, Observation
from sentineld.policies.registry import register
from sentineld.policies.rivals.reactive import (
    ReactivePolicy,
    Setting,
    exchange,
    move_requests,
    total,
)
from sentineld.policies.temperature.rate import RateLimit

AGGREGATION_S = 0.1
SAMPLES = 20
"""Samples in an aggregation interval: one every 5 ms, as published."""

CHANGED_SAMPLES = SAMPLES // 10
"""If the number of samples with an access changes by more than this, or changes from or to 0, the
region's age begins at 0 again."""

QUOTA_BYTES_PER_S = 200 << 20
PAGE_BYTES = 4096
USED_GOAL = 0.997
"""Share of the fast tier that promotions aim to fill."""

SETTINGS = (
    (0.005, QUOTA_BYTES_PER_S),
    (0.005, None),
    (0.05, None),
    (0.2, None),
)
"""The share of the fast tier that demotions aim to keep free, and the quota of each direction in
bytes per second (None: unlimited). The published pair comes first. A larger free share leaves more
room for births and promotions."""

SCORE_MAX = 100
AGE_LOG_MAX = 32


@register()
class Damon(ReactivePolicy):
    """Policy `damon`; see the module's docstring."""

    name = "damon"
    published_s = AGGREGATION_S

    def settings(self) -> Sequence[Setting]:
        """See ReactivePolicy."""
        return [
            (
                f"demotes below {free:.1%} free, {'no quota' if quota is None else 'quota'}",
                partial(Schemes, free_goal=free, quota_bytes_per_s=quota),
            )
            for free, quota in SETTINGS
        ]


class Schemes:
    """The state of the regions: samples with an access in the last interval, and age."""

    def __init__(
        self,
        interval_ns: float,
        free_goal: float = SETTINGS[0][0],
        quota_bytes_per_s: float | None = SETTINGS[0][1],
    ) -> None:
        """free_goal, quota_bytes_per_s: see SETTINGS."""
        self.interval_ns = interval_ns
        self._free_goal = free_goal
        self._quotas: list[RateLimit] = []  # by target tier; empty: unlimited
        if quota_bytes_per_s is not None:
            pages_per_s = quota_bytes_per_s / PAGE_BYTES
            # Unused quota can be used later, but at most the quota of one second.
            self._quotas = [RateLimit(pages_per_s, pages_per_s) for _ in range(2)]
        self._samples: Integers = np.zeros(0, np.int64)
        self._changed_ns = np.zeros(0)  # when each region's age began
        self._before_ns = 0.0

    def tick(self, observation: Observation) -> list[MoveRequest]:
        """Apply both schemes to the regions as seen in the last interval; see Reactor."""
        samples = np.minimum(np.ceil(observation.accesses), SAMPLES).astype(np.int64)
        now_ns = observation.now_ns
        if not len(self._samples):
            self._samples, self._changed_ns = samples, np.full(len(samples), now_ns)
            self._before_ns = now_ns
        changed = np.abs(samples - self._samples) > CHANGED_SAMPLES
        changed |= (samples == 0) != (self._samples == 0)
        self._changed_ns[changed] = now_ns
        self._samples = samples
        score = hotness(samples, (now_ns - self._changed_ns) / 1e9)
        hot = np.flatnonzero((samples > 0) & (observation.slow > 0))
        hot = hot[np.argsort(-score[hot], kind="stable")]
        cold = np.flatnonzero((samples == 0) & (observation.fast > 0))
        cold = cold[np.argsort(score[cold], kind="stable")]
        elapsed_s, self._before_ns = (now_ns - self._before_ns) / 1e9, now_ns
        capacity = observation.capacity_pages
        # As in the kernel, the quota is charged only for demotions that can be made. So apply the
        # limits of exchange() before the quota.
        down = min(
            int(capacity * self._free_goal) - observation.free_pages,
            int(observation.fast[cold].sum()),
            observation.move_pages // 2,
        )
        headroom = int(capacity * (1 - USED_GOAL))
        found = exchange(observation, hot, cold, self._granted(1, elapsed_s, down), headroom)
        up = total(request for request in found if request.tier == 0)
        ups = move_requests(hot.tolist(), observation.slow, 0, self._granted(0, elapsed_s, up))
        return [*(request for request in found if request.tier), *ups]

    def _granted(self, tier: int, elapsed_s: float, pages: int) -> int:
        """The number of pages, at most `pages`, that the quota of moves to this tier allows."""
        return self._quotas[tier].grant(elapsed_s, pages) if self._quotas else pages


def hotness(samples: Integers, age_s: Floats) -> Integers:
    """The priority of each region, 0 to SCORE_MAX: the larger, the hotter.

    samples: samples with an access, 0 to SAMPLES. age_s: the regions' ages, in seconds.
    """
    frequency = samples * SCORE_MAX // SAMPLES
    # The position of the highest set bit of the age in whole seconds, counted from 1; age 0: 0.
    age_log = np.minimum(np.frexp(np.floor(age_s))[1], AGE_LOG_MAX)
    age_log = np.where(frequency == 0, -age_log, age_log) + AGE_LOG_MAX
    found: Integers = (frequency + age_log * SCORE_MAX // AGE_LOG_MAX // 2) // 2
    return found
