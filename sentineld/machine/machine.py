# SPDX-License-Identifier: Apache-2.0
"""The machine's tiers, budgets, module and eBPF probes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about
from sentineld.base.units import FastBudget
from sentineld.config import Config, with_reloadable
from sentineld.host.huge_sizes import offered_sizes, planned_sizes
from sentineld.host.powercap import EnergyCounters
from sentineld.machine.budgets import Budgets
from sentineld.machine.choose import substrate_of
from sentineld.machine.shared import Share, SharedBudget
from sentineld.machine.substrate import Substrate
from sentineld.machine.swapped import PAGE_OUT_BYTES_PER_S
from sentineld.model.tiers import Tiers
from sentineld.observe.backends import BackendStatus, survey
from sentineld.observe.module import MODULE
from sentineld.observe.probing import Probing
from sentineld.observe.procs import ProcessEvent, ProcessWatcher
from sentineld.observe.shim_link import ShimLink
from sentineld.plan.division import Terms
from sentineld.planner.planners import Planners

log = logging.getLogger(__name__)

EBPF_REQUIRED_TIMEOUT_S = 180.0
"""Time limit for loading the probes if the daemon's start waits for them. To compile them, bcc
takes 10 s in a guest with emulated CPUs, and longer on a loaded machine. TimeoutStartSec of the
systemd unit must be longer."""
EBPF_TIMEOUT_S = 1800.0
"""Time limit for loading the probes if nothing waits for them. It only serves to end a loader that
hangs."""
PROC_EVENTS_TIMEOUT_S = 60.0
"""Time to wait for the first event of the proc connector. Importing pyroute2 takes seconds in a
guest with emulated CPUs. No session waits for this event."""


def default_policy(config: Config) -> str:
    """The configured policy; `sentinel+spill` instead of `auto` if scipy is not installed."""
    if config.policy != "auto" or find_spec("scipy"):
        return config.policy
    log.warning("policy auto needs scipy, which is not installed: the default is sentinel+spill")
    return "sentinel+spill"


def _effective(config: Config) -> Config:
    """The settings, with `policy` replaced by default_policy()."""
    return replace(config, policy=default_policy(config))


class Machine:
    """The machine as the daemon uses it: tiers, budgets, planners, probes and the kernel module.

    The tiers are determined once, at start. The kernel module can be loaded or unloaded at any
    time, so its presence is checked at each use.
    """

    def __init__(
        self,
        config: Config,
        substrate: Substrate,
        tiers: Tiers | None,
        problems: list[SentinelError],
        rapl: EnergyCounters | None = None,
    ) -> None:
        self.config = _effective(config)
        """The settings. configure() replaces the object as a whole, so that other threads see
        either all old or all new values. `policy` is the result of default_policy()."""
        self.substrate = substrate
        self.tiers = tiers
        self._problems = problems
        """Errors that explain why features do not work here. If there are no tiers, the first
        error says why."""
        self.budgets = Budgets(tiers.tiers[0].capacity_bytes if tiers is not None else 0)
        """The sessions' budgets of fast memory, and the shared budget. A session's budget is held
        by its ShimLink or, for processes without the shim, by its HeatSession. The holder of the
        shared budget is a string."""
        self.shared = self._shared_budget(config, tiers)
        """The shared budget; None: not configured, or there are no tiers."""
        self.rapl = rapl
        """The machine's energy counters; None if it has none."""
        self.planners = Planners(
            config.plan_processes,
            config.plan_memory_bytes,
            config.plan_timeout_s,
            nice=config.plan_nice,
            fallbacks=config.policy_fallback,
        )
        self.probing = Probing()
        self._processes = ProcessWatcher(lambda event: self.on_process(event))
        self.on_process: Callable[[ProcessEvent], None] = lambda _: None
        """Called with each event of a watched process tree, from the watcher's threads, from
        watch() and from unwatch(). Must not block; see ProcessWatcher."""

    def _shared_budget(self, config: Config, tiers: Tiers | None) -> SharedBudget | None:
        """Reserve the shared budget. Raises SentinelError("bad-config") if this is not possible."""
        if not config.shared_fast or tiers is None:
            return None
        size_bytes = FastBudget.parse(config.shared_fast).resolve(tiers.tiers[0].capacity_bytes)
        try:
            self.budgets.reserve("the shared budget", size_bytes)
        except SentinelError as error:
            raise SentinelError(
                "bad-config", f"shared_fast: {error.message}", "set a smaller shared_fast"
            ) from None
        return SharedBudget(size_bytes)

    @classmethod
    def probe(cls, config: Config) -> Machine:
        """Find the tiers, measure their missing figures, and begin to load the eBPF probes. Raises
        SentinelError: "bad-config", or the probes' error if the config requires the probes."""
        substrate = substrate_of(config)
        problems: list[SentinelError] = []
        tiers: Tiers | None = None
        try:
            tiers = substrate.tiers()
        except SentinelError as error:
            problems.append(error)
            log.warning("%s", error, extra=about(LogEvent.NO_TIERS))
        if substrate.emulated:
            log.info("tiers are emulated (preset %s): no page is copied", substrate.emulated)
        if substrate.paged:
            log.info("tiers are paged: tier 0 is memory, files in %s are tier 1", substrate.paged)
        if substrate.swap:
            log.info("tiers are memory and swap, for processes without the shim")
        machine = cls(config, substrate, tiers, problems, EnergyCounters.of_machine())
        log.info("pages are observed by: %s", machine.backend().backend.name)
        # In a guest with emulated CPUs, it takes seconds to start following processes and to load
        # the probes. Sessions need not wait for this, unless the config requires the probes.
        threading.Thread(target=machine._follow_processes, name="processes", daemon=True).start()
        if config.ebpf == "required":
            machine.probing.load(EBPF_REQUIRED_TIMEOUT_S)
        elif config.ebpf == "auto":
            threading.Thread(target=machine._load_probes, name="ebpf", daemon=True).start()
        return machine

    def configure(self, config: Config) -> None:
        """From now on, use new settings for each process whose shim connects or that is attached,
        and for each planning process that starts. Only the RELOADABLE settings of `config` are
        used."""
        self.config = _effective(with_reloadable(self.config, config))
        self.planners.set_limits(
            config.plan_memory_bytes,
            config.plan_timeout_s,
            nice=config.plan_nice,
            fallbacks=config.policy_fallback,
        )

    def _follow_processes(self) -> None:
        self._processes.start(PROC_EVENTS_TIMEOUT_S)
        if self._processes.note:
            log.info("%s", self._processes.note)

    def _load_probes(self) -> None:
        try:
            self.probing.load(EBPF_TIMEOUT_S)
        except SentinelError as error:
            self._problems.append(error)
            log.warning("no eBPF probes: %s", error, extra=about(LogEvent.NO_PROBES))

    def watch(self, pid: int, uid: int) -> None:
        """Follow a process of a user and its descendants. With eBPF probes, count the process's
        page faults, and its disturbances (moves, reclaim and collapses of its pages that the daemon
        did not request).

        If the probes are not loaded yet, they begin to count when they are loaded.
        """
        self._processes.track(pid, uid)
        self.probing.watch(pid)

    def unwatch(self, pid: int) -> None:
        """Stop following a process, and stop counting its faults and disturbances."""
        self._processes.untrack(pid)
        self.probing.unwatch(pid)

    def tree(self, pid: int) -> list[int]:
        """The pids of a watched process and its descendants, such as data-loader workers; without
        the descendants beyond the limits of ProcessWatcher."""
        return self._processes.processes(pid)

    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """The nodes of each tier; empty if there are no tiers."""
        return tuple(tier.nodes for tier in self.tiers.tiers) if self.tiers else ()

    def huge_pages(self) -> tuple[int, ...]:
        """Huge page sizes, in bytes, that a layout may use now (docs/explanation/huge-pages.md)."""
        if self.substrate.paged:
            return ()  # the pager moves base pages only
        wanted = ("auto", "on") if self.substrate.emulated else ("on",)
        if self.config.huge_pages not in wanted or MODULE.probe() is None:
            return ()
        return planned_sizes(offered_sizes())

    def require_tiers(self) -> Tiers:
        """The tiers. If there are no tiers, raises the SentinelError that says why."""
        if self.tiers is None:
            raise self._problems[0].fresh()
        return self.tiers

    def require(self, link: ShimLink, fast: FastBudget) -> None:
        """Check that a process can be managed, and reserve its budget. Raises SentinelError.

        If the budget is a fraction of the peak, nothing is reserved yet: the session reserves the
        bytes when the peak is known, before the plan becomes live.
        """
        self.substrate.require_allowed(link, self.require_tiers())
        if fast.bytes is not None:
            self.budgets.reserve(link, fast.bytes)

    def budgets_of(self, link: ShimLink) -> Budgets:
        """The object that counts a session's budget: the one for the shared budget if the session
        shares that budget, otherwise the one for the whole fast tier."""
        if self.shared is not None and self.shared.shares(link):
            return self.shared.budgets
        return self.budgets

    def page_out_bytes_per_s(self) -> float:
        """The maximum rate at which one session pages out to swap. Raises SentinelError if there
        are no tiers."""
        tiers = self.require_tiers()
        # On paged tiers, the migration bandwidth is that of the disk that holds the files, not that
        # of swap.
        return tiers.migration_bytes_per_s if self.substrate.swap else PAGE_OUT_BYTES_PER_S

    def join(self, link: ShimLink, terms: Terms) -> None:
        """Check that a process can be managed, and let its session share the shared budget. Raises
        SentinelError."""
        self.substrate.require_allowed(link, self.require_tiers())
        shared, job = self.require_shared(), link.job
        if job is None or job.rank is None or job.world_size == 1:
            shared.join(link, terms)
        else:
            shared.join(link, terms, (link.uid, job.name, job.world_size), job.rank)

    def require_shared(self) -> SharedBudget:
        """The shared budget. Raises SentinelError if there is none."""
        if self.shared is None:
            raise SentinelError(
                "usage",
                "the daemon has no shared budget",
                "set shared_fast in its configuration, or attach with --fast",
            )
        return self.shared

    def share_of(self, holder: Hashable) -> Share | None:
        """A session's share of the shared budget; None: the session does not share the budget."""
        return None if self.shared is None else self.shared.explain(holder)

    def release_budget(self, holder: Hashable) -> None:
        """Release a session's budget or its share."""
        self.budgets.settle(holder, 0)
        if self.shared is not None:
            self.shared.leave(holder)

    def describe(self) -> dict[str, Any]:
        """Describe the machine for `sentinelctl status`."""
        return {
            "tiers": [asdict(tier) for tier in self.tiers.tiers] if self.tiers else [],
            "tiers_source": self.tiers.source if self.tiers else "",
            "emulated": self.substrate.emulated,
            "paged": self.substrate.paged,
            "swap": self.substrate.swap,
            "shared_bytes": self.shared.size_bytes if self.shared is not None else 0,
            "migration_bytes_per_s": self.tiers.migration_bytes_per_s if self.tiers else 0,
            "problems": [str(problem) for problem in self._problems],
            "ebpf_notes": self.probing.notes(),
            "features": self.features(),
            "backends": [verdict.to_json() for verdict in survey()],
        }

    def backend(self) -> BackendStatus:
        """The best page backend that works now. A session may have to use another backend."""
        return next(verdict for verdict in survey() if verdict.problem is None)

    def features(self) -> dict[str, bool]:
        """Features that work on this machine, by name."""
        return {
            "tiers": self.tiers is not None,
            "ebpf": self.probing.running,
            "rapl": self.rapl is not None,
            **{verdict.backend.name: verdict.problem is None for verdict in survey()},
        }

    def close(self) -> None:
        """Detach the probes and stop following processes."""
        self._processes.close()
        self.probing.close()
