# SPDX-License-Identifier: Apache-2.0
"""The timing model: what a step takes, by where its pages are. The only one there is.

Predictions, bounds, the simulator and the emulated tiers all use it (a bound
without births and emulated tiers with real ones); docs/reference/timing.md gives
the formula and its rules.

    time of a stretch = its all-fast time
                      + bytes read from the slow tier    x (1/R_slow - 1/R_fast)
                      + bytes written to the slow tier   x (1/W_slow - 1/W_fast)
                      + bytes of arena pages made anew   x what a birth costs
                      + what the process waits for moves

R and W are the tiers' bandwidths of reading and writing. Tensors smaller than
CACHED_BYTES are taken to be in the processor's caches and cost nothing more. A
page serves the stretch after a boundary from the tier in which it is at that
boundary (or at its birth, if that is later); a page in flight is at its source
for access, and in both tiers for capacity. Moves of both directions share one
bandwidth, and go on while the process waits. A page is made anew where a tensor is
born on one that was given back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers

CACHED_BYTES = 64 << 10
"""Tensors below this size stay in a core's second-level cache from their birth to their next use,
or are read so seldom that it does not matter; they cost the same on either tier."""


@dataclass(frozen=True)
class Timing:
    """What the slow tier costs beyond the fast one, what a move and what a birth takes, in ns a
    byte.

    move_ns_per_byte is infinite where nothing can be moved.
    """

    read_ns_per_byte: float
    write_ns_per_byte: float
    move_ns_per_byte: float
    birth_ns_per_byte: float = 0.0

    def stretch_ns(self, profile: Profile, slow: Floats) -> Floats:
        """(S,): the time of each stretch, without births and waits. slow: for each access row the
        share of its pages that is on the slow tier, 0..1."""
        times = profile.stretches["time_ns"].astype(np.float64)
        extra = self.extra_ns(profile) * slow
        found: Floats = times + np.bincount(
            profile.accesses["stretch"], extra, minlength=profile.stretch_count
        )
        return found

    def extra_ns(self, profile: Profile) -> Floats:
        """What each access row costs more if all of its tensor's pages are on the slow tier."""
        rows = profile.accesses
        extra = (
            rows["bytes_read"].astype(np.float64) * self.read_ns_per_byte
            + rows["bytes_written"].astype(np.float64) * self.write_ns_per_byte
        )
        cached = profile.tensors["bytes"][rows["tensor"]] < CACHED_BYTES
        found: Floats = np.where(cached, 0.0, extra)
        return found


def timing_of(tiers: Tiers) -> Timing:
    """The two fastest tiers' timing. A figure that nobody knows (0) costs nothing: with the slow
    tier's bandwidth unknown, a step takes its all-fast time wherever its pages are."""
    rate = tiers.migration_bytes_per_s
    move = 1e9 / rate if rate > 0 else float("inf")
    if len(tiers.tiers) < 2:
        return Timing(0.0, 0.0, move, tiers.birth_ns_per_byte)
    fast, slow = tiers.tiers[:2]
    return Timing(
        _extra(fast.read_bytes_per_s, slow.read_bytes_per_s),
        _extra(fast.write_bytes_per_s, slow.write_bytes_per_s),
        move,
        tiers.birth_ns_per_byte,
    )


def _extra(fast_rate: float, slow_rate: float) -> float:
    if fast_rate <= 0 or slow_rate <= 0:
        return 0.0
    return max(0.0, 1e9 / slow_rate - 1e9 / fast_rate)
