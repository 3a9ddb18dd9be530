# SPDX-License-Identifier: Apache-2.0
"""The sessions of one user have a limited number of processes."""

from __future__ import annotations

import resource

import pytest

from sentineld.heat.quota import DESCRIPTORS_PER_PROCESS, Quota
from sentineld.heat.target import PROCESSES_MAX


class Listed:
    """A group of `count` processes."""

    name = title = cgroup = ""
    pid = 0
    is_group = True

    def __init__(self, count: int) -> None:
        self.count = count

    def pids(self, most: int = PROCESSES_MAX) -> list[int]:
        return list(range(min(self.count, most + 1)))

    def named_by(self, pid: int) -> bool:
        return False

    def why_ended(self) -> str:
        return ""

    def close(self) -> None:
        pass


def test_sessions_share_the_quota() -> None:
    quota = Quota(10)
    one, other = Listed(6), Listed(20)
    assert quota.pids("one", one) == (list(range(6)), 10)
    assert quota.pids("other", other) == (list(range(5)), 4)  # one PID more than the 4 allowed
    one.count = 20
    assert quota.pids("one", one) == (list(range(7)), 6)
    quota.release("one")
    quota.release("one")
    assert quota.pids("other", other) == (list(range(11)), 10)


def test_processes_that_have_ended_make_room() -> None:
    quota = Quota(10)
    one, other = Listed(10), Listed(3)
    quota.pids("one", one)
    assert quota.pids("other", other) == ([0], 0)
    one.count = 7
    quota.pids("one", one)
    assert quota.pids("other", other) == ([0, 1, 2], 3)


def test_a_user_takes_only_a_part_of_the_daemons_descriptors() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    quota = Quota.of_user(1000)
    assert 0 < DESCRIPTORS_PER_PROCESS * quota.processes_max <= soft / 3
    # Root may have any number of sessions, but each has a limited size.
    for session in range(1000):
        assert Quota.of_user(0).pids(session, Listed(600))[1] == PROCESSES_MAX


def test_the_limit_follows_the_descriptor_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1200, 4096))
    assert Quota.of_user(1000).processes_max == 100
