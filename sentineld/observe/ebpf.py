# SPDX-License-Identifier: Apache-2.0
"""The daemon's side of the eBPF probes.

A child process compiles the programs (sentineld.observe.ebpf_loader) and sends
the fds of maps and programs. After that, the daemon needs only system calls on
these fds. The probes run as long as the daemon holds the fds of their BPF links. EbpfProbes is not
thread-safe.
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

from sentineld.base.errors import SentinelError
from sentineld.model.kernel_events import (
    DEEDS,
    DISTURBANCE_DTYPE,
    DISTURBANCE_KEY_DTYPE,
    DROP_DTYPE,
    DROPS,
    FAULT_DTYPE,
    FAULT_KINDS,
    MIGRATION_DTYPE,
    MIGRATION_KEY_DTYPE,
    NO_NODE,
    PROGRAMS,
    WATCH_DTYPE,
    WHILE_WATCHED,
    AccessCounts,
    Disturbance,
    EbpfCounters,
    MigrationCounts,
    MoverCounts,
)
from sentineld.observe import bpfmap
from sentineld.observe.bpfmap import BpfMap
from sentineld.observe.ringbuf import RingBuffer

RING_BYTES = 4 << 20
"""Size of the ring of fault records: room for 131,071 records between two drains. A record takes 32
bytes; 8 of these bytes are the kernel's header."""

_MODULE_ABSENT = "the kernel module is not loaded: there are no accesses to cross-check"

_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])

_MAP_TYPES: dict[str, tuple[npt.DTypeLike, npt.DTypeLike]] = {
    "watched": ("<u4", WATCH_DTYPE),
    "migrations": ("<u4", MIGRATION_DTYPE),
    "migrations_by": (MIGRATION_KEY_DTYPE, MIGRATION_DTYPE),
    "drops": ("<u4", DROP_DTYPE),
    "disturbances": (DISTURBANCE_KEY_DTYPE, DISTURBANCE_DTYPE),
    "recorded": ("<u4", "<u4"),
    "recorded_number": ("<u4", "<u4"),
}


