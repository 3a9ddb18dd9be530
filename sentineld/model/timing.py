# SPDX-License-Identifier: Apache-2.0
"""The timing model: the time of a step as a function of the tiers of its pages.

Predictions, bounds, the simulator and the emulated tiers all use this model. The formula below
holds if accesses do not overlap with other work (Overlap.NONE). AccessCosts computes the time of
accesses for all variants of the model. The bounds (policies/bounds) leave out the time of births.
On emulated tiers, births are real page faults, so the shim adds no delay for them.
docs/reference/timing.md has the formula, its rules and its variants.

    time of a stretch = its all-fast time
                      + bytes read from the slow tier    x (1/R_slow - 1/R_fast)
                      + bytes written to the slow tier   x (1/W_slow - 1/W_fast)
                      + bytes of arena pages born        x time of a birth per byte
                      + time that the process waits for moves

R and W are the read and write bandwidths of the tiers. Tensors smaller than CACHED_BYTES are
assumed to be in the processor's caches and cost the same on either tier. In a stretch, accesses to
a page are served by the tier on which the page was at the boundary that begins the stretch, or at
its birth if it is born within the stretch. A page in flight is accessed on its source tier and
takes capacity on both tiers. Promotions and demotions do not overlap: their times add up. Moves
continue while the process waits. If a tensor is born on an absent (dropped) page, the page is born
as well, which costs the time of a birth.

On paged tiers the slow tier is a file. An access to a slow page waits until the page has been read.
So each slow page that an access touches costs its bytes x 1/R_slow, and each fault (faults_of())
costs the latency of a read. These costs apply to reads and writes, and to tensors of any size. A
promotion reads the file, so the time of a promoted byte is proportional to 1/R_slow. A demotion
writes the file, so the time of a demoted byte is proportional to 1/W_slow. The mean of these two
times is 1 / migration bandwidth. On other tiers, a promoted byte and a demoted byte take the same
time.

In the shapes of arrays, S is the number of stretches and A the number of rows in Profile.accesses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats, Mask
from sentineld.model.profile import Profile
from sentineld.model.tiers import Overlap, Tier, Tiers

CACHED_BYTES = 64 << 10
"""Tensors below this size are assumed to cost the same on either tier: they stay in a core's
second-level cache until their next use, or are accessed too rarely to matter."""

FAULT_PAGES_MIN, FAULT_PAGES_MAX = 32, 512
"""On paged tiers, a fault also fetches pages next to the faulting page. The first fault of a
sequence fetches at most FAULT_PAGES_MIN pages, and each further fault at most twice as many as the
fault before it, up to FAULT_PAGES_MAX (READ_AHEAD_PAGES_* in shim/native/pager/read_ahead.h)."""

FAULT_BYTES = 128 << 10
"""Size of the reads whose latency is measured: FAULT_PAGES_MIN pages of 4 KiB."""


def faults_of(pages: Floats) -> Floats:
    """Number of faults if this many pages, all of them slow, are accessed one after another.

    Each fault fetches twice as many pages as the fault before it, up to FAULT_PAGES_MAX.
    """
    low, most = FAULT_PAGES_MIN, FAULT_PAGES_MAX
    growing = int(np.log2(most / low)) + 1
    fetched = low * (2**growing - 1)
    early = np.ceil(np.log2(np.minimum(pages, fetched) / low + 1))
    found: Floats = early + np.ceil(np.maximum(pages - fetched, 0) / most)
    return found


@dataclass(frozen=True)
class Timing:
    """The costs of two tiers in ns per byte."""

    read_ns_per_byte: float  # extra time of a read from the slow tier
    write_ns_per_byte: float  # extra time of a write to the slow tier
    promote_ns_per_byte: float  # time of a move to the fast tier; inf: no moves are possible
    demote_ns_per_byte: float  # time of a move to the slow tier; inf: no moves are possible
    birth_ns_per_byte: float = 0.0  # time of a page birth (page fault)
    paged: bool = False  # see Tiers
    fault_ns: float = 0.0  # on paged tiers: the time of a fault, without the transfer of its pages
    fast_read_ns_per_byte: float = 0.0  # time of a read from the fast tier
    fast_write_ns_per_byte: float = 0.0  # time of a write to the fast tier
    overlap: Overlap = Overlap.NONE
    moves_yield: bool = False  # see Tiers

    @property
    def demotion_weight(self) -> float:
        """Time of a demoted byte, divided by the time of a promoted byte."""
        if self.promote_ns_per_byte == float("inf"):
            return 1.0
        return self.demote_ns_per_byte / self.promote_ns_per_byte

    @property
    def mean_move_ns_per_byte(self) -> float:
        """Mean time of a move over both directions; inf: no moves are possible."""
        return (self.promote_ns_per_byte + self.demote_ns_per_byte) / 2

    def stretch_ns(self, profile: Profile, slow: Floats) -> Floats:
        """(S,): the time of each stretch, without births and waits.

        slow: (A,), the share of each access row's pages that is on the slow tier, 0..1.
        """
        return self.costs(profile).stretch_ns(profile, slow)

    def costs(self, profile: Profile) -> AccessCosts:
        """The costs of slow accesses under the selected variant of the model (Overlap)."""
        extra, zero = self.extra_ns(profile), np.zeros(len(profile.accesses))
        if self.overlap == Overlap.NONE:
            return AccessCosts(extra, zero, np.zeros(profile.stretch_count))
        fast = self.fast_ns(profile)
        memory = np.zeros(profile.stretch_count)
        np.add.at(memory, profile.accesses["stretch"], fast)
        if self.overlap == Overlap.TIERS:
            # A stretch's accesses take the longer of two times (see AccessCosts for x):
            # - accesses to fast pages: sum of fast * (1 - x), that is, memory - sum of fast * x
            # - accesses to slow pages: sum of (fast + extra) * x
            return AccessCosts(-fast, 2 * fast + extra, memory)
        times = profile.stretches["time_ns"].astype(np.float64)
        hidden: Floats = np.maximum(times - memory, 0.0)
        return AccessCosts(zero, extra, hidden)

    def fast_ns(self, profile: Profile) -> Floats:
        """(A,): time of each access row if all of its pages are on the fast tier.

        If the times of a stretch's rows add up to more than the stretch's time, they are scaled
        down to it: the processor's caches are assumed to have served some of the accesses.
        """
        rows = profile.accesses
        own = np.where(
            cached_rows(profile),
            0.0,
            rows["bytes_read"].astype(np.float64) * self.fast_read_ns_per_byte
            + rows["bytes_written"].astype(np.float64) * self.fast_write_ns_per_byte,
        )
        total = np.bincount(rows["stretch"], own, minlength=profile.stretch_count)
        times = profile.stretches["time_ns"].astype(np.float64)
        share = np.divide(times, total, out=np.ones(len(times)), where=total > times)
        stretch = rows["stretch"]
        found: Floats = own * share[stretch]
        return found

    def write_back_ns(self, profile: Profile) -> Floats:
        """(A,): if all pages that an access row touches are slow, the time to write them back to
        the file. 0 if the access only reads, or if the tiers are not paged."""
        if not self.paged:
            return np.zeros(len(profile.accesses))
        writes = profile.accesses["bytes_written"] > 0
        page_ns = profile.page_bytes * self.demote_ns_per_byte
        found: Floats = np.where(writes, touched_pages(profile) * page_ns, 0.0)
        return found

    def busy_ns(self, profile: Profile) -> Floats:
        """(A,): the time for which the accesses of each row suspend moves if all of the row's pages
        are slow. 0 if moves do not yield to accesses (see Tiers). On paged tiers: the part of
        extra_ns() in which the file is busy."""
        if self.moves_yield and not self.paged:
            return self.fast_ns(profile) + self.extra_ns(profile)
        if not self.paged:
            return np.zeros(len(profile.accesses))
        return touched_pages(profile) * (profile.page_bytes * self.read_ns_per_byte)

    def extra_ns(self, profile: Profile) -> Floats:
        """(A,): the extra time of each access row if all of its pages are on the slow tier and no
        other work overlaps with the access."""
        rows = profile.accesses
        if self.paged:
            return self.busy_ns(profile) + self.fault_ns * faults_of(touched_pages(profile))
        extra = (
            rows["bytes_read"].astype(np.float64) * self.read_ns_per_byte
            + rows["bytes_written"].astype(np.float64) * self.write_ns_per_byte
        )
        found: Floats = np.where(cached_rows(profile), 0.0, extra)
        return found


@dataclass(frozen=True)
class AccessCosts:
    """The costs of slow accesses. If a share x of each access row's pages is slow, a stretch takes

    all-fast time + sum of direct_ns * x + max(0, sum of hideable_ns * x - hidden_ns)
    """

    direct_ns: Floats
    """(A,): costs that nothing hides; negative if a slow access takes load off the fast tier."""
    hideable_ns: Floats
    """(A,): costs that the other work of the row's stretch can hide, up to hidden_ns in total."""
    hidden_ns: Floats
    """(S,): upper limit on the hideable costs that the other work of each stretch can hide."""

    def least_ns(self, profile: Profile) -> Floats:
        """(S,): a lower bound on the time of each stretch, for any placement of the pages."""
        gained = np.minimum(self.direct_ns, 0.0)
        found: Floats = profile.stretches["time_ns"].astype(np.float64) + np.bincount(
            profile.accesses["stretch"], gained, minlength=profile.stretch_count
        )
        return found

    def stretch_ns(self, profile: Profile, slow: Floats) -> Floats:
        """(S,): the time of each stretch, without births and waits.

        slow: (A,), the share x of each access row.
        """
        times = profile.stretches["time_ns"].astype(np.float64)
        direct, hideable = (
            np.bincount(profile.accesses["stretch"], costs * slow, minlength=len(times))
            for costs in (self.direct_ns, self.hideable_ns)
        )
        found: Floats = times + direct + np.maximum(hideable - self.hidden_ns, 0.0)
        return found


