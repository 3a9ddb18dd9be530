# SPDX-License-Identifier: Apache-2.0
"""Memory and swap as tiers."""

from __future__ import annotations

import pytest

from sentineld.base.errors import SentinelError
from sentineld.config import TierOverrides
from sentineld.host.swap import Swap
from sentineld.machine import swapped
from sentineld.machine.swapped import PAGE_OUT_BYTES_PER_S, SwapSubstrate
from sentineld.model.tiers import Tiers
from tests.unit.links import Linked

GIB = 1 << 30


def test_swap_is_the_slow_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swapped, "read_swap", lambda: Swap(8 * GIB, GIB))
    tiers = SwapSubstrate(TierOverrides(swap=True)).tiers()
    assert tiers.source == "swap"
    assert tiers.tiers[1].capacity_bytes == 8 * GIB
    assert tiers.migration_bytes_per_s == PAGE_OUT_BYTES_PER_S
    limited = SwapSubstrate(TierOverrides(swap=True, migration_bytes_per_s=1e6))
    assert limited.tiers().migration_bytes_per_s == 1e6


def test_a_machine_without_swap_has_one_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swapped, "read_swap", lambda: Swap(0, 0))
    with pytest.raises(SentinelError) as caught:
        SwapSubstrate(TierOverrides(swap=True)).tiers()
    assert caught.value.code == "no-second-tier"


def test_nodes_cannot_be_named() -> None:
    with pytest.raises(SentinelError) as caught:
        SwapSubstrate(TierOverrides(swap=True, slow=(1,)))
    assert caught.value.code == "bad-config"


def test_a_process_under_the_shim_is_refused() -> None:
    linked = Linked()
    substrate = SwapSubstrate(TierOverrides(swap=True))
    with pytest.raises(SentinelError, match="runs under the shim"):
        substrate.require_allowed(linked.link, Tiers((), 1.0, "swap"))
    linked.link.close()
