# SPDX-License-Identifier: Apache-2.0
"""The kernel's memory nodes as tiers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from sentineld.base.units import FastBudget
from sentineld.config import TierOverrides
from sentineld.host.allowed_nodes import bound_nodes, cpuset_nodes, require_allowed
from sentineld.host.tiers import discover
from sentineld.machine.substrate import NO_PROVISION, MeteredBy, Provision, figures_of
from sentineld.migrate.calibrate import measure_bytes_per_s
from sentineld.migrate.process_memory import KernelMemory, Memory
from sentineld.model.plan import Layout, Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.records import Records
from sentineld.model.tiers import Tiers
from sentineld.observe.shim_link import ShimLink


class KernelSubstrate:
    """Tiers of the kernel's NUMA nodes."""

    emulated = paged = ""
    swap = False
    metered_by = MeteredBy.MODULE_EPOCHS

    def __init__(self, figures: TierOverrides) -> None:
        self._figures = figures

    def tiers(self) -> Tiers:
        """Tiers from sysfs and the config; measures migration bandwidth unless it is configured."""
        tiers = discover(overrides=figures_of(self._figures))
        return tiers if self._figures.migration_bytes_per_s else measure_bytes_per_s(tiers)

    def require_allowed(self, link: ShimLink, tiers: Tiers) -> None:
        """Check the process's cpuset and its memory binding."""
        try:
            cpuset = cpuset_nodes(link.pid)
        except OSError:
            return  # the process has exited; the session will detect this
        require_allowed(link.pid, tiers, cpuset, bound_nodes(link.hello.get("bound_nodes")))

    def memory(
        self, link: ShimLink, spaces: Mapping[Space, tuple[int, int]], tiers: Tiers
    ) -> Memory:
        """The interface that moves pages with move_pages(2)."""
        return KernelMemory(link.pid, tiers)

    def accesses(self, layout: Layout, profile: Profile | None, tiers: Tiers) -> Records | None:
        """Return None: accesses to slow nodes take their real time, so the shim adds no delay."""
        return None

    def fast_pages(self, plan: Plan, budget_bytes: int, page_bytes: int) -> int | None:
        """Return None: the sizes of the fast nodes limit the number of fast pages."""
        return None

    def reserve_bytes(self, budget_bytes: int) -> int:
        """Return 0, because plans may use the whole budget: a move needs memory only for the page's
        new frame, and this frame is charged to the budget."""
        return 0

    def moves(self, plan: Plan, profile: Profile) -> None:
        """Return None: the process itself moves no pages, because the daemon moves all of them."""

    def first_provision(
        self, link: ShimLink, fast: FastBudget | None
    ) -> AbstractContextManager[Provision]:
        """A Provision (substrate.py) without fields and descriptors: the process needs none."""
        return nullcontext(NO_PROVISION)

    def provision(self, link: ShimLink, layout: Layout) -> AbstractContextManager[Provision]:
        """A Provision (substrate.py) without fields and descriptors: the process needs none."""
        return nullcontext(NO_PROVISION)
