# SPDX-License-Identifier: Apache-2.0
"""The eBPF probes, as the daemon holds them.

A child compiles (sentineld.observe.ebpf_loader) and sends the fds of the maps
and programs; from then on everything is a system call on those. The probes run
as long as this process holds the links. Not thread-safe: one thread calls.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sentineld.errors import SentinelError
from sentineld.observe import bpfmap
from sentineld.observe.bpfmap import BpfMap
from sentineld.observe.ebpf_model import (
    DROP_DTYPE,
    DROPS,
    FAULT_DTYPE,
    FAULT_KINDS,
    MIGRATION_DTYPE,
    MIGRATION_KEY_DTYPE,
    WATCH_DTYPE,
    WATCH_RECORD,
    AccessCounts,
    EbpfCounters,
    MigrationCounts,
    MoverCounts,
)
from sentineld.observe.ringbuf import RingBuffer

RING_BYTES = 4 << 20
"""Bytes of the faults' ring: 131,072 records between two drains."""

_MODULE_ABSENT = "the kernel module is not loaded: its accesses are not cross-checked"

_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])

_MAP_TYPES: dict[str, tuple[npt.DTypeLike, npt.DTypeLike]] = {
    "watched": ("<u4", WATCH_DTYPE),
    "migrations": ("<u4", MIGRATION_DTYPE),
    "migrations_by": (MIGRATION_KEY_DTYPE, MIGRATION_DTYPE),
    "drops": ("<u4", DROP_DTYPE),
}


