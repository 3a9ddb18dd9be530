# SPDX-License-Identifier: Apache-2.0
"""Runs the contestants (see contestants.py) of one model in alternating turns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench.paging.contestants import (
    Contestant,
    Group,
    InRam,
    Managed,
    Swapping,
    TunedSwapping,
    Turn,
)
from tests.bench.paging.disk import Disk
from tests.bench.paging.figures import POLICIES, RAM
from tests.bench.paging.group import MemoryGroup, NoGroup
from tests.bench.paging.needs import Needs
from tests.bench.paging.swap import SwapFile, SwapOnZram
from tests.bench.training_process import TrainingEndedError

Json = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    folder: Path  # a folder on the disk that all contestants use
    rounds: int
    settle: int  # unmeasured steps at the beginning of a turn
    steps: int  # measured steps of a turn
    grouped: bool = True  # whether each training has a memory cgroup
    counted: bool = True  # whether a disk without counters of its reads and writes is an error
    corrected: bool = True  # whether to let the daemon correct plans before the measurement


def race(
    model: str,
    needs: Needs,
    fraction: float,
    contestants: list[str],
    settings: Settings,
    say: Callable[[str], None],
) -> dict[str, Json]:
    """Return each contestant's figures; "ram" must be one of the contestants.

    If a contestant's training ends, its further turns are left out, and its note gives the reason.
    For example, Linux kills a process if it cannot keep the process's cgroup below the memory
    limit, even while there is free swap space. Raises RuntimeError (also if the training of "ram"
    ends), OSError, SentinelError.
    """
    found: dict[str, Json] = {}
    turns: dict[str, list[Turn]] = {}
    losses: dict[str, list[str]] = {}
    with ExitStack() as ending:
        entrants = _Entrants(model, needs, fraction, settings, ending)
        order: list[Contestant] = []
        for name in contestants:
            contestant = entrants.enter(name)
            try:
                note = contestant.prepare()
            except TrainingEndedError as error:
                note = str(error)
            say(f"{name}: {note or 'ready'}")
            found[name] = {"note": note, "limit_bytes": contestant.limit_bytes}
            if not note:
                turns[name] = []
                order.append(contestant)
        for number in range(settings.rounds):
            for contestant in tuple(order):
                try:
                    turns[contestant.name].append(contestant.turn(settings.settle, settings.steps))
                except TrainingEndedError as error:
                    if contestant.name == RAM:
                        raise
                    found[contestant.name]["note"] = f"{error} in round {number + 1}"
                    say(f"{contestant.name}: {error}")
                    order.remove(contestant)
            order.append(order.pop(0))
            say(f"round {number + 1} of {settings.rounds}")
        for contestant in order:
            found[contestant.name] |= contestant.figures()
            losses[contestant.name] = contestant.training.losses
    plain = losses[RAM]
    for name, mine in losses.items():
        both = min(len(plain), len(mine))
        found[name]["losses_equal"] = mine[:both] == plain[:both]
        found[name]["losses_compared"] = both
        found[name]["turns"] = [asdict(turn) for turn in turns[name]]
    return found


class _Entrants:
    """Starts contestants, which are closed when the exit stack `ending` is closed."""

    def __init__(
        self, model: str, needs: Needs, fraction: float, settings: Settings, ending: ExitStack
    ) -> None:
        self._model, self._ending = model, ending
        self._grouped, self._corrected = settings.grouped, settings.corrected
        self._limit_bytes = needs.limit_bytes(fraction)
        self._fast_bytes = needs.fast_bytes(fraction)
        self._swap_bytes = 2 * needs.resident_bytes
        self._disk = Disk(settings.folder, settings.counted)
        self._file: SwapFile | None = None

    def enter(self, name: str) -> Contestant:
        """Start a contestant. Raises RuntimeError, OSError."""
        contestant = self._started(name)
        self._ending.callback(contestant.close)
        return contestant

    def _started(self, name: str) -> Contestant:
        group: Group = MemoryGroup(name) if self._grouped else NoGroup()
        self._ending.callback(group.close)
        common = (name, self._model, self._disk, group)
        if name == RAM:
            return InRam(*common)
        if name in POLICIES:
            folder = Path(self._ending.enter_context(tempfile.TemporaryDirectory()))
            limit_bytes = self._limit_bytes if self._grouped else None
            return Managed(*common, limit_bytes, self._fast_bytes, folder, self._corrected)
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
        """The swap file, which the contestants with swap on the disk use in alternating turns."""
        if self._file is None:
            self._file = SwapFile(self._disk.folder, self._swap_bytes)
            self._ending.callback(self._file.close)
        return self._file
