# SPDX-License-Identifier: Apache-2.0
"""The page numbers of a session: each address space has a separate range of them, its span."""

from __future__ import annotations

import numpy as np

from sentineld.heat.spans import SPAN_PAGES, runs_by_span, session_runs, split_pages
from sentineld.model.records import PAGE_RUN_DTYPE


def runs(*rows: tuple[int, int, bool]) -> np.ndarray:
    return np.array(list(rows), PAGE_RUN_DTYPE)


def test_runs_are_found_again_in_their_spans_and_keep_their_order() -> None:
    one, other = runs((40, 2, True), (7, 1, False)), runs((40, 5, True))
    mixed = np.concatenate(
        [session_runs(one[:1], 3), session_runs(other, 1), session_runs(one[1:], 3)]
    )
    assert len(np.unique(mixed["page"])) == 3
    found = runs_by_span(mixed)
    assert [span for span, _ in found] == [1, 3]
    assert found[0][1].tolist() == other.tolist()
    assert found[1][1].tolist() == one.tolist()
    assert runs_by_span(mixed[:0]) == []


def test_the_last_page_of_an_address_space_is_in_its_span() -> None:
    last = (1 << 48) // 4096 - 1
    spans, pages = split_pages(np.array([last, last + SPAN_PAGES, 5 * SPAN_PAGES]))
    assert spans.tolist() == [0, 1, 5]
    assert pages.tolist() == [last, last, 0]
