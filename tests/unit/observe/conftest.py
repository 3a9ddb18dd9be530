# SPDX-License-Identifier: Apache-2.0
"""Processes to observe."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.observe.trees import Tree


@pytest.fixture
def tree() -> Iterator[Tree]:
    started = Tree()
    yield started
    started.end()
