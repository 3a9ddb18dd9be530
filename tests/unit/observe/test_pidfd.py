# SPDX-License-Identifier: Apache-2.0
"""Pidfds and start times of real processes; they show whether a pid has been reused."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.observe.pidfd import Pidfd, children, cpu_seconds, start_time_ticks
from tests.unit.observe.trees import Tree


def test_pidfd_becomes_readable_when_its_process_exits(tree: Tree) -> None:
    pidfd = Pidfd(tree.process.pid)
    assert not pidfd.exited()
    tree.process.kill()
    tree.process.wait()
    assert pidfd.exited()
    pidfd.close()
    with pytest.raises(SentinelError) as caught:
        Pidfd(tree.process.pid)
    assert caught.value.code == "no-such-process"


def test_pidfd_of_another_start_time_is_refused(tree: Tree) -> None:
    ticks = start_time_ticks(tree.process.pid)
    Pidfd(tree.process.pid, ticks).close()
    with pytest.raises(SentinelError, match="no process"):
        Pidfd(tree.process.pid, ticks - 1)


def test_a_zombie_has_exited(tree: Tree) -> None:
    pidfd = Pidfd(tree.process.pid)
    tree.process.kill()
    # WNOWAIT: the process stays a zombie, so its pid can't be reused.
    os.waitid(os.P_PID, tree.process.pid, os.WEXITED | os.WNOWAIT)
    assert pidfd.exited()
    pidfd.close()


def test_start_time_of_a_name_with_spaces_and_parentheses(tmp_path: Path) -> None:
    odd = tmp_path / "a) R (b"
    odd.symlink_to("/bin/sleep")
    process = subprocess.Popen([odd, "1000"])
    try:
        plain = subprocess.Popen(["sleep", "1000"])
        try:
            assert 0 <= start_time_ticks(plain.pid) - start_time_ticks(process.pid) < 10**6
        finally:
            plain.kill()
            plain.wait()
    finally:
        process.kill()
        process.wait()


def test_a_thread_is_not_a_process() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        with pytest.raises(SentinelError):
            Pidfd(thread.native_id or 0)
    finally:
        release.set()
        thread.join()


def test_children_of_a_process(tree: Tree) -> None:
    assert children(tree.process.pid) == []
    child = int(tree.tell())
    assert children(tree.process.pid) == [child]


def test_cpu_time_grows_with_computation(tree: Tree) -> None:
    before_s = cpu_seconds(os.getpid())
    while time.process_time() < before_s + 0.1:
        sum(range(1000))
    assert cpu_seconds(os.getpid()) > before_s
    tree.process.kill()
    tree.process.wait()
    with pytest.raises(ProcessLookupError):
        cpu_seconds(tree.process.pid)
