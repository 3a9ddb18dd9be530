# SPDX-License-Identifier: Apache-2.0
"""A control server for the tests of both sides."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.control.server import ControlServer
from tests.unit.control.controlled import VERBS


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "control.sock"
    loop = asyncio.new_event_loop()
    control = ControlServer(VERBS)
    listening = loop.run_until_complete(asyncio.start_unix_server(control.serve, str(path)))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield path
    loop.call_soon_threadsafe(listening.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
