# SPDX-License-Identifier: Apache-2.0
"""What tiers stand on: the kernel's memory nodes, or emulation where there is but one memory.

One small table of operations with two implementations; the daemon picks one at
its start and everything else asks it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Protocol

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.config import Config, TierOverrides
from sentineld.host.presets import preset_tiers
from sentineld.host.tiers import discover, with_figures
from sentineld.migrate.births import measure_births
from sentineld.migrate.calibrate import measure_bytes_per_s
from sentineld.migrate.emulated import EmulatedMemory
from sentineld.migrate.memory import KernelMemory, Memory
from sentineld.migrate.pace import TokenBucket
from sentineld.model.plan import Layout, Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.protocol import ACCESS_DTYPE
from sentineld.model.records import Records
from sentineld.model.tiers import Tiers
from sentineld.observe.shimlink import ShimLink
from sentineld.plan.accesses import access_table
from sentineld.plan.policy import fast_pages
from sentineld.policies.registry import policy
from sentineld.session.intake.sampling import Sampling
from sentineld.session.live.managed import Managed
from sentineld.session.work.metering import Metering, ModuleMetering, ResidencyMetering

EMULATED_PREFIX = "emulated:"


class Substrate(Protocol):
    """emulated: the preset's name, "" for the machine's own memory."""

    emulated: str

    def tiers(self) -> Tiers:
        """The tiers, with all figures that can be had. Raises SentinelError."""

    def memory(
        self, link: ShimLink, spaces: Mapping[Space, tuple[int, int]], tiers: Tiers
    ) -> Memory:
        """A managed process's pages. Raises SentinelError."""

    def accesses(self, layout: Layout, profile: Profile | None, tiers: Tiers) -> Records | None:
        """What a layout for the shim says of the accesses' costs (ACCESS_DTYPE); None: the nodes
        are the kernel's. profile: None for a layout that plans nothing."""

    def fast_pages(self, plan: Plan, page_bytes: int) -> int | None:
        """How many pages of fast memory there are for the plan, as the shim is to be told; None: as
        many as the nodes have."""

    def metering(
        self,
        link: ShimLink,
        managed: Managed,
        sampling: Callable[[], Sampling],
        tiers: Tiers,
        steps: int,
    ) -> Metering:
        """Begin to meter steps. sampling: opens an exact one. Raises SentinelError."""


class KernelSubstrate:
    """The kernel's nodes."""

    emulated = ""

    def __init__(self, figures: TierOverrides) -> None:
        self._figures = figures

    def tiers(self) -> Tiers:
        """As the kernel tells or the config says; what migration reaches is measured."""
        tiers = discover(overrides=_overrides(self._figures))
        return tiers if self._figures.migration_bytes_per_s else measure_bytes_per_s(tiers)

    def memory(
        self, link: ShimLink, spaces: Mapping[Space, tuple[int, int]], tiers: Tiers
    ) -> Memory:
        """By move_pages."""
        return KernelMemory(link.pid, tiers)

    def accesses(self, layout: Layout, profile: Profile | None, tiers: Tiers) -> Records | None:
        """None: slow pages cost what they cost."""
        return None

    def fast_pages(self, plan: Plan, page_bytes: int) -> int | None:
        """None: the kernel knows."""
        return None

    def metering(
        self,
        link: ShimLink,
        managed: Managed,
        sampling: Callable[[], Sampling],
        tiers: Tiers,
        steps: int,
    ) -> Metering:
        """By the kernel module."""
        return ModuleMetering(link, managed, sampling(), tiers, steps)


class EmulatedSubstrate:
    """Two tiers that are only thought of: one kind of memory, a map of where each page would be."""

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
        # Each tier alone could hold all that there is; the budget is what limits a session.
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._tiers = with_figures(
            Tiers(
                tuple(replace(tier, capacity_bytes=memory_bytes) for tier in tiers.tiers),
                figures.migration_bytes_per_s or tiers.migration_bytes_per_s,
                EMULATED_PREFIX + figures.emulated,
            ),
            _overrides(figures),
        )
        # One for all sessions, as they would share the machine's.
        self._bucket = TokenBucket(self._tiers.migration_bytes_per_s)

    def tiers(self) -> Tiers:
        """The preset's, with the config's figures where it has any. What births take is measured:
        pages are really made, whatever tier they are thought to be on."""
        return self._tiers if self._tiers.birth_ns_per_byte else measure_births(self._tiers)

    def memory(
        self, link: ShimLink, spaces: Mapping[Space, tuple[int, int]], tiers: Tiers
    ) -> Memory:
        """By the process's residency map."""
        if link.residency is None:
            raise SentinelError(
                "protocol-mismatch",
                f"process {link.pid} keeps no residency map",
                "run the training with the shim that came with this daemon",
            )
        return EmulatedMemory(
            link.residency.maps,
            spaces,
            tiers,
            self._bucket,
            link.residency.page_bytes,
            moved_fast=link.residency.moved,
            flying_fast=link.residency.flying,
            fast_room=link.residency.fast_room,
        )

    def accesses(self, layout: Layout, profile: Profile | None, tiers: Tiers) -> Records | None:
        """The profile's, each with its cost on the slow tier."""
        if profile is None:
            return np.zeros(0, ACCESS_DTYPE)
        return access_table(profile, layout, tiers)

    def fast_pages(self, plan: Plan, page_bytes: int) -> int | None:
        """As in the simulator."""
        return fast_pages(policy(plan.policy), plan, page_bytes)

    def metering(
        self,
        link: ShimLink,
        managed: Managed,
        sampling: Callable[[], Sampling],
        tiers: Tiers,
        steps: int,
    ) -> Metering:
        """By what the shim reads in the residency map at each boundary."""
        return ResidencyMetering(link, managed, steps)


def substrate_of(config: Config) -> Substrate:
    """What the configuration asks for. Raises SentinelError("bad-config")."""
    if config.tiers.emulated:
        return EmulatedSubstrate(config.tiers)
    return KernelSubstrate(config.tiers)


def with_tiers_option(config: Config, option: str | None) -> Config:
    """The configuration with the daemon's --tiers, such as emulated:cxl. Raises
    SentinelError("usage")."""
    if option is None:
        return config
    preset = option.removeprefix(EMULATED_PREFIX)
    if preset == option or not preset:
        raise SentinelError("usage", f"--tiers {option!r}", "give emulated:PRESET, such as cxl")
    return replace(config, tiers=replace(config.tiers, emulated=preset))


def _overrides(figures: TierOverrides) -> dict[str, Any]:
    """The [tiers] table as discover() takes it; empty settings are left out."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(figures).items()
        if value
    }
