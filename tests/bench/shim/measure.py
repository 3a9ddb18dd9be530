# SPDX-License-Identifier: Apache-2.0
"""Measures one model: all modes in alternation, then its arena on two tiers."""

from __future__ import annotations

import ctypes.util
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.shim import figures
from tests.bench.shim.coverage import coverage
from tests.bench.shim.manager import Manager
from tests.bench.shim.residency import resident_arena_bytes
from tests.bench.shim.stepped import SteppedTraining
from tests.bench.shim.tiered import measure_two_tiers

Json = dict[str, Any]
Say = Callable[[str], None]

WARM_UP_STEPS = 2
MORE_PAIRS = 10


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    # Number of rounds measured at first. A round runs one step in each mode, so it gives one pair
    # of steps for each ratio of two modes.
    pairs: int
    # Maximum number of rounds. Rounds are added until the CPU times of both plain modes agree.
    pairs_max: int


def tcmalloc() -> str:
    """Return the name of tcmalloc's library. Raises RuntimeError if it is not installed."""
    name = ctypes.util.find_library("tcmalloc_minimal")
    if name is None:
        raise RuntimeError("no libtcmalloc_minimal (apt install libtcmalloc-minimal4)")
    return name


def measure(model: str, settings: Settings, say: Say) -> Json:
    """Return figures for figures.summarise(). Raises RuntimeError, OSError or SentinelError if the
    model cannot be measured."""
    with tempfile.TemporaryDirectory() as name:
        found, losses = _compare(model, settings, Path(name), say)
        began_s = time.monotonic()
        folder = Path(name) / "tiers"
        folder.mkdir()
        found["grouped"] = measure_two_tiers(model, losses, folder)
        say(f"{model}: on two tiers, {time.monotonic() - began_s:.0f} s")
        return found


def _compare(model: str, settings: Settings, folder: Path, say: Say) -> tuple[Json, list[str]]:
    """Measure all modes in alternation; return the figures and the plain training's losses."""
    began_s = time.monotonic()
    rival = tcmalloc()
    with ExitStack() as ending:

        def managed(name: str) -> Manager:
            manager = Manager(model, folder / name)
            ending.callback(manager.close)
            return manager

        def unmanaged(**options: Any) -> SteppedTraining:
            training = SteppedTraining(model, **options)
            ending.callback(training.close)
            return training

        # Start all processes before waiting for any: their imports, which take most of the start-up
        # time, then run in parallel.
        recording, replaying = managed("recording"), managed("replay")
        modes = {
            "plain": unmanaged(),
            "plain-again": unmanaged(),
            "tcmalloc": unmanaged(preload=rival),
            "dormant": unmanaged(socket_path=folder / "no-daemon"),
            "recording": recording.training,
            "replay": replaying.training,
        }
        replaying.accept()
        recording.accept()
        profile = replaying.profile()
        layout = replaying.replay(profile, "fast-only")
        recording.record()
        costs = StepCosts(modes, recording.drain)
        costs.rounds(WARM_UP_STEPS, counted=False)
        say(f"{model}: started and planned, {time.monotonic() - began_s:.0f} s")
        began_s = time.monotonic()
        costs.rounds(settings.pairs)
        while costs.pairs < settings.pairs_max and not figures.enough_pairs(costs.cpu_s):
            costs.rounds(min(MORE_PAIRS, settings.pairs_max - costs.pairs))
        say(f"{model}: {costs.pairs} pairs, {time.monotonic() - began_s:.0f} s")
        plain = modes["plain"].losses
        outside = replaying.outside_bytes()
        found = {
            "cpu_s": costs.cpu_s,
            "minor_faults": costs.minor_faults,
            "max_rss_bytes": {mode: one.max_rss_bytes() for mode, one in modes.items()},
            "losses_equal": {
                mode: one.losses[: len(plain)] == plain for mode, one in modes.items()
            },
            "replay": {
                **asdict(coverage(layout, profile)),
                "outside_bytes": outside,
                "outside_share": outside / profile.peak_bytes,
                "diverged_steps": replaying.diverged_steps(),
                "arena_bytes": layout.arena_bytes,
                "resident_arena_bytes": resident_arena_bytes(replaying.training.pid),
            },
        }
        return found, plain


class StepCosts:
    """CPU time and faults of each mode's steps.

    drain: called after each step of the mode "recording" to empty its shim's ring buffer.
    """

    def __init__(self, modes: dict[str, SteppedTraining], drain: Callable[[], int]) -> None:
        self._modes = modes
        self._drain = drain
        self._random = np.random.default_rng(1)
        self.pairs = 0
        self.cpu_s: dict[str, list[float]] = {mode: [] for mode in modes}
        self.minor_faults: dict[str, list[int]] = {mode: [] for mode in modes}

    def rounds(self, count: int, counted: bool = True) -> None:
        """Run `count` rounds of one step per mode.

        The modes run in random order. Otherwise each mode would always run after the same other
        mode and find that mode's data in the caches.
        """
        for _ in range(count):
            for mode in self._random.permutation(list(self._modes)):
                used = self._modes[mode].step()
                if mode == "recording":
                    self._drain()
                if counted:
                    self.cpu_s[mode].append(used.cpu_s)
                    self.minor_faults[mode].append(used.minor_faults)
            self.pairs += counted
