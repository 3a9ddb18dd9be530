# SPDX-License-Identifier: Apache-2.0
"""The daemon's side of the pager's counters and queues."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from sentineld.model import protocol
from sentineld.model.plan import Space
from sentineld.observe.paging_segment import PagingSegment


@pytest.fixture
def words() -> npt.NDArray[np.void]:
    return np.zeros(1, protocol.PAGING_DTYPE)


def ranges(words: npt.NDArray[np.void], queue: str, count: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = words[queue]["ranges"][0, :count].tolist()
    return found


def test_ranges_are_appended_in_order(words: npt.NDArray[np.void]) -> None:
    paging = PagingSegment(words)
    assert paging.append(True, Space.HEAP, [(5, 2), (9, 1)]) == []
    assert paging.append(False, Space.ARENA, [(7, 3)]) == []
    assert paging.append(True, Space.ARENA, [(1, 4)]) == []
    assert ranges(words, "evict", 3) == [(5, 2, 1), (9, 1, 1), (1, 4, 0)]
    assert ranges(words, "fetch", 1) == [(7, 3, 0)]
    assert (paging.queued(evict=True), paging.queued(evict=False)) == (3, 1)
    words["evict"]["tail"] = 2
    assert paging.queued(evict=True) == 1


def test_a_full_queue_takes_no_more(words: npt.NDArray[np.void]) -> None:
    paging = PagingSegment(words)
    many = [(page, 1) for page in range(protocol.QUEUE_RANGES + 2)]
    assert paging.append(True, Space.HEAP, many) == many[-2:]
    assert paging.append(True, Space.HEAP, many[-2:]) == many[-2:]
    words["evict"]["tail"] = 1
    assert paging.append(True, Space.HEAP, many[-2:]) == many[-1:]
    assert ranges(words, "evict", 1) == [(protocol.QUEUE_RANGES, 1, 1)]


@pytest.mark.parametrize("tail", [7, 1 << 63, (1 << 64) - 1])
def test_a_tail_that_the_process_forged_blocks_the_queue_at_most(
    words: npt.NDArray[np.void], tail: int
) -> None:
    words["evict"]["tail"] = tail
    paging = PagingSegment(words)
    left = paging.append(True, Space.HEAP, [(1, 1)])
    assert left in ([], [(1, 1)])
    assert paging.queued(evict=True) >= 0


def test_counters_are_read_and_kept_after_close(words: npt.NDArray[np.void]) -> None:
    words["bytes_written"], words["write_error"] = 4096, -28
    paging = PagingSegment(words)
    assert paging.counts().bytes_written == 4096
    assert paging.counts().write_error == -28
    paging.close()
    words["bytes_written"] = 1
    assert paging.counts().bytes_written == 4096
    assert paging.append(True, Space.HEAP, [(1, 1)]) == []
    assert words["evict"]["head"][0] == 0
