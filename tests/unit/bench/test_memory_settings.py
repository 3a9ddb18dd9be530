# SPDX-License-Identifier: Apache-2.0
"""Benchmarks restore the memory management settings that they change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import memory_settings
from tests.bench.memory_settings import free_pages_kept, huge_sizes


@pytest.fixture
def size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "enabled"
    monkeypatch.setattr(memory_settings, "SIZE", file)
    return file


@pytest.fixture
def fraction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in place of the sysctl percpu_pagelist_high_fraction, on a made-up machine that
    reports free pages to a hypervisor."""
    file = tmp_path / "percpu_pagelist_high_fraction"
    monkeypatch.setattr(memory_settings, "FRACTION", file)
    monkeypatch.setattr(memory_settings, "reports_free_memory", lambda root: True)
    return file


def test_free_pages_are_kept_inside_the_context_only(fraction: Path) -> None:
    fraction.write_text("0\n")
    with free_pages_kept() as meanwhile:
        assert meanwhile == 8
        assert fraction.read_text() == "8"
    assert fraction.read_text() == "0"
    with pytest.raises(ZeroDivisionError), free_pages_kept():
        raise ZeroDivisionError
    assert fraction.read_text() == "0"


def test_without_free_page_reporting_nothing_changes(
    fraction: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_settings, "reports_free_memory", lambda root: False)
    fraction.write_text("0\n")
    with free_pages_kept() as meanwhile:
        assert meanwhile == 0
        assert fraction.read_text() == "0\n"
    assert fraction.read_text() == "0\n"


def test_a_value_set_by_the_administrator_is_kept(fraction: Path) -> None:
    fraction.write_text("100\n")
    with free_pages_kept() as meanwhile:
        assert meanwhile == 100
    assert fraction.read_text() == "100\n"


def test_a_kernel_without_the_setting_gives_none(fraction: Path) -> None:
    with free_pages_kept() as meanwhile:
        assert meanwhile is None
    assert not fraction.exists()


def test_without_permission_nothing_changes(
    fraction: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fraction.write_text("0\n")

    def refuse(self: Path, *arguments: object, **options: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    with free_pages_kept() as meanwhile:
        assert meanwhile == 0


def test_a_huge_page_size_is_enabled_only_if_it_was_not(size: Path) -> None:
    size.write_text("always inherit madvise [never]\n")
    with huge_sizes():
        assert size.read_text() == "madvise"
    assert size.read_text() == "never"
    size.write_text("always inherit [madvise] never\n")
    with huge_sizes():
        pass
    assert size.read_text() == "always inherit [madvise] never\n"
