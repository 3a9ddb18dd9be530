# SPDX-License-Identifier: Apache-2.0
"""Measurements on this machine's first node: positive rates, memory on the right node."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.migrate.bandwidth import node_rates
from sentineld.migrate.scratch import check_on_node, scratch_on
from sentineld.migrate.syscalls import page_addresses, query_pages

MIB = 1 << 20


@pytest.mark.parametrize(("threads", "alone"), [(1, True), (3, False)])
def test_a_node_has_rates(threads: int, alone: bool) -> None:
    found = node_rates(0, MIB, threads, alone)
    assert found.node == 0
    for rate in (found.read_bytes_per_s, found.write_bytes_per_s, found.random_bytes_per_s):
        assert 0 < rate < float("inf")


def test_scratch_memory_is_on_its_node() -> None:
    with scratch_on(0, MIB + 100) as scratch:
        assert scratch.bytes == MIB
        assert scratch.words.shape == (MIB // 8,)
        assert int(np.count_nonzero(scratch.words)) == MIB // mmap.PAGESIZE
        pages = page_addresses(scratch.start, scratch.bytes, mmap.PAGESIZE)
        assert (query_pages(0, pages) == 0).all()
        check_on_node(scratch, 0)
        with pytest.raises(SentinelError, match="only 0 of 256 queried pages are on node 7"):
            check_on_node(scratch, 7)


def test_a_missing_node_is_refused() -> None:
    with pytest.raises(SentinelError, match="node 900") as error, scratch_on(900, MIB):
        pass
    assert error.value.hint
