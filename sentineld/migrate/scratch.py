# SPDX-License-Identifier: Apache-2.0
"""Memory of this process on a node of choice, to measure with."""

from __future__ import annotations

import ctypes
import errno
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.migrate.syscalls import page_addresses, prefer_node, query_pages

ON_NODE_SHARE = 0.95
"""Of the pages asked about, that have to be where they were asked for."""

ASKED_PAGES = 512
"""So many are asked about, spread over all."""


class Scratch(NamedTuple):
    """words: all of the memory. start: its address. bytes: its size. mapping: what it lies in."""

    words: npt.NDArray[np.uint64]
    start: int
    bytes: int
    mapping: mmap.mmap


@contextmanager
def scratch_on(node: int | None, size_bytes: int) -> Iterator[Scratch]:
    """Memory in small pages, touched, preferably on the node; wherever it comes with None. The
    array must not be used afterwards. Raises SentinelError where the kernel forbids to choose."""
    size = size_bytes // mmap.PAGESIZE * mmap.PAGESIZE
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        _refuse_huge_pages(memory)
        held = (ctypes.c_char * size).from_buffer(memory)
        start = ctypes.addressof(held)
        # From the address, not from the buffer: a view that outlived this would keep it open.
        words = np.ctypeslib.as_array(
            ctypes.cast(start, ctypes.POINTER(ctypes.c_uint64)), (size // 8,)
        )
        try:
            if node is not None:
                try:
                    prefer_node(start, size, node)
                except OSError as error:
                    raise SentinelError(
                        "not-permitted",
                        f"memory of node {node} can't be asked for: {error.strerror}",
                        "run it outside of the container, or as root",
                    ) from None
            words[:: mmap.PAGESIZE // 8] = 1
            yield Scratch(words, start, size, memory)
        finally:
            del held  # an exported buffer keeps the mapping from closing


def _refuse_huge_pages(memory: mmap.mmap) -> None:
    try:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel that has none
            raise


def check_on_node(scratch: Scratch, node: int) -> None:
    """Raise SentinelError if the memory is not on the node."""
    pages = page_addresses(scratch.start, scratch.bytes, mmap.PAGESIZE)
    asked = pages[:: max(len(pages) // ASKED_PAGES, 1)]
    there = int(np.count_nonzero(query_pages(0, asked) == node))
    if there < ON_NODE_SHARE * len(asked):
        raise SentinelError(
            "failed",
            f"of {len(asked)} pages asked for on node {node}, {there} are there",
            "free some of its memory, or measure with a smaller --size",
        )
