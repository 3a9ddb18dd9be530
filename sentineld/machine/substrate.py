# SPDX-License-Identifier: Apache-2.0
"""The substrate of the tiers (see the glossary): an interface with four implementations.

nodes.py implements tiers of the kernel's memory nodes. emulated.py implements emulated tiers on one
kind of memory. paged.py implements paged tiers: memory and a file. swapped.py implements memory and
swap. choose.py picks one of the four at the daemon's start.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.config import TierOverrides
from sentineld.migrate.process_memory import Memory
from sentineld.model.plan import Layout, Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.records import Records
from sentineld.model.tiers import Tiers
from sentineld.observe.shim_link import ShimLink


class MeteredBy(Enum):
    """The component that reports which tier served each access of a metered step."""

    # For each page's first access in a stretch, the kernel module reports the page's node.
    MODULE_EPOCHS = auto()
    # At each boundary, the shim reports how many accesses of the following stretch are to fast
    # pages.
    RESIDENCY_MAP = auto()


class Provision(NamedTuple):
    """The substrate's part of a message to the process. The message is a layout, or the welcome:
    the daemon's answer to the hello, which is the first message of the shim."""

    fields: Mapping[str, Any]
    fds: tuple[int, ...]


NO_PROVISION = Provision({}, ())


class Substrate(Protocol):
    """Operations that differ between the substrates."""

    emulated: str  # name of the preset of emulated tiers; "" for other substrates
    paged: str  # directory of the files of paged tiers; "" for other substrates
    swap: bool  # whether the slow tier is swap, which is for processes without the shim
    metered_by: MeteredBy

    def tiers(self) -> Tiers:
        """The tiers, with all figures that are known or can be measured. Raises SentinelError."""

    def require_allowed(self, link: ShimLink, tiers: Tiers) -> None:
        """Raise SentinelError "not-permitted" or "wrong-state" if a process can't use the tiers."""

    def memory(
        self, link: ShimLink, spaces: Mapping[Space, tuple[int, int]], tiers: Tiers
    ) -> Memory:
        """The interface to a managed process's pages. Raises SentinelError."""

    def accesses(self, layout: Layout, profile: Profile | None, tiers: Tiers) -> Records | None:
        """The step's accesses under this layout (protocol.ACCESS_DTYPE). The shim meters these
        accesses. A row also has the time by which the shim delays the training for each slow page;
        on paged tiers this time is 0. Returns None on the kernel's nodes. profile: None for a
        layout that only adds cuts."""

    def reserve_bytes(self, budget_bytes: int) -> int:
        """The part of a budget's fast memory that plans must leave free."""

    def fast_pages(self, plan: Plan, budget_bytes: int, page_bytes: int) -> int | None:
        """The number of fast pages that the shim may use under a plan for this budget; None:
        unlimited."""

    def moves(self, plan: Plan, profile: Profile) -> Records | None:
        """The moves that the process itself carries out under a plan (PAGER_MOVE_DTYPE); None: the
        daemon moves all pages."""

    def first_provision(
        self, link: ShimLink, fast: FastBudget | None
    ) -> AbstractContextManager[Provision]:
        """The provision for a process whose hello has arrived and that is not attached yet. fast:
        the budget with which the process will be attached; None if the budget is unknown, or if the
        process already has a layout. Raises SentinelError."""

    def provision(self, link: ShimLink, layout: Layout) -> AbstractContextManager[Provision]:
        """The provision that the process needs before it takes the layout. The descriptors are open
        within the context. Raises SentinelError."""


def require_no_nodes(overrides: TierOverrides, key: str) -> None:
    """Raise SentinelError if the [tiers] table names nodes. key: the setting that forbids nodes."""
    if overrides.fast or overrides.slow:
        raise SentinelError(
            "bad-config",
            f"tiers.fast and tiers.slow name nodes, but {key} tiers have none",
            "leave out tiers.fast and tiers.slow",
        )


def require_timing(overrides: TierOverrides, key: str, overlaps: Container[str]) -> None:
    """Raise SentinelError if the [tiers] table selects a variant of the timing model that these
    tiers cannot have.

    key: the setting that selects these tiers: "emulated", "paged" or "swap". overlaps: the values
        that tiers.overlap may have.
    """
    if overrides.overlap not in overlaps:
        problem = f"tiers.overlap = {overrides.overlap!r} is not possible with tiers.{key}"
    elif overrides.moves_yield:
        problem = f"tiers.moves_yield is not possible with tiers.{key}"
    else:
        return
    raise SentinelError("bad-config", problem, "leave it out")


def figures_of(overrides: TierOverrides) -> dict[str, Any]:
    """The [tiers] table in the form that discover() (host/tiers.py) takes, without settings that
    are 0, false or empty."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(overrides).items()
        if value
    }
