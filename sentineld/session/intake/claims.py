# SPDX-License-Identifier: Apache-2.0
"""Checks the sizes that a process reports, before the daemon allocates memory in proportion to
them.

The daemon keeps a byte or more for each page of a process's heap and arena. But a process can write
any number into its control words and records. The limits here are larger than the sizes of any real
process.
"""

from __future__ import annotations

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.host.memory_size import tensor_bytes_max
from sentineld.model.protocol import Event
from sentineld.model.records import PAGE_BYTES
from sentineld.observe.control_segment import ADDRESS_MAX, ControlSegment, ShimWords
from sentineld.profile.steps import Step

Range = tuple[int, int]
"""(start address, bytes)."""


def heap_range(segment: ControlSegment, words: ShimWords) -> Range:
    """The used part of the heap. Raises SentinelError for an impossible size."""
    used = words.heap_used
    if used > segment.heap_bytes or used > tensor_bytes_max() or used % PAGE_BYTES:
        raise _implausible(f"{used} bytes of its heap of {segment.heap_bytes} bytes are in use")
    return segment.heap_base, used


def arena_range(words: ShimWords, layout_bytes: int) -> Range:
    """The arena of the live layout; (0, 0): the process has no arena. layout_bytes: the arena's
    size in the layout that the daemon sent. Raises SentinelError if the process reports a size
    other than layout_bytes or an impossible address."""
    base, size = words.arena_base, words.arena_bytes
    if not size:
        return 0, 0
    if size != layout_bytes or base % PAGE_BYTES or base + size > ADDRESS_MAX:
        raise _implausible(f"its arena is {size} bytes at {base:#x}, not {layout_bytes} bytes")
    return base, size


def require_arena(layout_bytes: int) -> None:
    """Raise SentinelError if a plan's arena is larger than the arena of any real process. The
    process has then reported impossible tensors."""
    if layout_bytes > tensor_bytes_max():
        raise _implausible(f"its tensors need an arena of {format_bytes(layout_bytes)}")


def require_tensors(step: Step) -> None:
    """Raise SentinelError if a tensor of the step is larger than any real tensor."""
    records = step.records
    born = records[records["event"] == Event.ALLOC]
    largest = max(
        int(born["bytes"].max(initial=np.uint64(0))),
        max((tensor.bytes for tensor in step.live.values()), default=0),
    )
    if largest > tensor_bytes_max():
        raise _implausible(f"one of its tensors has {format_bytes(largest)}")


def _implausible(what: str) -> SentinelError:
    limit = format_bytes(tensor_bytes_max())
    return SentinelError(
        "failed",
        f"the process reports impossible sizes: {what}",
        f"the limit on this machine is {limit}; see docs/troubleshooting.md",
    )
