# SPDX-License-Identifier: Apache-2.0
"""Huge pages of 64 KiB for as long as a benchmark runs, where the kernel has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sentineld.hugesizes import FOLDER, offered_sizes

SIZE = Path("/sys") / FOLDER / "hugepages-64kB" / "enabled"


@contextmanager
def huge_sizes() -> Iterator[tuple[int, ...]]:
    """The sizes that processes may ask for meanwhile, in bytes. Changes what the whole machine
    offers, and puts it back; without leave to do so it is as it is."""
    before = SIZE.read_text(encoding="ascii") if SIZE.exists() else ""
    changed = False
    if "[never]" in before:
        try:
            SIZE.write_text("madvise", encoding="ascii")
            changed = True
        except OSError:
            pass  # the result says which sizes there were
    try:
        yield offered_sizes()
    finally:
        if changed:
            SIZE.write_text("never", encoding="ascii")
