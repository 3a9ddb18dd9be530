# SPDX-License-Identifier: Apache-2.0
"""Memory nodes that a process may use."""

from __future__ import annotations

import os

import pytest

from sentineld.base.errors import SentinelError
from sentineld.host.allowed_nodes import bound_nodes, cpuset_nodes, require_allowed
from tests.unit.plan.toys import two_tiers

BOTH = frozenset({0, 1})


def test_a_cpuset_must_hold_the_tiers_nodes() -> None:
    require_allowed(7, two_tiers(), BOTH, None)
    with pytest.raises(SentinelError) as refused:
        require_allowed(7, two_tiers(), frozenset({0}), None)
    assert refused.value.code == "not-permitted"
    assert str(refused.value) == (
        "the cpuset of process 7 excludes the tiers' memory nodes 1 (add them to cpuset.mems of its"
        " cgroup, or name other nodes in the config's [tiers])"
    )


def test_a_binding_must_hold_the_tiers_nodes() -> None:
    require_allowed(7, two_tiers(), BOTH, frozenset({0, 1, 2}))
    with pytest.raises(SentinelError) as refused:
        require_allowed(7, two_tiers(), BOTH, frozenset({0}))
    assert str(refused.value) == (
        "process 7 is bound to memory nodes 0, which exclude the tiers' nodes 1 (start it without a"
        " binding, or with numactl --membind=0,1)"
    )


@pytest.mark.parametrize("reported", [None, [], "0", {"0": 1}, 3])
def test_a_report_of_another_kind_is_no_binding(reported: object) -> None:
    assert bound_nodes(reported) is None


def test_a_report_of_nodes_is_a_binding() -> None:
    assert bound_nodes([2, 0, "1", None]) == {0, 2}


def test_every_process_has_a_cpuset() -> None:
    assert 0 in cpuset_nodes(os.getpid())
