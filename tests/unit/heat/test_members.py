# SPDX-License-Identifier: Apache-2.0
"""Real processes join a session and leave it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.heat import members as module
from sentineld.heat import quota as quota_module
from sentineld.heat import target as target_module
from sentineld.heat.members import Members
from sentineld.heat.memory import SessionMemory
from sentineld.heat.quota import Quota
from sentineld.heat.target import CgroupTarget, OneProcess
from tests.cgroups import cgroup, join
from tests.unit.hostile_names import FILES, NAMES, running

ME = os.getuid()


class Listed:
    """A group that consists of the processes in a list."""

    name = title = "the group"
    cgroup = ""
    is_group = True

    def __init__(self, *found: int, root: int = 0) -> None:
        self.found = list(found)
        self.pid = root

    def pids(self, most: int = 0) -> list[int]:
        if not self.found:
            raise ProcessLookupError
        return self.found

    def named_by(self, pid: int) -> bool:
        return pid == self.pid

    def why_ended(self) -> str:
        return "it is empty"

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every call of Members.look() list the group's processes and retry those that could not
    become members, however recent the last call was."""
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    monkeypatch.setattr(module, "LOOK_SHARE", 1e9)
    monkeypatch.setattr(module, "RETRY_S", 0.0)


@pytest.fixture
def sleepers() -> Iterator[list[int]]:
    """Three processes."""
    started = [subprocess.Popen(["/bin/sleep", "1000"]) for _ in range(3)]
    yield [process.pid for process in started]
    for process in started:
        process.kill()
        process.wait()


def require(members: Members) -> list[None]:
    return members.each(lambda member: member.require_address_space())


def refusal(target: Listed | OneProcess, caller_uid: int = ME) -> SentinelError:
    with pytest.raises(SentinelError) as caught:
        Members(target, caller_uid)
    return caught.value


def test_processes_join_and_leave(sleepers: list[int]) -> None:
    target = Listed(*sleepers[:2])
    members = Members(target, ME)
    assert members.pids == tuple(sleepers[:2])
    changes = members.changes
    members.look()
    assert members.changes == changes
    target.found = sleepers[1:]
    members.look()
    assert members.pids == tuple(sleepers[1:])
    assert members.changes == changes + 2
    # A process that joins the session again gets another span of page numbers (heat/spans.py).
    spans = {member.span for member in members}
    target.found = sleepers
    members.look()
    assert next(member.span for member in members if member.pid == sleepers[0]) not in spans
    assert all(members.of_span(member.span) is member for member in members)
    target.found = []
    with pytest.raises(ProcessLookupError):
        members.look()
    members.close()
    assert len(members) == 0


def test_a_process_that_is_gone_leaves_its_group(sleepers: list[int]) -> None:
    members = Members(Listed(*sleepers), ME)
    os.kill(sleepers[0], 9)
    os.waitid(os.P_PID, sleepers[0], os.WEXITED | os.WNOWAIT)
    assert len(require(members)) == 2
    assert members.pids == tuple(sleepers[1:])
    members.look()  # the group still lists the process, but this is no error
    assert (members.pids, members.left_out) == (tuple(sleepers[1:]), 0)
    members.close()


def test_a_single_process_that_is_gone_is_an_error(sleepers: list[int]) -> None:
    members = Members(OneProcess(sleepers[0]), ME)
    os.kill(sleepers[0], 9)
    os.waitid(os.P_PID, sleepers[0], os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessLookupError):
        require(members)
    members.close()


