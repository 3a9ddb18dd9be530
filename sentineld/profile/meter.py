# SPDX-License-Identifier: Apache-2.0
"""The meter: counts which tier served the accesses to tensor pages in each stretch.

The meter counts page x stretch pairs, not bytes: a page that is accessed a thousand times in a
stretch counts once, for the node on which it was at the first access. On emulated and paged tiers,
the page counts for the node on which it was when the stretch began.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Integers
from sentineld.model.profile import Profile
from sentineld.model.protocol import Event
from sentineld.model.records import ACCESS_AGAIN, ACCESS_RESIDENCY, ACCESS_UNKNOWN, NO_ACCESS
from sentineld.model.sampled import pages_represented
from sentineld.model.tiers import Tiers
from sentineld.profile.steps import Step, boundary_records


@dataclass(frozen=True)
class StretchMeter:
    """One stretch of a metered step."""

    layer: int
    time_ns: int
    accesses: int  # number of accessed pages
    fast_accesses: int  # number of accessed pages that were on the fast tier
    resident_bytes: tuple[int, ...]  # by tier, at the beginning of the stretch


@dataclass(frozen=True)
class StepMeter:
    """One metered step. Accesses are page x stretch pairs."""

    step: int
    time_ns: int
    accesses: int
    fast_accesses: int  # accesses that the fast tier served
    unknown_node: int  # accesses whose node is unknown
    # Pairs in which an access may have been missed; not counted in `accesses`. Accesses to a page
    # that is being moved are not counted anywhere, because the page is disarmed during the move.
    unknown_pages: int
    charged_bytes_max: int
    moved_bytes: int
    late_moves: int
    page_touches: tuple[int, ...]
    """Element k is the number of pages accessed in exactly k stretches. For any N, these numbers
    show how many accesses the fast tier would have served if the N most accessed pages had always
    been on it."""
    stretches: tuple[StretchMeter, ...]
    delay_owed_ns: int = 0
    """Emulated tiers: delay that the timing model gives for the step's accesses to slow pages."""
    paid_before_ns: int = 0
    """Emulated tiers: total delay that the process had already paid when the step began."""

    @property
    def fast_share(self) -> float:
        """Sampled accesses served by the fast tier / all sampled accesses; 0..1."""
        return self.fast_accesses / self.accesses if self.accesses else 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON values for the control protocol."""
        return {**asdict(self), "fast_share": self.fast_share}


def meter_step(
    step: int,
    boundaries: npt.NDArray[np.void],
    samples: npt.NDArray[np.void],
    tiers: Tiers,
    page_bytes: int,
    unmanaged_fast_bytes: int,
    moved_bytes: int,
    late_moves: int,
) -> StepMeter:
    """Meter one step.

    boundaries: RECORD_DTYPE; the step's BOUNDARY records and a record for the step's end. Each has
        the epoch that begins at its boundary.
    samples: SAMPLE_DTYPE; records of these epochs and perhaps of others, including residency
        records.
    unmanaged_fast_bytes: fast memory of tensors outside heap and arena.
    """
    epochs = boundaries["address"].astype(np.int64)
    stretch_of = np.searchsorted(epochs, samples["epoch"].astype(np.int64), side="right") - 1
    inside = (stretch_of >= 0) & (stretch_of < len(epochs) - 1)
    count = len(epochs) - 1
    tier_of_node = np.full(256, -1, np.int64)
    for index, tier in enumerate(tiers.tiers):
        tier_of_node[list(tier.nodes)] = index
    tier = tier_of_node[samples["node"]]

    residency = (samples["flags"] & ACCESS_RESIDENCY) != 0
    unknown = inside & ((samples["flags"] & ACCESS_UNKNOWN) != 0)
    again = (samples["flags"] & ACCESS_AGAIN) != 0
    accesses = inside & ((samples["flags"] & NO_ACCESS) == 0) & ~again
    resident = np.zeros((count, len(tiers.tiers)), np.int64)
    known = inside & residency & (tier >= 0)
    np.add.at(
        resident,
        (stretch_of[known], tier[known]),
        samples["page"][known].astype(np.int64) * page_bytes,
    )
    used_in, used_from = stretch_of[accesses], tier[accesses]
    # A huge page has one record, which represents all its small pages.
    pages = pages_represented(samples[accesses])
    total, fast = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.add.at(total, used_in, pages)
    np.add.at(fast, used_in[used_from == 0], pages[used_from == 0])
    times = np.diff(boundaries["time_ns"].astype(np.int64))
    return StepMeter(
        step=step,
        time_ns=int(times.sum()),
        accesses=int(total.sum()),
        fast_accesses=int(fast.sum()),
        unknown_node=int(pages[used_from < 0].sum()),
        unknown_pages=int(pages_represented(samples[unknown & ~again]).sum()),
        charged_bytes_max=int(resident[:, 0].max(initial=0)) + unmanaged_fast_bytes,
        moved_bytes=moved_bytes,
        late_moves=late_moves,
        page_touches=_page_touches(samples["page"][accesses].astype(np.int64), pages),
        stretches=tuple(
            StretchMeter(
                layer=int(boundaries["layer"][index]),
                time_ns=int(times[index]),
                accesses=int(total[index]),
                fast_accesses=int(fast[index]),
                resident_bytes=tuple(int(value) for value in resident[index]),
            )
            for index in range(count)
        ),
    )


def _page_touches(first: Integers, pages: Integers) -> tuple[int, ...]:
    """Element k is the number of pages that lie in exactly k of the ranges first[i] .. first[i] +
    pages[i] - 1; element 0 is always 0. Empty if there are no ranges."""
    if not len(first):
        return ()
    # Sweep over the endpoints of the ranges: between two neighbouring endpoints, all pages lie in
    # the same number of ranges.
    ends = np.concatenate([first, first + pages])
    order = np.argsort(ends, kind="stable")
    change = np.repeat([1, -1], len(first))[order]
    depth, length = np.cumsum(change)[:-1], np.diff(ends[order])
    within = (depth > 0) & (length > 0)
    touches = np.zeros(int(depth[within].max(initial=0)) + 1, np.int64)
    np.add.at(touches, depth[within], length[within])
    return tuple(touches.tolist())


def meter_residency(
    step: Step,
    profile: Profile,
    unmanaged_fast_bytes: int,
    moved_bytes: int,
    late_moves: int,
) -> StepMeter | None:
    """Meter one step on emulated or paged tiers, from the shim's SERVED and SERVED_FAST records of
    each boundary.

    The accesses are those of the profile, so no page is unknown. A page counts as accessed in every
    stretch that accesses its tensor. page_touches counts the profile's pages. If sizes vary, these
    are the pages of a step in which all allocations have the largest sizes that were seen. Returns
    None if a boundary lacks a SERVED or SERVED_FAST record, or if the step and the profiled step
    differ in the number of boundaries.
    """
    records = step.records
    served = records[records["event"] == Event.SERVED]
    fast = records[records["event"] == Event.SERVED_FAST]
    boundaries = boundary_records(step)
    if not len(served) == len(fast) == len(boundaries) == profile.stretch_count:
        return None
    ends = np.append(boundaries["time_ns"][1:], np.uint64(step.end_ns))
    times = ends.astype(np.int64) - boundaries["time_ns"].astype(np.int64)
    stretches_of = np.bincount(profile.accesses["tensor"], minlength=len(profile.tensors))
    pages = -(-profile.tensors["bytes"].astype(np.int64) // profile.page_bytes)
    touches = np.bincount(stretches_of, pages, minlength=1)
    touches[0] = 0
    return StepMeter(
        step=step.number,
        time_ns=int(times.sum()),
        accesses=int(served["value"].sum(dtype=np.int64)),
        fast_accesses=int(fast["value"].sum(dtype=np.int64)),
        unknown_node=0,
        unknown_pages=0,
        charged_bytes_max=int(served["address"].max(initial=0)) + unmanaged_fast_bytes,
        moved_bytes=moved_bytes,
        late_moves=late_moves,
        page_touches=tuple(int(pages) for pages in touches),
        stretches=tuple(
            StretchMeter(
                layer=int(boundaries["layer"][index]),
                time_ns=int(times[index]),
                accesses=int(served["value"][index]),
                fast_accesses=int(fast["value"][index]),
                resident_bytes=(int(served["address"][index]), int(served["bytes"][index])),
            )
            for index in range(profile.stretch_count)
        ),
        delay_owed_ns=int(fast["address"].sum(dtype=np.int64)),
        paid_before_ns=int(fast["bytes"][0]),
    )
