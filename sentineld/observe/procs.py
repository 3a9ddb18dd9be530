# SPDX-License-Identifier: Apache-2.0
"""Events of attached process trees: fork, exec and exit.

The kernel's proc connector (netlink, through pyroute2) reports forks and execs.
Exits are seen by a pidfd per process, because netlink reports them per thread
and may drop them. The exec of a process that exits before its event is read is
not reported. Without the connector, a tree consists of the processes found at
track(), and exits are still reported reliably.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sentineld.base.errors import SentinelError
from sentineld.observe.pidfd import Pidfd, children

TREE_MAX = 256
"""Processes of a tree that are followed: each takes a descriptor of the daemon. A training has one
per data-loader worker."""


@dataclass(frozen=True)
class ProcessEvent:
    """An event of a process in a tracked tree."""

    kind: Literal["fork", "exec", "exit"]
    pid: int
    root: int  # pid of the tree's root
    time_ns: int  # CLOCK_MONOTONIC


class ProcessWatcher:
    """Watches process trees with two threads."""

    def __init__(self, deliver: Callable[[ProcessEvent], object]) -> None:
        """deliver: called from the threads with the watcher's lock held, so it must not block (a
        queue's put is suitable). After untrack() it gets no more events of the tree.
        """
        self._deliver = deliver
        self._lock = threading.RLock()
        self._tracked: dict[int, tuple[Pidfd, int]] = {}
        """Process id -> its pidfd, and the pid of its tree's root."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = threading.Event()
        self._connected = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="proc-events", daemon=True)
        self._reaper = threading.Thread(target=self._reap, name="proc-exits", daemon=True)
        self._refusal = "the kernel sends no events"
        self.note = ""
        """Why forks and execs are not observed; empty if they are observed."""

    def start(self, timeout: float = 2.0) -> None:
        """Start both threads and wait until the connector delivers an event of this process.

        If no event comes within timeout seconds, `note` is set, and no error is raised.
        """
        self._reaper.start()
        self._listener.start()
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self._listener.is_alive():
            _make_fork_event()
            if self._connected.wait(0.05):
                return
        self.note = f"forks and execs are not seen, exits are: {self._refusal}"

    def track(self, pid: int) -> None:
        """Watch a process and its descendants; existing descendants get a fork event.

        Raises SentinelError "no-such-process".
        """
        with self._lock:
            if pid not in self._tracked:
                self._add(Pidfd(pid), pid)
            self._scan()

    def untrack(self, root: int) -> None:
        """Stop watching a process and its descendants."""
        with self._lock:
            for pid in [pid for pid, (_, owner) in self._tracked.items() if owner == root]:
                self._tracked.pop(pid)[0].close()
        self._wake()

    def processes(self, root: int) -> list[int]:
        """The living processes of a tree, in ascending order."""
        with self._lock:
            return sorted(pid for pid, (_, owner) in self._tracked.items() if owner == root)

    def close(self) -> None:
        """Stop both threads and all watching."""
        self._stopping.set()
        self._wake()
        if self._reaper.is_alive():
            self._reaper.join()
        if self._listener.is_alive():
            # The listener blocks in netlink until any process forks.
            _make_fork_event()
            self._listener.join(1.0)
        with self._lock:
            for pidfd, _ in self._tracked.values():
                pidfd.close()
            self._tracked.clear()
        os.close(self._wake_fd)

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _add(self, pidfd: Pidfd, root: int) -> None:
        self._tracked[pidfd.pid] = (pidfd, root)
        self._wake()

    def _scan(self) -> None:
        """Find descendants that had no fork event: forked before track(), or the event was lost."""
        pending = list(self._tracked)
        while pending:
            parent = pending.pop()
            for child in children(parent):
                if child not in self._tracked:
                    self._forked(parent, child, time.monotonic_ns())
                    pending.append(child)

    def _forked(self, parent: int, child: int, time_ns: int) -> None:
        """Add a child to its parent's tree; called with the lock held."""
        root = self._tracked[parent][1]
        if child in self._tracked:
            return
        if sum(owner == root for _, owner in self._tracked.values()) >= TREE_MAX:
            return
        self._deliver(ProcessEvent("fork", child, root, time_ns))
        try:
            pidfd = Pidfd(child)
        except (SentinelError, OSError):
            # It has exited, or the daemon lacks descriptors: the other trees must be followed on.
            pidfd = None
        if pidfd is not None and pidfd.start_ns > _boottime_ns(time_ns):
            # The child has exited and its pid was reused.
            pidfd.close()
            pidfd = None
        if pidfd is None:
            self._deliver(ProcessEvent("exit", child, root, time.monotonic_ns()))
        else:
            self._add(pidfd, root)

    def _reap(self) -> None:
        """Thread that waits for the exit of tracked processes."""
        while not self._stopping.is_set():
            with self._lock:
                by_fd = {pidfd.fileno(): pid for pid, (pidfd, _) in self._tracked.items()}
            poll = select.poll()
            for fd in (self._wake_fd, *by_fd):
                poll.register(fd, select.POLLIN)
            poll.poll()
            with self._lock:
                # Check each pidfd again: the polled fd numbers may have been reused.
                for pid, (pidfd, root) in list(self._tracked.items()):
                    if pidfd.exited():
                        del self._tracked[pid]
                        pidfd.close()
                        self._deliver(ProcessEvent("exit", pid, root, time.monotonic_ns()))
            try:
                os.eventfd_read(self._wake_fd)
            except BlockingIOError:
                continue

    def _listen(self) -> None:
        """Thread that reads the proc connector, and reopens it after lost events.

        The thread creates the socket, because pyroute2 0.9 delivers events only to the
        creating thread. After an error every read of the socket raises the error again.
        """
        try:
            from pyroute2.netlink.connector.cn_proc import ProcEventSocket
        except ImportError:
            self._refusal = "this pyroute2 has no proc connector"
            return
        while not self._stopping.is_set():
            try:
                source = ProcEventSocket()
                source.bind()
                source.control(listen=True)
            except OSError as error:
                reason = f"netlink: {os.strerror(error.errno or 0)}"
                self._refusal = f"{reason} (CAP_NET_ADMIN is needed)"
                if self._connected.is_set():
                    self.note = f"forks and execs are no longer seen: {reason}"
                return
            with self._lock:
                self._scan()
            followed = self._follow(source)
            # pyroute2 0.9 can't close a socket after an error; freeing the object closes it.
            with contextlib.suppress(OSError):
                source.close()
            if not followed:
                return

    def _follow(self, source: Any) -> bool:
        """Handle events. True: events were lost or the watcher is closing; False: an error."""
        while not self._stopping.is_set():
            try:
                for message in source.get():
                    self._handle(message)
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    return True
                self.note = f"forks and execs are no longer seen: {error}"
                return False
            except struct.error:
                # pyroute2 0.9 sometimes parses its own notice of lost events as an event.
                return True
        return True

    def _handle(self, message: Any) -> None:
        """Handle one event of the connector."""
        event = message.get("event")
        with self._lock:
            if event == "PROC_EVENT_FORK":
                if message["child_tgid"] == os.getpid():
                    self._connected.set()
                is_process = message["child_pid"] == message["child_tgid"]
                if is_process and message["parent_tgid"] in self._tracked:
                    self._forked(
                        message["parent_tgid"], message["child_pid"], message["timestamp_ns"]
                    )
            elif event == "PROC_EVENT_EXEC" and message["process_tgid"] in self._tracked:
                pid = message["process_tgid"]
                root = self._tracked[pid][1]
                self._deliver(ProcessEvent("exec", pid, root, message["timestamp_ns"]))


def _make_fork_event() -> None:
    """Start a thread, so that the kernel reports a clone of this process."""
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def _boottime_ns(monotonic_ns: int) -> int:
    """Convert CLOCK_MONOTONIC to CLOCK_BOOTTIME, which also counts the time in suspend."""
    offset = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(
        time.CLOCK_MONOTONIC
    )
    return monotonic_ns + offset
