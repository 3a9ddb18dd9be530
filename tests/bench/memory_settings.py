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

from sentineld.doctor.memory import LIST_FRACTION, LIST_FRACTION_MIN, reports_free_memory
from sentineld.host.huge_sizes import FOLDER, offered_sizes

SIZE = Path("/sys") / FOLDER / "hugepages-64kB" / "enabled"
FRACTION = Path("/") / LIST_FRACTION


@contextmanager
def huge_sizes() -> Iterator[tuple[int, ...]]:
    """Huge pages of 64 KiB, where the kernel has them; all sizes that processes may ask for
    meanwhile, in bytes."""
    never = SIZE.exists() and "[never]" in SIZE.read_text(encoding="ascii")
    with _set(SIZE, "madvise", "never") if never else contextlib.nullcontext():
        yield offered_sizes()


@contextmanager
def free_pages_kept() -> Iterator[int | None]:
    """vm.percpu_pagelist_high_fraction, meanwhile as large a part as there is where a hypervisor is
    told of free memory; None: the kernel has no such setting.

    It takes back what has been free for 2 s (mm/page_reporting.c), and whoever gets that again
    waits for it: a page made anew takes seven times as long as one that was kept. Pages on a CPU's
    lists aren't reported, and the next births are served from there.
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
