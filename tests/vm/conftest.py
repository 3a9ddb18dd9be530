# SPDX-License-Identifier: Apache-2.0
"""The guest fixtures, for the tests of the machine itself."""

from __future__ import annotations

import pytest

from .fixtures import _clean_kernel_log, fresh_guest, guest, image, kernel_guest, suite
from .installed import daemon, installed
from .prometheus import prometheus
from .recipe import MAIN

__all__ = [
    "_clean_kernel_log",
    "daemon",
    "fresh_guest",
    "guest",
    "image",
    "installed",
    "kernel_guest",
    "prometheus",
    "suite",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--guests", type=int, choices=(1, 2), default=2, help="how many guests may run at a time"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what boots another guest than the shared one of the main suite, or needs none."""
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        other = parameters.get("suite", MAIN.suite) != MAIN.suite
        if other or {"fresh_guest", "place"} & set(item.fixturenames):
            item.add_marker("apart")
