# SPDX-License-Identifier: Apache-2.0
"""Configures DAMON through sysfs: one kdamond (a kernel thread of DAMON) that watches regions.

Only one program at a time can use DAMON's sysfs files, and only one Kdamond exists in the daemon at
a time. If another program uses the files, the configuration is left unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sentineld.base.errors import SentinelError
from sentineld.host.sysfs import read_text

KDAMONDS = Path("/sys/kernel/mm/damon/admin/kdamonds")
MODULES = Path("/sys/module")
EXCLUSIVE = ("damon_stat", "damon_reclaim", "damon_lru_sort")
"""Parts of the kernel that use DAMON. While one of them is enabled, the kernel refuses to start
DAMON for anyone else (damon_start() in mm/damon/core.c). DAMON_STAT is enabled by default in some
kernels since 6.17."""
ADDRESSES = "fvaddr"
"""DAMON's operations for fixed ranges of one process; vaddr would choose the ranges itself."""
FRAMES = "paddr"
"""DAMON's operations for physical addresses."""

_OPTIONS = {ADDRESSES: "CONFIG_DAMON_VADDR", FRAMES: "CONFIG_DAMON_PADDR"}
_EVERYTHING = str((1 << 64) - 1)


class Sampling(NamedTuple):
    """DAMON's sampling intervals, and its limits on the number of regions."""

    sample_us: int
    aggregation_us: int
    regions_min: int
    regions_max: int

    @property
    def looks(self) -> int:
        """Number of samples of a region in an aggregation: the largest possible nr_accesses."""
        return self.aggregation_us // self.sample_us


class _Queue:
    """A lock that the open Kdamond holds, and the threads that wait for it. Among these, the thread
    whose session has waited longest gets the lock next."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int]] = []
        self._numbers = itertools.count()
        self._holder = ""  # the holder's operations; empty: the lock is free
        self.kdamond: Kdamond | None = None
        """The holder, from the time when DAMON's files are its own."""

    def acquire(self, operations: str, wait_s: float, since_s: float) -> bool:
        """Wait up to wait_s for the lock; returns whether the caller has it now. With ADDRESSES,
        the wait ends at once if the holder watches ADDRESSES, too: this can take minutes.

        operations: of the kdamond. since_s: time on CLOCK_MONOTONIC since when the session waits.
        """
        ticket = (since_s, next(self._numbers))

        def mine() -> bool:
            return not self._holder and min(self._waiting) == ticket

        with self._changed:
            self._waiting.append(ticket)
            self._changed.wait_for(
                lambda: mine() or self._holder == operations == ADDRESSES, wait_s
            )
            got, first = mine(), min(self._waiting) == ticket
            if got:
                self._holder = operations
            self._waiting.remove(ticket)
            if first:  # otherwise, nothing has changed for the other threads
                self._changed.notify_all()
        return got

    def release(self) -> None:
        """Release the lock."""
        with self._changed:
            self._holder, self.kdamond = "", None
            self._changed.notify_all()


_in_use = _Queue()


