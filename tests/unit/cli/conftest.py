# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a control server, and the signal handlers' restoration after each test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from sentineld.cli.run import SIGNALS
from tests.unit.control.conftest import server

__all__ = ["server"]


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Restore the signal handlers that run() replaces."""
    numbers = (*SIGNALS, signal.SIGINT, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
