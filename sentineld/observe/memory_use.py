# SPDX-License-Identifier: Apache-2.0
"""How much memory a process uses, by kind, and which of its address ranges cannot be swapped
out."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sentineld.base.proc_text import open_proc_text, read_proc_text
from sentineld.base.small_file import read_small_file
from sentineld.model.arrays import Integers
from sentineld.model.records import PAGE_BYTES

_FIELDS = {
    "RssAnon": "anonymous_bytes",
    "VmSwap": "swapped_bytes",
    "RssShmem": "shared_bytes",
    "VmLck": "locked_bytes",
    "HugetlbPages": "huge_bytes",
}
_HEADER = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")
_PINNED_FLAGS = {"lo", "ht", "pf", "io"}
"""VmFlags of proc(5): locked, hugetlb, and pages that the kernel does not manage."""


_ROLLUP_FIELDS = ("Anonymous", "Pss_Anon", "Swap", "SwapPss", "Pss_Shmem")


class Sharing(NamedTuple):
    """Sizes of the memory that a process shares with other processes.

    If N processes map a page, the part of each of them is 1/N of the page. The sum of the parts of
    all these processes is therefore the whole page.
    """

    anonymous_bytes: int = 0  # resident anonymous memory, minus the process's part of it
    swapped_bytes: int = 0  # swapped memory, minus the process's part of it
    shared_bytes: int = 0  # the process's part of the resident pages of shared memory


class MemoryUse(NamedTuple):
    """Memory of a process, as the kernel counts it."""

    anonymous_bytes: int = 0  # resident anonymous pages, without hugetlb
    swapped_bytes: int = 0
    shared_bytes: int = 0  # resident pages of shared memory
    locked_bytes: int = 0  # mappings that mlock() keeps in memory
    huge_bytes: int = 0  # pages of hugetlb mappings


def read_memory_use(pid: int, proc: Path = Path("/proc")) -> MemoryUse:
    """Read /proc/PID/status. Raises ProcessLookupError if the process has exited."""
    try:
        text = read_proc_text(proc / str(pid) / "status")
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(errno.ESRCH, f"process {pid} is gone") from None
    found = {}
    for line in text.split("\n"):
        name, _, value = line.partition(":")
        if name in _FIELDS:
            found[_FIELDS[name]] = int(value.split()[0]) << 10
    return MemoryUse(**found)


def resident_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """Resident anonymous bytes, from /proc/PID/statm, which takes less time to read than
    /proc/PID/status. Raises ProcessLookupError if the process or its main thread has exited: the
    kernel then shows no memory, even if other threads of the process still run."""
    size, resident, shared = _statm(pid, proc)
    if not size:
        raise ProcessLookupError(errno.ESRCH, f"process {pid} has no memory")
    return (resident - shared) * PAGE_BYTES


def has_memory(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether the kernel shows memory of the process; see resident_bytes()."""
    try:
        return _statm(pid, proc)[0] > 0
    except ProcessLookupError:
        return False


def _statm(pid: int, proc: Path) -> tuple[int, int, int]:
    """(mapped pages, resident pages, resident pages of files and shared memory)."""
    try:
        # A session reads this file several times a second, for up to hundreds of processes.
        size, resident, shared, *_ = read_small_file(f"{proc}/{pid}/statm").split()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(errno.ESRCH, f"process {pid} is gone") from None
    return int(size), int(resident), int(shared)


def read_sharing(pid: int, proc: Path = Path("/proc")) -> Sharing:
    """Read /proc/PID/smaps_rollup. The kernel walks all page tables of the process for this.
    Raises ProcessLookupError if the process has exited."""
    found = dict.fromkeys(_ROLLUP_FIELDS, 0)
    try:
        with open_proc_text(proc / str(pid) / "smaps_rollup") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name in found:
                    found[name] = int(value.split()[0]) << 10
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(errno.ESRCH, f"process {pid} is gone") from None
    return Sharing(
        max(found["Anonymous"] - found["Pss_Anon"], 0),
        max(found["Swap"] - found["SwapPss"], 0),
        found["Pss_Shmem"],
    )


def pinned_ranges(pid: int, proc: Path = Path("/proc")) -> Integers:
    """(first page, end page) of each mapping that cannot be swapped out, (R, 2), ascending.

    The kernel walks all page tables for this. Raises ProcessLookupError if the process has exited.
    """
    found = []
    start = end = 0
    try:
        with open_proc_text(proc / str(pid) / "smaps") as lines:
            for line in lines:
                if line.startswith("VmFlags:"):
                    if _PINNED_FLAGS & set(line.split()[1:]):
                        found.append((start // PAGE_BYTES, end // PAGE_BYTES))
                elif header := _HEADER.match(line):
                    start, end = int(header[1], 16), int(header[2], 16)
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(errno.ESRCH, f"process {pid} is gone") from None
    return np.array(found, np.int64).reshape(-1, 2)
