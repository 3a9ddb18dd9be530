# SPDX-License-Identifier: Apache-2.0
"""What a step of this process took, and on what: read before and after it."""

from __future__ import annotations

import ctypes
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sentineld.observe.residency_segment import ResidencySegment

NS_PER_S = 1_000_000_000


class Usage(NamedTuple):
    """Sums since some time. cpu_ns: of all threads, system_ns of these in the kernel. queued_ns:
    that the calling thread was ready to run and had no CPU. waited_ns: at the plan's boundaries,
    for moves; delayed_ns: for slow pages, on emulated tiers. faults: minor ones."""

    time_ns: int
    cpu_ns: int
    system_ns: int
    queued_ns: int
    waited_ns: int
    delayed_ns: int
    faults: int

    def since(self, before: Usage) -> Usage:
        """What came since then."""
        return Usage(*(now - then for now, then in zip(self, before, strict=True)))


class Meter:
    """Of the thread that makes it. The shim, where the process runs under one, is looked for each
    time that begin() is called: its segments change with its layouts."""

    def __init__(self) -> None:
        self._waited_at = 0
        self._residency: ResidencySegment | None = None

    def begin(self) -> None:
        """Find the shim's words."""
        # Its object is loaded for all to see, in front of torch's.
        everything = ctypes.CDLL(None)
        try:
            words, residency_fd = (
                everything.sentinel_control_words,
                everything.sentinel_residency_fd,
            )
        except AttributeError:
            return
        # Not where no shim is: to import it is to ask for it.
        from sentineld.model.protocol import CONTROL_DTYPE
        from sentineld.observe.residency_segment import ResidencySegment

        words.restype = ctypes.c_void_p
        assert CONTROL_DTYPE.fields is not None
        self._waited_at = words() + CONTROL_DTYPE.fields["barrier_wait_ns"][1]
        fd = residency_fd()
        self._residency = ResidencySegment(fd) if fd >= 0 else None

    def read(self) -> Usage:
        """Now."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return Usage(
            time_ns=time.monotonic_ns(),
            cpu_ns=time.process_time_ns(),
            system_ns=round(usage.ru_stime * NS_PER_S),
            queued_ns=int(Path("/proc/thread-self/schedstat").read_text().split()[1]),
            waited_ns=self._waited_ns(),
            delayed_ns=self._residency.paid_ns if self._residency is not None else 0,
            faults=usage.ru_minflt,
        )

    def _waited_ns(self) -> int:
        return ctypes.c_uint64.from_address(self._waited_at).value if self._waited_at else 0
