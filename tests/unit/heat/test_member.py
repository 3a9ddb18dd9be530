# SPDX-License-Identifier: Apache-2.0
"""Which processes a caller may manage without the shim."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sentineld.base.errors import SentinelError
from sentineld.heat import member as module
from sentineld.heat.member import Member
from sentineld.model.records import MemoryMapping
from tests.unit.block_process import block_process, child_in_same_memory
from tests.unit.descriptors import open_descriptors
from tests.unit.observe.peers import USER, folder, needs_root, program
from tests.unit.waiting import wait

ME = os.getuid()


@pytest.fixture
def sleeper() -> Iterator[int]:
    """The process ID of a process that waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    yield process.pid
    process.communicate()


def code(pid: int, caller_uid: int) -> str:
    with pytest.raises(SentinelError) as caught:
        Member(pid, caller_uid)
    return caught.value.code


def test_a_process_is_open_until_it_is_closed(sleeper: int) -> None:
    target = Member(sleeper, ME)
    assert target.pid == sleeper
    assert target.peer.uid == ME
    assert code(sleeper, ME) == "busy"
    target.close()
    Member(sleeper, ME).close()


def test_another_user_may_not_manage_it(sleeper: int) -> None:
    assert code(sleeper, ME + 1) == "not-permitted"


def test_the_daemon_does_not_manage_itself() -> None:
    assert code(os.getpid(), ME) == "not-permitted"


def test_a_process_that_has_exited() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert code(process.pid, ME) == "no-such-process"


def test_a_child_in_the_memory_of_its_parent_is_refused() -> None:
    with block_process() as process:
        with child_in_same_memory(process) as child:
            with pytest.raises(SentinelError, match=f"its parent, process {process.pid}") as caught:
                Member(child, ME)
            assert caught.value.code == "wrong-state"
            assert f"give PID {process.pid}" in caught.value.hint
        Member(process.pid, ME).close()


@needs_root
def test_a_setuid_program_that_begins_during_the_opening_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = module.read_mappings
    with folder() as place:
        command = ["/bin/sh", "-c", f"read line; exec {program(place, 0o4755)} 1000"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, user=USER, group=USER, extra_groups=[]
        )

        def execute_meanwhile(pid: int) -> tuple[MemoryMapping, ...]:
            found = real(pid)
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            wait(lambda: os.stat(f"/proc/{pid}").st_uid == 0)
            return found

        monkeypatch.setattr(module, "read_mappings", execute_meanwhile)
        before = open_descriptors()
        assert code(process.pid, USER) == "not-permitted"
        assert open_descriptors() <= before
        monkeypatch.undo()
        Member(process.pid, 0).close()  # root may manage it, and no session has it
        process.kill()
        process.communicate()
