# SPDX-License-Identifier: Apache-2.0
"""Measure how long a thread waits for a page that must be read from the paging file.

This time is longer than the read: the kernel must wake the thread that serves the fault and, after
the read, the thread that waits. On a virtual machine, these two wake-ups take longer than a read
from a fast disk. The measurement does what the pager (shim/native/pager/faults.c) does, but it
copies pages instead of moving frames.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import select
import statistics
import threading
import time
from typing import NamedTuple

from sentineld.host.userfaultfd import copy_pages, next_fault, open_userfaultfd, register
from sentineld.migrate.io_buffers import io_buffers
from sentineld.model.timing import FAULT_BYTES

FAULTS = 64
"""Number of faults that are measured, one after the other."""
STOP_POLL_MS = 100
"""Longest wait for a fault. After it, the thread that serves faults checks whether the measurement
has ended early."""


class FaultTime(NamedTuple):
    """The duration of a fault that causes a read of FAULT_BYTES."""

    ns: float  # median time of the access
    # The part of an access's time before the serving thread (_Server) has read the fault's event,
    # plus the part after the pages have arrived; median of all accesses.
    wake_ns: float


def measure_faults(file: int, file_bytes: int) -> FaultTime:
    """Measure accesses, each of which causes a read of FAULT_BYTES at a random place in the file.

    file: a descriptor opened with O_DIRECT. file_bytes: size of the file. Raises OSError or
    SentinelError.
    """
    places = random.Random(1).choices(range(0, file_bytes, FAULT_BYTES), k=FAULTS)
    size_bytes = FAULTS * FAULT_BYTES
    with mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        descriptor = open_userfaultfd()
        server = _Server(descriptor, begin, file, places)
        try:
            register(descriptor, begin, size_bytes)
            server.start()
            spent_ns = [_access_ns(begin + at) for at in range(0, size_bytes, FAULT_BYTES)]
        finally:
            server.stop()
        if server.error:
            raise server.error
    pairs = zip(spent_ns, server.served_ns, strict=True)
    wakes_ns = [max(all_ns - own_ns, 0) for all_ns, own_ns in pairs]
    return FaultTime(statistics.median(spent_ns), statistics.median(wakes_ns))


def _access_ns(address: int) -> int:
    """Time of a read of one byte. ctypes releases the interpreter's lock during the read; otherwise
    the server could not run."""
    byte = ctypes.c_char()
    began_ns = time.monotonic_ns()
    ctypes.memmove(ctypes.addressof(byte), address, 1)
    return time.monotonic_ns() - began_ns


class _Server:
    """A thread that serves faults. It owns the descriptor. When the thread ends, it closes the
    descriptor. From then on, the kernel serves faults in this memory with zeroed pages."""

    def __init__(self, descriptor: int, begin: int, file: int, places: list[int]) -> None:
        """begin: address of the memory. places: for each fault, the offset of its pages in the
        file."""
        self.error: OSError | None = None
        self.served_ns: list[int] = []
        """For each fault, the time from reading its event to the arrival of the pages."""
        self._descriptor = descriptor
        self._begin = begin
        self._file = file
        self._places = places
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fault-time")

    def start(self) -> None:
        """Begin to serve faults."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread if it runs, and close the descriptor."""
        self._stop.set()
        if self._thread.ident is None:
            os.close(self._descriptor)
        else:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._serve()
        except OSError as error:
            self.error = error
        finally:
            os.close(self._descriptor)

    def _serve(self) -> None:
        (buffer,) = io_buffers(1, FAULT_BYTES)
        buffer[0] = 1  # allocates memory now, not during the first fault that is measured
        source = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        served = 0
        while served < FAULTS and not self._stop.is_set():
            poll.poll(STOP_POLL_MS)
            address = next_fault(self._descriptor)
            if address is None:
                continue
            began_ns = time.monotonic_ns()
            at = (address - self._begin) // FAULT_BYTES
            os.preadv(self._file, [buffer], self._places[at])
            # After a signal, the kernel can raise the same fault again. Its pages exist by then, so
            # copy_pages() returns False.
            copied = copy_pages(
                self._descriptor, self._begin + at * FAULT_BYTES, source, FAULT_BYTES
            )
            if copied:
                self.served_ns.append(time.monotonic_ns() - began_ns)
            served += copied
