# SPDX-License-Identifier: Apache-2.0
"""The kernel module's user side: one PageSampler is one open /dev/sentinel, one session.

Arming a page makes its next access log a record; a new epoch arms it again.
Closing the sampler, also by this process's death, disarms everything.
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

DEVICE = Path("/dev/sentinel")

_LOAD_HINT = "modprobe sentinel; `sentinelctl doctor` says what is missing"


@dataclass(frozen=True)
class RangeResult:
    """Pages that a call armed, disarmed or added, and those it left out (absent, shared, ...)."""

    pages_done: int
    pages_skipped: int


@dataclass(frozen=True)
class SamplerStats:
    """The module's counters of this session; struct sentinel_stats."""

    hits: int
    births: int
    lost: int
    armed_pages: int
    passed_on: int
    unarmed: int
    rearms: int


class PageSampler:
    """An open /dev/sentinel. Every call raises ProcessLookupError once the process is gone."""

    def __init__(self, device: Path = DEVICE) -> None:
        """Open the device. SentinelError: module-not-loaded, not-permitted, protocol-mismatch."""
        self._map: mmap.mmap | None = None
        self._mask = 0  # of the log's records, once attached
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
            # ENXIO and ENODEV: a node that outlived its module.
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
    ) -> None:
        """Bind the session to a process and map its log of log_records (a power of two).

        precise_writes: log a write that follows a read in its epoch, at the price of a second
        fault. rearm_us: log up to one access in so many microseconds (>= 1000), not one an epoch.
        The caller holds a pidfd and checks it afterwards. SentinelError:
        no-such-process, not-permitted, wrong-state (attached already), failed.
        """
        attach = uapi.Attach(
            pid=pid,
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
        """Watch an address range; its pages are ordinary until armed."""
        return self._range(uapi.IOC_ADD_RANGE, start, length_bytes)

    def remove_range(self, start: int, length_bytes: int) -> RangeResult:
        """Stop watching a range that was added, disarming it."""
        return self._range(uapi.IOC_REMOVE_RANGE, start, length_bytes)

    def arm(self, start: int, length_bytes: int) -> RangeResult:
        """Have the next access to each present page logged; any part of the added ranges."""
        return self._range(uapi.IOC_ARM, start, length_bytes)

    def disarm(self, start: int, length_bytes: int) -> RangeResult:
        """Make pages ordinary; epochs leave them alone until they are armed again."""
        return self._range(uapi.IOC_DISARM, start, length_bytes)

    def age(self, start: int, length_bytes: int) -> RangeResult:
        """Log as AGED the pages accessed since the last call, by the CPU's accessed bits.

        It costs no faults but tells no epoch, and makes pages look colder to the kernel's reclaim.
        """
        return self._range(uapi.IOC_AGE, start, length_bytes)

    def epoch_fd(self) -> int:
        """A new descriptor with which the process itself, and only it, begins epochs."""
        answer = uapi.EpochFd()
        fcntl.ioctl(self._fd, uapi.IOC_EPOCH_FD, answer)
        return int(answer.fd)

    def epoch(self) -> int:
        """The epoch that is going on, from the mapped log."""
        return int(self._log().epoch)

    def begin_epoch(self, residency: bool = False) -> int:
        """Begin the next epoch from here; returns its number.

        The process itself does so by its epoch fd at boundaries, with nothing
        else running; from here, accesses of the same moment fall on either side.
        """
        argument = uapi.Epoch(flags=uapi.EPOCH_RESIDENCY if residency else 0)
        fcntl.ioctl(self._fd, uapi.IOC_EPOCH, argument)
        return int(argument.epoch)

    def stats(self) -> SamplerStats:
        """The session's counters."""
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

        Records are read after head and before tail is stored: x86-64, the
        module's only architecture, keeps the three in this order.
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
        """Give the log's memory back until it is next read; what it holds stays.

        A mapped log counts as resident from end to end, whether anything is in it or not.
        """
        if self._map is not None:
            self._map.close()
            self._map = None

    def close(self) -> None:
        """Disarm everything and end the session; twice is no error."""
        self.unmap()  # first: it holds a duplicate of the descriptor
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
                f"{device} speaks version {info.version}, this daemon version {uapi.VERSION}",
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
            f"the module may not attach to process {pid}",
            "the daemon needs CAP_SYS_PTRACE",
        )
    if error.errno == errno.EBUSY:
        return SentinelError(
            "wrong-state",
            f"process {pid} is attached already, or ftrace is switched off",
            "detach the other session; sysctl kernel.ftrace_enabled=1",
        )
    return SentinelError("failed", f"the module can't attach to process {pid}: {error.strerror}")
