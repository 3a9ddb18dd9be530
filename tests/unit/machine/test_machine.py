# SPDX-License-Identifier: Apache-2.0
"""The daemon's view of the machine it runs on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.base.errors import SentinelError
from sentineld.config import Config, TierOverrides
from sentineld.machine import machine
from sentineld.machine.choose import substrate_of
from sentineld.machine.machine import Machine
from sentineld.observe.module import MODULE

NO_MODULE = SentinelError("module-not-loaded", "no module here")


@pytest.mark.parametrize(
    ("preset", "setting", "wanted"),
    [
        ("cxl", "auto", True),
        ("cxl", "on", True),
        ("cxl", "off", False),
        ("", "auto", False),
        ("", "on", True),
        ("", "off", False),
    ],
)
def test_huge_pages_are_used_unless_the_module_samples_small_pages(
    preset: str, setting: str, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(huge_pages=setting, tiers=TierOverrides(emulated=preset))
    one = Machine(config, substrate_of(config), None, [])
    monkeypatch.setattr(machine, "offered_sizes", lambda: (64 << 10, 2 << 20))
    monkeypatch.setattr(machine, "MODULE", replace(MODULE, probe=lambda: NO_MODULE))
    assert bool(one.huge_pages()) == wanted
    monkeypatch.setattr(machine, "MODULE", replace(MODULE, probe=lambda: None))
    assert not one.huge_pages()
