# SPDX-License-Identifier: Apache-2.0
"""The daemon's eBPF probes: loaded in the background, shared by the threads of all sessions."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model.kernel_events import FAULT_DTYPE, Disturbance, EbpfCounters
from sentineld.observe.ebpf import EbpfProbes

log = logging.getLogger(__name__)

FAULTS_MAX = 1 << 20
"""Largest number of recorded faults per process; this number of faults takes 24 MiB."""


@dataclass
class RecordedFaults:
    """The recorded faults of one process."""

    parts: list[npt.NDArray[np.void]] = field(default_factory=list)
    """FAULT_DTYPE, in order. None is empty, and each has more than twice as many faults as the next
    one. So there are few arrays, and a fault is copied rarely."""
    lost: int = 0
    """Number of lost faults: faults of any process that were lost because the ring was full, and
    faults of this process beyond FAULTS_MAX."""
    _since_ns: int = 0

    @property
    def rows(self) -> npt.NDArray[np.void]:
        """All faults; FAULT_DTYPE."""
        return np.concatenate([np.zeros(0, FAULT_DTYPE), *self.parts])

    def add(self, rows: npt.NDArray[np.void]) -> None:
        """Append faults up to a total of FAULTS_MAX; count the rest as lost."""
        rows = rows[rows["time_ns"] >= self._since_ns]
        room = FAULTS_MAX - sum(map(len, self.parts))
        self.lost += max(len(rows) - room, 0)
        if len(rows[:room]):
            self._append(rows[:room])

    def forget_before(self, time_ns: int) -> None:
        """Discard faults from before a time on CLOCK_MONOTONIC, also those that are added later."""
        if time_ns <= self._since_ns:
            return
        self._since_ns = time_ns
        parts, self.parts = self.parts, []
        for part in parts:
            early = part["time_ns"] < time_ns
            if not early.all():
                self._append(part[~early] if early.any() else part)

    def _append(self, part: npt.NDArray[np.void]) -> None:
        while self.parts and len(self.parts[-1]) <= 2 * len(part):
            part = np.concatenate([self.parts.pop(), part])
        self.parts.append(part)


class Probing:
    """The probes, shared by all sessions. Thread-safe.

    watch() may be called even if the probes are not loaded. Counting begins when they are loaded.

    Disturbances of a process: pages of the process that anything other than the daemon moved,
    reclaimed or collapsed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probes: EbpfProbes | None = None
        self._watched: set[int] = set()
        self._faults: dict[int, RecordedFaults] = {}
        self._closed = False

    @property
    def running(self) -> bool:
        """Whether the probes are loaded."""
        return self._probes is not None

    def load(self, timeout_s: float) -> None:
        """Load and attach the probes, which takes seconds. Raises SentinelError."""
        probes = EbpfProbes()
        probes.start(timeout_s)
        with self._lock:
            if self._closed:
                probes.close()
                return
            self._probes = probes
            for pid in self._watched:
                self._count(pid)
            notes = list(probes.notes)
        log.info("eBPF probes attached")
        for note in notes:
            log.info("eBPF: %s", note)

    def notes(self) -> list[str]:
        """Events that the probes can't observe on this machine, and why; one entry per reason."""
        with self._lock:
            return list(self._probes.notes) if self._probes is not None else []

    def watch(self, pid: int) -> None:
        """Count a process's faults, accesses and disturbances. If the process is already watched,
        the counters continue; otherwise they begin at zero.

        If the probes already watch as many processes as they can, nothing is counted for this
        process, and a warning is logged.
        """
        with self._lock:
            if pid not in self._watched:
                self._count(pid)
            self._watched.add(pid)

    def _count(self, pid: int) -> None:
        if self._probes is None:
            return
        try:
            self._probes.watch(pid)
        except SentinelError as error:
            log.warning("faults of process %d are not counted: %s", pid, error)

    def unwatch(self, pid: int) -> None:
        """Stop watching a process and discard its counters and faults."""
        with self._lock:
            if pid in self._watched and self._probes is not None:
                self._probes.unwatch(pid)
            self._watched.discard(pid)
            self._faults.pop(pid, None)

    def record(self, pid: int) -> None:
        """Record each fault of a watched process from now on.

        Raises SentinelError if the probes are not loaded.
        """
        with self._lock:
            if self._probes is None:
                raise SentinelError("failed", "the eBPF probes are not loaded")
            self._faults[pid] = RecordedFaults(lost=-self._dropped())
            self._probes.record(pid)

    def collect(self, pid: int, since_ns: int) -> None:
        """Drain the ring of fault records; call this often during a recording.

        since_ns: discard this process's faults from before this time (CLOCK_MONOTONIC).
        """
        with self._lock:
            self._collect()
            if pid in self._faults:
                self._faults[pid].forget_before(since_ns)

    def stop_recording(self, pid: int) -> RecordedFaults:
        """End a recording and return its faults; empty if the process is not being recorded."""
        with self._lock:
            self._collect()
            faults = self._faults.pop(pid, None)
            if faults is None:
                return RecordedFaults()
            if self._probes is not None:
                faults.lost += self._dropped()
                self._probes.stop_recording(pid)
            return faults

    def _dropped(self) -> int:
        """Number of fault records, of any process, that were lost because the ring was full."""
        return self._probes.counters()["dropped"]["fault_records"] if self._probes else 0

    def _collect(self) -> None:
        if not self._faults or self._probes is None:
            return
        drained = self._probes.drain()
        for pid, kept in self._faults.items():
            kept.add(drained[drained["pid"] == pid])

    def disturbances(self) -> dict[int, list[Disturbance]]:
        """The disturbances of each watched process, by pid; empty while the probes are not
        loaded."""
        counters = self.counters()
        return counters["disturbances"] if counters is not None else {}

    def counters(self) -> EbpfCounters | None:
        """The probes' counters; None if the probes are not loaded."""
        with self._lock:
            return self._probes.counters() if self._probes is not None else None

    def close(self) -> None:
        """Detach the probes. Recordings that have not ended keep their faults so far."""
        with self._lock:
            self._closed = True
            if self._probes is not None:
                dropped = self._dropped()
                for faults in self._faults.values():
                    faults.lost += dropped  # stop_recording() cannot read this number any more
                self._probes.close()
                self._probes = None
