# SPDX-License-Identifier: Apache-2.0
"""Relations between ranges of pages, and batches that are cut to a maximum number of pages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.migrate.pending import Batch, PageRange, Pending, no_pages
from sentineld.model.plan import Space

RANGES = st.builds(PageRange, st.integers(0, 1), st.integers(0, 8), st.integers(1, 8))


def pages_of(found: PageRange) -> set[tuple[int, int]]:
    return {(found.space, page) for page in range(found.offset, found.offset + found.bytes)}


@given(RANGES, RANGES)
def test_ranges_relate_as_their_pages_do(one: PageRange, other: PageRange) -> None:
    assert one.covers(other) == (pages_of(one) >= pages_of(other))
    assert one.overlaps(other) == bool(pages_of(one) & pages_of(other))
    assert one.overlaps(other) == other.overlaps(one)


def move(reason: str = "plan") -> Pending:
    return Pending(Space.ARENA, 0, 4096, tier=1, due=0, deadline=1, expiry=2, reason=reason)


def test_moves_of_equal_ranges_are_different_moves() -> None:
    one, other = move(), move()
    assert one != other
    assert len(one.stuck) == len(no_pages()) == 0


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(1, 40))
def test_a_batch_is_cut_after_its_first_pages(sizes: list[int], limit: int) -> None:
    starts = np.cumsum([0, *sizes])
    parts = tuple(
        (move(str(number)), np.arange(start, start + size))
        for number, (start, size) in enumerate(zip(starts, sizes, strict=False))
    )
    batch = Batch(1, parts)
    assert batch.pages == sum(sizes)
    cut = batch.clipped(limit)
    assert cut.tier == 1
    assert cut.pages == min(limit, sum(sizes))
    kept = np.concatenate([pages for _, pages in cut.parts])
    assert kept.tolist() == list(range(cut.pages))
    assert [part[0] for part in cut.parts] == [part[0] for part in parts[: len(cut.parts)]]


@pytest.mark.parametrize("limit", [1, 100])
def test_an_empty_batch_stays_empty(limit: int) -> None:
    assert Batch(0, ()).clipped(limit).pages == 0
