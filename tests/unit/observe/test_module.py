# SPDX-License-Identifier: Apache-2.0
"""The ranges that the module watches if a session's arena gets another address or size. These tests
use a fake in place of the module; tests/vm/test_backends.py uses the real one."""

from __future__ import annotations

import errno
import os

import pytest

from sentineld.base.errors import SentinelError
from sentineld.observe import module
from sentineld.observe.backend import Ranges, Target
from sentineld.observe.module import ModuleWatch

PAGE = 4096
HEAP = (1 << 40, 8 * PAGE)
ARENA = 1 << 41
AREAS_MAX = 64  # SENTINEL_AREAS_MAX


class Areas:
    """A fake PageSampler that enforces the module's rules for ranges."""

    def __init__(self) -> None:
        self.added: dict[int, int] = {}
        self.calls: list[tuple[str, int, int]] = []

    def attach(self, *_: object, **__: object) -> None:
        """Accept any process."""

    def add_range(self, start: int, size: int) -> None:
        for other, bytes_ in self.added.items():
            if start < other + bytes_ and other < start + size:
                raise OSError(errno.EEXIST, "the ranges overlap")
        if len(self.added) == AREAS_MAX:
            raise OSError(errno.ENOSPC, "too many ranges")
        self.added[start] = size
        self.calls.append(("add", start, size))

    def remove_range(self, start: int, size: int) -> None:
        if self.added.get(start) != size:
            raise OSError(errno.ENOENT, "no such range")
        del self.added[start]
        self.calls.append(("remove", start, size))

    def arm(self, start: int, size: int) -> None:
        if not any(a <= start and start + size <= a + n for a, n in self.added.items()):
            raise OSError(errno.ENOENT, "not in a range")


@pytest.fixture
def areas(monkeypatch: pytest.MonkeyPatch) -> Areas:
    made = Areas()
    monkeypatch.setattr(module, "PageSampler", lambda: made)
    return made


def watch() -> ModuleWatch:
    return ModuleWatch(Target(os.getpid(), 1024))


def test_a_process_with_a_pager_is_refused(areas: Areas) -> None:
    with pytest.raises(SentinelError, match="pager"):
        ModuleWatch(Target(os.getpid(), paged=True))


def test_the_range_of_an_earlier_arena_is_removed(areas: Areas) -> None:
    watched = watch()
    for number in range(2 * AREAS_MAX):
        arena = (ARENA + number * 100 * PAGE, 10 * PAGE)
        watched.arm([HEAP, arena])
        assert areas.added == dict([HEAP, arena])
    assert areas.calls.count(("add", *HEAP)) == 1


@pytest.mark.parametrize(
    "arena",
    [
        (ARENA - 5 * PAGE, 10 * PAGE),
        (ARENA + 5 * PAGE, 10 * PAGE),
        (ARENA, 11 * PAGE),
        (ARENA, 9 * PAGE),
    ],
)
def test_an_arena_may_overlap_the_earlier_one(areas: Areas, arena: tuple[int, int]) -> None:
    watched = watch()
    watched.arm([HEAP, (ARENA, 10 * PAGE)])
    watched.arm([HEAP, arena])
    assert areas.added == dict([HEAP, arena])


def test_a_range_that_cannot_be_removed_is_still_watched(
    areas: Areas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the module cannot remove a range, arm() fails. The next call of arm() tries to remove the
    range again."""
    watched, ranges = watch(), [(ARENA, PAGE)]
    watched.arm(ranges)

    def interrupted(*_: object) -> None:
        raise OSError(errno.EINTR, "interrupted")

    others: Ranges = [(ARENA + PAGE, PAGE)]
    with monkeypatch.context() as patch:
        patch.setattr(areas, "remove_range", interrupted)
        with pytest.raises(OSError, match="interrupted"):
            watched.arm(others)
    watched.arm(others)
    assert areas.added == dict(others)
