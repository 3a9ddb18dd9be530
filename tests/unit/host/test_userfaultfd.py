# SPDX-License-Identifier: Apache-2.0
"""The check that a process can move pages by userfaultfd, and the errors of this check."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.host import userfaultfd
from sentineld.host.userfaultfd import DEVICE, require_move
from tests.unit.shim.paged import pager_problem


def test_a_kernel_without_the_device(tmp_path: Path) -> None:
    with pytest.raises(SentinelError, match="has no") as caught:
        require_move(tmp_path / "userfaultfd")
    assert caught.value.code == "no-second-tier"
    assert "6.8" in caught.value.hint


def test_a_missing_permission_is_reported_with_the_udev_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(userfaultfd.os, "open", refuse)
    with pytest.raises(SentinelError, match="Permission denied") as caught:
        require_move(tmp_path)
    assert caught.value.code == "not-permitted"
    assert 'GROUP="sentineld"' in caught.value.hint


def test_a_device_that_gives_no_descriptor_is_reported(tmp_path: Path) -> None:
    (tmp_path / "userfaultfd").touch()  # a regular file does not support the device's ioctl
    with pytest.raises(SentinelError, match="gives no userfaultfd: Inappropriate ioctl") as caught:
        require_move(tmp_path / "userfaultfd")
    assert caught.value.code == "no-second-tier"


@pytest.mark.skipif(pager_problem() is not None, reason=pager_problem() or "")
def test_this_kernel_can_move_pages() -> None:
    require_move(DEVICE)


@pytest.mark.skipif(pager_problem() is not None, reason=pager_problem() or "")
def test_a_kernel_that_cannot_move_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test asks for a feature that no kernel has."""
    monkeypatch.setattr(userfaultfd, "_FEATURE_MOVE", 1 << 62)
    with pytest.raises(SentinelError, match="cannot move pages") as caught:
        require_move()
    assert caught.value.code == "no-second-tier"
