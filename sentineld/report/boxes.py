# SPDX-License-Identifier: Apache-2.0
"""Boxes: the tensors of a heatmap, as rectangles of addresses and stretches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.model.profile import page_spans
from sentineld.profile.lifetimes import step_lifetimes
from sentineld.profile.trace import Trace
from sentineld.report.heatmap import Axis


@dataclass(frozen=True)
class Boxes:
    """N rectangles. A transient tensor that lives across the step's end has two."""

    tensor: Integers  # (N,): row of the profile's tensors
    begin: Integers  # (N,): first position on the heatmap's axis, in pages
    past: Integers  # (N,): position after the last page
    first: Integers  # (N,): first stretch
    last: Integers  # (N,): last stretch, inclusive

    def take(self, which: Mask) -> Boxes:
        """The boxes for which `which` is true."""
        return Boxes(
            self.tensor[which],
            self.begin[which],
            self.past[which],
            self.first[which],
            self.last[which],
        )


def recorded_boxes(trace: Trace, axis: Axis) -> Boxes:
    """The tensors of the access step, at their recorded addresses. axis: Heatmap.axis."""
    instances = step_lifetimes(trace.access_step, trace.cuts).instances
    first, past = page_spans(instances, trace.page_bytes)
    return Boxes(
        tensor=instances["tensor"].astype(np.int64),
        begin=axis.place(first),
        past=axis.place(past),
        first=instances["first_stretch"].astype(np.int64),
        last=instances["last_stretch"].astype(np.int64),
    )
