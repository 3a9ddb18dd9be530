# SPDX-License-Identifier: Apache-2.0
"""Measurements on this machine's first node: the result names this node, and all rates are
positive."""

from __future__ import annotations

import pytest

from sentineld.migrate.bandwidth import node_rates

MIB = 1 << 20


@pytest.mark.parametrize(("threads", "alone"), [(1, True), (3, False)])
def test_a_node_has_rates(threads: int, alone: bool) -> None:
    found = node_rates(0, MIB, threads, alone)
    assert found.node == 0
    for rate in (found.read_bytes_per_s, found.write_bytes_per_s, found.random_bytes_per_s):
        assert 0 < rate < float("inf")
