# SPDX-License-Identifier: Apache-2.0
"""A trace: what a session recorded of some steps, whole enough to profile it again anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sentineld.model.kernel_events import FAULT_DTYPE
from sentineld.model.profile import Profile
from sentineld.model.records import PAGE_BYTES, Mapped, Named, Records
from sentineld.model.tiers import Tiers
from sentineld.profile.join import build_profile
from sentineld.profile.steps import Step


@dataclass(frozen=True)
class Trace:
    """Steps that allocate alike, and what was accessed in the last of them.

    steps: oldest first; the last one is the access step, those before it ran at their own speed.
    samples: SAMPLE_DTYPE of the access step; empty without a backend that sees pages.
    op_accesses: OP_ACCESS_DTYPE of the access step; empty where the framework could not tell.
    cuts: allocation cursors, rising, that were boundaries in the access step.
    layers: module path by layer id. names: by address, tensors that the framework has names for.
    mappings: those in which accessed pages lie. tiers: the machine's; None: it has one tier.
    heap_base: address of the shim's heap; arena: (address, bytes) of its arena, (0, 0) if there is
    none. facts: pid, torch, kernel and the like, JSON-able. faults: FAULT_DTYPE of the steps before
    the access step, which had no armed pages; facts["faults_recorded"] says whether they are known.
    """

    steps: tuple[Step, ...]
    samples: Records
    op_accesses: Records
    cuts: npt.NDArray[np.uint32]
    layers: tuple[str, ...]
    names: Mapping[int, Named] = field(default_factory=dict)
    mappings: tuple[Mapped, ...] = ()
    tiers: Tiers | None = None
    page_bytes: int = PAGE_BYTES
    heap_base: int = 0
    arena: tuple[int, int] = (0, 0)
    facts: Mapping[str, Any] = field(default_factory=dict)
    faults: Records = field(default_factory=lambda: np.empty(0, FAULT_DTYPE))

    @property
    def access_step(self) -> Step:
        """The step whose accesses were seen; slower than others for it."""
        return self.steps[-1]

    @property
    def timed_step(self) -> Step | None:
        """The last step that ran at its own speed."""
        return self.steps[-2] if len(self.steps) > 1 else None


def profile_of(trace: Trace) -> Profile:
    """The profile that the daemon makes of the same observations. Raises SentinelError."""
    return build_profile(
        trace.access_step,
        trace.samples,
        trace.op_accesses,
        trace.layers,
        page_bytes=trace.page_bytes,
        cuts=trace.cuts,
        timed=trace.timed_step,
        heap_base=trace.heap_base,
    )