def test_a_process_that_calls_exec_joins_again() -> None:
    process = subprocess.Popen(
        ["/bin/sh", "-c", "read line; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    members = Members(Listed(process.pid), ME)
    span = next(iter(members)).span
    process.stdin.write("\nhello\n")
    process.stdin.flush()
    assert process.stdout.readline() == "hello\n"
    assert require(members) == []
    members.look()
    assert next(iter(members)).span != span
    assert len(require(members)) == 1
    members.close()
    process.communicate()


def test_a_process_of_another_session_is_left_out_until_that_ends(sleepers: list[int]) -> None:
    other = Members(OneProcess(sleepers[0]), ME)
    members = Members(Listed(*sleepers), ME)
    assert members.pids == tuple(sleepers[1:])
    assert members.left_out == 1
    assert "managed by another session" in members.left_out_reason
    other.close()
    members.look()
    assert sorted(members.pids) == sorted(sleepers)
    assert (members.left_out, members.left_out_reason) == (0, "")
    members.close()


def test_the_daemon_and_processes_under_the_shim_are_left_out(sleepers: list[int]) -> None:
    members = Members(Listed(os.getpid(), *sleepers), ME)
    assert members.left_out_reason == "the daemon does not manage itself"
    members.leave_out(sleepers[0], "runs under the shim")
    assert members.pids == tuple(sleepers[1:])
    assert members.left_out == 2
    members.leave_out(os.getpid(), "is no member")
    assert members.left_out == 2
    members.close()


def test_errors_with_one_process_of_a_group_concern_only_this_process(sleepers: list[int]) -> None:
    def fail(member: module.Member) -> int:
        if member.pid == sleepers[0]:
            raise SentinelError("failed", "it does not work")
        if member.pid == sleepers[1]:
            raise PermissionError(1, "not permitted")
        return member.pid

    members = Members(Listed(*sleepers), ME)
    assert members.each(fail) == [sleepers[2]]
    assert members.left_out == 2
    members.close()
    single = Members(OneProcess(sleepers[0]), ME)
    with pytest.raises(SentinelError):
        single.each(fail)
    single.close()


@pytest.mark.parametrize("error", [ValueError, IndexError])
def test_files_of_a_process_that_cannot_be_read_concern_only_this_process(
    sleepers: list[int], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(member: module.Member) -> int:
        if member.pid == sleepers[0]:
            raise error("bad\rfile")
        return member.pid

    members = Members(Listed(*sleepers), ME)
    assert members.each(fail) == sleepers[1:]
    assert members.left_out == 1
    assert members.left_out_reason == (
        f"the files of process {sleepers[0]} in /proc cannot be read: bad?file"
    )
    members.close()
    single = Members(OneProcess(sleepers[0]), ME)
    with pytest.raises(SentinelError, match="cannot be read"):
        single.each(fail)
    single.close()
    real = module.Member

    def opened(pid: int, *arguments: int) -> module.Member:
        if pid == sleepers[0]:
            raise error("bad file")
        return real(pid, *arguments)

    monkeypatch.setattr(module, "Member", opened)
    members = Members(Listed(*sleepers), ME)
    assert members.pids == tuple(sleepers[1:])
    assert members.left_out == 1
    members.close()
    assert "cannot be read" in refusal(OneProcess(sleepers[0])).message


@pytest.mark.parametrize("name", [*NAMES, *FILES], ids=ascii)
def test_a_process_with_a_hostile_name_is_managed_as_any_other(
    sleepers: list[int], tmp_path: Path, name: str
) -> None:
    with running(tmp_path, name) as process:
        members = Members(Listed(process, *sleepers), ME)
        assert (members.pids, members.left_out_reason) == ((process, *sleepers), "")
        memory = SessionMemory(members)
        memory.refresh()
        memory.units()
        assert memory.use.anonymous_bytes > 0
        assert members.pids == (process, *sleepers)
        members.close()


def test_groups_without_a_process_that_can_be_managed(sleepers: list[int]) -> None:
    assert refusal(Listed()).code == "no-such-process"
    error = refusal(Listed(*sleepers), ME + 1)
    assert error.code == "not-permitted"
    assert "the group cannot be managed" in error.message
    assert "belongs to another user" in error.message
    # If the root of a tree cannot be managed, the whole tree is refused, although the other
    # processes could be managed.
    error = refusal(Listed(os.getpid(), *sleepers, root=os.getpid()))
    assert "the daemon does not manage itself" in error.message
    Members(Listed(*sleepers), ME).close()  # after the refusals, no session has the processes


def test_groups_with_too_many_processes(
    sleepers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in (module, quota_module):
        monkeypatch.setattr(where, "PROCESSES_MAX", 2)
    error = refusal(Listed(*sleepers))
    assert error.code == "wrong-state"
    assert "more than 2 processes" in error.message
    target = Listed(*sleepers[:2])
    members = Members(target, ME)
    target.found = sleepers
    members.look()
    assert members.pids == tuple(sleepers[:2])
    assert members.left_out == 1
    assert "already" in members.left_out_reason
    # When one of the two members leaves, the third process can become a member.
    target.found = sleepers[1:]
    members.look()
    assert members.pids == tuple(sleepers[1:])
    assert members.left_out == 0
    members.close()


def test_a_cgroup_that_grows_beyond_the_limit_keeps_its_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for where in (module, quota_module):
        monkeypatch.setattr(where, "PROCESSES_MAX", 2)
    started: list[subprocess.Popen[bytes]] = []

    def start(folder: Path) -> int:
        started.append(subprocess.Popen(["/bin/sleep", "1000"]))
        join(folder, started[-1].pid)
        return started[-1].pid

    with cgroup() as folder:
        inner = [folder / "one", folder / "other"]
        for one in inner:
            one.mkdir()
        first = [start(one) for one in inner]
        members = Members(CgroupTarget(str(folder)), ME)
        assert sorted(members.pids) == sorted(first)
        # Now each of the two cgroups has more processes than the session may have.
        for one in inner:
            for _ in range(2):
                start(one)
        changes = members.changes
        members.look()
        assert (members.changes, sorted(members.pids)) == (changes, sorted(first))
        assert members.left_out == 4
        # If the list has been cut, an unlisted member stays, too.
        monkeypatch.setattr(target_module, "LISTED_MAX", 3)
        monkeypatch.setattr(module, "LISTED_MAX", 3)
        members.look()
        assert (members.changes, sorted(members.pids)) == (changes, sorted(first))
        for process in started:
            process.kill()
            process.wait()
        members.close()


def test_users_with_too_many_processes(sleepers: list[int]) -> None:
    quota = Quota(2)
    first = Members(OneProcess(sleepers[0]), ME, quota)
    with pytest.raises(SentinelError) as caught:
        Members(Listed(*sleepers[1:]), ME, quota)
    assert caught.value.code == "busy"
    assert f"all sessions of user {ME} may have 2 processes" in caught.value.message
    target = Listed(sleepers[1])
    second = Members(target, ME, quota)
    with pytest.raises(SentinelError) as caught:
        Members(OneProcess(sleepers[2]), ME, quota)
    assert caught.value.code == "busy"
    # A group that grows does not exceed the limit either.
    target.found = sleepers[1:]
    second.look()
    assert (second.pids, second.left_out) == ((sleepers[1],), 1)
    assert second.left_out_reason == "all sessions of its user have 2 processes already"
    first.close()
    second.look()
    assert (second.pids, second.left_out) == (tuple(sleepers[1:]), 0)
    second.close()
