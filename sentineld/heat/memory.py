# SPDX-License-Identifier: Apache-2.0
"""The memory of a session's processes: how much is resident, and the units that can be swapped.

Page numbers are those of the session; see spans.py. An anonymous page that several processes of a
group still share after a fork is counted once, except by units(). The kernel ignores a session's
requests to page out such a page.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np

from sentineld.heat.member import Member
from sentineld.heat.members import Members
from sentineld.heat.spans import runs_by_span, session_runs, split_pages
from sentineld.model.arrays import Integers, Table
from sentineld.model.records import PAGE_RUN_DTYPE
from sentineld.observe.anonymous import without
from sentineld.observe.memory_use import (
    MemoryUse,
    Sharing,
    pinned_ranges,
    read_memory_use,
    read_sharing,
    resident_bytes,
)
from sentineld.policies.temperature.units import UNIT_PAGES_MIN, Units, unit_pages

_NO_RUNS = np.zeros(0, PAGE_RUN_DTYPE)


class SessionMemory:
    """Reads the processes' page tables. Errors of its methods: see Members.each()."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._size_pages = UNIT_PAGES_MIN
        self.use = MemoryUse()
        """The result of the last refresh()."""
        self._uses: dict[int, MemoryUse] = {}
        """Memory use of each member, by span. `_pinned` and `_sharing` are by span, too."""
        self._pinned: dict[int, Integers] = {}
        """The ranges that could not be swapped out when units() was called last; see
        pinned_ranges()."""
        self._sharing: dict[int, Sharing] = {}
        """The result of read_sharing() for each member; used to correct the sizes of this member.
        Empty if there was only one member when the sharing was read."""
        self._changes = 0
        """Members.changes when the sharing was read. The sharing is valid until the next change."""

    def resident_bytes(self) -> int:
        """Resident anonymous bytes. After a change of the group, shared pages are counted in each
        process until units() or refresh() is called."""

        def one(member: Member) -> int:
            member.require_address_space()
            shared = self._sharing_of(member).anonymous_bytes
            return max(resident_bytes(member.pid) - shared, 0)

        while True:
            changes = self._members.changes
            total = sum(self._members.each(one))
            # If a member has left during the sum, the subtracted sharing is out of date: sum again.
            if self._members.changes == changes:
                return total

    @property
    def repeated_bytes(self) -> int:
        """Resident bytes that units() counts and resident_bytes() does not: units() counts a shared
        page in each process that maps it."""
        return sum(self._sharing_of(member).anonymous_bytes for member in self._members)

    @property
    def sharing_known(self) -> bool:
        """Whether the sharing is that of the current members: the group has not changed since the
        last call of units() or refresh()."""
        return self._changes == self._members.changes

    def _sharing_of(self, member: Member) -> Sharing:
        return self._sharing.get(member.span, Sharing()) if self.sharing_known else Sharing()

    def _read_sharing(self) -> None:
        self._sharing = {}
        if len(self._members) > 1:
            read = self._members.each(lambda member: (member.span, read_sharing(member.pid)))
            self._sharing = dict(read)
        self._changes = self._members.changes

    def refresh(self) -> None:
        """Read how much memory of each kind the processes use."""

        def one(member: Member) -> MemoryUse:
            member.require_address_space()
            use = read_memory_use(member.pid)
            self._uses[member.span] = use
            sharing = self._sharing_of(member)
            if sharing == Sharing():
                return use
            return use._replace(
                anonymous_bytes=max(use.anonymous_bytes - sharing.anonymous_bytes, 0),
                swapped_bytes=max(use.swapped_bytes - sharing.swapped_bytes, 0),
                shared_bytes=min(use.shared_bytes, sharing.shared_bytes),
            )

        while True:
            if not self.sharing_known:
                self._read_sharing()
            self._uses = {}
            uses = self._members.each(one)
            # If a member leaves during each(), the sharing is no longer known. Shared pages are
            # then counted in full for each member that is read later. So read all members again:
            # otherwise the session's peak, which never decreases, would be too large from then on.
            if self.sharing_known:
                break
        self.use = MemoryUse(*map(sum, zip(*uses, strict=True))) if uses else MemoryUse()

    def units(self, resize: bool = False) -> Units:
        """The units of pages that the kernel can swap out. resize: adapt the size of the units to
        the size of the processes."""

        def one(member: Member) -> tuple[int, Table]:
            if self._has_pinned(member):
                self._pinned[member.span] = pinned_ranges(member.pid)
            return member.span, session_runs(self._swappable(member), member.span)

        self._pinned = {}
        # A member that joined later can have a smaller span; see Members.
        by_span = dict(self._members.each(one))
        runs = np.concatenate([_NO_RUNS, *(by_span[span] for span in sorted(by_span))])
        self._read_sharing()
        if resize:
            wanted = unit_pages(int(runs["pages"].sum()))
            # Shrink units only to a quarter of their size or less, so that small variations in the
            # size of the processes do not change the units each time.
            if wanted > self._size_pages or 4 * wanted <= self._size_pages:
                self._size_pages = wanted
        return Units(runs, self._size_pages)

    def runs_of(self, numbers: Integers) -> Table:
        """The pages of some units as runs, ascending; PAGE_RUN_DTYPE. numbers: the units' numbers,
        ascending and distinct."""
        size = self._size_pages
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        groups = [group for group in np.split(numbers, breaks) if len(group)]
        wanted = np.zeros(len(groups), PAGE_RUN_DTYPE)
        wanted["page"] = [int(group[0]) * size for group in groups]
        wanted["pages"] = [len(group) * size for group in groups]
        found = [_NO_RUNS]
        for span, ranges in runs_by_span(wanted):
            member = self._members.of_span(span)
            if member is not None:
                found += self._runs_within(member, ranges)
        return np.concatenate(found)

    def _runs_within(self, member: Member, ranges: Table) -> list[Table]:
        """The swappable pages in these ranges of a member, as runs with the session's page numbers.
        Empty if the member has left."""

        def one(member: Member) -> Table:
            parts = [
                self._swappable(member, page, page + pages) for page, pages, _ in ranges.tolist()
            ]
            return session_runs(np.concatenate(parts), member.span)

        return self._members.one(member, one)

    def frame_reader(self, pages: Integers) -> Callable[[], Integers]:
        """A function that reads the page frame number of each page; see AnonymousPages.frames(). 0
        if the process is gone. Any thread may call the function, even after close() of members."""
        spans, own = split_pages(pages)
        parts = [(spans == member.span, member.pages) for member in self._members]

        def read() -> Integers:
            found = np.zeros(len(pages), np.int64)
            for mine, process in parts:
                if mine.any():
                    # The session's thread handles the errors of its next read of this process.
                    with contextlib.suppress(OSError):
                        found[mine] = process.frames(own[mine])
            return found

        return read

    def _has_pinned(self, member: Member) -> bool:
        use = self._uses.get(member.span)
        return use is None or bool(use.locked_bytes or use.huge_bytes)

    def _swappable(self, member: Member, first: int = 0, end: int | None = None) -> Table:
        runs = member.pages.runs(first, end)
        pinned = self._pinned.get(member.span)
        return runs if pinned is None else without(runs, pinned)

    def skipped_bytes(self) -> dict[str, int]:
        """Bytes that a session never pages out, by kind: locked (mlock), huge (hugetlb), shared
        (memory shared with other processes). Kinds that the processes do not use are left out."""
        use = self.use
        kinds = {"locked": use.locked_bytes, "huge": use.huge_bytes, "shared": use.shared_bytes}
        return {kind: size for kind, size in kinds.items() if size}
