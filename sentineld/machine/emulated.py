# SPDX-License-Identifier: Apache-2.0
"""Emulated tiers on one kind of memory."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.config import TierOverrides
from sentineld.host.memory_size import memory_bytes
from sentineld.host.presets import preset_tiers
from sentineld.host.tiers import with_figures
from sentineld.machine.substrate import (
    NO_PROVISION,
    MeteredBy,
    Provision,
    figures_of,
    require_no_nodes,
    require_timing,
)
from sentineld.migrate.births import measure_births
from sentineld.migrate.emulated import EmulatedMemory
from sentineld.migrate.process_memory import Memory
from sentineld.migrate.token_bucket import TokenBucket
from sentineld.model.plan import Layout, Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.protocol import ACCESS_DTYPE
from sentineld.model.records import Records
from sentineld.model.tiers import Overlap, Tiers
from sentineld.observe.shim_link import ShimLink
from sentineld.plan.accesses import access_table
from sentineld.plan.policy import fast_pages
from sentineld.policies.registry import policy

EMULATED_PREFIX = "emulated:"


class EmulatedSubstrate:
    """Two tiers on one kind of memory: a residency map holds the tier of each page."""

    paged = ""
    swap = False
    metered_by = MeteredBy.RESIDENCY_MAP

    def __init__(self, figures: TierOverrides) -> None:
        """figures.emulated names the preset. Raises SentinelError("bad-config")."""
        require_no_nodes(figures, "emulated")
        require_timing(figures, "emulated", (Overlap.NONE, Overlap.COMPUTE))
        try:
            tiers = preset_tiers(figures.emulated, figures.emulated_threads)
        except SentinelError as error:
            raise SentinelError("bad-config", f"tiers: {error.message}", error.hint) from None
        if tiers.paged:
            raise SentinelError(
                "bad-config",
                f"the tiers {figures.emulated!r} are paged, not emulated",
                "use sentineld --tiers paged:DIRECTORY, or sentinelctl simulate",
            )
        self.emulated = figures.emulated
        # Each tier has the capacity of the machine's memory, so only the budget limits a session.
        self._tiers = with_figures(
            Tiers(
                tuple(replace(tier, capacity_bytes=memory_bytes()) for tier in tiers.tiers),
                figures.migration_bytes_per_s or tiers.migration_bytes_per_s,
                EMULATED_PREFIX + figures.emulated,
            ),
            figures_of(figures),
        )
        # All sessions use one bucket, because they share the migration bandwidth.
        self._bucket = TokenBucket(self._tiers.migration_bytes_per_s)

    def tiers(self) -> Tiers:
        """The preset's tiers with the config's overrides. If the config does not give the cost of
        births, it is measured, because page faults are real on emulated tiers."""
        return self._tiers if self._tiers.birth_ns_per_byte else measure_births(self._tiers)

    def require_allowed(self, link: ShimLink, tiers: Tiers) -> None:
        """Do nothing: an emulated move copies no page, so no cpuset or memory binding forbids
        it."""

    def memory(
        self, link: ShimLink, spaces: Mapping[Space, tuple[int, int]], tiers: Tiers
    ) -> Memory:
        """The interface that moves pages in the process's residency map."""
        if link.residency is None:
            raise SentinelError(
                "protocol-mismatch",
                f"process {link.pid} has no residency map",
                "run the training with the shim that came with this daemon",
            )
        return EmulatedMemory(link.residency, spaces, tiers, self._bucket)

    def accesses(self, layout: Layout, profile: Profile | None, tiers: Tiers) -> Records | None:
        """The profile's accesses, each with its cost on the slow tier."""
        if profile is None:
            return np.zeros(0, ACCESS_DTYPE)
        return access_table(profile, layout, tiers)

    def fast_pages(self, plan: Plan, budget_bytes: int, page_bytes: int) -> int | None:
        """The maximum number of fast pages. The simulator uses the same limit for this plan."""
        return fast_pages(policy(plan.policy), plan, page_bytes)

    def reserve_bytes(self, budget_bytes: int) -> int:
        """Return 0: plans need not leave fast memory free for moves. A move needs free fast memory
        only for its pages in flight, and a plan's charge already includes these pages."""
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
