# SPDX-License-Identifier: Apache-2.0
"""Checks that torch's tensors are allocated and freed through the shim."""

from __future__ import annotations

from typing import Any

from sentineld.shim.native import Native, ShimUnavailableError

SMALL_BYTES_OFFSET = 0xD8  # in struct sentinel_control, like the next two offsets
HEAP_BASE_OFFSET = 0x20
HEAP_BYTES_OFFSET = 0x28
# SENTINEL_TENSOR_BYTES_MIN, the size of the smallest tensor that the heap serves. The value is
# repeated here, because importing protocol.py would load numpy as soon as sentineld.shim is
# imported. A test compares this value with the one in protocol.py.
TENSOR_BYTES = 4096


def require_interposed(native: Native, torch: Any) -> None:
    """Check that the shim's C library sees the birth and the death of one small tensor.

    Call this before Native.enable(True).

    Raises:
        ShimUnavailableError: torch's allocations bypass the shim.
    """
    before = native.word(SMALL_BYTES_OFFSET)
    tensor = torch.empty(256)
    during = native.word(SMALL_BYTES_OFFSET)
    del tensor
    after = native.word(SMALL_BYTES_OFFSET)
    if during - before < 1024 or after != before:
        raise ShimUnavailableError("this torch does not allocate through c10::alloc_cpu")


def require_serving(native: Native) -> None:
    """Check that the heap serves a tensor allocated between two steps.

    Raises:
        ShimUnavailableError: torch now uses another allocator.
    """
    import torch

    tensor = torch.empty(TENSOR_BYTES, dtype=torch.uint8, device="cpu")
    offset = tensor.data_ptr() - native.word(HEAP_BASE_OFFSET)
    if not 0 <= offset < native.word(HEAP_BYTES_OFFSET):
        raise ShimUnavailableError("the script has replaced torch's allocator")
