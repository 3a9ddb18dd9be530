# SPDX-License-Identifier: Apache-2.0
"""Whether torch's tensors are born and die under the shim's eyes: at its start, and still."""

from __future__ import annotations

from typing import Any

from sentineld.shim.native import Native, ShimUnavailableError

SMALL_BYTES_OFFSET = 0xD8  # struct sentinel_control, as the next two
HEAP_BASE_OFFSET = 0x20
HEAP_BYTES_OFFSET = 0x28
TENSOR_BYTES = 4096  # SENTINEL_TENSOR_BYTES_MIN: the heap serves it


def require_interposed(native: Native, torch: Any) -> None:
    """See one small tensor be born and die, before the C object serves any.

    Raises:
        ShimUnavailableError: torch allocates past the shim.
    """
    before = native.word(SMALL_BYTES_OFFSET)
    tensor = torch.empty(256)
    during = native.word(SMALL_BYTES_OFFSET)
    del tensor
    after = native.word(SMALL_BYTES_OFFSET)
    if during - before < 1024 or after != before:
        raise ShimUnavailableError("this torch does not allocate through c10::alloc_cpu")


def require_serving(native: Native) -> None:
    """Have the C object serve one tensor, between two steps.

    Raises:
        ShimUnavailableError: torch has another allocator by now.
    """
    import torch

    tensor = torch.empty(TENSOR_BYTES, dtype=torch.uint8, device="cpu")
    offset = tensor.data_ptr() - native.word(HEAP_BASE_OFFSET)
    if not 0 <= offset < native.word(HEAP_BYTES_OFFSET):
        raise ShimUnavailableError("the script has replaced torch's allocator")
