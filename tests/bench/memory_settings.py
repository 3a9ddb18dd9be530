# SPDX-License-Identifier: Apache-2.0
"""Temporary memory management settings for benchmarks.

Each setting is global to the machine, and is restored when its context ends. If the
process is not permitted to change a setting, the setting stays unchanged. bench-train
writes the values in effect to its result file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sentineld.doctor.memory import LIST_FRACTION, LIST_FRACTION_MIN, reports_free_memory
from sentineld.host.huge_sizes import FOLDER, offered_sizes

SIZE = Path("/sys") / FOLDER / "hugepages-64kB" / "enabled"
FRACTION = Path("/") / LIST_FRACTION


@contextmanager
def huge_sizes() -> Iterator[tuple[int, ...]]:
    """Enable huge pages of 64 KiB if the kernel has them; yield all enabled sizes in bytes."""
    never = SIZE.exists() and "[never]" in SIZE.read_text(encoding="ascii")
    with _set(SIZE, "madvise", "never") if never else contextlib.nullcontext():
        yield offered_sizes()


@contextmanager
def free_pages_kept() -> Iterator[int | None]:
    """Let the kernel's per-CPU lists of free pages grow to their maximum size, if free pages are
    reported to a hypervisor and vm.percpu_pagelist_high_fraction is 0, the kernel's default.

    Yields the value of vm.percpu_pagelist_high_fraction, or None if the kernel does not have it.

    The hypervisor takes back pages that were free for 2 s (mm/page_reporting.c). Faulting such a
    page in again takes seven times as long as faulting in a page that the guest kept. Pages on
    the per-CPU free lists are not reported, and the next births take their pages from these lists.
    """
    try:
        before = int(FRACTION.read_text(encoding="ascii"))
    except (OSError, ValueError):
        yield None
        return
    wanted = reports_free_memory(Path("/")) and not before
    with _set(FRACTION, str(LIST_FRACTION_MIN), "0") if wanted else contextlib.nullcontext():
        yield int(FRACTION.read_text(encoding="ascii"))


@contextmanager
def _set(file: Path, value: str, before: str) -> Iterator[None]:
    try:
        file.write_text(value, encoding="ascii")
    except OSError:
        yield
        return
    try:
        yield
    finally:
        file.write_text(before, encoding="ascii")
