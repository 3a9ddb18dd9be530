# SPDX-License-Identifier: Apache-2.0
"""Scratch memory on a node of this machine."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.migrate.scratch import check_on_node, scratch_on
from sentineld.migrate.syscalls import page_addresses, query_pages

MIB = 1 << 20


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


def test_without_a_node_the_kernel_chooses_one() -> None:
    with scratch_on(None, MIB) as scratch:
        pages = page_addresses(scratch.start, scratch.bytes, mmap.PAGESIZE)
        assert (query_pages(0, pages) >= 0).all()


def test_the_mapping_is_closed_after_an_error_too() -> None:
    def fail() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError), scratch_on(0, MIB) as scratch:
        fail()
    assert scratch.mapping.closed


def test_what_is_smaller_than_a_page_is_cut_off() -> None:
    with scratch_on(0, 3 * mmap.PAGESIZE - 1) as scratch:
        assert scratch.bytes == 2 * mmap.PAGESIZE
        scratch.words[-1] = 7
        assert scratch.mapping[-8] == 7
