# SPDX-License-Identifier: Apache-2.0
"""Life of attached process trees: fork, exec and exit.

The kernel's proc connector (netlink, through pyroute2) tells forks and execs;
a pidfd for each process of a tree tells its exit, which netlink reports once
per thread and may drop. The exec of a process that has ended before its event
is read is not told. Without the connector, trees are the processes that
were there at track(), and exits are still sure.
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


@dataclass(frozen=True)
class ProcessEvent:
    """Something that happened to a process of a tracked tree; time on CLOCK_MONOTONIC."""

    kind: Literal["fork", "exec", "exit"]
    pid: int
    root: int
    time_ns: int


class ProcessWatcher:
    """Watches process trees from two threads of its own.

    deliver is called from those threads, under the watcher's lock: a queue's
    put is what belongs there. No event of a tree comes after untrack().
    """

    def __init__(self, deliver: Callable[[ProcessEvent], object]) -> None:
        self._deliver = deliver
        self._lock = threading.RLock()
        self._tracked: dict[int, tuple[Pidfd, int]] = {}
        """pid -> its pidfd and the root of its tree."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = threading.Event()
        self._connected = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="proc-events", daemon=True)
        self._reaper = threading.Thread(target=self._reap, name="proc-exits", daemon=True)
        self._refusal = "the kernel sends no events"
        self.note = ""
        """Why forks and execs are not seen; empty where they are."""

    def start(self, timeout: float = 2.0) -> None:
        """Start watching; waits until the connector has delivered an event of our own.

        No answer within timeout seconds is not an error: see note.
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
        """Watch a process and its descendants; a fork event for each that lives already.

        Raises SentinelError "no-such-process".
        """
        with self._lock:
            if pid not in self._tracked:
                self._add(Pidfd(pid), pid)
            self._scan()

    def untrack(self, root: int) -> None:
        """Forget a process and its descendants."""
        with self._lock:
            for pid in [pid for pid, (_, owner) in self._tracked.items() if owner == root]:
                self._tracked.pop(pid)[0].close()
        self._wake()

    def processes(self, root: int) -> list[int]:
        """The living processes of a tree, in ascending order."""
        with self._lock:
            return sorted(pid for pid, (_, owner) in self._tracked.items() if owner == root)

    def close(self) -> None:
        """Stop both threads and forget all trees."""
        self._stopping.set()
        self._wake()
        if self._reaper.is_alive():
            self._reaper.join()
        if self._listener.is_alive():
            # the listener blocks in netlink until something forks
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
        """Find descendants that no event told of: those before track(), and after a loss."""
        pending = list(self._tracked)
        while pending:
            parent = pending.pop()
            for child in children(parent):
                if child not in self._tracked:
                    self._forked(parent, child, time.monotonic_ns())
                    pending.append(child)

    def _forked(self, parent: int, child: int, time_ns: int) -> None:
        """Take a child into its parent's tree; called with the lock held."""
        root = self._tracked[parent][1]
        if child in self._tracked:
            return
        self._deliver(ProcessEvent("fork", child, root, time_ns))
        try:
            pidfd = Pidfd(child)
        except SentinelError:
            pidfd = None
        if pidfd is not None and pidfd.start_ns > _boottime_ns(time_ns):
            # the child is gone and its pid is another's by now
            pidfd.close()
            pidfd = None
        if pidfd is None:
            self._deliver(ProcessEvent("exit", child, root, time.monotonic_ns()))
        else:
            self._add(pidfd, root)

    def _reap(self) -> None:
        """Thread: wait for the pidfds of all tracked processes."""
        while not self._stopping.is_set():
            with self._lock:
                by_fd = {pidfd.fileno(): pid for pid, (pidfd, _) in self._tracked.items()}
            poll = select.poll()
            for fd in (self._wake_fd, *by_fd):
                poll.register(fd, select.POLLIN)
            poll.poll()
            with self._lock:
                # the pidfds are asked again: a polled fd number may be another's by now
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
        """Thread: the proc connector, opened anew after each loss of events.

        pyroute2's socket is made, bound and read here, since 0.9 delivers
        nothing to another thread than the one that made it. An error that it
        has met once it raises ever after.
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
            # After an error 0.9 can't close it; what is open then goes with the object.
            with contextlib.suppress(OSError):
                source.close()
            if not followed:
                return

    def _follow(self, source: Any) -> bool:
        """Take events until some are lost, or until the end; False: no more can be had."""
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
                # What 0.9 tells itself of the loss it sometimes takes for an event.
                return True
        return True

    def _handle(self, message: Any) -> None:
        """One event of the connector."""
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
    """Make the kernel report a clone of this very process."""
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def _boottime_ns(monotonic_ns: int) -> int:
    """A time on CLOCK_MONOTONIC as one on CLOCK_BOOTTIME, which also runs in suspend."""
    offset = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(
        time.CLOCK_MONOTONIC
    )
    return monotonic_ns + offset
