# SPDX-License-Identifier: Apache-2.0
"""Computes how long stretches would take with all memory fast.

On a machine whose fast tier is full, a process has slow pages before it is managed. Accesses to
these pages lengthen the measured times of its stretches. The times under the plan are shorter, so a
plan that was made for the measured times would assume too much time for its moves. Therefore the
times with all memory fast are computed from the measured times.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.model.profile import Profile
from sentineld.model.timing import Timing


def slow_shares(profile: Profile, slow: Profile) -> Floats:
    """(A,): the share of each access row's sampled pages that were on slow nodes.

    slow: the profile of the same step, made from the samples on slow nodes only.
    """
    keys, of_slow = _keys(profile), _keys(slow)
    # Both arrays of keys are ascending, and `keys` contains all elements of `of_slow`.
    slow_pages = np.zeros(len(keys))
    slow_pages[np.searchsorted(keys, of_slow)] = slow.accesses["pages"]
    pages = profile.accesses["pages"].astype(np.float64)
    found: Floats = np.divide(slow_pages, pages, out=np.zeros(len(keys)), where=pages > 0)
    return np.minimum(found, 1.0)


def with_fast_times(profile: Profile, slow: Floats, timing: Timing) -> Profile:
    """The profile with the times that its stretches would take with all memory fast.

    slow: (A,), the share of each access row's pages that were slow when the times were measured.

    The timing model may overestimate the extra time of slow accesses. Therefore a stretch keeps at
    least the time that its accesses take on the fast tier.
    """
    times = profile.stretches["time_ns"].astype(np.float64)
    extra = timing.stretch_ns(profile, slow) - times
    least = np.bincount(
        profile.accesses["stretch"], timing.fast_ns(profile), minlength=profile.stretch_count
    )
    stretches = profile.stretches.copy()
    stretches["time_ns"] = np.rint(np.minimum(np.maximum(times - extra, least), times))
    return replace(profile, stretches=stretches)


def _keys(profile: Profile) -> Integers:
    rows = profile.accesses
    found: Integers = rows["stretch"].astype(np.int64) << 32 | rows["tensor"].astype(np.int64)
    return found
