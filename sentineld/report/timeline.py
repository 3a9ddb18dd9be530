# SPDX-License-Identifier: Apache-2.0
"""Live bytes by kind over a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.model.profile import Kind, Profile
from sentineld.report.labels import KINDS, Labels


@dataclass(frozen=True)
class Timeline:
    """Live bytes of a step, with sizes rounded up to whole pages.

    timeline() makes one entry for each event (allocation or free) and one for the step's end.
    binned() and tiers.py make entries for other times.
    """

    times_ns: Floats  # since the step began
    # Live bytes from the time of an entry on. Rows: KINDS, or TIERS in tiers.py; columns: entries.
    live: Integers

    @property
    def total(self) -> Integers:
        """Live bytes of all kinds."""
        summed: Integers = self.live.sum(axis=0)
        return summed

    @property
    def peak(self) -> int:
        """Index of the first entry with the most live bytes."""
        return int(np.argmax(self.total))

    def binned(self, count: int) -> Timeline:
        """Reduce to `count` equally spaced entries.

        Each entry has the values at the moment of the largest total in its bin, so that the peak is
        kept and the kinds still add up to the total.
        """
        span = max(float(self.times_ns[-1]), 1.0)
        edges = np.linspace(0.0, span, count + 1)
        total = self.total
        first = np.searchsorted(self.times_ns, edges[:-1], side="right") - 1
        past = np.maximum(np.searchsorted(self.times_ns, edges[1:], side="left"), first + 1)
        best = [
            int(begin + np.argmax(total[begin:end]))
            for begin, end in zip(np.maximum(first, 0).tolist(), past.tolist(), strict=True)
        ]
        return Timeline(edges[:-1], self.live[:, best])


def timeline(profile: Profile, labels: Labels) -> Timeline:
    """The timeline of the profiled step, with the profile's stretch times."""
    return Timeline(event_times(profile), live_bytes(profile, labels.kinds))


def live_bytes(profile: Profile, kinds: Integers) -> Integers:
    """Live bytes of each kind after each event and at the step's end. Sizes are rounded up to whole
    pages. Axis 0: the kind, as an index in KINDS; axis 1: the event, then the step's end.

    kinds: indices in KINDS, one per tensor.
    """
    tensors, events = profile.tensors, profile.event_count
    sizes = -(-tensors["bytes"].astype(np.int64) // profile.page_bytes) * profile.page_bytes
    always = tensors["kind"] == Kind.PERSISTENT
    birth = np.where(always, 0, tensors["birth_event"]).astype(np.int64)
    death = np.where(always, events, tensors["death_event"]).astype(np.int64)
    change = np.zeros((len(KINDS), events + 1), np.int64)
    np.add.at(change, (kinds, birth), sizes)
    np.add.at(change, (kinds, death), -sizes)
    over_the_end = ~always & (death <= birth)
    np.add.at(change, (kinds[over_the_end], 0), sizes[over_the_end])
    live: Integers = np.cumsum(change, axis=1)
    live[:, events] = live[:, max(events - 1, 0)]
    return live


def event_times(profile: Profile) -> Floats:
    """Times of each event and of the step's end, in ns since the step began.

    The events of a stretch are spaced evenly, because a profile does not have their times.
    """
    begins = profile.stretches["event"].astype(np.int64)
    durations = profile.stretches["time_ns"].astype(np.float64)
    ends = np.cumsum(durations)
    at = np.arange(profile.event_count)
    stretch = np.searchsorted(begins, at, side="right") - 1
    inside = at - begins[stretch]
    counts = np.append(begins[1:], profile.event_count)[stretch] - begins[stretch]
    times = ends[stretch] - durations[stretch] * (1 - inside / np.maximum(counts, 1))
    return np.append(times, ends[-1] if len(ends) else 0.0)
