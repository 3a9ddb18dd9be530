# SPDX-License-Identifier: Apache-2.0
"""Scans of a real process whose accessed bits, or the lack of them, are chosen by the test.

tests/integration/test_temperature.py reads real accessed bits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.heat import looking, scanning
from sentineld.heat.keeping import Keeping
from sentineld.heat.looking import Looking
from sentineld.heat.members import Members
from sentineld.heat.memory import SessionMemory
from sentineld.heat.paging_out import PagingOut
from sentineld.heat.scanning import WARM_UP_SCANS, Scanning
from sentineld.heat.target import OneProcess
from sentineld.model.arrays import Mask
from sentineld.policies.temperature.heat import Heat
from tests.unit.block_process import block_process

ALL = 10**9  # pages
BUSY = SentinelError("busy", "DAMON is watching another session")
FAILED = SentinelError("failed", "DAMON cannot watch page frames: Device or resource busy")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="frame numbers need CAP_SYS_ADMIN")


class Scans:
    """Scans of a process. In each of them, all sampled pages are accessed, unless `problem` is
    set."""

    def __init__(self, pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.problem: SentinelError | None = None
        monkeypatch.setattr(looking, "accessed_frames", self._accessed)
        monkeypatch.setattr(scanning, "INTERVAL_S_MIN", 0.0)
        monkeypatch.setattr(scanning, "BUSY_S_MAX", 0.0)
        members = Members(OneProcess(pid), os.getuid())
        memory = SessionMemory(members)
        heat = Heat(np.random.default_rng(1))
        keeping = Keeping(memory, heat, PagingOut(members, 1e9), lambda: False)
        self.heat = heat
        self.tested = Scanning(memory, keeping, heat, Looking("look-test"), cpu_share=1.0)

    def _accessed(self, frames: Any, *others: Any, **named: Any) -> Mask:
        if self.problem is not None:
            raise self.problem
        return np.ones(len(frames()), np.bool_)

    def run(self, count: int, problem: SentinelError | None = None) -> None:
        """Carry out this number of scans."""
        self.problem = problem
        for _ in range(count):
            while not self.tested.turn(ALL):
                time.sleep(0.001)

    def rates(self) -> list[float]:
        """Faults per second that each page would cause if it were not in memory."""
        return self.heat.fault_rates(1.0, 1.0, seen=True)[0].tolist()


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scans]:
    with block_process() as process:
        yield Scans(process.pid, monkeypatch)


def test_a_scan_that_gets_no_window_changes_nothing(scans: Scans) -> None:
    scans.run(70)
    assert scans.tested.observed_by == "damon"
    rates, curve = scans.rates(), scans.tested.curve()
    assert curve.at(np.zeros(1))[0] > 1
    scans.run(1, BUSY)
    assert scans.rates() == rates
    assert scans.tested.curve() == curve
    assert scans.tested.observed_by == "damon"


def test_a_session_does_not_become_warm_without_a_window(scans: Scans) -> None:
    scans.run(1, BUSY)
    assert not scans.tested.warm
    scans.run(WARM_UP_SCANS - 1)
    assert not scans.tested.warm
    scans.run(1)
    assert scans.tested.warm


def test_a_session_whose_scans_never_get_a_window_becomes_warm(scans: Scans) -> None:
    scans.run(scanning.BUSY_SCANS_MAX - 1, BUSY)
    assert not scans.tested.warm
    scans.run(1, BUSY)
    assert scans.tested.warm


def test_few_failures_are_temporary_if_accessed_bits_were_read_before(scans: Scans) -> None:
    scans.run(5)
    for _ in range(2):
        scans.run(scanning.FAILURES_MAX, FAILED)
        assert scans.tested.observed_by == "damon"
        scans.run(1)
    scans.run(scanning.FAILURES_MAX + 1, FAILED)
    assert scans.tested.observed_by == "swap-ins"


def test_without_damon_only_swap_ins_are_observed(scans: Scans) -> None:
    scans.run(1, FAILED)
    assert scans.tested.observed_by == "swap-ins"
    assert scans.tested.warm
