# SPDX-License-Identifier: Apache-2.0
"""Imports the guest fixtures, and marks tests by the guest that they need."""

from __future__ import annotations

import pytest

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with the fixture `suite`, `fresh_guest` or `place` as `apart`: they use no guest,
    or a guest other than the system guest (fixtures.SYSTEM). Mark tests in other images than the
    main one as `long`, because building each image takes minutes."""
    for item in items:
        if isinstance(item, pytest.Function) and {"suite", "fresh_guest", "place"} & set(
            item.fixturenames
        ):
            item.add_marker("apart")
        if (
            isinstance(item, pytest.Function)
            and hasattr(item, "callspec")
            and item.callspec.params.get("suite", MAIN.suite) != MAIN.suite
        ):
            item.add_marker("long")
