# SPDX-License-Identifier: Apache-2.0
"""The memory below the tiers: the kernel's memory nodes, or emulated tiers on one kind of memory.

One interface (Substrate) with two implementations. The daemon picks one of the two at its start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from enum import Enum, auto
from typing import Any, Protocol

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.config import Config, TierOverrides
from sentineld.host.allowed_nodes import bound_nodes, cpuset_nodes, require_allowed
from sentineld.host.presets import preset_tiers
from sentineld.host.tiers import discover, with_figures
from sentineld.migrate.births import measure_births
from sentineld.migrate.calibrate import measure_bytes_per_s
from sentineld.migrate.emulated import EmulatedMemory
from sentineld.migrate.process_memory import KernelMemory, Memory
from sentineld.migrate.token_bucket import TokenBucket
from sentineld.model.plan import Layout, Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.protocol import ACCESS_DTYPE
from sentineld.model.records import Records
from sentineld.model.tiers import Tiers
from sentineld.observe.shim_link import ShimLink
from sentineld.plan.accesses import access_table
from sentineld.plan.policy import fast_pages
from sentineld.policies.registry import policy

EMULATED_PREFIX = "emulated:"


class MeteredBy(Enum):
    """The component that reports which tier served each access of a metered step."""

    # The kernel module reports the node of each page's first access in a stretch.
    MODULE_EPOCHS = auto()
    # The shim reports the tier of each page at each boundary.
    RESIDENCY_MAP = auto()


class Substrate(Protocol):
    """Operations that differ between the kernel's nodes and emulated tiers."""

    emulated: str  # name of the preset; "" for the kernel's nodes
    metered_by: MeteredBy

    def tiers(self) -> Tiers:
        """The tiers, with all figures that are known or can be measured. Raises SentinelError."""

    def require_allowed(self, link: ShimLink, tiers: Tiers) -> None:
        """Check that a process may use the tiers' memory. Raises SentinelError "not-permitted"."""

    def memory(
        self, link: ShimLink, spaces: Mapping[Space, tuple[int, int]], tiers: Tiers
    ) -> Memory:
        """The interface to a managed process's pages. Raises SentinelError."""

    def accesses(self, layout: Layout, profile: Profile | None, tiers: Tiers) -> Records | None:
        """For each access, the delay that the shim charges under this layout (ACCESS_DTYPE). None
        on the kernel's nodes. profile: None for a layout that only adds cuts."""

    def fast_pages(self, plan: Plan, page_bytes: int) -> int | None:
        """The number of fast pages that the shim may use under the plan; None: unlimited."""


class KernelSubstrate:
    """The kernel's nodes."""

    emulated = ""
    metered_by = MeteredBy.MODULE_EPOCHS

    def __init__(self, figures: TierOverrides) -> None:
        self._figures = figures

    def tiers(self) -> Tiers:
        """Tiers from sysfs and the config; measures migration bandwidth unless it is configured."""
        tiers = discover(overrides=_overrides(self._figures))
        return tiers if self._figures.migration_bytes_per_s else measure_bytes_per_s(tiers)

    def require_allowed(self, link: ShimLink, tiers: Tiers) -> None:
        """Checks the process's cpuset and its memory binding."""
        try:
            cpuset = cpuset_nodes(link.pid)
        except OSError:
            return  # the process has exited; the session will detect this
        require_allowed(link.pid, tiers, cpuset, bound_nodes(link.hello.get("bound_nodes")))

    def memory(
        self, link: ShimLink, spaces: Mapping[Space, tuple[int, int]], tiers: Tiers
    ) -> Memory:
        """Moves pages by move_pages."""
        return KernelMemory(link.pid, tiers)

    def accesses(self, layout: Layout, profile: Profile | None, tiers: Tiers) -> Records | None:
        """None: accesses to slow nodes take their real time, so the shim charges nothing."""
        return None

    def fast_pages(self, plan: Plan, page_bytes: int) -> int | None:
        """None: the kernel enforces the nodes' sizes."""
        return None


class EmulatedSubstrate:
    """Two tiers on one kind of memory: a residency map holds the tier of each page."""

    metered_by = MeteredBy.RESIDENCY_MAP

    def __init__(self, figures: TierOverrides) -> None:
        """figures.emulated names the preset. Raises SentinelError("bad-config")."""
        if figures.fast or figures.slow:
            raise SentinelError(
                "bad-config",
                "tiers.fast and tiers.slow name nodes, but tiers.emulated has none",
                "leave them out",
            )
        try:
            tiers = preset_tiers(figures.emulated, figures.emulated_threads)
        except SentinelError as error:
            raise SentinelError("bad-config", f"tiers: {error.message}", error.hint) from None
        self.emulated = figures.emulated
        # Each tier has the capacity of the machine's memory, so only the budget limits a session.
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._tiers = with_figures(
            Tiers(
                tuple(replace(tier, capacity_bytes=memory_bytes) for tier in tiers.tiers),
                figures.migration_bytes_per_s or tiers.migration_bytes_per_s,
                EMULATED_PREFIX + figures.emulated,
            ),
            _overrides(figures),
        )
        # All sessions use one bucket, because they share the migration bandwidth.
        self._bucket = TokenBucket(self._tiers.migration_bytes_per_s)

    def tiers(self) -> Tiers:
        """The preset's tiers with the config's overrides. The cost of births is measured, because
        page faults are real on emulated tiers."""
        return self._tiers if self._tiers.birth_ns_per_byte else measure_births(self._tiers)

    def require_allowed(self, link: ShimLink, tiers: Tiers) -> None:
        """Emulated tiers restrict nothing: no page leaves its node."""

    def memory(
        self, link: ShimLink, spaces: Mapping[Space, tuple[int, int]], tiers: Tiers
    ) -> Memory:
        """Moves pages in the process's residency map."""
        if link.residency is None:
            raise SentinelError(
                "protocol-mismatch",
                f"process {link.pid} has no residency map",
                "run the training with the shim that came with this daemon",
            )
        return EmulatedMemory(
            link.residency.maps,
            spaces,
            tiers,
            self._bucket,
            link.residency.page_bytes,
            moved_fast=link.residency.moved,
            in_flight_fast=link.residency.flying,
            fast_room=link.residency.fast_room,
        )

    def accesses(self, layout: Layout, profile: Profile | None, tiers: Tiers) -> Records | None:
        """The profile's accesses, each with its cost on the slow tier."""
        if profile is None:
            return np.zeros(0, ACCESS_DTYPE)
        return access_table(profile, layout, tiers)

    def fast_pages(self, plan: Plan, page_bytes: int) -> int | None:
        """The same limit on fast pages as in the simulator."""
        return fast_pages(policy(plan.policy), plan, page_bytes)


def substrate_of(config: Config) -> Substrate:
    """The substrate that the configuration selects. Raises SentinelError("bad-config")."""
    if config.tiers.emulated:
        return EmulatedSubstrate(config.tiers)
    return KernelSubstrate(config.tiers)


def with_tiers_option(config: Config, option: str | None) -> Config:
    """Apply the daemon's --tiers option, such as emulated:cxl. Raises SentinelError("usage")."""
    if option is None:
        return config
    preset = option.removeprefix(EMULATED_PREFIX)
    if preset == option or not preset:
        raise SentinelError("usage", f"--tiers {option!r}", "give emulated:PRESET, such as cxl")
    return replace(config, tiers=replace(config.tiers, emulated=preset))


def _overrides(figures: TierOverrides) -> dict[str, Any]:
    """The [tiers] table in the form that discover() takes, without empty settings."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(figures).items()
        if value
    }
