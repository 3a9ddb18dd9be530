# SPDX-License-Identifier: Apache-2.0
"""On the kernel's nodes, the shim gets no access table, no limit on fast pages and no files."""

from __future__ import annotations

from typing import Any, cast

from sentineld.config import TierOverrides
from sentineld.machine.nodes import KernelSubstrate
from sentineld.machine.substrate import NO_PROVISION
from tests.unit.plan.toys import toy_plan, toy_profile, two_tiers


def test_the_kernel_limits_and_delays_by_itself() -> None:
    nodes, plan = KernelSubstrate(TierOverrides()), toy_plan()
    assert nodes.accesses(plan.layout, toy_profile(), two_tiers()) is None
    assert nodes.fast_pages(plan, 1 << 20, 4096) is None
    assert nodes.reserve_bytes(1 << 30) == 0
    with nodes.provision(cast(Any, None), plan.layout) as provision:
        assert provision == NO_PROVISION
