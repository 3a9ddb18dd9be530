# SPDX-License-Identifier: Apache-2.0
"""A control server for the tests of server and client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.control.controlled import VERBS, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Path]:
    with serving(tmp_path / "control.sock", VERBS) as path:
        yield path
