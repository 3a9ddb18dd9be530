# SPDX-License-Identifier: Apache-2.0
"""Time and resources used by a step, read inside the training process."""

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
    """Cumulative counters, or the difference of two readings."""

    time_ns: int
    cpu_ns: int  # user and system time of all threads
    system_ns: int  # system time of all threads
    queued_ns: int  # time in which the calling thread waited for a CPU
    waited_ns: int  # time of waits for moves at the plan's boundaries
    delayed_ns: int  # time of injected delays for slow pages on emulated tiers
    faults: int  # minor page faults

    def since(self, before: Usage) -> Usage:
        """Return the difference from an earlier reading."""
        return Usage(*(now - then for now, then in zip(self, before, strict=True)))


class Meter:
    """Reads the usage of the calling thread and its process.

    If the process runs under the shim, begin() looks up two parts of the memory that the shim
    shares with the daemon: the control words, which have the time of the waits for moves, and the
    residency segment, which has the time of the injected delays. Each layout has a residency
    segment of its own, so begin() must be called again after a change of the layout.
    """

    def __init__(self) -> None:
        self._wait_counter_address = 0
        self._residency: ResidencySegment | None = None

    def begin(self) -> None:
        """Look up the shim's control words and residency segment; see Meter."""
        # The shim's library is loaded with global symbols, so CDLL(None) finds its functions.
        symbols = ctypes.CDLL(None)
        try:
            words, residency_fd = (
                symbols.sentinel_control_words,
                symbols.sentinel_residency_fd,
            )
        except AttributeError:
            return
        # Imported only under the shim: a plain training must not load any sentineld code.
        from sentineld.model.protocol import CONTROL_DTYPE
        from sentineld.observe.residency_segment import ResidencySegment

        words.restype = ctypes.c_void_p
        assert CONTROL_DTYPE.fields is not None
        self._wait_counter_address = words() + CONTROL_DTYPE.fields["barrier_wait_ns"][1]
        fd = residency_fd()
        self._residency = ResidencySegment(fd) if fd >= 0 else None

    def read(self) -> Usage:
        """Return the current counters."""
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
        if not self._wait_counter_address:
            return 0
        return ctypes.c_uint64.from_address(self._wait_counter_address).value
