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
from sentineld.heat.members import RETRY_S_MAX, Members
from sentineld.heat.memory import SessionMemory
from sentineld.heat.quota import Quota
from sentineld.heat.spans import SPAN_PAGES, SPANS
from sentineld.heat.target import CgroupTarget, OneProcess
from tests.cgroups import cgroup, join
from tests.unit.hostile_names import FILES, NAMES, running

ME = os.getuid()


PACE = {
    name: getattr(module, name, None)
    for name in ("LOOK_S", "LOOK_SHARE", "LOOK_SHARE_MAX", "RETRY_S", "RETRY_SHARE")
}


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
    for name in PACE:
        monkeypatch.setattr(module, name, 1e9 if "SHARE" in name else 0.0, raising=False)


class Clock:
    """Replaces the module `time`. Listing the processes takes `listing_s` of CPU time, and opening
    one of them takes `opening_s`."""

    def __init__(self, *found: int) -> None:
        self.now_s = self.cpu_s = self.listing_s = self.opening_s = 0.0
        self.lists = 0
        self.target = Listed(*found)
        self.listed, self.target.pids = self.target.pids, self.pids  # type: ignore[method-assign]

    def monotonic(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return self.cpu_s

    def pids(self, most: int = 0) -> list[int]:
        self.cpu_s += self.listing_s
        self.lists += 1
        return self.listed(most)

    def look(self, members: Members, later_s: float) -> int:
        """Call members.look() after some time; returns whether it has listed the processes."""
        before = self.lists
        self.now_s += later_s
        members.look()
        return self.lists - before


@pytest.fixture
def clock(sleepers: list[int], monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock for a group of two processes, with the intervals of look() as they are."""
    made, real = Clock(*sleepers[:2]), module.Member

    def opened(pid: int, *arguments: int) -> module.Member:
        made.cpu_s += made.opening_s
        return real(pid, *arguments)

    for name, value in PACE.items():
        monkeypatch.setattr(module, name, value, raising=False)
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(module, "Member", opened)
    return made


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


def test_spans_are_used_again_after_all_others(
    sleepers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPANS", 4, raising=False)
    target = Listed(*sleepers[:2], os.getpid())  # the daemon itself takes no span
    members = Members(target, ME)
    assert [member.span for member in members] == [0, 1]
    found = []
    for _ in range(5):
        target.found = [sleepers[0]]
        members.look()
        target.found = sleepers[:2]
        members.look()
        found.append([member.span for member in members])
    assert found == [[0, 2], [0, 3], [0, 1], [0, 2], [0, 3]]
    members.close()


def test_spans_fit_into_64_bits_and_failed_attempts_take_none(
    sleepers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Listed(sleepers[0], os.getpid())
    members = Members(target, ME)
    for _ in range(10):
        members.look()  # tries to open the daemon itself
    target.found = sleepers
    members.look()
    assert [member.span for member in members] == [0, 1, 2]
    members.close()
    assert SPANS * SPAN_PAGES <= 1 << 62


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


def test_opening_members_does_not_delay_the_next_list(sleepers: list[int], clock: Clock) -> None:
    clock.listing_s, clock.opening_s = 0.001, 30
    members = Members(clock.target, ME)
    clock.look(members, 1.5)
    clock.target.found = sleepers
    assert clock.look(members, 1.5)
    assert members.pids == tuple(sleepers)
    assert clock.look(members, 1.5)
    members.close()


def test_listing_takes_a_limited_share_of_the_time(clock: Clock) -> None:
    clock.listing_s = 0.02
    members = Members(clock.target, ME)
    clock.look(members, 1000)
    assert not clock.look(members, 3.9)
    clock.listing_s = 0.2
    assert clock.look(members, 0.2)
    assert not clock.look(members, 9.9)
    clock.listing_s = 2
    assert clock.look(members, 0.2)
    assert not clock.look(members, 39)
    assert clock.look(members, 2)
    members.close()


@pytest.mark.parametrize(("opening_s", "most"), [(0, 11), (0.001, 6), (1, 2)])
def test_members_that_leave_all_the_time(clock: Clock, opening_s: float, most: int) -> None:
    """A member that has left joins again at the next list, which comes earlier."""
    clock.listing_s, clock.opening_s = 0.001, opening_s
    members = Members(clock.target, ME)
    clock.look(members, 1000)
    lists = 0
    for _ in range(40):
        for member in list(members)[:1]:
            members.lose(member)
        lists += clock.look(members, 0.05)
    assert 1 <= lists <= most
    members.close()


def test_attempts_to_open_a_process_again_take_a_limited_share_of_the_time(
    sleepers: list[int], clock: Clock
) -> None:
    clock.listing_s, clock.opening_s = 0.001, 1
    clock.target.found = [*sleepers[:2], os.getpid()]
    members = Members(clock.target, ME)
    attempts = []
    for look in range(100):
        before_s = clock.cpu_s
        clock.look(members, 1.5)
        attempts += [look] if clock.cpu_s - before_s > 0.5 else []
    assert members.left_out == 1
    assert len(attempts) == 2
    assert attempts[1] - attempts[0] == pytest.approx(RETRY_S_MAX / 1.5, abs=1)
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
