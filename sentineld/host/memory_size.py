# SPDX-License-Identifier: Apache-2.0
"""The size of the machine's memory, and a limit that follows from it."""

from __future__ import annotations

import os

from sentineld.shim.native import HEAP_PER_MEMORY


def memory_bytes() -> int:
    """Bytes of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def tensor_bytes_max() -> int:
    """Upper limit on the tensor bytes of one process: a multiple of the machine's memory. The
    shim's heap is not larger than this, unless SENTINELD_SHIM_HEAP_BYTES sets another size."""
    return HEAP_PER_MEMORY * memory_bytes()
