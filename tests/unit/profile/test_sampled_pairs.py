# SPDX-License-Identifier: Apache-2.0
"""Samples as pairs of a stretch and a page, in parts of limited size."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from sentineld.model.records import (
    ACCESS_AGAIN,
    ACCESS_UNKNOWN,
    ACCESS_WRITE,
    SAMPLE_DTYPE,
)
from sentineld.profile import sampled_pairs
from sentineld.profile.attribution import build_profile
from sentineld.profile.steps import StepCutter
from tests.unit.profile.attributed import NO_OPS, rows, samples, two_stretches
from tests.unit.trainer import PAGE
from tests.unit.workloads import Network, train


def test_unknown_pages_are_counted_separately() -> None:
    seen = samples(
        (16, 5, 0),
        (18, 5, ACCESS_UNKNOWN),
        (15, 5, ACCESS_UNKNOWN),
        (17, 6, ACCESS_UNKNOWN),
        (17, 6, ACCESS_UNKNOWN),
        (18, 6, 0),
        (40, 9, ACCESS_UNKNOWN),  # of another step
    )
    seen["more_pages"] = [0, 0, 2, 2, 1, 0, 5]
    profile = build_profile(two_stretches(), seen, NO_OPS, [""])
    assert [row[:2] for row in rows(profile)] == [(0, 0), (1, 1)]
    # A record is for its page and the `more_pages` pages that follow. Epoch 5 is stretch 0: pages
    # 15, 17 and 18 are unknown (16 was seen). Epoch 6 is stretch 1: pages 17 and 19 are unknown (18
    # was seen).
    assert sampled_pairs.unknown_pairs(two_stretches(), seen) == 5
    assert sampled_pairs.unknown_pairs(two_stretches(), seen[:1]) == 0


@pytest.mark.parametrize("pages", [1, 40, 1 << 20])
def test_samples_are_attributed_in_parts_of_limited_size(
    pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = train(Network(blocks=3, weight_bytes=8 * PAGE, activation_bytes=16 * PAGE), 4)
    step = StepCutter().feed(trainer.take_records())[-1]
    seen, ops = trainer.take_samples(), trainer.take_ops()
    seen["page"][::7] += 1000
    whole = build_profile(step, seen, ops, trainer.layers)
    monkeypatch.setattr(sampled_pairs, "PART_PAGES", pages)
    parts = list(sampled_pairs.sample_parts(step, seen))
    assert (len(parts) > 1) == (pages < 1 << 20)
    in_parts = build_profile(step, seen, ops, trainer.layers)
    assert np.array_equal(whole.accesses, in_parts.accesses)
    assert whole.unattributed_pages == in_parts.unattributed_pages > 0


def test_a_huge_page_armed_again_many_times_takes_no_memory_for_each_time() -> None:
    step = two_stretches()
    seen = np.zeros(100_000, SAMPLE_DTYPE)
    seen["page"], seen["epoch"], seen["more_pages"] = 16, 5, 511
    seen["flags"][1:] = ACCESS_AGAIN
    seen["flags"][-1] |= ACCESS_WRITE
    tracemalloc.start()
    profile = build_profile(step, seen, NO_OPS, [""])
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows(profile) == [(0, 0, 0, 2 * PAGE, 2), (0, 1, 0, 2 * PAGE, 2)]
    assert profile.accesses["page_accesses"].tolist() == [200_000, 200_000]
    assert profile.unattributed_pages == 508
    # Each sample represents 512 pages. With a key of 8 bytes for each of them, a sample would take
    # 4 KiB.
    assert peak_bytes < 100 * len(seen)


def test_samples_of_no_epoch_of_the_step_are_ignored_in_parts_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampled_pairs, "PART_PAGES", 1)
    profile = build_profile(two_stretches(), samples((16, 4, 0), (17, 9, 0)), NO_OPS, [""])
    assert rows(profile) == []
