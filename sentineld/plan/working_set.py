# SPDX-License-Identifier: Apache-2.0
"""The working set of each stretch, measured at the moment at which it is largest.

At a given moment, a page belongs to the working set if the stretch uses the page and the page's
tensor is alive. On paged tiers every page is in memory while it is used. If a stretch's working set
exceeds the budget, its pages cannot all be in memory at once: under any plan, pages are evicted to
make room for others, and faults fetch them again.
"""

from __future__ import annotations

import numpy as np

from sentineld.base.units import format_bytes
from sentineld.model.arrays import Integers
from sentineld.model.profile import Profile
from sentineld.plan.items import tensor_pages
from sentineld.plan.layers import layer_name
from sentineld.plan.residency import ABSENT, Residency, occupied_pages
from sentineld.plan.turnover import first_moments


def working_set_pages(profile: Profile) -> Integers:
    """(S,): the largest size of each stretch's working set, in pages."""
    count, many = profile.stretch_count, len(profile.tensors)
    tier = np.full((count, many), ABSENT, np.uint8)
    tier[profile.accesses["stretch"], profile.accesses["tensor"]] = 0
    used = Residency(
        tensor=np.arange(many),
        first_page=np.zeros(many, np.int64),
        pages=tensor_pages(profile),
        tier=tier,
        moving=np.zeros(tier.shape, np.bool_),
        end_tier=np.zeros(many, np.uint8),
    )
    first = first_moments(profile)
    if len(first) < 2:
        return np.zeros(0, np.int64)
    most: Integers = np.maximum.reduceat(occupied_pages(profile, used), first[:-1])
    return most


def streamed_note(profile: Profile, budget_bytes: int) -> tuple[str, ...]:
    """A note about the stretches whose working sets exceed the budget; empty if there are none."""
    over = working_set_pages(profile) * profile.page_bytes - budget_bytes
    if int(over.max(initial=0)) <= 0:
        return ()
    worst = int(np.argmax(over))
    layer = layer_name(profile, worst)
    place = f"stretch {worst}" + (f" ({layer})" if layer else "")
    many = int((over > 0).sum())
    return (
        f"{many} {'stretch uses' if many == 1 else 'stretches use'} more memory at once than the "
        f"budget; the largest excess is {format_bytes(int(over[worst]))}, in {place}. In such "
        "stretches, pages are evicted to make room for others, and faults fetch them again",
    )
