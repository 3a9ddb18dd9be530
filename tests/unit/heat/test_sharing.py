# SPDX-License-Identifier: Apache-2.0
"""The budget of a session of policy `temperature` that shares the shared budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.base.errors import SentinelError
from sentineld.config import Config
from sentineld.heat import sharing
from sentineld.heat.sharing import ROOM_SHARE, STUCK_S, HeatSharing
from sentineld.machine.machine import Machine
from sentineld.machine.shared import SharedBudget
from sentineld.plan.division import Curve, Terms
from tests.unit.plan.toys import two_tiers
from tests.unit.toyprocess import ToyPages, ToySubstrate

MIB = 1 << 20
SHARED = 64 * MIB
STEEP = Curve((0, SHARED), (1.25, 1.0))
FLAT = Curve((0, SHARED), (1.01, 1.0))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with a shared budget, without the limit on the CPU time for dividing it."""
    monkeypatch.setattr(sharing, "DIVIDE_SHARE", float("inf"))
    config = replace(Config(), shared_fast=str(SHARED))
    return Machine(config, ToySubstrate(ToyPages()), two_tiers(1e12), [])


def joined(machine: Machine, name: str, size: int = SHARED) -> HeatSharing:
    made = HeatSharing(name, machine)
    made.join(Terms(), size)
    return made


def shared(machine: Machine) -> SharedBudget:
    return machine.require_shared()


def test_without_a_shared_budget_a_share_is_refused() -> None:
    machine = Machine(Config(), ToySubstrate(ToyPages()), two_tiers(1e12), [])
    with pytest.raises(SentinelError, match="has no shared budget"):
        HeatSharing("one", machine).join(Terms(), MIB)


def test_memory_is_released_when_the_processes_have_left_it(machine: Machine) -> None:
    one = joined(machine, "one")
    assert one.take(SHARED) == SHARED
    two = joined(machine, "two")
    assert two.take(SHARED) == 0
    assert two.waits
    # The first session's budget shrinks at once, but its processes still use 60 MiB.
    assert one.take(60 * MIB) == SHARED // 2
    assert shared(machine).budgets.held_bytes("one") == 60 * MIB
    assert two.take(SHARED) == 4 * MIB
    # The first session's processes use more memory again, but the other session already has the
    # 4 MiB that were released.
    assert one.take(62 * MIB) == SHARED // 2
    assert shared(machine).budgets.held_bytes("one") == 60 * MIB
    assert one.take(SHARED // 2 - MIB) == SHARED // 2
    assert two.take(SHARED) == SHARED // 2
    assert not two.waits
    machine.release_budget("one")
    assert two.take(SHARED) == SHARED


def test_curves_change_the_shares_if_they_differ(machine: Machine) -> None:
    one, two = joined(machine, "one"), joined(machine, "two")
    one.learn(FLAT, SHARED)
    two.learn(STEEP, SHARED)
    assert two.take(0) == SHARED
    almost = Curve((0, SHARED), (1.251, 1.0))
    two.learn(almost, SHARED)
    assert two.curve == STEEP
    two.learn(FLAT, SHARED)
    assert two.curve == FLAT


def test_a_curve_is_reported_after_some_time_in_any_case(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = joined(machine, "one")
    one.learn(STEEP, SHARED)
    monkeypatch.setattr(sharing, "REPORT_S", 0.0)
    almost = Curve((0, SHARED), (1.251, 1.0))
    one.learn(almost, SHARED)
    assert one.curve == almost


def test_divisions_take_a_limited_share_of_a_core(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = joined(machine, "one")
    monkeypatch.setattr(sharing, "DIVIDE_SHARE", 1e-12)
    one.learn(STEEP, SHARED)
    one.learn(FLAT, MIB)
    assert one.curve == STEEP
    assert one.take(0) == SHARED


def test_the_share_follows_the_size_of_the_processes(machine: Machine) -> None:
    one = joined(machine, "one", 8 * MIB)
    assert one.take(0) == 8 * MIB * (1 + ROOM_SHARE)
    one.learn(Curve((0,), (1.0,)), 8 * MIB)
    share = shared(machine).explain("one")
    assert share is not None
    assert share.spare_bytes == share.share_bytes == 8 * MIB * (1 + ROOM_SHARE)
    # The share has room for the processes to grow by ROOM_SHARE. They grow by half of this, so the
    # share stays the same.
    one.follow(int(8 * MIB * (1 + ROOM_SHARE / 2)))
    assert one.take(0) == 8 * MIB * (1 + ROOM_SHARE)
    one.follow(16 * MIB)
    assert one.take(0) == 16 * MIB * (1 + ROOM_SHARE)
    one.follow(2 * MIB)
    assert one.take(0) == 2 * MIB * (1 + ROOM_SHARE)


def test_a_session_is_stuck_if_it_gets_no_memory(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(sharing.time, "monotonic", lambda: now_s)
    one = joined(machine, "one")
    one.take(SHARED)
    two = joined(machine, "two")
    two.take(SHARED)
    now_s = STUCK_S - 1
    assert two.waits
    assert not two.stuck
    # The other session releases a part of its memory, so `two` is not stuck, but waits.
    one.take(SHARED - 4 * MIB)
    assert two.take(SHARED) == 4 * MIB
    now_s = STUCK_S + 1
    assert not two.stuck
    now_s = 2 * STUCK_S
    assert two.stuck
    # Now `two` gets its whole share, so it no longer waits.
    one.take(0)
    two.take(SHARED)
    assert not two.stuck
