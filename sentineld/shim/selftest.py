# SPDX-License-Identifier: Apache-2.0
"""Checks that torch's tensors are allocated and freed through the shim."""

from __future__ import annotations

from typing import Any

from sentineld.shim.native import Native, ShimUnavailableError

# Offsets in struct sentinel_control.
HEAP_BASE_OFFSET = 0x20
HEAP_BYTES_OFFSET = 0x28
STEP_OFFSET = 0x90
CURSOR_OFFSET = 0xA0
SMALL_BYTES_OFFSET = 0xD8
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


class AllocatorCheck:
    """Detects at the end of a step that torch no longer allocates through the shim."""

    def __init__(self, native: Native) -> None:
        self._native = native
        self._allocates = True

    def step_ended(self) -> None:
        """Check the allocator if the last step had no allocations but the step before it had some.

        While a dispatch mode is active, such as FakeTensorMode, nothing is checked: a tensor that
        is created in the mode may have no memory.

        Raises:
            ShimUnavailableError: torch now uses another allocator.
        """
        import torch

        if self._native.word(STEP_OFFSET) == 0:
            return  # before the first step_begin(), allocations do not advance the cursor
        allocated = self._native.word(CURSOR_OFFSET) > 0
        if self._allocates and not allocated:
            if torch._C._len_torch_dispatch_stack():
                return
            require_serving(self._native)
        self._allocates = allocated
