# SPDX-License-Identifier: Apache-2.0
"""The share of a machine's bandwidths that each of several trainings gets."""

from __future__ import annotations

import pytest

from sentineld.advise.machines import Machine
from sentineld.host.presets import preset_tiers
from sentineld.model.timing import timing_of


@pytest.mark.parametrize("name", ["cxl", "nvme"])
def test_a_training_that_is_alone_gets_everything(name: str) -> None:
    for threads in (1, 12, 40):
        tiers = preset_tiers(name, threads)
        assert Machine(name, tiers, threads).share(1) == tiers


@pytest.mark.parametrize(
    ("threads", "memory"), [(1, 1.0), (6, 1.0), (9, 2 / 3), (12, 0.5), (40, 0.5)]
)
def test_two_trainings_divide_migration_and_what_a_socket_lacks(
    threads: int, memory: float
) -> None:
    alone = preset_tiers("cxl", threads)
    each = Machine("cxl", alone, threads).share(2)
    assert each.migration_bytes_per_s == alone.migration_bytes_per_s / 2
    for mine, whole in zip(each.tiers, alone.tiers, strict=True):
        assert mine.read_bytes_per_s == pytest.approx(memory * whole.read_bytes_per_s)
        assert mine.write_bytes_per_s == pytest.approx(memory * whole.write_bytes_per_s)


def test_bandwidths_that_are_the_trainings_own_are_not_divided() -> None:
    alone = preset_tiers("cxl", 12)
    each = Machine("mine", alone).share(2)
    assert each.tiers == alone.tiers
    assert each.migration_bytes_per_s == alone.migration_bytes_per_s / 2


def test_two_trainings_on_a_disk_read_and_write_at_half_speed() -> None:
    alone = preset_tiers("nvme", 1)
    each = Machine("nvme", alone, 1).share(2)
    one, two = timing_of(alone), timing_of(each)
    assert two.promote_ns_per_byte == pytest.approx(2 * one.promote_ns_per_byte)
    assert two.demote_ns_per_byte == pytest.approx(2 * one.demote_ns_per_byte)
    assert two.read_ns_per_byte == pytest.approx(2 * one.read_ns_per_byte)
    assert two.fault_ns == one.fault_ns