class Kdamond:
    """The daemon's kdamond."""

    def __init__(
        self,
        operations: str,
        pid: int,
        kdamonds: Path = KDAMONDS,
        wait_s: float = 0.0,
        since_s: float | None = None,
    ) -> None:
        """Set up a kdamond. Raises SentinelError if DAMON cannot be used; its code is "busy" if
        another session is using DAMON, and "failed" if another program is using it.

        operations: ADDRESSES or FRAMES.
        pid: the process to watch. With FRAMES, DAMON ignores this pid, but it must be the daemon's
            own: if the daemon dies, a later daemon recognises the kdamond by this pid.
        wait_s: wait up to this time while another session is using DAMON. With ADDRESSES, this is
            only done while the other session watches FRAMES, which takes about a second.
        since_s: time on CLOCK_MONOTONIC since when the session has been waiting; None: now. The
            session that has waited longest is next, but each one with ADDRESSES comes before all
            those with FRAMES.
        """
        self._pid = pid
        self._kdamonds = kdamonds
        if since_s is None:
            since_s = time.monotonic()
        if not _in_use.acquire(operations, wait_s, 0.0 if operations == ADDRESSES else since_s):
            raise SentinelError(
                "busy",
                "DAMON is watching another session",
                "wait until that session has its plan",
            )
        self._open = True
        problem = usable(kdamonds, pid, operations=operations)
        if problem is not None:
            self._release()
            raise problem.fresh()
        _in_use.kdamond = self
        self._remove()
        try:
            self._write("nr_kdamonds", 1)
            self._write("0/contexts/nr_contexts", 1)
            self._context("operations", operations)
        except OSError as error:
            self.close()
            raise SentinelError(
                "failed",
                f"DAMON does not support {operations}: {error.strerror}",
                f"use a kernel with {_OPTIONS[operations]}=y",
            ) from None

    @property
    def tried_regions(self) -> Path:
        """The folder of the last snapshot's regions."""
        return self._kdamonds / "0/contexts/0/schemes/0/tried_regions"

    def start(self, ranges: Iterable[tuple[int, int]], sampling: Sampling) -> None:
        """Start to sample ranges (start, bytes), which are ascending. Raises OSError."""
        self.stop()
        for name, value in (
            ("intervals/sample_us", sampling.sample_us),
            ("intervals/aggr_us", sampling.aggregation_us),
            ("intervals/update_us", 10 * sampling.aggregation_us),
            ("nr_regions/min", sampling.regions_min),
            ("nr_regions/max", sampling.regions_max),
        ):
            self._context(f"monitoring_attrs/{name}", value)
        self._context("targets/nr_targets", 1)
        self._context("targets/0/pid_target", self._pid)
        regions = list(ranges)
        self._context("targets/0/regions/nr_regions", len(regions))
        for index, (start, size) in enumerate(regions):
            self._context(f"targets/0/regions/{index}/start", start)
            self._context(f"targets/0/regions/{index}/end", start + size)
        # The scheme has no effect, but its tried_regions folder is the only way to read a snapshot.
        self._context("schemes/nr_schemes", 1)
        self._context("schemes/0/action", "stat")
        for name, least, most in (("sz", 0, _EVERYTHING), ("nr_accesses", 1, sampling.looks)):
            self._context(f"schemes/0/access_pattern/{name}/max", most)
            self._context(f"schemes/0/access_pattern/{name}/min", least)
        self._context("schemes/0/access_pattern/age/max", _EVERYTHING)
        self._write("0/state", "on")

    def take_snapshot(self) -> None:
        """Fill tried_regions with the accessed regions; blocks until an aggregation ends. Raises
        OSError if the kdamond has ended."""
        self._write("0/state", "update_schemes_tried_regions")

    def stop(self) -> None:
        """Stop sampling. Raises OSError."""
        if read_text(self._kdamonds / "0/state") == "on":
            self._write("0/state", "off")

    def close(self) -> None:
        """Remove the kdamond, so that other programs can use DAMON."""
        if self._open:
            self._remove()
            self._release()

    def is_on(self, kdamonds: Path, pid_target: str | None) -> bool:
        """Whether the kdamond in this folder, which watches pid_target, is this one. pid_target:
        None if the folder does not contain a kdamond any more."""
        return kdamonds == self._kdamonds and pid_target in (None, str(self._pid))

    def _release(self) -> None:
        self._open = False
        _in_use.release()

    def _remove(self) -> None:
        if read_text(self._kdamonds / "nr_kdamonds") in (None, "0"):
            return
        try:
            self.stop()
            self._write("nr_kdamonds", 0)
        except OSError:
            # The kdamond has ended, or another program has taken it over.
            return

    def _context(self, name: str, value: object) -> None:
        self._write(f"0/contexts/0/{name}", value)

    def _write(self, name: str, value: object) -> None:
        _write(self._kdamonds / name, value)


