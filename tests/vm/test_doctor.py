# SPDX-License-Identifier: Apache-2.0
"""sentinelctl doctor in the guest, where all it looks for is real."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sentineld.errors import EXIT_STATUS

from .guest import TREE, Guest

pytestmark = pytest.mark.guest

SENTINELCTL = (
    f"cd {TREE} && PYTHONPATH={TREE} python3 -c 'from sentineld.cli.main import main; main()'"
    " --socket /run/none.sock doctor"
)


def doctor(guest: Guest) -> tuple[int, dict[str, dict[str, Any]]]:
    result = guest.run(f"{SENTINELCTL} --json", check=False)
    checks = json.loads(result.stdout)["checks"]
    return result.returncode, {check["check"]: check for check in checks}


def test_all_but_the_daemon_is_well(guest: Guest) -> None:
    status, checks = doctor(guest)
    failing = [name for name, check in checks.items() if check["status"] == "fail"]
    assert failing == ["daemon"]
    assert status == EXIT_STATUS["daemon-unreachable"]
    assert checks["tiers"]["cause"].endswith("from sysfs:memory_tiering")
    assert checks["module"]["cause"] == "sentinel is loaded"
    assert checks["device"]["status"] == checks["headers"]["status"] == "ok"
    assert checks["bcc"]["status"] == "ok"


def test_the_kernels_own_tiering_is_warned_of(guest: Guest) -> None:
    before = guest.run("sysctl -n kernel.numa_balancing").stdout.strip()
    guest.run("sysctl -q kernel.numa_balancing=2")
    try:
        _, checks = doctor(guest)
    finally:
        guest.run(f"sysctl -q kernel.numa_balancing={before}")
    assert checks["numa_balancing"]["status"] == "warn"
    assert checks["numa_balancing"]["fix"] == "sysctl kernel.numa_balancing=0"
