# SPDX-License-Identifier: Apache-2.0
"""The proc connector of this machine's kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from sentineld.observe.proc_connector import Exec, Fork, ProcConnector


@pytest.fixture
def connector() -> Iterator[ProcConnector]:
    try:
        made = ProcConnector()
    except OSError as error:
        pytest.skip(f"needs CAP_NET_ADMIN: {error}")
    yield made
    made.close()


def gather(connector: ProcConnector, last: Callable[[Fork | Exec], bool]) -> list[Fork | Exec]:
    """All events until `last` is true for one of them."""
    found: list[Fork | Exec] = []
    wake_fd = os.eventfd(0)
    try:
        while not any(map(last, found)):
            connector.wait(wake_fd)
            found += connector.events()
    finally:
        os.close(wake_fd)
    return found


def test_forks_and_execs_have_their_pids_and_time(connector: ProcConnector) -> None:
    begin_ns = time.monotonic_ns()
    child = subprocess.Popen(["true"])
    found = gather(connector, lambda event: isinstance(event, Exec) and event.pid == child.pid)
    child.wait()
    events = [event for event in found if child.pid in event[:-1]]
    assert [type(event) for event in events] == [Fork, Exec]
    assert events[0][:2] == (os.getpid(), child.pid)
    assert all(begin_ns <= event.time_ns <= time.monotonic_ns() for event in events)


def test_threads_of_this_process_are_reported_and_others_are_not(connector: ProcConnector) -> None:
    script = "import threading\nfor _ in range(20): t = threading.Thread(target=int); t.start()"
    other = subprocess.Popen([sys.executable, "-c", script])
    other.wait()
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    found = gather(connector, lambda event: isinstance(event, Fork) and event.child == os.getpid())
    # If a thread of the other process were reported, the thread's event would also have the ID of
    # the other process as `child`. The ID occurs only once, for the fork of the process.
    assert [event.child for event in found if isinstance(event, Fork)].count(other.pid) == 1


def test_a_written_descriptor_ends_the_wait(connector: ProcConnector) -> None:
    wake_fd = os.eventfd(1)
    connector.wait(wake_fd)
    os.close(wake_fd)
