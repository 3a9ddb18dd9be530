# SPDX-License-Identifier: Apache-2.0
"""The eBPF probes of a daemon: loaded beside its work, used by the threads of all sessions."""

from __future__ import annotations

import logging
import threading

import numpy as np
import numpy.typing as npt

from sentineld.errors import SentinelError
from sentineld.observe.ebpf import EbpfProbes
from sentineld.observe.ebpf_model import FAULT_DTYPE, Disturbance, EbpfCounters

log = logging.getLogger(__name__)

Faults = npt.NDArray[np.void]
"""FAULT_DTYPE, in order."""


class Probing:
    """Processes can be watched before the probes are loaded, and where they never are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probes: EbpfProbes | None = None
        self._watched: set[int] = set()
        self._faults: dict[int, list[Faults]] = {}
        self._closed = False

    @property
    def running(self) -> bool:
        """Whether the probes are loaded."""
        return self._probes is not None

    def load(self, timeout_s: float) -> None:
        """Load and attach the probes; blocks for seconds. Raises SentinelError."""
        probes = EbpfProbes()
        probes.start(timeout_s)
        with self._lock:
            if self._closed:
                probes.close()
                return
            for pid in self._watched:
                probes.watch(pid)
            self._probes = probes
            notes = list(probes.notes)
        log.info("eBPF probes attached")
        for note in notes:
            log.info("eBPF: %s", note)

    def notes(self) -> list[str]:
        """What the probes do not tell here and why, one line each."""
        with self._lock:
            return list(self._probes.notes) if self._probes is not None else []

    def watch(self, pid: int) -> None:
        """Count a process's faults and what others do with its pages, from zero if it is new."""
        with self._lock:
            if pid not in self._watched and self._probes is not None:
                self._probes.watch(pid)
            self._watched.add(pid)

    def unwatch(self, pid: int) -> None:
        """Forget a process."""
        with self._lock:
            if pid in self._watched and self._probes is not None:
                self._probes.unwatch(pid)
            self._watched.discard(pid)
            self._faults.pop(pid, None)

    def record(self, pid: int) -> None:
        """Keep each fault of a watched process from now on. Raises SentinelError without probes."""
        with self._lock:
            if self._probes is None:
                raise SentinelError("failed", "the eBPF probes do not run")
            self._faults[pid] = []
            self._probes.record(pid)

    def collect(self) -> None:
        """Take recorded faults out of the ring; to be called often while there is a recording."""
        with self._lock:
            self._collect()

    def stop_recording(self, pid: int) -> Faults:
        """The faults since record(), and keep no more."""
        with self._lock:
            if self._probes is not None:
                self._collect()
                self._probes.stop_recording(pid)
            return np.concatenate([np.zeros(0, FAULT_DTYPE), *self._faults.pop(pid, [])])

    def _collect(self) -> None:
        if not self._faults or self._probes is None:
            return
        drained = self._probes.drain()
        for pid, kept in self._faults.items():
            ours = drained[drained["pid"] == pid]
            if len(ours):
                kept.append(ours)

    def disturbances(self, pid: int) -> list[Disturbance]:
        """What others did with the pages of a watched process; empty for any other process."""
        counters = self.counters()
        return counters["disturbances"].get(pid, []) if counters is not None else []

    def counters(self) -> EbpfCounters | None:
        """The probes' counters, or None without probes."""
        with self._lock:
            return self._probes.counters() if self._probes is not None else None

    def close(self) -> None:
        """Detach the probes."""
        with self._lock:
            self._closed = True
            if self._probes is not None:
                self._probes.close()
                self._probes = None
