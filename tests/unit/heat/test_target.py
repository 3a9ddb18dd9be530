# SPDX-License-Identifier: Apache-2.0
"""Targets of real processes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.heat import target as module
from sentineld.heat.target import MAIN_THREAD_EXITED, CgroupTarget, OneProcess, Tree, argument_of
from sentineld.observe.memory_use import has_memory
from sentineld.observe.pidfd import children, start_time_ticks
from sentineld.session.lifecycle import CALLED_EXEC, EXITED
from tests.cgroups import cgroup, join, remove
from tests.unit.block_process import block_process
from tests.unit.descriptors import open_descriptors

PATIENCE_S = 60


def wait(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def shell(script: str) -> subprocess.Popen[str]:
    """A shell that runs `script`, with pipes as its input and output."""
    return subprocess.Popen(
        ["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_single_process_ends_with_its_exit_or_exec() -> None:
    process = shell("read line; exec cat")
    target = OneProcess(process.pid)
    assert target.pids() == [process.pid]
    # The target has not ended yet. Because the process still runs, an exec() is the only reason
    # that why_ended() can return.
    assert target.why_ended() == CALLED_EXEC
    process.communicate("\n")
    with pytest.raises(ProcessLookupError):
        target.pids()
    assert target.why_ended() == EXITED
    target.close()


def test_a_single_process_ends_with_its_main_thread() -> None:
    with block_process() as process:
        target = OneProcess(process.pid)
        process.end_main_thread()
        wait(lambda: not has_memory(process.pid))
        assert target.why_ended() == MAIN_THREAD_EXITED
        os.kill(process.pid, 9)
        target.close()


def test_a_tree_follows_children_and_outlives_its_root() -> None:
    process = shell("(sleep 1000 & echo $!; wait) & wait")
    target = Tree(process.pid)
    assert process.stdout is not None
    grandchild = int(process.stdout.readline())
    wait(lambda: len(target.pids()) == 3)
    assert {process.pid, grandchild} < set(target.pids())
    process.kill()
    process.wait()
    wait(lambda: process.pid not in target.pids())
    # The orphans have another parent now, but they stay in the tree.
    assert grandchild in target.pids()
    assert (target.pid, target.named_by(process.pid)) == (process.pid, True)
    for pid in target.pids():
        os.kill(pid, 9)

    def gone() -> bool:
        try:
            target.pids()
        except ProcessLookupError:
            return True
        return False

    wait(gone)
    assert target.why_ended() == "all processes of the tree have exited"
    target.close()
    process.communicate()


def test_a_later_process_with_the_roots_id_does_not_name_the_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = shell("sleep 1000 & echo $!; wait")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    target, single = Tree(process.pid), OneProcess(process.pid)
    assert set(target.pids()) == {process.pid, child}
    assert target.named_by(process.pid)
    assert not target.named_by(child)
    process.kill()
    process.wait()
    assert target.named_by(process.pid)
    assert single.named_by(process.pid)
    real = start_time_ticks
    monkeypatch.setattr(
        module, "start_time_ticks", lambda pid: 1 if pid == process.pid else real(pid)
    )
    assert not target.named_by(process.pid)
    assert not single.named_by(process.pid)
    # The next call of pids() finds that a later process has the root's PID. From then on, the PID
    # of another process of the tree names the tree.
    wait(lambda: target.pids() == [child])
    assert (target.pid, target.named_by(child)) == (child, True)
    assert not target.named_by(process.pid)
    os.kill(child, 9)
    target.close()
    single.close()


def test_a_tree_opens_only_one_process_more_than_it_may_have() -> None:
    process = shell("for i in 1 2 3 4 5 6; do sleep 1000 & done; echo; wait")
    assert process.stdout is not None
    process.stdout.readline()
    found = children(process.pid)
    assert len(found) == 6
    target, before = Tree(process.pid), open_descriptors()
    assert len(target.pids(3)) == 4
    assert len(open_descriptors() - before) == 3  # the root was open before
    assert sorted(target.pids(7)) == sorted([process.pid, *found])
    target.close()
    for pid in (process.pid, *found):
        os.kill(pid, 9)
    process.communicate()


def test_trees_of_one_root_have_one_name() -> None:
    one, other, single = Tree(os.getpid()), Tree(os.getpid()), OneProcess(os.getpid())
    assert one.name == other.name != single.name
    for target in (one, other, single):
        target.close()


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_cgroup_has_the_processes_of_its_descendants(version: str) -> None:
    with cgroup(version) as folder:
        inner = folder / "inner"
        inner.mkdir()
        processes = [shell("read line") for _ in range(2)]
        target = CgroupTarget(str(folder))
        with pytest.raises(ProcessLookupError):
            target.pids()
        assert not target.named_by(target.pid)
        join(folder, processes[0].pid)
        join(inner, processes[1].pid)
        assert sorted(target.pids()) == sorted(process.pid for process in processes)
        for process in processes:
            process.communicate("\n")
        with pytest.raises(ProcessLookupError):
            target.pids()
        assert "have exited" in target.why_ended()
        remove(folder)
        with pytest.raises(ProcessLookupError):
            target.pids()
        assert target.why_ended() == "the cgroup was removed"
        # A new cgroup at the same path is a different target.
        folder.mkdir()
        again = CgroupTarget(str(folder))
        assert again.name != target.name
        with pytest.raises(ProcessLookupError):
            target.pids()
        target.close()
        again.close()


def test_the_title_and_the_argument_of_a_cgroup_with_a_hostile_name_are_printable() -> None:
    name = os.fsdecode(b"\xff\x1b[2J;x")
    with cgroup(name=name) as folder, cgroup() as plain:
        target = CgroupTarget(str(folder))
        shown = str(folder).replace(name, "??[2J;x")
        assert target.title == f"cgroup {shown}"
        assert target.cgroup == str(folder)
        assert argument_of(target) == f"--cgroup '{shown}'"
        target.close()
        target = CgroupTarget(str(plain))
        assert argument_of(target) == f"--cgroup {plain}"
        target.close()


def test_missing_processes_and_cgroups() -> None:
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    for make in (OneProcess, Tree):
        with pytest.raises(SentinelError) as caught:
            make(process.pid)
        assert caught.value.code == "no-such-process"
    with pytest.raises(SentinelError) as caught:
        CgroupTarget(str(Path("/no/such/cgroup")))
    assert caught.value.code == "no-such-process"
