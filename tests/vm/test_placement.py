# SPDX-License-Identifier: Apache-2.0
"""Processes whose cpuset or memory binding excludes a tier are not managed."""

from __future__ import annotations

import pytest

from .guest import TREE, Guest
from .training import refused, states, wait

pytestmark = pytest.mark.guest

IDLE = "python3 -m tests.idle_process /run/sentineld/shim.sock"


@pytest.mark.parametrize(
    ("wrapper", "reason"),
    [
        ("numactl --membind=0", "is bound to memory nodes 0, which exclude the tiers' nodes 1"),
        (
            "systemd-run --quiet --scope -p AllowedMemoryNodes=0",
            "excludes the tiers' memory nodes 1",
        ),
    ],
    ids=["binding", "cpuset"],
)
def test_a_process_that_may_not_use_a_tier_is_refused(
    daemon: Guest, wrapper: str, reason: str
) -> None:
    known = set(states(daemon))
    process = daemon.start(f"cd {TREE}; exec {wrapper} {IDLE}")
    (pid,) = wait("hello", lambda: set(states(daemon)) - known, 240)
    try:
        assert reason in refused(daemon, f"sentinelctl attach {pid} --fast 20%", "not-permitted")
        assert states(daemon)[pid] == "registered"
    finally:
        daemon.run(f"kill {pid}")
        process.wait(timeout=240)


def test_a_binding_to_both_tiers_is_accepted(daemon: Guest) -> None:
    known = set(states(daemon))
    process = daemon.start(f"cd {TREE}; exec numactl --membind=0,1 {IDLE}")
    (pid,) = wait("hello", lambda: set(states(daemon)) - known, 240)
    try:
        daemon.run(f"sentinelctl attach {pid} --fast 20%")
        assert states(daemon)[pid] == "attached"
    finally:
        daemon.run(f"kill {pid}")
        process.wait(timeout=240)
