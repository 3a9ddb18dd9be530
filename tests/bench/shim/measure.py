# SPDX-License-Identifier: Apache-2.0
"""One model: its modes in turn, then its arena on two tiers."""

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
from tests.bench.shim.contestant import Contestant
from tests.bench.shim.coverage import coverage
from tests.bench.shim.manager import Manager
from tests.bench.shim.residency import resident_arena_bytes
from tests.bench.shim.tiered import grouped

Json = dict[str, Any]
Say = Callable[[str], None]

WARM_UP_STEPS = 2
MORE_PAIRS = 10


@dataclass(frozen=True)
class Settings:
    """pairs: of steps for each ratio; pairs_max: if plain against plain says that they are too few,
    ten more at a time up to so many."""

    pairs: int
    pairs_max: int


def tcmalloc() -> str:
    """Its library's name for the loader. Raises RuntimeError."""
    name = ctypes.util.find_library("tcmalloc_minimal")
    if name is None:
        raise RuntimeError("no libtcmalloc_minimal (apt install libtcmalloc-minimal4)")
    return name


def measure(model: str, settings: Settings, say: Say) -> Json:
    """See figures.summarise(). Raises RuntimeError, OSError, SentinelError."""
    with tempfile.TemporaryDirectory() as name:
        found, losses = _compare(model, settings, Path(name), say)
        began_s = time.monotonic()
        folder = Path(name) / "tiers"
        folder.mkdir()
        found["grouped"] = grouped(model, losses, folder)
        say(f"{model}: on two tiers, {time.monotonic() - began_s:.0f} s")
        return found


def _compare(model: str, settings: Settings, folder: Path, say: Say) -> tuple[Json, list[str]]:
    """Steps of all modes in turn; and the losses of the plain training."""
    began_s = time.monotonic()
    rival = tcmalloc()
    with ExitStack() as ending:

        def managed(name: str) -> Manager:
            manager = Manager(model, folder / name)
            ending.callback(manager.close)
            return manager

        def unmanaged(**how: Any) -> Contestant:
            contestant = Contestant(model, **how)
            ending.callback(contestant.close)
            return contestant

        # All start at once, since a start is half imports; they wait for their first step.
        recording, replaying = managed("recording"), managed("replay")
        modes = {
            "plain": unmanaged(),
            "plain-again": unmanaged(),
            "tcmalloc": unmanaged(preload=rival),
            "dormant": unmanaged(socket_path=folder / "nobody"),
            "recording": recording.contestant,
            "replay": replaying.contestant,
        }
        replaying.meet()
        recording.meet()
        profile = replaying.profile()
        layout = replaying.replay(profile, "fast-only")
        recording.record()
        used = Used(modes, recording.drain)
        used.rounds(WARM_UP_STEPS, counted=False)
        say(f"{model}: started and planned, {time.monotonic() - began_s:.0f} s")
        began_s = time.monotonic()
        used.rounds(settings.pairs)
        while used.pairs < settings.pairs_max and not figures.settled(used.cpu_s):
            used.rounds(min(MORE_PAIRS, settings.pairs_max - used.pairs))
        say(f"{model}: {used.pairs} pairs, {time.monotonic() - began_s:.0f} s")
        plain = modes["plain"].losses
        outside = replaying.outside_bytes()
        found = {
            "cpu_s": used.cpu_s,
            "minor_faults": used.minor_faults,
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
                "resident_arena_bytes": resident_arena_bytes(replaying.contestant.pid),
            },
        }
        return found, plain


class Used:
    """What each mode's steps took. drain: takes what the one that is recorded has written."""

    def __init__(self, modes: dict[str, Contestant], drain: Callable[[], int]) -> None:
        self._modes = modes
        self._drain = drain
        self._random = np.random.default_rng(1)
        self.pairs = 0
        self.cpu_s: dict[str, list[float]] = {mode: [] for mode in modes}
        self.minor_faults: dict[str, list[int]] = {mode: [] for mode in modes}

    def rounds(self, count: int, counted: bool = True) -> None:
        """A step of each mode in each round, in any order: none has always the same one before it,
        whose pages are in the caches."""
        for _ in range(count):
            for mode in self._random.permutation(list(self._modes)):
                used = self._modes[mode].step()
                if mode == "recording":
                    self._drain()
                if counted:
                    self.cpu_s[mode].append(used.cpu_s)
                    self.minor_faults[mode].append(used.minor_faults)
            self.pairs += counted
