# SPDX-License-Identifier: Apache-2.0
"""Events of process trees, with real processes."""

from __future__ import annotations

import errno
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.listener import Limits
from sentineld.observe import procs
from sentineld.observe.pidfd import Pidfd, children
from sentineld.observe.proc_connector import EventsLostError, Fork
from sentineld.observe.procs import ProcessEvent, ProcessWatcher, descendant_limits
from tests.unit.descriptors import descriptor_limit
from tests.unit.observe.trees import Tree
from tests.unit.waiting import wait

REPOSITORY = Path(__file__).resolve().parents[3]
US, ANOTHER, THIRD = 1000, 1001, 1002  # user IDs
WAIT_SECONDS = 120.0
"""Time limit for an event. It is generous, because the tests do not measure speed."""


@pytest.fixture
def watcher() -> Iterator[tuple[ProcessWatcher, queue.Queue[ProcessEvent]]]:
    events: queue.Queue[ProcessEvent] = queue.Queue()
    watching = ProcessWatcher(events.put)
    watching.start()
    yield watching, events
    watching.close()


def wait_for(
    events: queue.Queue[ProcessEvent], wanted: Callable[[ProcessEvent], bool]
) -> list[ProcessEvent]:
    """All events up to the wanted one; fails if the wanted event does not come in time."""
    seen: list[ProcessEvent] = []
    while not seen or not wanted(seen[-1]):
        seen.append(events.get(timeout=WAIT_SECONDS))
    return seen


def test_forks_execs_and_exits_of_a_tree(
    tree: Tree, watcher: tuple[ProcessWatcher, queue.Queue[ProcessEvent]]
) -> None:
    watching, events = watcher
    if watching.note:
        pytest.skip(watching.note)
    root = tree.process.pid
    watching.track(root, US)
    child = int(tree.tell())
    seen = wait_for(events, lambda event: event.kind == "exec" and event.pid == child)
    assert watching.processes(root) == sorted([root, child])
    tree.tell()
    seen += wait_for(events, lambda event: event.kind == "exit")
    tree.tell(expect_answer=False)
    seen += wait_for(events, lambda event: event.kind == "exit")

    assert {event.root for event in seen} == {root}
    # No events are expected for the threads that the tree's root starts, nor for the root's exec,
    # which came before track().
    kinds = [(event.kind, event.pid) for event in seen]
    assert kinds == [("fork", child), ("exec", child), ("exit", child), ("exit", root)]
    assert watching.processes(root) == []


def test_forks_are_observed_although_the_first_event_came_late(
    watcher: tuple[ProcessWatcher, queue.Queue[ProcessEvent]],
) -> None:
    if watcher[0].note:
        pytest.skip(watcher[0].note)
    late = ProcessWatcher(lambda event: None)
    late.start(timeout=0.0)
    assert late.note

    def observed() -> bool:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        return not late.note

    try:
        wait(observed)
    finally:
        late.close()


def test_a_tree_tracked_late_is_found_completely(
    tree: Tree, watcher: tuple[ProcessWatcher, queue.Queue[ProcessEvent]]
) -> None:
    watching, events = watcher
    child = int(tree.tell())
    watching.track(tree.process.pid, US)
    assert watching.processes(tree.process.pid) == sorted([tree.process.pid, child])
    seen = wait_for(events, lambda event: event.kind == "fork")
    assert [event.pid for event in seen if event.kind == "fork"] == [child]


