# SPDX-License-Identifier: Apache-2.0
"""The times of the daemon's tiers in the demo are those of the modelled clock, multiplied by the
dilation; see tests/demo/clocked_tiers.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.config import load
from sentineld.host.presets import configured_tiers, preset_tiers
from sentineld.model.timing import timing_of
from tests.demo.clocked_tiers import config_text
from tests.demo.prices import PRESET, THREADS

MODELLED = replace(preset_tiers(PRESET, THREADS), migration_bytes_per_s=300e6)


def test_moves_and_accesses_take_longer_by_the_dilation(tmp_path: Path) -> None:
    file = tmp_path / "tiers.toml"
    file.write_text(config_text(MODELLED, 20.0))
    clock, guest = timing_of(MODELLED), timing_of(configured_tiers(load(file).tiers))
    for name in ("read_ns_per_byte", "write_ns_per_byte", "promote_ns_per_byte"):
        assert getattr(guest, name) == pytest.approx(20 * getattr(clock, name))
