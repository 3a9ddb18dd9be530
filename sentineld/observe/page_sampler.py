# SPDX-License-Identifier: Apache-2.0
"""User-space interface of the kernel module: one PageSampler is one open /dev/sentinel.

The module logs a record of the next access to an armed page. A new epoch arms the
page again. Closing the sampler, or the exit of this process, disarms all pages.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model.records import SAMPLE_DTYPE
from sentineld.observe import uapi
from sentineld.observe.pidfd import start_time_ticks

DEVICE = Path("/dev/sentinel")

_LOAD_HINT = "modprobe sentinel; `sentinelctl doctor` shows what is missing"


@dataclass(frozen=True)
class RangeResult:
    """The result of a call on a range of pages."""

    pages_done: int  # pages that the call armed, disarmed or found accessed
    pages_skipped: int  # absent, not armable, not armed or not accessed; see struct sentinel_range


@dataclass(frozen=True)
class SamplerStats:
    """The module's counters of one attached process; struct sentinel_stats."""

    # accesses to watched pages, births excluded; further accesses to a page in an epoch
    # (ACCESS_AGAIN) are counted only if the page is huge
    hits: int
    births: int  # first touches of absent pages in armed ranges
    lost: int  # records lost: the log was full, or an allocation of the module failed
    armed_pages: int
    passed_on: int  # faults that the kernel had to resolve, births excluded
    unarmed: int  # pages logged as UNKNOWN: accesses to them may have been missed
    rearms: int  # rounds of re-arming within epochs


