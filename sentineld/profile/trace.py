# SPDX-License-Identifier: Apache-2.0
"""A trace: recorded steps of a session, with all data needed to compute their profile elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sentineld.model.kernel_events import FAULT_DTYPE
from sentineld.model.profile import Profile
from sentineld.model.records import PAGE_BYTES, MemoryMapping, Records, TensorName
from sentineld.model.tiers import Tiers
from sentineld.profile.attribution import build_profile
from sentineld.profile.steps import Step


@dataclass(frozen=True)
class Trace:
    """Steps with the same sequence of allocations, and the accesses of the last step."""

    steps: tuple[Step, ...]
    """Oldest first. The last one is the access step; those before it were not sampled."""
    samples: Records
    """Samples of the access step, SAMPLE_DTYPE; empty if the kernel module did not sample it."""
    op_accesses: Records
    """Operators' accesses in the access step, OP_ACCESS_DTYPE; empty if the framework reports
    none."""
    cuts: npt.NDArray[np.uint32]
    """Allocation cursors of the cuts in the access step, ascending."""
    layers: tuple[str, ...]  # module paths by layer id
    names: Mapping[int, TensorName] = field(default_factory=dict)  # names of tensors, by address
    mappings: tuple[MemoryMapping, ...] = ()  # mappings that contain accessed pages
    tiers: Tiers | None = None  # the machine's tiers; None: only one tier
    page_bytes: int = PAGE_BYTES
    heap_base: int = 0  # address of the shim's heap
    arena: tuple[int, int] = (0, 0)  # (address, bytes) of the shim's arena; (0, 0): none
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON values: pid, torch, kernel, ...
    faults: Records = field(default_factory=lambda: np.empty(0, FAULT_DTYPE))
    """Page-fault records of the steps before the access step, FAULT_DTYPE; no pages were armed in
    those steps. Valid if facts["faults_recorded"] is true."""

    @property
    def access_step(self) -> Step:
        """The step whose accesses were recorded; the recording slowed it down."""
        return self.steps[-1]

    @property
    def timed_step(self) -> Step | None:
        """The last step that was not sampled; None if there is none."""
        return self.steps[-2] if len(self.steps) > 1 else None

    @property
    def threads(self) -> int:
        """Number of torch's compute threads, from the facts; 1 if it is unknown."""
        told = str(self.facts.get("threads", ""))
        return int(told) if re.fullmatch("[1-9][0-9]{0,5}", told) else 1


def profile_of(trace: Trace) -> Profile:
    """Compute a trace's profile, as the daemon does from the same data. Raises SentinelError."""
    return build_profile(
        trace.access_step,
        trace.samples,
        trace.op_accesses,
        trace.layers,
        page_bytes=trace.page_bytes,
        cuts=trace.cuts,
        timed=trace.timed_step,
        heap_base=trace.heap_base,
        incomplete=bool(trace.facts.get("samples_incomplete")),
    )
