# SPDX-License-Identifier: Apache-2.0
"""The contestants of bench-paging: one training each, in a memory cgroup of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from sentineld.host.powercap import EnergyCounters
from sentineld.shim.client import FAST_VARIABLE
from tests.bench.paging.disk import Disk
from tests.bench.paging.group import MemoryGroup, NoGroup
from tests.bench.paging.swap import Swap, SwapSettings
from tests.bench.training.managed import WARM_UP_STEPS, ManagedTraining, Setup
from tests.bench.training_process import Training
from tests.process_figures import anonymous_peak_bytes, major_faults, reset_resident_peak

Json = dict[str, Any]
Group = MemoryGroup | NoGroup

TRIED = (SwapSettings(0, 100), SwapSettings(5, 100), SwapSettings(3, 200))
"""The settings that the contestant swap-tuned tries; it keeps the fastest."""


@dataclass(frozen=True)
class Turn:
    """Figures of one turn; all but peak_bytes are means over the measured steps."""

    step_s: float
    cpu_s: float  # CPU time of the training and its daemon
    disk_bytes_read: float | None  # None: the disk has no counters
    disk_bytes_written: float | None
    late_faults: float  # accesses that waited for a disk or for zram
    machine_joules: float | None  # energy of the whole machine; None: it has no RAPL
    # Largest memory usage in the turn: that of the cgroup if group.measures_peak is true, else the
    # resident size of the training process without mapped files.
    peak_bytes: int


class Contestant:
    """A training and its cgroup. The subclasses run the training without a limit, under swap, or
    under sentineld."""

    training: Training

    def __init__(self, name: str, disk: Disk, group: Group, limit_bytes: int | None) -> None:
        """limit_bytes: the memory limit of the group; None: no limit."""
        self.name = name
        self.group = group
        self.limit_bytes = limit_bytes
        self._disk = disk
        self._rapl = EnergyCounters.of_machine(refresh_s=0.0)

    def prepare(self) -> str:
        """Prepare the training; return "", or the reason why the training cannot be measured."""
        return ""

    def turn(self, settle: int, steps: int) -> Turn:
        """Run `settle` unmeasured steps, then `steps` measured ones."""
        with self.running():
            self._reset_peak()
            self.training.steps(settle)
            before, cpu_s, faults = self._disk.transferred(), self.other_cpu_s(), self.faults()
            joules = self._rapl.joules() if self._rapl is not None else 0.0
            used = self.training.steps(steps)
            read_bytes, written_bytes = self._disk.since(before, steps)
            return Turn(
                step_s=fmean(one.time_ns for one in used) / 1e9,
                cpu_s=fmean(one.cpu_ns for one in used) / 1e9
                + (self.other_cpu_s() - cpu_s) / steps,
                disk_bytes_read=read_bytes,
                disk_bytes_written=written_bytes,
                late_faults=(self.faults() - faults) / steps,
                machine_joules=(self._rapl.joules() - joules) / steps if self._rapl else None,
                peak_bytes=self._peak_bytes(),
            )

    def _reset_peak(self) -> None:
        if self.group.measures_peak:
            self.group.reset_peak()
        else:
            reset_resident_peak(self.training.pid)

    def _peak_bytes(self) -> int:
        if self.group.measures_peak:
            return self.group.peak_bytes()
        return anonymous_peak_bytes(self.training.pid)

    def running(self) -> AbstractContextManager[None]:
        """The context in which the steps of a turn run."""
        return nullcontext()

    def other_cpu_s(self) -> float:
        """CPU seconds that other processes have used for the training so far."""
        return 0.0

    def faults(self) -> int:
        """Number of accesses so far that waited for a page."""
        return major_faults(self.training.pid)

    def figures(self) -> Json:
        """Further figures for the result file."""
        return {}

    def close(self) -> None:
        """End the training."""
        self.training.close()


class InRam(Contestant):
    """The training without a limit."""

    def __init__(self, name: str, model: str, disk: Disk, group: Group) -> None:
        super().__init__(name, disk, group, None)
        self.training = Training(model, self.group.prefix)


class Swapping(Contestant):
    """The training under Linux swap. A swap device serves all processes, so it is on only in the
    turns of this contestant. Between its turns, all pages of the training are in memory."""

    def __init__(
        self,
        name: str,
        model: str,
        disk: Disk,
        group: Group,
        limit_bytes: int,
        device: Swap,
        options: tuple[str, ...] = (),
    ) -> None:
        """options: command-line options of tests/bench/turns.py."""
        super().__init__(name, disk, group, limit_bytes)
        self._device = device
        self.settings = SwapSettings()
        self.training = Training(model, self.group.prefix, options=options)

    def prepare(self) -> str:
        """Run the steps in which a training allocates its optimizer's state."""
        self.training.steps(2)
        return ""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Turn swap on and set the limit for the duration of the context."""
        with ExitStack() as undo:
            undo.enter_context(self.settings.applied())
            undo.enter_context(self._device.on())
            # The limit is removed before swapoff, which needs room in memory for all swapped pages.
            undo.callback(self.group.limit, None)
            self.group.limit(self.limit_bytes)
            yield

    def figures(self) -> Json:
        """The swap settings."""
        return asdict(self.settings)


class TunedSwapping(Swapping):
    """Linux swap with the fastest of several settings."""

    def prepare(self) -> str:
        """Measure each of the settings and keep the fastest."""
        super().prepare()
        self.settings = min(TRIED, key=self._step_s)
        return ""

    def _step_s(self, settings: SwapSettings) -> float:
        self.settings = settings
        return self.turn(1, 1).step_s


class Managed(Contestant):
    """The training under sentineld on paged tiers, without swap."""

    def __init__(
        self,
        policy: str,
        model: str,
        disk: Disk,
        group: Group,
        limit_bytes: int | None,
        fast_bytes: int,
        folder: Path,
        corrected: bool = True,
    ) -> None:
        """corrected: whether prepare() trains until the daemon has had time to correct the plan."""
        super().__init__(policy, disk, group, limit_bytes)
        self.group.limit(limit_bytes)
        setup = Setup(
            policy=policy,
            tiers=f"paged:{disk.folder}",
            fast=str(fast_bytes),
            prefix=self.group.prefix,
            # This variable gives the process a pager from its start, as `sentinelctl run` does.
            environment={FAST_VARIABLE: str(fast_bytes)},
        )
        self._corrected = corrected
        self._managed = ManagedTraining(model, setup, folder)
        self.training = self._managed.training

    def prepare(self) -> str:
        """Attach, and train until the plan is live and pages are where the plan places them."""
        note = self._managed.manage()
        if note:
            return note
        if self._corrected:
            self._managed.settle()
        else:
            self.training.steps(WARM_UP_STEPS)
        return ""

    def other_cpu_s(self) -> float:
        """CPU seconds of the daemon. The pager is part of the training process."""
        return self._managed.daemon_cpu_s()

    def faults(self) -> int:
        """Accesses that waited for the pager or for the kernel."""
        return super().faults() + int(self._managed.session()["paging"]["faults"])

    def figures(self) -> Json:
        """The live plan's figures, and the pager's counters."""
        metered = self._managed.meter(2)
        plan, profile = self._managed.saved()
        return {
            "moved_bytes": fmean(step["moved_bytes"] for step in metered),
            "late_moves": fmean(step["late_moves"] for step in metered),
            "diverged_steps": self._managed.session()["diverged_steps"],
            "paging": self._managed.session()["paging"],
            "plan": plan,
            "profile": profile,
        }

    def close(self) -> None:
        """End the training and its daemon."""
        self._managed.close()