class PageSampler:
    """An open /dev/sentinel.

    After the attached process has exited or called exec(), begin_epoch() and the methods that take
    a range raise ProcessLookupError.
    """

    def __init__(self, device: Path = DEVICE) -> None:
        """Open the device. Raises SentinelError module-not-loaded, not-permitted or
        protocol-mismatch."""
        self._map: mmap.mmap | None = None
        self._mask = 0  # number of log records - 1; 0: not attached
        try:
            self._fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise SentinelError(
                "module-not-loaded", f"{device} does not exist", _LOAD_HINT
            ) from None
        except PermissionError:
            raise SentinelError(
                "not-permitted",
                f"no permission to open {device}",
                "run the daemon as root, "
                "and start it after the module was loaded: systemctl restart sentineld",
            ) from None
        except OSError as error:
            # ENXIO and ENODEV: the module was unloaded, but its device node still exists.
            raise SentinelError(
                "module-not-loaded", f"{device}: {error.strerror}", _LOAD_HINT
            ) from None
        try:
            self.info = self._read_info(device)
        except BaseException:
            self.close()
            raise

    def attach(
        self,
        pid: int,
        log_records: int = 1 << 20,
        precise_writes: bool = False,
        rearm_us: int = 0,
        uid: int | None = None,
        start_ticks: int | None = None,
    ) -> None:
        """Bind the sampler to a process and map the access log.

        log_records: capacity of the log, a power of two.
        precise_writes: also log a write that follows a read in the same epoch; costs a second
            fault.
        rearm_us: interval at which accessed pages are armed again within an epoch, 1000 to
            10000000 us; 0: accessed pages are armed again only by the next epoch.
        uid: refuse the process unless its real, effective, saved and file-system user IDs all
            equal this user ID, as seen in the daemon's user namespace; None: the effective user
            ID that the process has now.
        start_ticks: refuse a process that started at another time (field 22 of /proc/PID/stat);
            None: the start time of the process that has the pid now.

        The module also refuses a process that is not dumpable. If the process can exit during the
        call, another process can get its pid. In that case, the caller must either hold a pidfd and
        check it after the call, or pass a start time that it read while it held a pidfd.

        Raises SentinelError with the code "no-such-process", "not-permitted", "failed" or
        "wrong-state". "wrong-state" means that the process or this sampler is already attached,
        that the process is executing another program, or that ftrace is disabled.
        """
        try:
            start_ticks = start_time_ticks(pid) if start_ticks is None else start_ticks
            uid = os.stat(f"/proc/{pid}").st_uid if uid is None else uid
        except (FileNotFoundError, ProcessLookupError):
            raise SentinelError("no-such-process", f"there is no process {pid}") from None
        attach = uapi.Attach(
            pid=pid,
            uid=uid,
            start_ticks=start_ticks,
            log_records=log_records,
            flags=uapi.ATTACH_PRECISE_WRITE if precise_writes else 0,
            rearm_us=rearm_us,
        )
        try:
            fcntl.ioctl(self._fd, uapi.IOC_ATTACH, attach)
        except OSError as error:
            raise _attach_error(pid, error) from None
        self._mask = log_records - 1
        self._mapped()

    def add_range(self, start: int, length_bytes: int) -> RangeResult:
        """Watch an address range; its pages are not armed yet."""
        return self._range(uapi.IOC_ADD_RANGE, start, length_bytes)

    def remove_range(self, start: int, length_bytes: int) -> RangeResult:
        """Disarm a range that was added, and stop watching it."""
        return self._range(uapi.IOC_REMOVE_RANGE, start, length_bytes)

    def arm(self, start: int, length_bytes: int) -> RangeResult:
        """Log the next access to each page of a range, which must lie in an added range.

        The first touch of an absent page is logged some time after the access: at the latest when
        the epoch ends.
        """
        return self._range(uapi.IOC_ARM, start, length_bytes)

    def disarm(self, start: int, length_bytes: int) -> RangeResult:
        """Disarm pages; new epochs do not arm them until arm() is called again."""
        return self._range(uapi.IOC_DISARM, start, length_bytes)

    def age(self, start: int, length_bytes: int) -> RangeResult:
        """Log, with flag ACCESS_AGED, pages whose accessed bit has been set since the last call.

        This causes no faults, but leaves the epoch of an access unknown. It clears the accessed
        bits, so the pages then look colder to the kernel's reclaim.
        """
        return self._range(uapi.IOC_AGE, start, length_bytes)

    def epoch_fd(self) -> int:
        """A new descriptor for beginning epochs. Only the attached process can use it."""
        answer = uapi.EpochFd()
        fcntl.ioctl(self._fd, uapi.IOC_EPOCH_FD, answer)
        return int(answer.fd)

    def epoch(self) -> int:
        """The current epoch, from the mapped log."""
        return int(self._log().epoch)

    def begin_epoch(self, residency: bool = False) -> int:
        """Begin the next epoch; returns its number.

        An access during this call can be logged in the old or in the new epoch. An epoch begins
        exactly at a boundary only if the process itself begins it there, with the epoch fd.

        residency: also log the number of resident pages on each node.
        """
        argument = uapi.Epoch(flags=uapi.EPOCH_RESIDENCY if residency else 0)
        fcntl.ioctl(self._fd, uapi.IOC_EPOCH, argument)
        return int(argument.epoch)

    def stats(self) -> SamplerStats:
        """The module's counters since attach()."""
        answer = uapi.Stats()
        fcntl.ioctl(self._fd, uapi.IOC_STATS, answer)
        return SamplerStats(
            hits=answer.hits,
            births=answer.births,
            lost=answer.lost,
            armed_pages=answer.armed_pages,
            passed_on=answer.passed_on,
            unarmed=answer.unarmed,
            rearms=answer.rearms,
        )

    def drain(self) -> npt.NDArray[np.void]:
        """A copy of all records since the last call, SAMPLE_DTYPE, in log order.

        No memory barriers are needed: x86-64, the module's only architecture, keeps the order
        of reading head, reading the records and storing tail.
        """
        log = self._log()
        head, tail = int(log.head), int(log.tail)
        if head == tail:
            return np.empty(0, SAMPLE_DTYPE)
        ring = np.frombuffer(self._mapped(), SAMPLE_DTYPE, self._mask + 1, uapi.LOG_OFFSET)
        first, last = tail & self._mask, head & self._mask
        if first < last:
            records = ring[first:last].copy()
        else:
            records = np.concatenate([ring[first:], ring[:last]])
        log.tail = head
        return records

    def unmap(self) -> None:
        """Unmap the log until it is next read; its records are kept.

        A mapped log counts fully as resident memory, even when it is empty.
        """
        if self._map is not None:
            self._map.close()
            self._map = None

    def close(self) -> None:
        """Disarm all pages and close the device; a second call does nothing."""
        # The module disarms the pages when this process closes the descriptor. But a mapping would
        # keep the open file alive, and with it the log's memory, so the log is unmapped, too.
        self.unmap()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> PageSampler:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _read_info(self, device: Path) -> uapi.Info:
        info = uapi.Info()
        try:
            fcntl.ioctl(self._fd, uapi.IOC_INFO, info)
        except OSError as error:
            if error.errno not in (errno.ENOTTY, errno.EINVAL):
                raise
            info.version = 0
        if info.version != uapi.VERSION:
            raise SentinelError(
                "protocol-mismatch",
                f"{device} has version {info.version}, this daemon needs version {uapi.VERSION}",
                "rebuild the module and load it again: make install; modprobe -r sentinel; "
                "modprobe sentinel",
            )
        return info

    def _range(self, number: int, start: int, length_bytes: int) -> RangeResult:
        argument = uapi.Range(start=start, bytes=length_bytes)
        fcntl.ioctl(self._fd, number, argument)
        return RangeResult(argument.pages_done, argument.pages_skipped)

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            if not self._mask:
                raise SentinelError(
                    "wrong-state", "the sampler is not attached", "call attach first"
                )
            length = uapi.LOG_OFFSET + (self._mask + 1) * SAMPLE_DTYPE.itemsize
            self._map = mmap.mmap(
                self._fd, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE
            )
        return self._map

    def _log(self) -> uapi.Log:
        return uapi.Log.from_buffer(self._mapped())


def _attach_error(pid: int, error: OSError) -> SentinelError:
    if error.errno == errno.ESRCH:
        return SentinelError("no-such-process", f"there is no process {pid}")
    if error.errno in (errno.EPERM, errno.EACCES):
        return SentinelError(
            "not-permitted",
            f"no permission to attach to process {pid}",
            "the process must run as one user and be dumpable: no setuid programs or file "
            "capabilities; the daemon needs CAP_SYS_PTRACE",
        )
    if error.errno == errno.EAGAIN:
        return SentinelError(
            "wrong-state", f"process {pid} is executing another program", "try again"
        )
    if error.errno == errno.EBUSY:
        return SentinelError(
            "wrong-state",
            f"process {pid} is already attached, or ftrace is disabled",
            "detach the other session; sysctl kernel.ftrace_enabled=1",
        )
    return SentinelError("failed", f"the module can't attach to process {pid}: {error.strerror}")
