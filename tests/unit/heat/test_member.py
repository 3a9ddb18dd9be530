# SPDX-License-Identifier: Apache-2.0
"""Which processes a caller may manage without the shim."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sentineld.base.errors import SentinelError
from sentineld.heat.member import Member
from tests.unit.block_process import block_process, child_in_same_memory

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
