# SPDX-License-Identifier: Apache-2.0
"""Records that represent one page, and records that represent many pages."""

from __future__ import annotations

import numpy as np

from sentineld.model.records import ACCESS_UNKNOWN, SAMPLE_DTYPE
from sentineld.model.sampled import sampled_page_count, sampled_pages


def test_each_record_represents_its_page_and_the_following_ones() -> None:
    samples = np.array([(7, 1, 0, 0, 0), (512, 1, 0, 0, 2), (9, 1, 0, 0, 0)], SAMPLE_DTYPE)
    rows, pages = sampled_pages(samples)
    assert rows.tolist() == [0, 1, 1, 1, 2]
    assert pages.tolist() == [7, 512, 513, 514, 9]


def test_no_records_represent_no_pages() -> None:
    rows, pages = sampled_pages(np.zeros(0, SAMPLE_DTYPE))
    assert rows.tolist() == pages.tolist() == []


def test_only_accesses_count_with_all_their_pages() -> None:
    rows = [(7, 1, 0, 0, 0), (512, 1, 0, 0, 511), (0, 1, 0, ACCESS_UNKNOWN, 65535)]
    assert sampled_page_count(np.array(rows, SAMPLE_DTYPE)) == 1 + 512 + 1
