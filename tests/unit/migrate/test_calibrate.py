# SPDX-License-Identifier: Apache-2.0
"""A measurement reports an error if pages can't move.

tests/vm/test_migrate.py measures on a machine with two nodes.
"""

from __future__ import annotations

import pytest

from sentineld.base.errors import SentinelError
from sentineld.migrate.calibrate import measure, measure_bytes_per_s
from sentineld.model.tiers import Tier, Tiers

ABSENT = 900
TIERS = Tiers((Tier((0,), 1 << 30), Tier((ABSENT,), 1 << 30)), 123.0, "toy")
ITSELF = Tiers((Tier((0,), 1 << 30), Tier((0,), 1 << 30)), 123.0, "toy")


def test_a_node_without_room_is_named_with_the_way_out() -> None:
    with pytest.raises(SentinelError, match=f"nodes 0 and {ABSENT} have no room") as error:
        measure(TIERS)
    assert "tiers.migration_bytes_per_s" in error.value.hint


def test_a_mapping_below_a_batch_is_too_small_to_measure_with() -> None:
    with pytest.raises(SentinelError, match="no room"):
        measure(ITSELF, scratch_bytes=4096)


def test_tiers_that_cannot_be_measured_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    assert measure_bytes_per_s(TIERS) is TIERS
    assert "no room to measure" in caplog.text
    assert "plans assume a migration bandwidth of 123 B/s" in caplog.text


def test_pages_that_are_there_already_count_as_moved() -> None:
    # Pages move from node 0 to node 0: the kernel copies no page, but every system call is made.
    rates = measure(ITSELF, scratch_bytes=8 << 20)
    assert rates.demote_bytes_per_s > 0
    assert rates.promote_bytes_per_s > 0
