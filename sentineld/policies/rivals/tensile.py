# SPDX-License-Identifier: Apache-2.0
"""Policies `tensile` and `tensile+slow`: lower the memory peak, one swap after another.

Based on TENSILE (arXiv 2105.13336; the planner of a public implementation). In each pass, the
planner simulates the memory use of all jobs, adds up the jobs' peaks, and takes the tensors that
are resident at these peaks, the largest first. It plans a swap for the first of these tensors whose
transfers fit beside the job's other transfers. The tensor is swapped out as early as possible after
an access before the job's peak, and swapped back in as late as possible before the next access. A
job may swap only a share of its tensors. Updated parameters and optimizer state are swapped across
steps: they are swapped out after the update and swapped in before their first use in the next step.
After more than 100 passes, the passes end if each of the last three lowered the sum of the peaks by
less than 0.05 %. They also end if no tensor at a peak can be swapped. If the sum then still exceeds
memory, tensors are recomputed.

Adapted to memory tiers: one trace is one job, so only its own peak counts. With several traces, the
published rule would add up their peaks although they seldom coincide; the daemon gives each session
a budget instead (docs/policies.md). Transfers in both directions share the time of a stretch, and a
gap lies between two stretches that use the tensor. If no tensor at the peak can be swapped, the
passes continue at the next lower peak that exceeds memory; nothing is recomputed.

Left out: recomputation, because a memory policy can't recompute a tensor; the prediction of the
operators' times before the first step (a profile has measured times); new plans for changed times
(under all policies, the daemon corrects plans for such changes).

`tensile` never accesses slow memory, as on a GPU. If it can't make everything fit, it fails with
the error "infeasible as published". `tensile+slow` is our extension: if not all tensors fit into
fast memory, some stay on the slow tier, chosen by the lowest cost per freed page. The policy tries
all values in QUOTAS and keeps the plan with the shortest predicted step.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.tiers import Tiers
from sentineld.plan.items import tensor_pages
from sentineld.policies.registry import register
from sentineld.policies.rivals.swapping import SwappingPolicy
from sentineld.policies.rivals.swaps import Book, Gap, gaps

QUOTAS = (1.0, 0.5, 0.2)
"""Values of the share of the tensors that may be swapped. In the original, this share is the weight
of the job."""

PASSES_MIN, LATEST, GAIN_MIN = 100, 3, 0.0005
"""The passes end if there were more than PASSES_MIN of them, and each of the last LATEST passes
lowered the peak by less than the share GAIN_MIN."""


@register("tensile", False)
@register("tensile+slow", True)
class Tensile(SwappingPolicy):
    """Policies `tensile` and `tensile+slow`, which try several quotas of swapped tensors."""

    sweep = QUOTAS
    obstacle = "swapping tensors does not lower the peak enough"

    def relieve(self, book: Book, tiers: Tiers, value: float) -> str:
        """See SwappingPolicy. value: one of QUOTAS."""
        del tiers  # not needed: the book contains the bandwidth
        candidates = gaps(book)
        most = int(np.ceil(value * len({gap.tensor for gap in candidates})))
        passes = lower_peak(book, candidates, most)
        return f"{passes} passes, at most {value:.0%} of the tensors"


def lower_peak(book: Book, candidates: list[Gap], tensors_max: int) -> int:
    """In each pass, add a swap at the highest peak that permits one; return the number of passes.

    candidates: the gaps that may be used. tensors_max: limit on the number of swapped tensors.
    """
    pages = tensor_pages(book.profile)
    # The gaps of the largest tensors come first. The sort is stable: gaps of equally large tensors
    # keep their order.
    left = sorted(candidates, key=lambda gap: -int(pages[gap.tensor]))
    inside = {gap: frozenset(book.between(gap).tolist()) for gap in left}
    swapped: set[int] = set()
    gains: list[float] = []
    given_up = np.zeros(book.profile.stretch_count, np.bool_)
    while len(gains) <= PASSES_MIN or max(gains[-LATEST:]) >= GAIN_MIN:
        at = int(np.where(given_up, -1, book.usage).argmax())
        peak = int(book.usage[at])
        if given_up[at] or (given_up.any() and peak <= book.limit):
            break
        for gap in [gap for gap in left if at in inside[gap]]:
            if gap.tensor not in swapped and len(swapped) >= tensors_max:
                continue
            left.remove(gap)
            if book.try_swap(gap):
                swapped.add(gap.tensor)
                gains.append(1 - int(book.usage[~given_up].max()) / peak)
                break
        else:
            given_up[at] = True
    return len(gains)
