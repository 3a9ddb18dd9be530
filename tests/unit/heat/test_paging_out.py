# SPDX-License-Identifier: Apache-2.0
"""Batches of page-outs, and the swap that sessions may fill."""

from __future__ import annotations

import os

import numpy as np
import pytest

from sentineld.heat import paging_out as module
from sentineld.heat.members import Members
from sentineld.heat.paging_out import PagingOut, batches, split, usable_bytes
from sentineld.heat.target import OneProcess
from sentineld.host.swap import Swap
from sentineld.model.records import PAGE_RUN_DTYPE
from tests.unit.block_process import MIB, block_process


def test_long_runs_are_cut_and_short_runs_share_a_batch() -> None:
    runs = np.array([(100, 3, True), (200, 25, True), (300, 2, True)], PAGE_RUN_DTYPE)
    found = [batch.tolist() for batch in batches(runs, 10)]
    assert found == [
        [(100, 3, True), (200, 10, True)],
        [(210, 10, True)],
        [(220, 5, True), (300, 2, True)],
    ]
    assert batches(runs[:0], 10) == []


def test_runs_are_split_after_a_number_of_pages() -> None:
    runs = np.array([(100, 3, False), (200, 25, False), (300, 2, False)], PAGE_RUN_DTYPE)
    first, rest = split(runs, 13)
    assert first.tolist() == [(100, 3, False), (200, 10, False)]
    assert rest.tolist() == [(210, 15, False), (300, 2, False)]
    for pages, counts in ((0, (0, 3)), (28, (2, 1)), (99, (3, 0))):
        assert tuple(map(len, split(runs, pages))) == counts


def test_sessions_leave_some_swap_free() -> None:
    assert usable_bytes(Swap(1600, 300)) == 1200
    assert usable_bytes(Swap(1600, 1550)) == 0
    assert usable_bytes(Swap(0, 0)) == 0


def test_the_problem_says_why_swap_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    with block_process() as process:
        members = Members(OneProcess(process.pid), os.getuid())
        paging_out = PagingOut(members, 1.0)
        members.close()
    for swap, pages, problem in (
        (Swap(1600 * MIB, 0), 5, ""),
        (Swap(1600 * MIB, 1550 * MIB), 0, "swap is nearly full: 50.0 MiB of 1.6 GiB are free"),
        (Swap(0, 0), 0, "no swap is enabled any more, so nothing can be paged out"),
        (Swap(1600 * MIB, 0), 5, ""),
    ):
        monkeypatch.setattr(module, "read_swap", lambda swap=swap: swap)
        assert (paging_out.within_swap(5), paging_out.problem) == (pages, problem)
