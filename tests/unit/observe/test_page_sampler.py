# SPDX-License-Identifier: Apache-2.0
"""Errors if the module's device is missing or another device is in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.observe.page_sampler import PageSampler


def test_without_a_device_the_error_names_modprobe(tmp_path: Path) -> None:
    with pytest.raises(SentinelError) as caught:
        PageSampler(tmp_path / "sentinel")
    assert caught.value.code == "module-not-loaded"
    assert "modprobe sentinel" in caught.value.hint


def test_another_device_is_a_protocol_mismatch() -> None:
    with pytest.raises(SentinelError) as caught:
        PageSampler(Path("/dev/null"))
    assert caught.value.code == "protocol-mismatch"
