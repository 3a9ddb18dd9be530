# SPDX-License-Identifier: Apache-2.0
"""pytest fixtures for tests of the installed system; conftest.py files import them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .guest import TREE, Guest
from .rootfs import MODULE, SHIM


@pytest.fixture(scope="session")
def installed(guest: Guest) -> Guest:
    """The shared guest after `make install`, with the daemon stopped."""
    guest.run(f"make -C {TREE} install KO={TREE}/{MODULE} SO={TREE}/{SHIM}", timeout=600)
    return guest


@pytest.fixture(scope="session")
def daemon(installed: Guest) -> Iterator[Guest]:
    """The guest with the daemon under systemd; shared, because starting it takes a minute."""
    installed.run("systemctl start sentineld", timeout=180)
    yield installed
    installed.run("systemctl stop sentineld", timeout=180)
