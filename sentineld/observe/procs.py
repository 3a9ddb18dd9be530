# SPDX-License-Identifier: Apache-2.0
"""Events of attached process trees: fork, exec and exit.

The kernel's proc connector (proc_connector.py) reports forks and execs.
A pidfd for each process reports its exit. The connector is not used for this, because it
reports the exit of every thread and can drop reports. If a process exits before its exec
event is read, the exec is not reported. Without the connector, a tree consists of the
processes that track() found, and their exits are still reported reliably.
"""

from __future__ import annotations

import logging
import os
import resource
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from sentineld.base.errors import SentinelError
from sentineld.control.listener import Limits
from sentineld.observe.pidfd import Pidfd, children
from sentineld.observe.pidfd import parent as parent_of
from sentineld.observe.proc_connector import EventsLostError, Exec, Fork, ProcConnector

log = logging.getLogger(__name__)

GATHER_S = 0.01
"""Delay before fork and exec events are handled. If many processes start, most of the cost is that
of waking up the thread; with this delay, the thread handles several events at each wake-up."""
SCAN_PAUSE_S = 1.0
"""Shortest time between two scans of all trees for processes whose fork events were lost. A program
that starts many processes causes such losses again and again."""
SCAN_SHARE = 1 / 20
"""Limit on these scans, as a share of the time."""
TREE_MAX = 256
"""Maximum number of processes that are followed in one tree. Each of them takes a descriptor of the
daemon. A training has one child process for each data-loader worker."""
DESCRIPTORS_SHARE = 1 / 8
"""Share of the daemon's descriptors that the descendants in all trees may take. This much is still
free if there are as many sessions as session_limits() (shim_server.py) permits, with about ten
descriptors each, and if the processes that one user has attached without the shim also take their
largest share (USER_SHARE in heat/quota.py, a quarter)."""