def usable(
    kdamonds: Path = KDAMONDS,
    pid: int | None = None,
    modules: Path = MODULES,
    operations: str = ADDRESSES,
) -> SentinelError | None:
    """The reason why DAMON can't be used now, as an error with a hint; None if it can be used, or
    if a session of this daemon is using it.

    If a daemon died while it used DAMON, the kdamond that it left behind can be taken over.

    pid: see Kdamond. A kdamond that already watches this pid is assumed to be left by a daemon.
    operations: ADDRESSES or FRAMES.
    """
    before = _in_use.kdamond
    count = read_text(kdamonds / "nr_kdamonds")
    if count is None:
        return SentinelError(
            "failed",
            "the kernel has no DAMON sysfs interface",
            "use a kernel with CONFIG_DAMON_SYSFS=y, such as Debian 13's",
        )
    if not os.access(kdamonds / "nr_kdamonds", os.W_OK):
        return SentinelError(
            "not-permitted",
            f"{kdamonds} is not writable",
            "run as root; in a unit with ProtectKernelTunables=, add ReadWritePaths= for this file",
        )
    for name in EXCLUSIVE:
        enabled = modules / name / "parameters/enabled"
        if read_text(enabled) == "Y":
            return SentinelError(
                "failed",
                f"the kernel's {name.upper()} uses DAMON",
                f"disable it: echo N > {enabled}",
            )
    if count == "0" or (count == "1" and read_text(kdamonds / "0/state") == "off"):
        return _lacking(kdamonds, operations)
    watched = read_text(kdamonds / "0/contexts/0/targets/0/pid_target")
    if any(own is not None and own.is_on(kdamonds, watched) for own in (before, _in_use.kdamond)):
        return _lacking(kdamonds, operations)
    if count == "1" and watched and (watched == str(pid) or _owner_died(kdamonds, watched)):
        return None
    # Programs other than sentineld leave pid_target at 0 when they watch page frames.
    target = "page frames" if watched == "0" else f"process {watched or '?'}"
    return SentinelError(
        "failed",
        f"another program is using DAMON on {target}",
        "stop that program's monitoring, for example with: damo stop",
    )


def _owner_died(kdamonds: Path, pid_target: str) -> bool:
    """Whether the kdamond watches page frames for a daemon that has died. Such a kdamond never ends
    by itself. Programs other than sentineld leave pid_target at 0 when they watch page frames."""
    if read_text(kdamonds / "0/contexts/0/operations") != FRAMES or pid_target == "0":
        return False
    try:
        os.kill(int(pid_target), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    return False


def _lacking(kdamonds: Path, operations: str) -> SentinelError | None:
    """The error if the kernel's DAMON does not support `operations`, else None."""
    offered = _offered(kdamonds)
    if offered is None or operations in offered:
        return None
    return SentinelError(
        "failed",
        f"the kernel's DAMON does not support {operations}",
        f"use a kernel with {_OPTIONS[operations]}=y",
    )


@functools.cache
def _offered(kdamonds: Path) -> frozenset[str] | None:
    """The operations that the kernel's DAMON supports; None if the kernel does not list them.

    The list exists only in the folder of a context, so a context is created if there is none. So
    the list is read before the daemon sets up its own kdamond, and is kept.
    """
    offered = kdamonds / "0/contexts/0/avail_operations"
    created = not offered.exists()
    try:
        if created:
            _write(kdamonds / "nr_kdamonds", 1)
            _write(kdamonds / "0/contexts/nr_contexts", 1)
        return frozenset(offered.read_text().split())
    except OSError:
        return None  # kernels before 5.19 do not have avail_operations
    finally:
        if created:
            with contextlib.suppress(OSError):
                _write(kdamonds / "nr_kdamonds", 0)


def _write(file: Path, value: object) -> None:
    """Write a value with a single write(), as sysfs requires. Python's file objects would truncate
    the file and buffer the value."""
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)
