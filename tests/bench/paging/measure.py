# SPDX-License-Identifier: Apache-2.0
"""Measures one model in a share of its memory, one turn per contestant in each round."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sentineld.config import TierOverrides
from sentineld.machine.paged import PagedSubstrate
from sentineld.model.profile import Profile
from sentineld.policies.bounds.step_time import bound_seconds
from sentineld.profile.trace import profile_of
from sentineld.profile.trace_file import load_trace
from tests.bench.paging.contestants import (
    Contestant,
    InRam,
    Managed,
    Swapping,
    TunedSwapping,
    Turn,
)
from tests.bench.paging.disk import Disk
from tests.bench.paging.figures import MANAGED, RAM
from tests.bench.paging.swap import SwapFile, SwapOnZram
from tests.bench.traces import Daemon, record
from tests.bench.training.measure import scaled_to, simulated
from tests.bench.training_process import Training
from tests.process_figures import anonymous_peak_bytes

Json = dict[str, Any]

STEADY_STEPS = 3
"""After this many steps a training has allocated all that it will."""


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    folder: Path  # on the disk that all contestants use
    rounds: int
    settle: int  # unmeasured steps of a turn
    steps: int  # measured steps of a turn


@dataclass(frozen=True)
class Needs:
    """What a model needs with all of its memory."""

    resident_bytes: int  # largest resident size, without mapped files
    profile: Profile  # of a recorded step

    def limit_bytes(self, fraction: float) -> int:
        """The memory limit that leaves room for this share of the tensors and for all else."""
        return self.resident_bytes - int((1 - fraction) * self.profile.peak_bytes)

    def fast_bytes(self, fraction: float) -> int:
        """The share of the tensors."""
        return int(fraction * self.profile.peak_bytes)


def needs_of(model: str, folder: Path) -> Needs:
    """Train without a limit: plainly, then under the shim. Raises RuntimeError."""
    training = Training(model)
    try:
        training.steps(STEADY_STEPS)
        resident_bytes = anonymous_peak_bytes(training.pid)
    finally:
        training.close()
    with tempfile.TemporaryDirectory(dir=folder) as name:
        trace = Path(name) / "trace.npz"
        daemon = Daemon(Path(name))
        try:
            record(daemon, model, trace, Path(name), threads=1)
        finally:
            daemon.stop()
        return Needs(resident_bytes, profile_of(load_trace(trace)))


def measure(
    model: str,
    needs: Needs,
    fraction: float,
    contestants: list[str],
    settings: Settings,
    say: Callable[[str], None],
) -> Json:
    """Return the raw figures for figures.rows(). Raises RuntimeError, OSError, SentinelError."""
    tiers = PagedSubstrate(TierOverrides(paged=str(settings.folder))).tiers()
    found: dict[str, Json] = {}
    turns: dict[str, list[Turn]] = {}
    losses: dict[str, list[str]] = {}
    with ExitStack() as ending:
        entrants = _Entrants(model, needs, fraction, settings.folder, ending)
        racing: list[Contestant] = []
        for name in contestants:
            contestant = entrants.enter(name)
            note = contestant.prepare()
            say(f"{model} at {fraction:.0%}, {name}: {note or 'ready'}")
            found[name] = {"note": note, "limit_bytes": contestant.limit_bytes}
            if not note:
                turns[name] = []
                racing.append(contestant)
        order = list(racing)
        for number in range(settings.rounds):
            for contestant in order:
                turns[contestant.name].append(contestant.turn(settings.settle, settings.steps))
            order.append(order.pop(0))
            say(f"{model} at {fraction:.0%}: round {number + 1} of {settings.rounds}")
        for contestant in racing:
            found[contestant.name] |= contestant.figures()
            losses[contestant.name] = contestant.training.losses
    plain = losses[RAM]
    ram_s = median(turn.step_s for turn in turns[RAM])
    for name, mine in losses.items():
        both = min(len(plain), len(mine))
        found[name]["losses_equal"] = mine[:both] == plain[:both]
        found[name]["turns"] = [asdict(turn) for turn in turns[name]]
        if name in MANAGED:
            plan, profile = found[name].pop("plan"), found[name].pop("profile")
            found[name]["predicted_s"] = simulated(plan, profile, ram_s, tiers).step_seconds
    fast_bytes = needs.fast_bytes(fraction)
    least_s = bound_seconds(scaled_to(needs.profile, ram_s), tiers, fast_bytes)
    slow = tiers.tiers[1]
    return {
        "bound_extra_s": least_s - ram_s,
        "fast_bytes": fast_bytes,
        "tensor_peak_bytes": needs.profile.peak_bytes,
        "resident_bytes": needs.resident_bytes,
        "disk_read_bytes_per_s": slow.read_bytes_per_s,
        "disk_write_bytes_per_s": slow.write_bytes_per_s,
        "contestants": found,
    }


class _Entrants:
    """Starts contestants; they end with the stack."""

    def __init__(
        self, model: str, needs: Needs, fraction: float, folder: Path, ending: ExitStack
    ) -> None:
        self._model, self._ending = model, ending
        self._limit_bytes = needs.limit_bytes(fraction)
        self._fast_bytes = needs.fast_bytes(fraction)
        self._swap_bytes = 2 * needs.resident_bytes
        self._disk = Disk(folder)
        self._file: SwapFile | None = None

    def enter(self, name: str) -> Contestant:
        """Start a contestant. Raises RuntimeError, OSError."""
        contestant = self._started(name)
        self._ending.callback(contestant.close)
        return contestant

    def _started(self, name: str) -> Contestant:
        common = (name, self._model, self._disk)
        if name == RAM:
            return InRam(self._model, self._disk)
        if name in MANAGED:
            folder = Path(self._ending.enter_context(tempfile.TemporaryDirectory()))
            return Managed(*common, self._limit_bytes, self._fast_bytes, folder)
        if name == "zram":
            zram = SwapOnZram(self._swap_bytes)
            self._ending.callback(zram.close)
            return Swapping(*common, self._limit_bytes, zram)
        if name == "swap":
            return Swapping(*common, self._limit_bytes, self._swap_file())
        if name == "swap-tuned":
            return TunedSwapping(*common, self._limit_bytes, self._swap_file())
        folder = Path(
            self._ending.enter_context(tempfile.TemporaryDirectory(dir=self._disk.folder))
        )
        options = ("--saved-tensors", str(folder))
        return Swapping(*common, self._limit_bytes, self._swap_file(), options)

    def _swap_file(self) -> SwapFile:
        """The file that all contestants with swap on the disk use in turns."""
        if self._file is None:
            self._file = SwapFile(self._disk.folder, self._swap_bytes)
            self._ending.callback(self._file.close)
        return self._file
