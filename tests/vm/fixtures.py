# SPDX-License-Identifier: Apache-2.0
"""pytest fixtures for tests that need a guest; conftest.py imports them.

The tests of all folders share the system guest, which lives until the pytest session ends.
At most two guests run at a time: before a guest boots, all shared guests except the
system guest are closed. With --guests 1, the system guest is closed, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from .guest import TREE, Guest
from .image import Image, ensure_image
from .recipe import MAIN, RECIPES
from .rootfs import MODULE, build_module

FreshGuest = Callable[..., Guest]


@dataclasses.dataclass(frozen=True)
class GuestKind:
    """Identifies a shared guest. Tests that need the same kind of guest share one guest."""

    suite: str  # Debian suite of the image
    tcg_thread: Literal["multi", "single"]  # see Guest

    @property
    def cpus(self) -> int:
        """Number of CPUs: 1 if one thread emulates all CPUs, otherwise 2. In one thread, a second
        CPU would make programs up to twice as slow. KVM gets the same number as TCG."""
        return 1 if self.tcg_thread == "single" else 2


SYSTEM = GuestKind(MAIN.suite, "single")
"""The guest for tests of the whole system. The module patches the running kernel twice: it hooks
page faults when its first session begins, and removes the hook after its last session has ended.
Only single-threaded TCG emulates this correctly: see `tcg_thread` in Guest."""

_SHARED: pytest.StashKey[dict[GuestKind, Guest]] = pytest.StashKey()


@pytest.fixture(scope="session")
def guest(request: pytest.FixtureRequest) -> Iterator[Guest]:
    """The shared two-tier guest: repository and C parts in TREE, module loaded.

    Each test must restore the guest's state. A problem in the kernel log fails the
    test that caused it.
    """
    yield _shared_guest(request.config, SYSTEM)
    _close_shared(request.config, SYSTEM)


@pytest.fixture(scope="session", params=list(RECIPES))
def suite(request: pytest.FixtureRequest) -> Iterator[str]:
    """A Debian suite that has an image; a test with this fixture runs once per suite."""
    yield request.param
    _close_shared(request.config, GuestKind(request.param, "multi"))


@pytest.fixture(scope="session")
def image(suite: str) -> Image:
    """The suite's image, from the cache or built."""
    return ensure_image(RECIPES[suite])


@pytest.fixture
def kernel_guest(request: pytest.FixtureRequest, suite: str) -> Guest:
    """A shared guest of the suite, with the module loaded. Its CPUs are emulated in parallel."""
    return _shared_guest(request.config, GuestKind(suite, "multi"))


@pytest.fixture(autouse=True)
def _clean_kernel_log(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test if the kernel of its shared guest logged a problem."""
    yield
    used = {SYSTEM} if "guest" in request.fixturenames else set()
    if "kernel_guest" in request.fixturenames:
        used.add(GuestKind(request.node.callspec.params["suite"], "multi"))
    shared = request.config.stash.get(_SHARED, {})
    for kind in used & shared.keys():
        shared[kind].check_kernel_log()


@pytest.fixture
def fresh_guest(request: pytest.FixtureRequest) -> Iterator[FreshGuest]:
    """A function that boots a guest for this test only; takes Guest's arguments.

    The guests are closed at the end of the test. The test fails if one of their kernels
    logged a problem.
    """
    with contextlib.ExitStack() as stack:
        guests: list[Guest] = []

        def boot(*arguments: Any, **options: Any) -> Guest:
            _close_kernel_guests(request.config)
            fresh = stack.enter_context(Guest(*arguments, **options))
            guests.append(fresh)
            return fresh

        yield boot
        for fresh in guests:
            fresh.check_kernel_log()


def _shared_guest(config: pytest.Config, kind: GuestKind) -> Guest:
    """The shared guest of a kind; boots it if it is not running."""
    shared = config.stash.setdefault(_SHARED, {})
    if kind not in shared:
        image = ensure_image(RECIPES[kind.suite])
        # Build before the boot, so that no guest boots if the build fails.
        module = build_module(image=image)
        _close_kernel_guests(config)
        fresh = Guest(image=image, tcg_thread=kind.tcg_thread, cpus=kind.cpus)
        fresh.boot()
        config.add_cleanup(fresh.close)
        fresh.put_tree()
        if kind == SYSTEM:
            fresh.put_artifacts()
        else:
            fresh.put(module, f"{TREE}/{MODULE}")
        fresh.run(f"insmod {TREE}/{MODULE}")
        if kind.tcg_thread == "multi":
            _hold_hook(fresh)
        shared[kind] = fresh
    return shared[kind]


def _hold_hook(guest: Guest) -> None:
    """Keep a session open, so that the module's fault hook stays installed.

    Otherwise each test that opens a session would install the hook and remove it again. Both
    operations patch running code: see `tcg_thread` in Guest.
    """
    hold = f"cd {TREE} && PYTHONPATH={TREE} exec python3 tests/vm/inside/hold.py"
    holder = guest.start(hold)
    assert holder.stdout is not None
    assert (line := holder.stdout.readline()) == "held\n", line


def _close_kernel_guests(config: pytest.Config) -> None:
    """Close the shared guests that must not run at the same time as a new guest."""
    for kind in list(config.stash.get(_SHARED, {})):
        if kind != SYSTEM or config.getoption("guests") == 1:
            _close_shared(config, kind)


def _close_shared(config: pytest.Config, kind: GuestKind) -> None:
    """Close a shared guest if it runs. Raises MachineError if its kernel has logged a problem since
    its last test, for example while a fixture stopped the daemon."""
    if shared := config.stash.get(_SHARED, {}).pop(kind, None):
        try:
            shared.check_kernel_log()
        finally:
            shared.close()