def test_a_tree_is_tracked_without_a_scan_of_the_others(
    tree: Tree,
    watcher: tuple[ProcessWatcher, queue.Queue[ProcessEvent]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watching, _ = watcher
    other = Tree()
    first, child, second = tree.process.pid, int(tree.tell()), other.process.pid
    watching.track(first, US)
    scanned: list[int] = []

    def noted(pid: int) -> list[int]:
        if threading.current_thread() is threading.main_thread():  # not the listener
            scanned.append(pid)
        return children(pid)

    monkeypatch.setattr(procs, "children", noted)
    try:
        watching.track(second, US)
        assert set(scanned) == {second}
        # Tracking a tree again finds descendants that were missed.
        scanned.clear()
        watching.track(first, US)
        assert set(scanned) == {first, child}
    finally:
        other.end()


def test_lost_events_are_recovered_after_a_flood(tree: Tree) -> None:
    events: queue.Queue[ProcessEvent] = queue.Queue()
    tracked, slow, go_on = threading.Event(), threading.Event(), threading.Event()

    def deliver(event: ProcessEvent) -> None:
        events.put(event)
        if not tracked.is_set():
            return  # this call holds the watcher's lock, which track() needs, so do not block yet
        slow.set()
        go_on.wait()  # no time limit: starting 3000 threads can take more than a minute

    watching = ProcessWatcher(deliver)
    watching.start()
    others = [Tree(), Tree()]
    try:
        if watching.note:
            pytest.skip(watching.note)
        for one in (tree, *others):
            watching.track(one.process.pid, US)
        tracked.set()
        tree.tell()
        assert slow.wait(WAIT_SECONDS)
        for _ in range(3000):  # more than the socket's buffer holds
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()
        child = int(others[0].tell())
        go_on.set()
        wait_for(events, lambda event: event.kind == "fork" and event.pid == child)
        # After lost events, the watcher scans /proc, which shows forks but no execs. So an exec
        # event shows that the kernel's events arrive again.
        child = int(others[1].tell())
        wait_for(events, lambda event: event.kind == "exec" and event.pid == child)
    finally:
        go_on.set()
        for one in others:
            one.end()
        watching.close()


def test_losses_in_a_row_cause_few_scans(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, all_lost = 50, threading.Event()
    scans: list[int] = []

    class Connector:
        """Loses events in each of the first turns; after that, there are no more events."""

        turns = 0

        def wait(self, wake_fd: int, timeout_s: float | None = None) -> None:
            if self.turns == losses:
                all_lost.set()
                select.select([wake_fd], [], [], timeout_s)

        def events(self) -> Iterator[Fork]:
            yield Fork(os.getppid(), os.getpid(), 1)
            if self.turns < losses:
                self.turns += 1
                raise EventsLostError

        def close(self) -> None:
            """Nothing is open."""

    def noted(pid: int) -> list[int]:
        if threading.current_thread() is not threading.main_thread():
            scans.append(pid)
        return []

    monkeypatch.setattr(procs, "ProcConnector", Connector)
    monkeypatch.setattr(procs, "children", noted)
    watching = ProcessWatcher(lambda event: None)
    watching.track(tree.process.pid, US)
    began_s = time.monotonic()
    watching.start()
    try:
        assert all_lost.wait(WAIT_SECONDS)
        count, took_s = len(scans), time.monotonic() - began_s
        # The first scan follows the opening of the connector, the second one the first loss.
        assert count <= 2 + took_s / procs.SCAN_PAUSE_S
        wait(lambda: len(scans) > count)  # for the events that were lost since the last scan
    finally:
        watching.close()


def test_no_event_of_a_tree_after_untrack(
    tree: Tree, watcher: tuple[ProcessWatcher, queue.Queue[ProcessEvent]]
) -> None:
    watching, events = watcher
    other = Tree()
    watching.track(tree.process.pid, US)
    watching.track(other.process.pid, US)
    watching.untrack(tree.process.pid)
    tree.process.kill()
    tree.process.wait()
    other.process.kill()
    seen = wait_for(events, lambda event: event.kind == "exit")
    other.end()
    assert {event.root for event in seen} == {other.process.pid}


def test_tracking_a_dead_process_is_refused(
    tree: Tree, watcher: tuple[ProcessWatcher, queue.Queue[ProcessEvent]]
) -> None:
    tree.process.kill()
    tree.process.wait()
    with pytest.raises(SentinelError, match="no process"):
        watcher[0].track(tree.process.pid, US)


def test_exits_are_reported_without_netlink() -> None:
    """In a new network namespace, the proc connector does not work. The watcher's note says so,
    and the watcher still reports exits."""
    script = (
        "import os, queue, subprocess\n"
        "from sentineld.observe.procs import ProcessWatcher\n"
        "events = queue.Queue()\n"
        "watcher = ProcessWatcher(events.put)\n"
        "watcher.start()\n"
        "process = subprocess.Popen(['sleep', '1000'])\n"
        "watcher.track(process.pid, os.getuid())\n"
        "process.kill()\n"
        "event = events.get(timeout=60)\n"
        "print(event.kind, event.pid == process.pid, watcher.note)\n"
        "watcher.close()\n"
    )
    result = subprocess.run(
        ["unshare", "--map-root-user", "--net", sys.executable, "-c", script],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    if "unshare" in result.stderr:
        pytest.skip(result.stderr.strip())
    assert result.stdout.startswith("exit True only exits are observed, not forks and execs:")


def test_an_error_of_the_connector_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Connector:
        """Delivers one event and then fails."""

        waits = 0

        def wait(self, wake_fd: int, timeout_s: float | None = None) -> None:
            self.waits += 1
            if self.waits > 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        def events(self) -> Iterator[Fork]:
            yield Fork(os.getppid(), os.getpid(), 1)

        def close(self) -> None:
            closed.set()

    closed = threading.Event()
    monkeypatch.setattr(procs, "ProcConnector", Connector)
    watching = ProcessWatcher(lambda event: None)
    watching.start()
    assert closed.wait(WAIT_SECONDS)
    watching.close()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.message == watching.note
    assert "no longer observed" in watching.note


def test_a_tree_takes_a_limited_number_of_descriptors(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = int(tree.tell())
    events: list[ProcessEvent] = []
    watcher = ProcessWatcher(events.append)
    watcher.track(tree.process.pid, US)
    assert watcher.processes(tree.process.pid) == sorted([tree.process.pid, child])
    watcher.untrack(tree.process.pid)
    monkeypatch.setattr(procs, "TREE_MAX", 1)
    watcher.track(tree.process.pid, US)
    assert watcher.processes(tree.process.pid) == [tree.process.pid]
    watcher.close()


def test_a_descendant_that_is_tracked_has_a_tree_of_its_own(
    three_generations: int, watcher: tuple[ProcessWatcher, queue.Queue[ProcessEvent]]
) -> None:
    watching, events = watcher
    parent = three_generations
    (child,) = children(parent)
    (grandchild,) = children(child)
    watching.track(parent, US)
    assert watching.processes(parent) == sorted([parent, child, grandchild])
    watching.track(child, US)
    watching.track(parent, US)  # scans the tree again; `child` keeps its own tree
    assert watching.processes(parent) == [parent]
    assert watching.processes(child) == sorted([child, grandchild])
    watching.untrack(parent)
    assert watching.processes(child) == sorted([child, grandchild])
    os.kill(child, signal.SIGKILL)
    exits = wait_for(events, lambda event: event.kind == "exit")
    assert (exits[-1].pid, exits[-1].root) == (child, child)


def test_a_descendant_returns_to_the_tree_of_its_parent(three_generations: int) -> None:
    watcher = ProcessWatcher(lambda event: None)
    parent = three_generations
    (child,) = children(parent)
    watcher.track(parent, US)
    everyone = watcher.processes(parent)
    watcher.track(child, US)
    watcher.untrack(child)
    assert watcher.processes(child) == []
    assert watcher.processes(parent) == everyone
    watcher.close()


def test_a_tree_of_its_own_is_charged_to_its_user(three_generations: int) -> None:
    """A user's training runs in the process tree of a launcher that belongs to the user root. While
    the training is tracked as a tree of its own, it and its descendants do not count as descendants
    of the launcher. The training's descendants count for the user."""
    watcher = ProcessWatcher(lambda event: None, Limits(of_user=1, of_root=2, total=1))
    parent = three_generations
    (child,) = children(parent)
    watcher.track(parent, 0)
    watcher.track(child, US)
    other = Tree()
    started = int(other.tell())
    watcher.track(other.process.pid, US)  # this user has a descendant already
    assert watcher.processes(other.process.pid) == [other.process.pid]
    watcher.untrack(child)
    watcher.track(other.process.pid, US)
    assert watcher.processes(other.process.pid) == sorted([other.process.pid, started])
    watcher.close()
    other.end()


@pytest.fixture
def trees() -> Iterator[list[Tree]]:
    """Three trees, each of which has a root and a child."""
    made = [Tree() for _ in range(3)]
    for one in made:
        one.tell()
    yield made
    for one in made:
        one.end()


def followed(watcher: ProcessWatcher, tree: Tree) -> int:
    """Track the tree again; return the number of its processes that are followed."""
    watcher.track(tree.process.pid, US)
    return len(watcher.processes(tree.process.pid))


def test_the_trees_of_a_user_have_a_limited_number_of_descendants(trees: list[Tree]) -> None:
    watcher = ProcessWatcher(lambda event: None, Limits(of_user=1, of_root=1, total=2))
    first, second, other = trees
    for one, uid in ((first, US), (second, US), (other, ANOTHER)):
        watcher.track(one.process.pid, uid)
    assert followed(watcher, first) == 2
    assert watcher.processes(second.process.pid) == [second.process.pid]
    assert followed(watcher, other) == 2
    watcher.untrack(first.process.pid)
    assert followed(watcher, second) == 2
    watcher.close()


def test_an_exit_makes_room_for_another_descendant(trees: list[Tree]) -> None:
    events: queue.Queue[ProcessEvent] = queue.Queue()
    watcher = ProcessWatcher(events.put, Limits(of_user=1, of_root=1, total=1))
    watcher.start()
    first, second, _ = trees
    for one in (first, second):
        watcher.track(one.process.pid, US)
    assert watcher.processes(second.process.pid) == [second.process.pid]
    first.tell()
    wait_for(events, lambda event: event.kind == "exit")
    assert followed(watcher, second) == 2
    watcher.close()


def test_all_users_together_have_a_limited_number_of_descendants(trees: list[Tree]) -> None:
    watcher = ProcessWatcher(lambda event: None, Limits(of_user=1, of_root=1, total=2))
    for one, uid in zip(trees, (US, ANOTHER, THIRD), strict=True):
        watcher.track(one.process.pid, uid)
    assert [followed(watcher, one) for one in trees] == [2, 2, 1]
    watcher.close()


def test_descendants_take_an_eighth_of_the_descriptors_at_most() -> None:
    with descriptor_limit(960):
        limits = descendant_limits()
    assert limits.of_root + limits.total <= 960 / 8
    assert limits.of_user == limits.of_root == 40


@pytest.fixture
def three_generations() -> Iterator[int]:
    """The pid of a process with a child and a grandchild."""
    command = ["sh", "-c", "sh -c 'sleep 1000; :'; :"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        wait(lambda: any(children(child) for child in children(process.pid)))
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_descendants_of_a_process_that_is_not_followed_are_not_followed(
    three_generations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procs, "TREE_MAX", 1)
    watcher = ProcessWatcher(lambda event: None)
    watcher.track(three_generations, US)
    assert watcher.processes(three_generations) == [three_generations]
    watcher.close()


def test_a_process_without_a_descriptor_is_not_followed_and_has_not_exited(
    three_generations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(pid: int) -> Pidfd:
        if pid != three_generations:
            raise OSError(errno.EMFILE, "")
        return Pidfd(pid)

    monkeypatch.setattr(procs, "Pidfd", opened)
    events: list[ProcessEvent] = []
    watcher = ProcessWatcher(events.append)
    watcher.track(three_generations, US)
    assert watcher.processes(three_generations) == [three_generations]
    assert not events
    watcher.close()