class EbpfProbes:
    """Counters of all page migrations, and counters of each watched process.

    The counters of a process count its page faults, the accesses that the kernel module reports,
    and its disturbances: pages of the process that anything other than the daemon moved, reclaimed
    or collapsed.

    To load the programs, either call start() in a thread that may block, or call spawn(),
    and then poll() when fileno() is readable. watch() may be called before the programs are loaded.
    """

    def __init__(self, ring_bytes: int = RING_BYTES) -> None:
        self._ring_bytes = ring_bytes
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._stderr: IO[bytes] | None = None
        self._maps: dict[str, BpfMap] = {}
        self._programs: dict[str, int] = {}
        self._links: dict[str, int] = {}
        self._ring_fd = -1
        self._ring: RingBuffer | None = None
        self._watched: set[int] = set()
        self._recorded: set[int] = set()
        self._names: dict[str, dict[str, str]] = {}
        self.notes: list[str] = []
        """Events that are not observed, and why. Filled when the programs are loaded, and when the
        kernel refuses to attach a program."""

    @property
    def loaded(self) -> bool:
        """Whether the programs are loaded."""
        return bool(self._maps)

    def start(self, timeout: float) -> None:
        """Spawn the child and wait for the fds for at most timeout seconds.

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
        """Start the child process that compiles the programs; does not wait for it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        path = os.pathsep.join(filter(None, (_PACKAGE_PARENT, os.environ.get("PYTHONPATH"))))
        self._socket = ours
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        pages = str(self._ring_bytes // os.sysconf("SC_PAGE_SIZE"))
        with theirs:
            self._child = subprocess.Popen(
                # -P: no import from the working directory, where any user may have put files.
                [sys.executable, "-P", "-m", "sentineld.observe.ebpf_loader", pages],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                env={**os.environ, "PYTHONPATH": path},
            )

    def fileno(self) -> int:
        """The descriptor of a socket, which is readable when poll() has something to receive.
        Raises SentinelError if no programs are being loaded."""
        if self._socket is None:
            raise SentinelError("wrong-state", "no eBPF programs are being loaded")
        return self._socket.fileno()

    def poll(self) -> bool:
        """Receive the fds if the child has sent them. Does not block. Returns whether the probes
        run.

        Raises the SentinelError that the child reports, or "failed" if the child exits early.
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
            raise SentinelError("failed", f"the eBPF loader exited early: {reason}")
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
        """Take over the fds, and attach the programs, except those that are needed only while a
        process is watched. Then watch or record the processes for which watch() or record() was
        called earlier."""
        named = dict(zip([*message["maps"], *message["programs"]], fds, strict=True))
        self._programs = {name: named.pop(name) for name in message["programs"]}
        self._ring_fd = named.pop("faults")
        self._ring_bytes = message["ring_bytes"]
        self._names = {"mode": message["modes"], "reason": message["reasons"]}
        self.notes = list(message["notes"])
        self._maps = _open_maps(named)
        for name in self._programs:
            if name not in WHILE_WATCHED:
                self._attach(name)
        for pid in self._watched:
            self._write_watch(pid)
        for pid in self._recorded:
            self._write_recorded(pid)

    def _attach(self, name: str) -> None:
        """Attach one program; add a note if the kernel refuses."""
        if name in self._links or name not in self._programs:
            return
        try:
            if name in PROGRAMS:
                link = bpfmap.attach_raw_tracepoint(name, self._programs[name])
            else:
                link = bpfmap.attach_traced(self._programs[name])
        except OSError as error:
            note = f"{name} is not attached: {os.strerror(error.errno or 0)}"
            if error.errno == errno.ENOENT and name == "page_access":
                note = _MODULE_ABSENT
            if note not in self.notes:
                self.notes.append(note)
            return
        self._links[name] = link
        if name == "page_access" and _MODULE_ABSENT in self.notes:
            self.notes.remove(_MODULE_ABSENT)

    def watch(self, pid: int) -> None:
        """Count a process's faults, accesses and disturbances, starting from zero.

        Raises SentinelError "failed" if 1024 processes are watched already.
        """
        self._watched.add(pid)
        if self.loaded:
            self._write_watch(pid)

    def _write_watch(self, pid: int) -> None:
        self._keep_disturbances(self._watched - {pid})
        try:
            self._maps["watched"].update(pid, np.zeros(1, dtype=WATCH_DTYPE))
        except OSError as error:
            self._watched.discard(pid)
            raise SentinelError("failed", f"cannot watch process {pid}: {error}") from error
        for name in WHILE_WATCHED:
            self._attach(name)

    def unwatch(self, pid: int) -> None:
        """Stop watching a process and discard its counters."""
        self.stop_recording(pid)
        self._watched.discard(pid)
        if not self.loaded:
            return
        self._maps["watched"].delete(pid)
        self._keep_disturbances(self._watched)
        if not self._watched:
            for name in WHILE_WATCHED:
                if name in self._links:
                    os.close(self._links.pop(name))

    def _keep_disturbances(self, owners: set[int]) -> None:
        """Delete the disturbances of all processes except `owners`. A program that runs during
        unwatch() can insert a row after this; watch() then deletes it, because it would count for
        a later process with the same pid."""
        disturbances = self._maps["disturbances"]
        keys, _ = disturbances.items()
        for key in keys[~np.isin(keys["owner"], list(owners))]:
            disturbances.delete(key)

    def record(self, pid: int) -> None:
        """Also record each fault of a watched process from now on. Call drain() often, so that the
        ring does not fill up."""
        self._recorded.add(pid)
        if self.loaded:
            self._write_recorded(pid)

    def _write_recorded(self, pid: int) -> None:
        if self._ring is None:
            self._ring = RingBuffer(os.dup(self._ring_fd), self._ring_bytes, FAULT_DTYPE)
        self._maps["recorded"].update(pid, np.ones(1, dtype="<u4"))
        self._maps["recorded_number"].update(0, np.array([len(self._recorded)], dtype="<u4"))

    def stop_recording(self, pid: int) -> None:
        """Stop recording a process's faults, but continue to count them.

        If no process is recorded any more, discards the unread records and unmaps the ring.
        """
        self._recorded.discard(pid)
        if not self.loaded:
            return
        self._maps["recorded"].delete(pid)
        self._maps["recorded_number"].update(0, np.array([len(self._recorded)], dtype="<u4"))
        if not self._recorded and self._ring is not None:
            self._ring.drain()
            self._ring.close()
            self._ring = None

    def drain(self) -> npt.NDArray[np.void]:
        """Fault records since the last call, FAULT_DTYPE; empty while no process is recorded."""
        if self._ring is None:
            return np.zeros(0, dtype=FAULT_DTYPE)
        return self._ring.drain()

    def counters(self) -> EbpfCounters:
        """Read all counters."""
        counters: EbpfCounters = {
            "faults": {},
            "accesses": {},
            "migrations": {},
            "movers": [],
            "disturbances": {pid: [] for pid in self._watched},
            "dropped": dict.fromkeys(DROPS, 0),
        }
        if not self.loaded:
            return counters
        for pid in self._watched:
            rows = self._maps["watched"].lookup(pid)
            if rows is None:
                continue
            faults = rows["faults"][0].tolist()
            counters["faults"][pid] = dict(zip(FAULT_KINDS, faults, strict=True))
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
        keys, rows = self._maps["disturbances"].items()
        for key, row in zip(keys, rows, strict=True):
            if key["owner"] in counters["disturbances"]:
                counters["disturbances"][int(key["owner"])].append(self._disturbance(key, row))
        _, drops = self._maps["drops"].items()
        counters["dropped"] = dict(zip(DROPS, drops.tolist(), strict=True))
        return counters

    def _disturbance(self, key: np.void, row: np.void) -> Disturbance:
        deed = int(key["deed"])
        return Disturbance(
            by=key["comm"].decode(errors="replace"),
            pid=int(row["mover"]),
            own=bool(key["own"]),
            deed=DEEDS[deed] if deed in DEEDS else self._name("reason", key["deed"]),
            from_node=_node(key["from"]),
            to_node=_node(key["to"]),
            pages=int(row["pages"]),
            kept=int(row["kept"]),
            last_ns=int(row["last_ns"]),
        )

    def _name(self, field: str, number: np.integer[Any]) -> str:
        """The kernel's name of a migration mode or reason; the number if the name is unknown."""
        return self._names[field].get(str(int(number)), str(int(number)))

    def _last_stderr_line(self) -> str:
        if self._stderr is None:
            return ""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def _end_child(self) -> None:
        """Kill and reap the child, if there is one, and close its socket and its stderr."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
            self._child.wait()
        for resource in (self._socket, self._stderr):
            if resource is not None:
                resource.close()
        self._child = self._socket = self._stderr = None

    def close(self) -> None:
        """Detach all programs, and kill the child if it is still compiling."""
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
        if self._ring_fd >= 0:
            os.close(self._ring_fd)
            self._ring_fd = -1


def _open_maps(fds: dict[str, int]) -> dict[str, BpfMap]:
    """Take over the maps' fds. If one cannot be used, closes all of them and raises SentinelError
    "failed". A possible cause is that the files in bpf/ are of another version, with another layout
    of the map."""
    maps = {}
    for name, fd in fds.items():
        try:
            maps[name] = BpfMap(fd, *_MAP_TYPES[name])
        except (OSError, ValueError) as error:
            for opened in fds.values():
                os.close(opened)
            raise SentinelError(
                "failed",
                f"the eBPF map {name} cannot be used: {error}",
                "restart sentineld; reinstall it if the error remains",
            ) from error
    return maps


def _migration_counts(row: np.void) -> MigrationCounts:
    return MigrationCounts(
        calls=int(row["calls"]), succeeded=int(row["succeeded"]), failed=int(row["failed"])
    )


def _node(number: np.integer[Any]) -> int | None:
    return None if number == NO_NODE else int(number)