class EbpfProbes:
    """Page faults, page migrations and module accesses of watched processes.

    Either `start` in a thread that may wait, or `spawn`, then `poll` when
    `fileno` is readable. watch() may come before the programs are loaded.
    """

    def __init__(self, ring_bytes: int = RING_BYTES) -> None:
        self._ring_bytes = ring_bytes
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._stderr: IO[bytes] | None = None
        self._maps: dict[str, BpfMap] = {}
        self._programs: dict[str, int] = {}
        self._links: dict[str, int] = {}
        self._ring: RingBuffer | None = None
        self._watched: dict[int, bool] = {}
        self._names: dict[str, dict[str, str]] = {}
        self.notes: list[str] = []
        """What does not run and why, one line each, once loaded."""

    @property
    def loaded(self) -> bool:
        """Whether the programs run."""
        return self._ring is not None

    def start(self, timeout: float) -> None:
        """Spawn the child and wait for the fds, at most timeout seconds.

        Raises SentinelError: bcc-missing, no-kernel-headers, not-permitted or failed.
        """
        deadline = time.monotonic() + timeout
        self.spawn()
        select.select([self.fileno()], [], [], max(0.0, deadline - time.monotonic()))
        if not self.poll():
            self.close()
            raise SentinelError(
                "failed", f"the eBPF programs were not ready in {timeout:g} s", "allow more time"
            )

    def spawn(self) -> None:
        """Start the child that compiles; returns at once."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        path = os.pathsep.join(filter(None, (_PACKAGE_PARENT, os.environ.get("PYTHONPATH"))))
        self._socket = ours
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        pages = str(self._ring_bytes // os.sysconf("SC_PAGE_SIZE"))
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "sentineld.observe.ebpf_loader", pages],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                env={**os.environ, "PYTHONPATH": path},
            )

    def fileno(self) -> int:
        """The socket to wait on between spawn() and poll()."""
        if self._socket is None:
            raise SentinelError("wrong-state", "no eBPF programs are being loaded")
        return self._socket.fileno()

    def poll(self) -> bool:
        """Take the fds if the child has sent them; never waits. True once the probes run.

        Raises the child's SentinelError.
        """
        if self._socket is None:
            return self.loaded
        try:
            payload, fds, _, _ = socket.recv_fds(self._socket, 65536, 64)
        except BlockingIOError:
            return False
        if not payload:
            reason = self._last_stderr_line() or "no message"
            self._end_child()
            raise SentinelError("failed", f"the eBPF loader ended early: {reason}")
        message = json.loads(payload)
        try:
            if "error" in message:
                raise SentinelError(**message["error"])
            self._adopt(message, fds)
        except SentinelError as error:
            detail = self._last_stderr_line()
            self.close()
            if error.code == "failed" and detail:
                error.hint = error.hint or detail
            raise
        self._end_child()
        return True

    def _adopt(self, message: dict[str, Any], fds: list[int]) -> None:
        """Own the fds, attach the programs and watch what was asked for meanwhile."""
        named = dict(zip([*message["maps"], *message["programs"]], fds, strict=True))
        self._programs = {name: named.pop(name) for name in message["programs"]}
        ring_fd = named.pop("faults")
        self._names = {"mode": message["modes"], "reason": message["reasons"]}
        self.notes = list(message["notes"])
        self._maps = {name: BpfMap(fd, *_MAP_TYPES[name]) for name, fd in named.items()}
        self._ring = RingBuffer(ring_fd, message["ring_bytes"], FAULT_DTYPE)
        for tracepoint in self._programs:
            if tracepoint != "page_access":
                self._attach(tracepoint)
        for pid, record in self._watched.items():
            self._write_watch(pid, record)

    def _attach(self, tracepoint: str) -> None:
        """Attach one program; a note where the kernel has no such tracepoint."""
        if tracepoint in self._links or tracepoint not in self._programs:
            return
        try:
            link = bpfmap.attach_raw_tracepoint(tracepoint, self._programs[tracepoint])
        except OSError as error:
            note = f"tracepoint {tracepoint} is not attached: {os.strerror(error.errno or 0)}"
            if error.errno == errno.ENOENT and tracepoint == "page_access":
                note = _MODULE_ABSENT
            if note not in self.notes:
                self.notes.append(note)
            return
        self._links[tracepoint] = link
        if tracepoint == "page_access" and _MODULE_ABSENT in self.notes:
            self.notes.remove(_MODULE_ABSENT)

    def watch(self, pid: int, record: bool = True) -> None:
        """Count the faults of a process from zero; with record, hand over each one.

        Raises SentinelError "failed" when more than 1024 processes are watched.
        """
        self._watched[pid] = record
        if self.loaded:
            self._write_watch(pid, record)

    def _write_watch(self, pid: int, record: bool) -> None:
        row = np.zeros(1, dtype=WATCH_DTYPE)
        row["flags"] = WATCH_RECORD if record else 0
        try:
            self._maps["watched"].update(pid, row)
        except OSError as error:
            del self._watched[pid]
            raise SentinelError("failed", f"cannot watch process {pid}: {error}") from error
        self._attach("page_access")

    def unwatch(self, pid: int) -> None:
        """Stop counting a process and forget its counters."""
        self._watched.pop(pid, None)
        if self.loaded:
            self._maps["watched"].delete(pid)
        if not self._watched and "page_access" in self._links:
            # a link would keep the module from being unloaded
            os.close(self._links.pop("page_access"))

    def drain(self) -> npt.NDArray[np.void]:
        """The fault records since the last call, FAULT_DTYPE in order; empty until loaded."""
        if self._ring is None:
            return np.zeros(0, dtype=FAULT_DTYPE)
        return self._ring.drain()

    def counters(self) -> EbpfCounters:
        """All counters, as plain numbers by name."""
        counters: EbpfCounters = {
            "faults": {},
            "accesses": {},
            "migrations": {},
            "movers": [],
            "dropped": dict.fromkeys(DROPS, 0),
        }
        if self._ring is None:
            return counters
        for pid in self._watched:
            rows = self._maps["watched"].lookup(pid)
            if rows is None:
                continue
            faults = rows["faults"][0].tolist()
            counters["faults"][pid] = dict(zip(FAULT_KINDS, faults, strict=False))
            counters["accesses"][pid] = AccessCounts(
                accesses=int(rows["accesses"][0]),
                writes=int(rows["access_writes"][0]),
                epoch=int(rows["epoch"][0]),
            )
        reasons, rows = self._maps["migrations"].items()
        for reason, row in zip(reasons, rows, strict=True):
            if row["calls"]:
                counters["migrations"][self._name("reason", reason)] = _migration_counts(row)
        keys, rows = self._maps["migrations_by"].items()
        counters["movers"] = [
            MoverCounts(
                pid=int(key["pid"]),
                comm=row["comm"].decode(errors="replace"),
                mode=self._name("mode", key["mode"]),
                reason=self._name("reason", key["reason"]),
                **_migration_counts(row),
            )
            for key, row in zip(keys, rows, strict=True)
        ]
        _, drops = self._maps["drops"].items()
        counters["dropped"] = dict(zip(DROPS, drops.tolist(), strict=True))
        return counters

    def _name(self, field: str, number: np.integer[Any]) -> str:
        """The kernel's name of a migration mode or reason, or the number."""
        return self._names[field].get(str(int(number)), str(int(number)))

    def _last_stderr_line(self) -> str:
        if self._stderr is None:
            return ""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def _end_child(self) -> None:
        """Reap the child, which has ended or has nothing more to say."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
            self._child.wait()
        for resource in (self._socket, self._stderr):
            if resource is not None:
                resource.close()
        self._child = self._socket = self._stderr = None

    def close(self) -> None:
        """Detach everything and end a child that still compiles."""
        self._end_child()
        for fd in (*self._links.values(), *self._programs.values()):
            os.close(fd)
        self._links.clear()
        self._programs.clear()
        for opened in self._maps.values():
            opened.close()
        self._maps.clear()
        if self._ring is not None:
            self._ring.close()
            self._ring = None


def _migration_counts(row: np.void) -> MigrationCounts:
    return MigrationCounts(
        calls=int(row["calls"]), succeeded=int(row["succeeded"]), failed=int(row["failed"])
    )
