# SPDX-License-Identifier: Apache-2.0
"""Settings of the kernel's memory management that hold for as long as a benchmark runs.

They are the whole machine's and put back at the end; without leave to change them they are as they
are, and the result says how that is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sentineld.hugesizes import FOLDER, offered_sizes

SIZE = Path("/sys") / FOLDER / "hugepages-64kB" / "enabled"

REPORTING = Path("/sys/module/page_reporting/parameters/page_reporting_order")
REPORTING_ORDER_MAX = 10
"""MAX_PAGE_ORDER of x86: what lies free there is seldom what a training has given back."""


@contextmanager
def huge_sizes() -> Iterator[tuple[int, ...]]:
    """Huge pages of 64 KiB, where the kernel has them; all sizes that processes may ask for
    meanwhile, in bytes."""
    never = SIZE.exists() and "[never]" in SIZE.read_text(encoding="ascii")
    with _set(SIZE, "madvise", "never") if never else contextlib.nullcontext():
        yield offered_sizes()


@contextmanager
def free_pages_kept() -> Iterator[int | None]:
    """The order of free blocks, at least, that the hypervisor is told of; None: it is told of none.

    It takes them back 2 s after they became free (mm/page_reporting.c), and whoever gets one
    again waits for it: a page made anew takes seven times as long as one that was kept.
    """
    try:
        before = int(REPORTING.read_text(encoding="ascii"))
    except (OSError, ValueError):
        yield None
        return
    with _set(REPORTING, str(REPORTING_ORDER_MAX), str(before)):
        yield int(REPORTING.read_text(encoding="ascii"))


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
