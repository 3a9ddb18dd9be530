# SPDX-License-Identifier: Apache-2.0
"""A profile is checked against the accesses that a backend saw: untold and unattributed pages."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sentineld.model.profile import ACCESS_DTYPE, STRETCH_DTYPE, TENSOR_DTYPE, Profile
from sentineld.observe.backend import AREA_DTYPE, Areas
from sentineld.observe.damon import DAMON
from sentineld.observe.softdirty import SOFT_DIRTY
from sentineld.profile.window_check import checked

PAGE = 4096


def profile(tensors: list[tuple[int, int]], reported: list[tuple[int, int, int]]) -> Profile:
    """A profile. tensors: (first page, pages). reported: (tensor, bytes read, bytes written) of
    each access."""
    table = np.zeros(len(tensors), TENSOR_DTYPE)
    table["address"] = [first * PAGE for first, _ in tensors]
    table["bytes"] = [pages * PAGE for _, pages in tensors]
    rows = np.zeros(len(reported), ACCESS_DTYPE)
    for row, (tensor, read, written) in zip(rows, reported, strict=True):
        row["tensor"], row["bytes_read"], row["bytes_written"] = tensor, read, written
    return Profile(
        tensors=table,
        accesses=rows,
        stretches=np.zeros(1, STRETCH_DTYPE),
        layers=(),
        slot_count=0,
        event_count=0,
        page_bytes=PAGE,
        peak_bytes=0,
        source="shim",
        unattributed_pages=0,
    )


def areas(*found: tuple[int, int, float]) -> Areas:
    """A table of AREA_DTYPE from (first page, pages, heat)."""
    table = np.zeros(len(found), AREA_DTYPE)
    for row, (first, pages, heat) in zip(table, found, strict=True):
        row["start"], row["bytes"], row["heat"] = first * PAGE, pages * PAGE, heat
    return table


WRITES = SOFT_DIRTY.capabilities
ACCESSES = DAMON.capabilities


def test_reported_untold_and_unattributed_pages() -> None:
    known = profile([(10, 4), (20, 4)], [(0, 0, 4 * PAGE)])
    seen = checked(known, "soft-dirty", WRITES, areas((8, 8, 1), (21, 2, 1)))
    assert seen.source == "shim+soft-dirty"
    assert seen.untold_pages == 2
    assert seen.unattributed_pages == 4


def test_a_reported_read_does_not_explain_a_write() -> None:
    known = profile([(10, 4)], [(0, 4 * PAGE, 0)])
    assert checked(known, "soft-dirty", WRITES, areas((10, 4, 1))).untold_pages == 4
    assert checked(known, "damon", ACCESSES, areas((10, 4, 1))).untold_pages == 0


def test_a_page_of_any_reported_tensor_is_not_untold() -> None:
    known = profile([(10, 4), (12, 4), (11, 1)], [(1, 0, PAGE)])
    assert checked(known, "soft-dirty", WRITES, areas((10, 8, 1))).untold_pages == 2


def test_empty_windows_and_profiles() -> None:
    known = profile([], [])
    assert checked(known, "soft-dirty", WRITES, areas()).untold_pages == 0
    assert checked(known, "soft-dirty", WRITES, areas((1, 2, 1))).unattributed_pages == 2


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_counting_page_by_page(seed: int) -> None:
    random = np.random.default_rng(seed)
    tensors = [(int(a), int(n)) for a, n in random.integers((0, 1), (60, 12), (8, 2))]
    reported = [(i, 0, PAGE) for i in range(8) if random.random() < 0.5]
    starts = np.sort(random.choice(70, 5, replace=False))
    found = [
        (int(a), 1 + int(random.integers(0, b - a)), 1.0) for a, b in itertools.pairwise(starts)
    ]
    pages = {page for first, count, _ in found for page in range(first, first + count)}
    held = {page for first, count in tensors for page in range(first, first + count)}
    spans = [tensors[tensor] for tensor, _, _ in reported]
    with_access = {page for first, count in spans for page in range(first, first + count)}
    seen = checked(profile(tensors, reported), "soft-dirty", WRITES, areas(*found))
    assert seen.unattributed_pages == len(pages - held)
    assert seen.untold_pages == len((pages & held) - with_access)
