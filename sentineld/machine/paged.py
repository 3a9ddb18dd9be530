# SPDX-License-Identifier: Apache-2.0
"""Paged tiers: the fast tier is memory, the slow tier is a file for each process.

The pager in the process (shim/native/pager/) moves the pages. The daemon creates the file. With the
layout, it sends the pager's budget and the plan's moves to the process.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget, format_bytes
from sentineld.config import TierOverrides
from sentineld.host.memory_group import available_bytes
from sentineld.host.memory_size import memory_bytes, tensor_bytes_max
from sentineld.host.presets import DRAM_BYTES_PER_S, SOCKET_THREADS
from sentineld.host.tiers import with_figures
from sentineld.host.userfaultfd import require_move
from sentineld.machine.substrate import (
    NO_PROVISION,
    MeteredBy,
    Provision,
    figures_of,
    require_no_nodes,
    require_timing,
)
from sentineld.migrate.disk_speed import measure_disk
from sentineld.migrate.paged import PagedMemory
from sentineld.migrate.paging_file import PERMISSION_HINT, open_paging_file
from sentineld.migrate.process_memory import Memory
from sentineld.model.plan import Layout, Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.protocol import ACCESS_DTYPE
from sentineld.model.records import PAGE_BYTES, Records
from sentineld.model.tiers import Overlap, Tier, Tiers
from sentineld.observe.shim_link import ShimLink
from sentineld.plan.accesses import access_table
from sentineld.plan.pager_moves import pager_moves

FAST_NODE, SLOW_NODE = 0, 1
"""The nodes in the residency map: memory, and the file."""
RESERVE_SHARE = 1 / 16
"""Share of the budget that plans leave free. The frame of an evicted page is not free until the
page has been written to the file, and pages that the plan leaves in the file need frames while they
are accessed."""
RESERVE_BYTES_MIN = 4 << 20
FILE_SPARE = 1.25
"""Size of the file, before rounding, divided by the bytes of arena and heap. The quotient is larger
than 1, because tensors that are born later need room, too."""
FILE_ALIGN_BYTES = 64 << 20
FIRST_FILE_BYTES = 512 << 20
"""Initial size of the file if the process gets its pager before it is profiled."""
FIRST_SHARE = 0.75
"""Share of the available memory that tensors may take until the process has a plan, unless the
budget is a number of bytes. The remaining memory is for data that is not paged."""


def disk_tiers(folder: Path, given: TierOverrides, room_bytes: int) -> Tiers:
    """Two tiers: memory, and the disk of a folder.

    given: figures to use instead of measured ones. room_bytes: the capacity of the slow tier.

    Raises SentinelError.
    """
    read, write = given.slow_read_bytes_per_s, given.slow_write_bytes_per_s
    latency_ns = wake_ns = 0.0
    if not (read and write):
        measured = measure_disk(folder)
        read, write = read or measured.read_bytes_per_s, write or measured.write_bytes_per_s
        latency_ns, wake_ns = measured.latency_ns(read), measured.wake_ns
    dram = DRAM_BYTES_PER_S / SOCKET_THREADS
    fast = Tier((FAST_NODE,), memory_bytes(), dram, dram)
    slow = Tier((SLOW_NODE,), room_bytes, read, write, latency_ns, wake_ns=wake_ns)
    # The harmonic mean of the read and the write bandwidth, because a page that moves out and back
    # is written once and read once.
    both = given.migration_bytes_per_s or 2 / (1 / read + 1 / write)
    tiers = Tiers((fast, slow), both, "paged", paged=True)
    return with_figures(tiers, figures_of(given))


class PagedSubstrate:
    """Two tiers: memory, and a file for each process."""

    emulated = ""
    swap = False
    metered_by = MeteredBy.RESIDENCY_MAP

    def __init__(self, figures: TierOverrides) -> None:
        """figures.paged names the directory. Raises SentinelError("bad-config")."""
        require_no_nodes(figures, "paged")
        require_timing(figures, "paged", (Overlap.NONE,))
        self.paged = figures.paged
        self._folder = Path(figures.paged)
        try:
            is_folder = self._folder.is_dir()
        except OSError as error:
            reason = f"tiers.paged: {self.paged}: {error.strerror}"
            raise SentinelError("bad-config", reason, PERMISSION_HINT) from None
        if not is_folder:
            raise SentinelError(
                "bad-config", f"tiers.paged: {self.paged} is not a directory", "create it"
            )
        self._figures = figures

    def tiers(self) -> Tiers:
        """Two tiers: memory, and the directory's disk. If the config gives no bandwidths, the
        disk's bandwidths are measured, and the bandwidths of memory are constants. Raises
        SentinelError."""
        require_move()
        return disk_tiers(self._folder, self._figures, self._file_room_bytes())

    def require_allowed(self, link: ShimLink, tiers: Tiers) -> None:
        """Do nothing: paged tiers need no particular node, so no cpuset or memory binding forbids
        them."""

    def memory(
        self, link: ShimLink, spaces: Mapping[Space, tuple[int, int]], tiers: Tiers
    ) -> Memory:
        """The interface that moves pages by requests to the process's pager.

        The plan's own moves are not among these requests: the pager gets them with the layout.
        Raises SentinelError if the process has no pager, or if its residency map has an impossible
        length.
        """
        segment, paging = link.residency, link.paging
        if segment is None or paging is None:
            raise SentinelError(
                "protocol-mismatch",
                f"process {link.pid} has no pager",
                "run the training with the shim that came with this daemon",
            )
        for space, (_, size) in spaces.items():
            pages, needed = len(segment.maps[space]), -(-size // segment.page_bytes)
            # The heap's map also covers the part of the heap that is not used yet.
            if pages < needed or (space == Space.ARENA and pages > needed):
                raise SentinelError(
                    "failed",
                    f"process {link.pid} reports impossible sizes: its map of the "
                    f"{space.name.lower()} has {pages} pages, not {needed}",
                    "run the training with the shim that came with this daemon",
                )
        heap_max = tensor_bytes_max()
        return PagedMemory(
            segment,
            paging,
            spaces,
            tiers,
            link.wake_fd(),
            segment.page_bytes,
            heap_bytes=lambda: min(link.segment.words().heap_used, heap_max),
        )

    def accesses(self, layout: Layout, profile: Profile | None, tiers: Tiers) -> Records | None:
        """The profile's accesses, without the delays of emulated tiers: an access to a page in the
        file takes its real time."""
        if profile is None:
            return np.zeros(0, ACCESS_DTYPE)
        table = access_table(profile, layout, tiers)
        table["slow_ps"] = 0
        return table

    def reserve_bytes(self, budget_bytes: int) -> int:
        """RESERVE_SHARE of the budget, or RESERVE_BYTES_MIN if that is more; but never more than a
        quarter of the budget."""
        return min(max(int(budget_bytes * RESERVE_SHARE), RESERVE_BYTES_MIN), budget_bytes // 4)

    def fast_pages(self, plan: Plan, budget_bytes: int, page_bytes: int) -> int | None:
        """The pager's budget in pages: the plan's budget plus the reserve."""
        return (plan.budget_bytes + self.reserve_bytes(budget_bytes)) // page_bytes

    def moves(self, plan: Plan, profile: Profile) -> Records:
        """All moves of the plan: the pager carries them out, even without a daemon."""
        return pager_moves(plan, profile)

    @contextmanager
    def first_provision(self, link: ShimLink, fast: FastBudget | None) -> Iterator[Provision]:
        """A file and a budget, if the process will be attached and has no pager yet. With them, the
        steps that are profiled can run even if the model is larger than memory. The pager enlarges
        the file as necessary."""
        if fast is None or link.paging is not None:
            yield NO_PROVISION
            return
        budget_bytes = fast.bytes
        if budget_bytes is None:
            budget_bytes = int(available_bytes(link.pid) * FIRST_SHARE)
        most_bytes = self._file_room_bytes()
        paging = {
            "file_bytes": min(FIRST_FILE_BYTES, most_bytes),
            "file_bytes_max": most_bytes,
            "file": True,
            "budget_pages": max(budget_bytes // PAGE_BYTES, 1),
        }
        with self._with_file(link, paging) as provision:
            yield provision

    @contextmanager
    def provision(self, link: ShimLink, layout: Layout) -> Iterator[Provision]:
        """The eventfd that wakes the process's pager; also a new file, if the process has no pager
        yet."""
        held_bytes = layout.arena_bytes + link.segment.words().heap_used
        size_bytes = int(held_bytes * FILE_SPARE) // FILE_ALIGN_BYTES * FILE_ALIGN_BYTES
        size_bytes += FILE_ALIGN_BYTES
        if (limit := self._figures.paged_bytes) and size_bytes > limit:
            raise SentinelError(
                "budget-too-large",
                f"process {link.pid} needs a file of {format_bytes(size_bytes)}, but "
                f"tiers.paged_bytes is {format_bytes(limit)}",
                "raise tiers.paged_bytes",
            )
        running = link.paging is not None
        # The disk's free bytes do not include the existing file's blocks, but the file keeps these
        # blocks when it grows.
        has_bytes = link.paging.counts().file_bytes if link.paging is not None else 0
        most_bytes = max(size_bytes, self._file_room_bytes(has_bytes))
        paging = {"file_bytes": size_bytes, "file_bytes_max": most_bytes, "file": not running}
        if running:
            yield Provision({"paging": paging}, (link.wake_fd(),))
            return
        with self._with_file(link, paging) as provision:
            yield provision

    @contextmanager
    def _with_file(self, link: ShimLink, paging: dict[str, int]) -> Iterator[Provision]:
        """The provision (substrate.py) with a new file of paging["file_bytes"] bytes."""
        file = open_paging_file(self._folder, paging["file_bytes"])
        try:
            yield Provision({"paging": paging}, (file, link.wake_fd()))
        finally:
            os.close(file)

    def _file_room_bytes(self, has_bytes: int = 0) -> int:
        """The size to which a file may grow: the configured limit, or the room on the folder's disk
        if that is less. has_bytes: the file's present size."""
        room = shutil.disk_usage(self._folder).free + has_bytes
        return min(room, self._figures.paged_bytes or room)
