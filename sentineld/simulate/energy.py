# SPDX-License-Identifier: Apache-2.0
"""The energy of a simulated step, by the energy model (model/energy.py).

The training occupies one core for each of its threads. These cores wait while the process waits for
moves and, on paged tiers, for pages that faults fetch. At all other times, they compute, even while
accesses to slow memory delay them. Another core copies the pages that software moves.
"""

from __future__ import annotations

from sentineld.model.energy import EnergyModel, core_joules
from sentineld.model.profile import Profile
from sentineld.simulate.replay import Step


def step_joules(step: Step, profile: Profile, model: EnergyModel, threads: int) -> float:
    """The energy of a simulated step, in joules.

    step: its slow_joules must have been computed with `model`. threads: number of threads that
        compute the step.
    """
    counts = step.counts
    promoted_bytes = counts.promoted_pages * profile.page_bytes
    demoted_bytes = counts.demoted_pages * profile.page_bytes
    waiting_s = (counts.stall_ns + (step.slow_ns if model.paged else 0.0)) / 1e9
    computing_s = threads * (step.ns / 1e9 - waiting_s)
    if counts.busy_ns:  # 0 if hardware moves the pages
        computing_s += model.copying_s(promoted_bytes + demoted_bytes)
    return (
        core_joules(computing_s, threads * waiting_s)
        + float(model.fast_joules(profile).sum())
        + step.slow_joules
        + model.moved_joules(promoted_bytes, demoted_bytes)
    )


def fast_only_joules(step_s: float, profile: Profile, model: EnergyModel, threads: int) -> float:
    """The energy, in joules, of a step with all memory fast, which takes step_s seconds."""
    return core_joules(threads * step_s, 0.0) + float(model.fast_joules(profile).sum())
