# SPDX-License-Identifier: Apache-2.0
"""pytest fixtures for tests that need a guest; conftest.py files import them.

A shared guest lives until the pytest session ends, whichever folder's test asks
for it first, so that a run of all tests boots it once. Those of the kernels'
own tests give way to any other second guest: no more than two run at a time.
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
class Kind:
    """What tells one shared guest from another."""

    suite: str
    tcg_thread: Literal["multi", "single"]


SYSTEM = Kind(MAIN.suite, "single")
"""The guest of the whole system. Daemons that come and go there patch the page-fault path
of a kernel that is busy with faults, which needs exact emulation: see Guest's TCG_THREAD."""

_SHARED: pytest.StashKey[dict[Kind, Guest]] = pytest.StashKey()


@pytest.fixture(scope="session")
def guest(request: pytest.FixtureRequest) -> Guest:
    """The session's two-tier guest: tree and C parts in TREE, module loaded.

    Tests share it, so each leaves no process and no loaded balloon behind. A
    kernel problem fails the test in which its log line came.
    """
    return _shared_guest(request.config, SYSTEM)


@pytest.fixture(scope="session", params=list(RECIPES))
def suite(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each suite with an image in turn: what asks for it runs on every kernel."""
    yield request.param
    _close_shared(request.config, Kind(request.param, "multi"))


@pytest.fixture(scope="session")
def image(suite: str) -> Image:
    """The suite's image, built where it is not cached."""
    return ensure_image(RECIPES[suite])


@pytest.fixture
def kernel_guest(request: pytest.FixtureRequest, suite: str) -> Guest:
    """A shared guest of the suite with the module loaded, whose CPUs run at the same time."""
    return _shared_guest(request.config, Kind(suite, "multi"))


@pytest.fixture(autouse=True)
def _clean_kernel_log(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that used a shared guest and made its kernel complain."""
    yield
    used = {SYSTEM} if "guest" in request.fixturenames else set()
    if "kernel_guest" in request.fixturenames:
        used.add(Kind(request.node.callspec.params["suite"], "multi"))
    shared = request.config.stash.get(_SHARED, {})
    for kind in used & shared.keys():
        shared[kind].check_kernel_log()


@pytest.fixture
def fresh_guest(request: pytest.FixtureRequest) -> Iterator[FreshGuest]:
    """A function that boots a guest of one's own: it takes what Guest takes.

    Every guest ends with the test, which fails if its kernel complained.
    """
    with contextlib.ExitStack() as stack:
        guests: list[Guest] = []

        def boot(*arguments: Any, **options: Any) -> Guest:
            _make_room(request.config)
            fresh = stack.enter_context(Guest(*arguments, **options))
            guests.append(fresh)
            return fresh

        yield boot
        for fresh in guests:
            fresh.check_kernel_log()


def _shared_guest(config: pytest.Config, kind: Kind) -> Guest:
    """The shared guest of a kind, booted where it is not up."""
    shared = config.stash.setdefault(_SHARED, {})
    if kind not in shared:
        image = ensure_image(RECIPES[kind.suite])
        # What does not build fails here, not after a boot for each test.
        module = build_module(image=image)
        _make_room(config)
        fresh = Guest(image=image, tcg_thread=kind.tcg_thread)
        fresh.boot()
        config.add_cleanup(fresh.close)
        fresh.put_tree()
        if kind == SYSTEM:
            fresh.put_artifacts()
        else:
            fresh.put(module, f"{TREE}/{MODULE}")
        fresh.run(f"insmod {TREE}/{MODULE}")
        shared[kind] = fresh
    return shared[kind]


def _make_room(config: pytest.Config) -> None:
    """Close the shared guests that may not run beside another."""
    for kind in list(config.stash.get(_SHARED, {})):
        if kind != SYSTEM or config.getoption("guests") == 1:
            _close_shared(config, kind)


def _close_shared(config: pytest.Config, kind: Kind) -> None:
    if shared := config.stash.get(_SHARED, {}).pop(kind, None):
        shared.close()
