# SPDX-License-Identifier: Apache-2.0
"""Policy `superneurons+recompute`: `superneurons+slow` plus a model of the published recomputation.

Based on SuperNeurons (Wang et al., PPoPP 2018; its public code); superneurons.py describes the rest
of the policy. The outputs of layers that are not checkpoints are dropped in the forward pass and
computed again in the backward pass. A segment consists of the layers between two checkpoints. The
strategy depends on the segment's size. If the segment's outputs take no more bytes than the largest
layer of the backward pass needs, the segment is executed once and the outputs are kept
(speed-centric). Otherwise, the layers from the segment's beginning to the needed output are
executed for each output, and the other outputs are freed immediately (memory-centric).

Adapted: heavy layers stand in for checkpoints (passes.py). A segment is executed again only if the
profile permits it (policies/recompute/candidates.py); if it does not permit this for the whole
segment, its outputs are recomputed separately, as in a segment that is too large. An output that is
recomputed for its first use in the backward pass is kept for its later uses, even in the
memory-centric strategy. If the step fits into the budget, nothing is recomputed.

The policy runs in the simulator only. Its bound is the step-time bound for a step that may make any
of the recomputations that the policy chooses.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.profile import Profile
from sentineld.model.protocol import Boundary
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.policy import Rewritten
from sentineld.policies.bounds.recompute import is_modelled, recompute_bound
from sentineld.policies.recompute.candidates import Recomputation, Step, compatible, permitted
from sentineld.policies.recompute.rewrite import recomputed
from sentineld.policies.registry import register
from sentineld.policies.rivals.passes import Pass, layers_of
from sentineld.policies.rivals.superneurons import SuperNeurons


@register("superneurons+recompute", True)
class SuperNeuronsRecompute(SuperNeurons):
    """Recomputes the outputs of segments, then plans as `superneurons+slow` does."""

    def rewritten(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Rewritten:
        """Make the recomputations that the published rules choose; see Rewriting."""
        chosen = chosen_for(profile, tiers, budget_bytes)
        time_ns = sum(one.time_ns for one in chosen)
        share = time_ns / max(profile.step_ns, 1)
        note = f"{len(chosen)} recomputations take {share:.1%} of the all-fast step's time"
        return Rewritten(recomputed(profile, chosen), (note,))

    def bound_seconds(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> float:
        """See Rewriting."""
        chosen = chosen_for(profile, tiers, budget_bytes)
        return recompute_bound(profile, tiers, budget_bytes, chosen).seconds


def chosen_for(profile: Profile, tiers: Tiers, budget_bytes: int) -> tuple[Recomputation, ...]:
    """The recomputations to make; none if the step fits the budget or is_modelled() is False."""
    if profile.peak_bytes <= budget_bytes or not is_modelled(timing_of(tiers)):
        return ()
    layers, step, chosen = layers_of(profile), Step(profile), list[Recomputation]()
    largest = largest_need_bytes(profile, layers)
    for run in segments_of(layers):
        ends = np.append(layers.begin[1:], profile.stretch_count)
        first, last = int(layers.begin[run[0]]), int(ends[run[-1]]) - 1
        whole = permitted(step, first, last)
        if whole is not None and _bytes(profile, whole) <= largest:
            found = [whole]
        else:
            parts = [(int(layers.begin[layer]), int(ends[layer]) - 1) for layer in run]
            each = [permitted(step, first, end, born_from=begin) for begin, end in parts]
            found = [one for one in each if one is not None]
        for one in found:
            if compatible(chosen, one):
                chosen.append(one)
    return tuple(chosen)


def segments_of(layers: Pass) -> list[list[int]]:
    """The segments of the forward passes: the layers between two consecutive checkpoints, and those
    after the last one. Layer 0 (see Pass) counts as a checkpoint, because the input is one."""
    forward = layers.forward[layers.begin]
    found: list[list[int]] = [[]]
    for layer in range(len(layers.begin)):
        if layer == 0 or layers.heavy[layer] or not forward[layer]:
            found.append([])
        else:
            found[-1].append(layer)
    return [run for run in found if run]


def largest_need_bytes(profile: Profile, layers: Pass) -> int:
    """The largest total size of the tensors that a single layer of the backward pass accesses."""
    rows = profile.accesses
    layer = layers.layer[rows["stretch"]]
    pairs = np.unique(np.stack([layer, rows["tensor"].astype(np.int64)], axis=1), axis=0)
    sums = np.zeros(len(layers.begin))
    np.add.at(sums, pairs[:, 0], profile.tensors["bytes"][pairs[:, 1]])
    backward = profile.stretches["kind"][layers.begin] == Boundary.BACKWARD
    return int(sums[backward].max(initial=0))


def _bytes(profile: Profile, one: Recomputation) -> int:
    return int(profile.tensors["bytes"][list(one.tensors)].sum())
