# SPDX-License-Identifier: Apache-2.0
"""pytest fixtures for tests that need a guest; conftest.py files import them.

A shared guest lives until the pytest session ends, whichever folder's test asks
for it first, so that a run of all tests boots it once. The one of the other
kernel gives way to any other second guest: no more than two run at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .guest import TREE, Guest
from .image import Image, ensure_image
from .recipe import MAIN, RECIPES, Recipe
from .rootfs import MODULE, build_module

FreshGuest = Callable[..., Guest]

_SHARED: pytest.StashKey[dict[str, Guest]] = pytest.StashKey()
"""The guests that tests share, by their images' suite."""


@pytest.fixture(scope="session")
def guest(request: pytest.FixtureRequest) -> Guest:
    """The session's two-tier guest: tree and C parts in TREE, module loaded.

    Tests share it, so each leaves no process and no loaded balloon behind. A
    kernel problem fails the test in which its log line came.
    """
    return _shared_guest(request.config, MAIN)


@pytest.fixture(scope="session", params=list(RECIPES))
def suite(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each suite with an image in turn: what asks for it runs on every kernel."""
    yield request.param
    if request.param != MAIN.suite:
        _close_shared(request.config, request.param)


@pytest.fixture(scope="session")
def image(suite: str) -> Image:
    """The suite's image, built where it is not cached."""
    return ensure_image(RECIPES[suite])


@pytest.fixture
def kernel_guest(request: pytest.FixtureRequest, suite: str) -> Guest:
    """A shared guest of the suite with the module loaded; on the main one the same as `guest`."""
    return _shared_guest(request.config, RECIPES[suite])


@pytest.fixture(autouse=True)
def _clean_kernel_log(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that used a shared guest and made its kernel complain."""
    yield
    used = {MAIN.suite} if "guest" in request.fixturenames else set()
    if "kernel_guest" in request.fixturenames:
        used.add(request.node.callspec.params["suite"])
    shared = request.config.stash.get(_SHARED, {})
    for name in used & shared.keys():
        shared[name].check_kernel_log()


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


def _shared_guest(config: pytest.Config, recipe: Recipe) -> Guest:
    """The shared guest of a recipe, booted where it is not up."""
    shared = config.stash.setdefault(_SHARED, {})
    if recipe.suite not in shared:
        image = ensure_image(recipe)
        # What does not build fails here, not after a boot for each test.
        module = build_module(image=image)
        _make_room(config)
        fresh = Guest(image=image)
        fresh.boot()
        config.add_cleanup(fresh.close)
        fresh.put_tree()
        if recipe is MAIN:
            fresh.put_artifacts()
        else:
            fresh.put(module, f"{TREE}/{MODULE}")
        fresh.run(f"insmod {TREE}/{MODULE}")
        shared[recipe.suite] = fresh
    return shared[recipe.suite]


def _make_room(config: pytest.Config) -> None:
    """Close the shared guests that may not run beside another."""
    for name in list(config.stash.setdefault(_SHARED, {})):
        if name != MAIN.suite or config.getoption("guests") == 1:
            _close_shared(config, name)


def _close_shared(config: pytest.Config, suite: str) -> None:
    if shared := config.stash.get(_SHARED, {}).pop(suite, None):
        shared.close()
