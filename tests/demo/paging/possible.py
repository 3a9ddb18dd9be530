# SPDX-License-Identifier: Apache-2.0
"""Finds out which contestants can run on this machine, and why the others cannot."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.host.memory_group import available_bytes
from sentineld.host.mounts import IN_MEMORY, filesystem_of, read_mountinfo
from sentineld.host.userfaultfd import require_move
from tests.bench.paging.disk import Disk
from tests.bench.paging.group import MemoryGroup
from tests.bench.paging.swap import SwapFile, require_no_swap

PROBE_BYTES = 1 << 20
DISK_BYTES_MIN = 4 << 30
"""Room for the swap file and the paged training's file."""
MEMORY_BYTES_MIN = 4 << 30
"""Room for all trainings at the same time. Between its turns, even the training under swap is
entirely in memory."""
OTHER_FOLDER = "name a folder on a local disk: make demo DEMO_FOLDER=/mnt/nvme"


class ImpossibleError(Exception):
    """The demo's first part cannot run here; the text says why and how to solve the problem."""


@dataclass(frozen=True)
class LeftOut:
    """Something that the first part omits on this machine."""

    what: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: left out, because {self.reason} ({self.remedy})"


@dataclass(frozen=True)
class Possible:
    """The features of the first part that work on this machine."""

    grouped: bool  # whether each training has a memory cgroup
    swap: bool
    counted: bool  # whether the disk counts the bytes read and written
    left_out: tuple[LeftOut, ...]


def survey(folder: Path, swap_wanted: bool = True) -> Possible:
    """Test whether this machine meets the contestants' requirements. Raises ImpossibleError if it
    cannot run the first part at all."""
    try:
        require_move()
    except SentinelError as error:
        as_root = "run the demo as root, or " if error.code == "not-permitted" else ""
        raise ImpossibleError(f"{error.message} ({as_root}{error.hint})") from None
    _require_disk(folder)
    _require_memory()
    left_out: list[LeftOut] = []
    grouped = True
    try:
        MemoryGroup("probe").close()
    except RuntimeError as error:
        grouped = False
        left_out.append(LeftOut("memory limit", str(error), remedy_for_rights()))
    swap = False
    if not swap_wanted:
        left_out.append(LeftOut("Linux swap", "it was not asked for", "omit --without-swap"))
    elif not grouped:
        left_out.append(LeftOut("Linux swap", "it needs a memory limit", "see above"))
    elif problem := swap_problem(folder):
        left_out.append(problem)
    else:
        swap = True
    return Possible(grouped, swap, _counted(folder), tuple(left_out))


def remedy_for_rights() -> str:
    """How to get the right to create cgroups."""
    if os.geteuid() != 0:
        return "run the demo as root"
    return "run the demo outside a container, or in one that may write to its cgroups"


def swap_problem(folder: Path) -> LeftOut | None:
    """The reason why a swap file in the folder cannot be used, or None if it can. Tests this by
    enabling a swap file, which is then disabled again."""
    what = "Linux swap"
    if os.geteuid() != 0:
        return LeftOut(what, "only root may swap to a file", "run the demo as root")
    try:
        require_no_swap()
    except RuntimeError as error:
        text, _, remedy = str(error).partition("; ")
        return LeftOut(what, text, remedy)
    try:
        with (
            tempfile.TemporaryDirectory(dir=folder) as probe,
            SwapFile(Path(probe), PROBE_BYTES).on(),
        ):
            pass
    except (RuntimeError, OSError) as error:
        return LeftOut(what, f"{folder} cannot hold a swap file: {error}", OTHER_FOLDER)
    return None


def _require_disk(folder: Path) -> None:
    kind = filesystem_of(folder.resolve(), read_mountinfo())
    if kind in IN_MEMORY:
        raise ImpossibleError(f"{folder} is in memory ({kind}), not on a disk ({OTHER_FOLDER})")
    room_bytes = shutil.disk_usage(folder).free
    if room_bytes < DISK_BYTES_MIN:
        raise ImpossibleError(
            f"{folder} has only {format_bytes(room_bytes)} of free space, and the demo needs "
            f"{format_bytes(DISK_BYTES_MIN)} ({OTHER_FOLDER})"
        )


def _require_memory() -> None:
    found = available_bytes(os.getpid())
    if found < MEMORY_BYTES_MIN:
        raise ImpossibleError(
            f"only {format_bytes(found)} of memory is available, and the trainings need "
            f"{format_bytes(MEMORY_BYTES_MIN)} (end other programs, or raise the memory limit)"
        )


def _counted(folder: Path) -> bool:
    try:
        Disk(folder)
    except RuntimeError:
        return False
    return True