def descendant_limits() -> Limits:
    """Limits on the number of descendants that are followed in all trees together, so that the
    daemon's descriptors (RLIMIT_NOFILE) suffice.

    Root can have a third of the permitted descendants, and all other users together two thirds. A
    single user can have at most one third. See also session_limits() (shim_server.py).
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    third = max(1, int(soft * DESCRIPTORS_SHARE) // 3)
    return Limits(of_user=third, of_root=third, total=2 * third)


@dataclass(frozen=True)
class ProcessEvent:
    """An event of a process in a tracked tree."""

    kind: Literal["fork", "exec", "exit"]
    pid: int
    root: int  # pid of the tree's root
    time_ns: int  # CLOCK_MONOTONIC


@dataclass
class _Tree:
    """The living processes of a tree, and the user to whom its descendants are charged."""

    uid: int
    pids: set[int] = field(default_factory=set)


class ProcessWatcher:
    """Watches process trees with two threads."""

    def __init__(
        self, deliver: Callable[[ProcessEvent], object], limits: Limits | None = None
    ) -> None:
        """deliver: called with the watcher's lock held, from both threads, from track() and from
        untrack(). Therefore it must not block; a queue's put() is suitable. After untrack(), no
        more events of the tree are delivered.
        limits: limits on the number of descendants that are followed; None: descendant_limits().
        Descendants beyond these limits are not followed.
        """
        self._deliver = deliver
        self._lock = threading.RLock()
        self._tracked: dict[int, tuple[Pidfd, int]] = {}
        """Process id -> its pidfd, and the pid of its tree's root."""
        self._trees: dict[int, _Tree] = {}
        """Root's pid -> its tree. There is no empty tree."""
        self._limits = limits or descendant_limits()
        self._descendants: Counter[int] = Counter()
        """User ID -> number of processes in the user's trees, without the roots of the trees."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._stopping = threading.Event()
        self._connected = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="proc-events", daemon=True)
        self._reaper = threading.Thread(target=self._reap, name="proc-exits", daemon=True)
        self._lost = False  # events were lost since the last scan; the listener's
        self._scan_due_s = 0.0  # the next scan of all trees begins at this time or later
        self._refusal = "the kernel sends no events"
        self.note = ""
        """Why forks and execs are not observed; empty if they are observed."""

    def start(self, timeout: float = 2.0) -> None:
        """Start both threads and wait until the connector delivers an event of this process.

        If no event comes within timeout seconds, `note` is set until an event comes. No error is
        raised.
        """
        self._reaper.start()
        self._listener.start()
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self._listener.is_alive():
            _make_fork_event()
            if self._connected.wait(0.05):
                return
        with self._lock:
            if not self._connected.is_set():
                self.note = f"only exits are observed, not forks and execs: {self._refusal}"

    def track(self, pid: int, uid: int) -> None:
        """Watch a process and its descendants; each existing descendant is reported as a fork.

        If the process belongs to the tree of an ancestor, the process and its descendants become a
        tree of their own. A descendant for which track() was called earlier keeps its own tree.

        uid: the user whose limit on descendants applies.

        Raises SentinelError "no-such-process", or OSError if no descriptor is free.
        """
        with self._lock:
            if self._root_of(pid) != pid:
                pidfd = Pidfd(pid)
                if pid in self._tracked:
                    self._leave(pid)
                self._trees.setdefault(pid, _Tree(uid))
                self._add(pidfd, pid)
            # Scan only this tree: otherwise, resuming many sessions would take quadratic time.
            self._scan(self._trees[pid].pids)

    def untrack(self, root: int) -> None:
        """Stop watching a process and its descendants. If the process's parent is watched, they
        become part of the parent's tree."""
        with self._lock:
            if root in self._trees:
                for pid in list(self._trees[root].pids):
                    self._remove(pid)
                above = parent_of(root)
                if above in self._tracked:
                    self._scan([above])
        self._wake()

    def processes(self, root: int) -> list[int]:
        """The living processes of a tree, in ascending order."""
        with self._lock:
            return sorted(self._trees[root].pids) if root in self._trees else []

    def close(self) -> None:
        """Stop both threads and stop watching all trees."""
        self._stopping.set()
        os.eventfd_write(self._closing_fd, 1)
        self._wake()
        if self._reaper.is_alive():
            self._reaper.join()
        if self._listener.is_alive():
            self._listener.join(1.0)
        with self._lock:
            for pidfd, _ in self._tracked.values():
                pidfd.close()
            self._tracked.clear()
            self._trees.clear()
            self._descendants.clear()
        os.close(self._wake_fd)
        if not self._listener.is_alive():
            os.close(self._closing_fd)

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _root_of(self, pid: int) -> int | None:
        """The root of a process's tree; None if the process is not watched."""
        return self._tracked[pid][1] if pid in self._tracked else None

    def _add(self, pidfd: Pidfd, root: int) -> None:
        tree = self._trees[root]
        self._tracked[pidfd.pid] = (pidfd, root)
        tree.pids.add(pidfd.pid)
        if pidfd.pid != root:
            self._descendants[tree.uid] += 1
        self._wake()

    def _remove(self, pid: int) -> None:
        pidfd, root = self._tracked.pop(pid)
        pidfd.close()
        tree = self._trees[root]
        tree.pids.remove(pid)
        if pid != root:
            self._descendants[tree.uid] -= 1
            if not self._descendants[tree.uid]:
                del self._descendants[tree.uid]
        if not tree.pids:
            del self._trees[root]

    def _leave(self, pid: int) -> None:
        """Remove a process and its descendants from its tree."""
        root, pending = self._root_of(pid), [pid]
        while pending:
            member = pending.pop()
            if self._root_of(member) == root:
                self._remove(member)
                pending += children(member)

    def _scan(self, processes: Iterable[int]) -> None:
        """Add those descendants of these tracked processes that are not tracked yet: they were
        forked before track(), or their fork event was lost."""
        pending = list(processes)
        while pending:
            parent = pending.pop()
            for child in children(parent):
                if child not in self._tracked:
                    self._forked(parent, child, time.monotonic_ns())
                    if child in self._tracked:
                        pending.append(child)

    def _forked(self, parent: int, child: int, time_ns: int) -> None:
        """Add a child to its parent's tree; called with the lock held."""
        root = self._tracked[parent][1]
        if child in self._tracked:
            return
        tree = self._trees[root]
        if len(tree.pids) >= TREE_MAX:
            return
        if self._limits.problem(self._descendants, tree.uid, "descendants"):
            return
        try:
            pidfd = Pidfd(child)
        except OSError as error:
            # An exception here would end the thread, which also follows the other trees.
            log.warning("process %d is not followed: %s", child, os.strerror(error.errno or 0))
            return
        except SentinelError:
            pidfd = None
        if pidfd is not None and pidfd.start_ns > _boottime_ns(time_ns):
            # The child has exited and its pid was reused.
            pidfd.close()
            pidfd = None
        self._deliver(ProcessEvent("fork", child, root, time_ns))
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
                        self._remove(pid)
                        self._deliver(ProcessEvent("exit", pid, root, time.monotonic_ns()))
            try:
                os.eventfd_read(self._wake_fd)
            except BlockingIOError:
                continue

    def _listen(self) -> None:
        """Thread that reads the proc connector."""
        try:
            connector = ProcConnector()
        except ImportError:
            self._refusal = "this pyroute2 has no proc connector"
            return
        except OSError as error:
            self._refusal = f"netlink: {os.strerror(error.errno or 0)} (CAP_NET_ADMIN is needed)"
            return
        try:
            # Events of trees that were tracked before the connector was open may have been missed.
            with self._lock:
                self._scan(self._tracked)
            while not self._stopping.is_set():
                pause_s = max(self._scan_due_s - time.monotonic(), 0.0)
                connector.wait(self._closing_fd, pause_s if self._lost else None)
                self._stopping.wait(GATHER_S)
                self._follow(connector)
        except OSError as error:
            self.note = f"forks and execs are no longer observed: {error}"
            log.warning("%s", self.note)
        finally:
            connector.close()

    def _connect(self) -> None:
        """Record that the connector delivers events; called with the lock held."""
        self._connected.set()
        if self.note:
            # On a busy machine, the first event can come after start() has given up.
            self.note = ""
            log.info("forks and execs are observed now")

    def _follow(self, connector: ProcConnector) -> None:
        """Handle the events that have come; if events were lost and a scan is due, find the
        processes that they would have reported. Raises OSError."""
        try:
            for event in connector.events():
                with self._lock:
                    self._handle(event)
        except EventsLostError:
            self._lost = True
        began_s = time.monotonic()
        if self._lost and began_s >= self._scan_due_s:
            self._lost = False
            with self._lock:
                roots = list(self._trees)
            for root in roots:
                with self._lock:  # release it after each tree, because track() may be waiting
                    if root in self._trees:
                        self._scan(self._trees[root].pids)
            ended_s = time.monotonic()
            self._scan_due_s = ended_s + max(SCAN_PAUSE_S, (ended_s - began_s) / SCAN_SHARE)

    def _handle(self, event: Fork | Exec) -> None:
        """Handle one event of the connector; called with the lock held."""
        if isinstance(event, Fork):
            if event.child == os.getpid():
                self._connect()
            elif event.parent in self._tracked:
                self._forked(event.parent, event.child, event.time_ns)
        elif event.pid in self._tracked:
            root = self._tracked[event.pid][1]
            self._deliver(ProcessEvent("exec", event.pid, root, event.time_ns))


def _make_fork_event() -> None:
    """Start a thread. The proc connector reports this as a fork whose child is this process."""
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def _boottime_ns(monotonic_ns: int) -> int:
    """Convert CLOCK_MONOTONIC to CLOCK_BOOTTIME, which also counts the time in suspend."""
    offset = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(
        time.CLOCK_MONOTONIC
    )
    return monotonic_ns + offset
