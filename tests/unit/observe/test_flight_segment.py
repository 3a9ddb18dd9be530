# SPDX-License-Identifier: Apache-2.0
"""The words in which the daemon describes the batch in flight."""

from __future__ import annotations

import numpy as np
import pytest

from sentineld.model.protocol import FLIGHT_DTYPE
from sentineld.observe.flight_segment import FlightSegment

RANGES = [(7, 3, 0), (2, 1, 1)]


def test_a_batch_is_published_and_interrupted() -> None:
    words = np.zeros(1, FLIGHT_DTYPE)
    segment = FlightSegment(words)
    assert words["sequence"][0] == 0
    segment.begin(RANGES, 1, 5_000, 1.2345)
    assert words[["sequence", "limit", "begin_ns", "page_ps", "count", "node"]].item() == (
        *(2, 4, 5_000, 1235, 2, 1),
    )
    assert words["ranges"][0, :2].tolist() == RANGES
    segment.end(3)
    assert (words["sequence"][0], words["limit"][0]) == (2, 3)
    segment.begin(RANGES[1:], 0, -5, 1.0)  # soon after the boot, begin_ns can be negative
    assert words[["sequence", "limit", "begin_ns", "count", "node"]].item() == (4, 1, 0, 1, 0)


@pytest.mark.parametrize("left", [4, 5, (1 << 64) - 1])
def test_an_earlier_daemons_sequence_is_continued(left: int) -> None:
    """left: the sequence number that the earlier daemon left. It is odd if the daemon was killed
    during a change."""
    words = np.zeros(1, FLIGHT_DTYPE)
    words["sequence"] = left
    segment = FlightSegment(words)
    segment.begin(RANGES, 1, 0, 1.0)
    found = int(words["sequence"][0])
    assert found != left
    assert found % 2 == 0


def test_a_closed_segment_is_no_longer_written() -> None:
    words = np.zeros(1, FLIGHT_DTYPE)
    segment = FlightSegment(words)
    segment.close()
    segment.begin(RANGES, 1, 0, 1.0)
    segment.end(1)
    assert not words["sequence"][0]
    assert not words["limit"][0]
