# SPDX-License-Identifier: Apache-2.0
"""Imports the guest fixtures, and marks tests by the guest that they need."""

from __future__ import annotations

from pathlib import Path

import pytest

from .debian_packages import packages
from .fixtures import _clean_kernel_log, fresh_guest, guest, image, kernel_guest, suite
from .installed import daemon, installed
from .recipe import MAIN

__all__ = [
    "_clean_kernel_log",
    "daemon",
    "fresh_guest",
    "guest",
    "image",
    "installed",
    "kernel_guest",
    "packages",
    "suite",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--guests",
        type=int,
        choices=(1, 2),
        default=2,
        help="the number of guests that may run at a time",
    )


HERE = Path(__file__).parent
ON_DEBIAN = "test_steady_training_is_planned_in_every_step[autocast]"
"""The only test of this folder with the fixture `place` that `make test` runs; see
test_compat_on_debian.py."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the guest that they need, and tests that take a long time.

    `second`: tests with the fixture `patched_guest` (kmod/test_kmod.py) in the main image. They run
        in the second of the two system guests (fixtures.SYSTEM) that `make guest` boots.
    `apart`: other tests with the fixture `suite`, `fresh_guest` or `place`. They use no guest, or
        a guest other than a system guest.
    `long`: tests in images other than the main one, because building each image takes minutes;
        and tests with `place`, except ON_DEBIAN, because `make test` runs the same tests with
        PyPI's torch.
    """
    for item in items:
        # `items` has the tests of all folders that pytest runs, not only those of this folder.
        if not isinstance(item, pytest.Function) or HERE not in item.path.parents:
            continue
        fixtures, params = set(item.fixturenames), dict[str, object]()
        if hasattr(item, "callspec"):
            params = item.callspec.params
        other_image = params.get("suite", MAIN.suite) != MAIN.suite
        if "patched_guest" in fixtures and not other_image:
            item.add_marker("second")
        elif {"suite", "fresh_guest", "place"} & fixtures:
            item.add_marker("apart")
        if other_image or ("place" in fixtures and item.name != ON_DEBIAN):
            item.add_marker("long")