def cached_rows(profile: Profile) -> Mask:
    """(A,): which access rows belong to small tensors, which cost the same on either tier."""
    found: Mask = profile.tensors["bytes"][profile.accesses["tensor"]] < CACHED_BYTES
    return found


def touched_pages(profile: Profile) -> Floats:
    """(A,): number of pages that the accesses of each row touch."""
    rows, page = profile.accesses, profile.page_bytes
    size_bytes = profile.tensors["bytes"][rows["tensor"]]
    tensors = np.ceil(size_bytes / page)
    touched = np.ceil(np.maximum(rows["bytes_read"], rows["bytes_written"]) / page)
    found: Floats = np.minimum(touched, tensors)
    return found


def timing_of(tiers: Tiers) -> Timing:
    """The timing of the two fastest tiers.

    If the read bandwidth of a tier is unknown (0), reads of slow memory take no extra time. The
    same holds for writes. If any of these bandwidths is unknown, overlap is NONE and moves_yield is
    False. If the migration bandwidth is unknown, no moves are possible.
    """
    rate = tiers.migration_bytes_per_s
    move = 1e9 / rate if rate > 0 else float("inf")
    if len(tiers.tiers) < 2:
        return Timing(0.0, 0.0, move, move, tiers.birth_ns_per_byte)
    fast, slow = tiers.tiers[:2]
    if tiers.paged:
        read = 1e9 / slow.read_bytes_per_s if slow.read_bytes_per_s > 0 else 0.0
        promote, demote = _paged_moves(slow, move)
        births = tiers.birth_ns_per_byte
        return Timing(read, read, promote, demote, births, True, slow.read_latency_ns)
    known = all(tier.read_bytes_per_s > 0 < tier.write_bytes_per_s for tier in (fast, slow))
    return Timing(
        _extra(fast.read_bytes_per_s, slow.read_bytes_per_s),
        _extra(fast.write_bytes_per_s, slow.write_bytes_per_s),
        move,
        move,
        tiers.birth_ns_per_byte,
        fast_read_ns_per_byte=1e9 / fast.read_bytes_per_s if known else 0.0,
        fast_write_ns_per_byte=1e9 / fast.write_bytes_per_s if known else 0.0,
        overlap=tiers.overlap if known else Overlap.NONE,
        moves_yield=tiers.moves_yield and known,
    )


def _paged_moves(slow: Tier, move: float) -> tuple[float, float]:
    """(promote_ns_per_byte, demote_ns_per_byte) of paged tiers.

    move: time of a moved byte, averaged over both directions. The times to read a byte of the file
        and to write one are scaled by the same factor, so that their mean is `move`.
    """
    if slow.read_bytes_per_s <= 0 or slow.write_bytes_per_s <= 0:
        return move, move
    read, write = 1e9 / slow.read_bytes_per_s, 1e9 / slow.write_bytes_per_s
    share = 2 * move / (read + write)
    return read * share, write * share


def _extra(fast_rate: float, slow_rate: float) -> float:
    if fast_rate <= 0 or slow_rate <= 0:
        return 0.0
    return max(0.0, 1e9 / slow_rate - 1e9 / fast_rate)
