# SPDX-License-Identifier: Apache-2.0
"""Memory of this process on a chosen node, for measurements."""

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
"""Share of the queried pages that must be on the node."""

ASKED_PAGES = 512
"""Approximate number of pages to query, spread over all of the memory."""


class Scratch(NamedTuple):
    """A mapping to measure with."""

    words: npt.NDArray[np.uint64]  # all of the mapped memory
    start: int  # the memory's address
    bytes: int  # the memory's size
    mapping: mmap.mmap


@contextmanager
def scratch_on(node: int | None, size_bytes: int) -> Iterator[Scratch]:
    """Map memory in small pages and touch it. `words` must not be used after the context ends.

    node: preferred node; None: the kernel's choice.

    Raises SentinelError if the kernel refuses mbind.
    """
    size = size_bytes // mmap.PAGESIZE * mmap.PAGESIZE
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        _refuse_huge_pages(memory)
        held = (ctypes.c_char * size).from_buffer(memory)
        start = ctypes.addressof(held)
        # The array is made from the address, not from the buffer: a view of the buffer that
        # outlives the context would keep the mapping open.
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
                        f"mbind to node {node} failed: {error.strerror}",
                        "run the measurement outside the container, or as root",
                    ) from None
            words[:: mmap.PAGESIZE // 8] = 1
            yield Scratch(words, start, size, memory)
        finally:
            del held  # a mapping with an exported buffer cannot be closed


def _refuse_huge_pages(memory: mmap.mmap) -> None:
    try:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: a kernel without huge pages
            raise


def check_on_node(scratch: Scratch, node: int) -> None:
    """Raise SentinelError if the memory is not on the node."""
    pages = page_addresses(scratch.start, scratch.bytes, mmap.PAGESIZE)
    asked = pages[:: max(len(pages) // ASKED_PAGES, 1)]
    there = int(np.count_nonzero(query_pages(0, asked) == node))
    if there < ON_NODE_SHARE * len(asked):
        raise SentinelError(
            "failed",
            f"only {there} of {len(asked)} queried pages are on node {node}",
            "free memory of the node, or measure with a smaller --size",
        )
