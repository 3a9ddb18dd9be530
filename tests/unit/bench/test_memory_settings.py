# SPDX-License-Identifier: Apache-2.0
"""What a benchmark changes of the machine's memory management is put back."""

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
def reporting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "page_reporting_order"
    monkeypatch.setattr(memory_settings, "REPORTING", file)
    return file


def test_free_pages_are_kept_meanwhile(reporting: Path) -> None:
    reporting.write_text("9\n")
    with free_pages_kept() as order:
        assert order == 10
    assert reporting.read_text() == "9"
    with pytest.raises(ZeroDivisionError), free_pages_kept():
        raise ZeroDivisionError
    assert reporting.read_text() == "9"


def test_where_nothing_is_reported_nothing_is_changed(reporting: Path) -> None:
    with free_pages_kept() as order:
        assert order is None
    assert not reporting.exists()


def test_without_leave_things_stay_as_they_are(
    reporting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporting.write_text("9\n")

    def refuse(self: Path, *arguments: object, **options: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    with free_pages_kept() as order:
        assert order == 9


def test_a_size_is_offered_only_where_it_was_not(size: Path) -> None:
    size.write_text("always inherit madvise [never]\n")
    with huge_sizes():
        assert size.read_text() == "madvise"
    assert size.read_text() == "never"
    size.write_text("always inherit [madvise] never\n")
    with huge_sizes():
        pass
    assert size.read_text() == "always inherit [madvise] never\n"
