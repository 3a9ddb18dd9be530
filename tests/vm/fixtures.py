# SPDX-License-Identifier: Apache-2.0
"""pytest fixtures for tests that need a guest; conftest.py files import them.

The shared guest lives as long as the pytest session, whichever folder's test
asks for it first, so that a run of all tests boots it once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .guest import TREE, Guest
from .rootfs import MODULE

FreshGuest = Callable[..., Guest]

_SHARED: pytest.StashKey[Guest] = pytest.StashKey()


@pytest.fixture(scope="session")
def guest(request: pytest.FixtureRequest) -> Guest:
    """The session's two-tier guest: tree and C parts in TREE, module loaded.

    Tests share it, so each leaves no process and no loaded balloon behind. A
    kernel problem fails the test in which its log line came.
    """
    stash = request.config.stash
    if _SHARED not in stash:
        shared = Guest()
        shared.boot()
        request.config.add_cleanup(shared.close)
        shared.put_tree()
        shared.put_artifacts()
        shared.run(f"insmod {TREE}/{MODULE}")
        stash[_SHARED] = shared
    return stash[_SHARED]


@pytest.fixture(autouse=True)
def _clean_kernel_log(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that used the shared guest and made its kernel complain."""
    yield
    if _SHARED in request.config.stash and "guest" in request.fixturenames:
        request.config.stash[_SHARED].check_kernel_log()


@pytest.fixture
def fresh_guest() -> Iterator[FreshGuest]:
    """A function that boots a guest of one's own: it takes what Guest takes.

    Every guest ends with the test, which fails if its kernel complained.
    """
    with contextlib.ExitStack() as stack:
        guests: list[Guest] = []

        def boot(*arguments: Any, **options: Any) -> Guest:
            fresh = stack.enter_context(Guest(*arguments, **options))
            guests.append(fresh)
            return fresh

        yield boot
        for fresh in guests:
            fresh.check_kernel_log()
