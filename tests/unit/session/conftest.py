# SPDX-License-Identifier: Apache-2.0
"""Fixtures that make a ToyDriver: a session's Driver for the toy process (see toydriver.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.plan.toys import PAGE
from tests.unit.toydriver import ToyDriver


@pytest.fixture
def managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToyDriver]:
    made = ToyDriver(tmp_path, monkeypatch)
    assert made.driver.lifecycle.state == "managed"
    yield made
    made.close()


@pytest.fixture
def sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToyDriver]:
    """The driver of a managed process whose session has a share of a shared budget of 64 pages."""
    made = ToyDriver(tmp_path, monkeypatch, shared_fast=str(64 * PAGE))
    assert made.driver.lifecycle.state == "managed"
    yield made
    made.close()
