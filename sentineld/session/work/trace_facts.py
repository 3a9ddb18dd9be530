# SPDX-License-Identifier: Apache-2.0
"""The parts of a trace that describe the process and the machine."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from sentineld import __version__
from sentineld.base.text import text_of
from sentineld.model.plan import Space
from sentineld.model.records import PAGE_BYTES, MemoryMapping, Records
from sentineld.observe.mappings import read_mappings
from sentineld.observe.shim_link import ShimLink


def mappings_of(link: ShimLink, samples: Records) -> tuple[MemoryMapping, ...]:
    """The mappings that contain sampled pages. A mapping of the shim gets the name of its space
    (heap or arena). Raises OSError."""
    mappings = read_mappings(link.pid)
    words = link.segment.words()
    heap = (link.segment.heap_base, link.segment.heap_bytes)
    spaces = {Space.HEAP: heap, Space.ARENA: (words.arena_base, words.arena_bytes)}
    starts = np.unique(samples["page"]) * np.uint64(PAGE_BYTES)
    found = []
    for mapped in mappings:
        first, past = np.searchsorted(starts, np.array(mapped[:2], np.uint64))
        if first == past:
            continue
        name = mapped.name
        for space, (start, size) in spaces.items():
            if start <= mapped.start < start + size:
                name = f"the shim's {space.name.lower()}"
        found.append(mapped._replace(name=name))
    return tuple(found)


def facts_of(
    link: ShimLink, policy: str | None, faults_recorded: bool, notes: list[str]
) -> dict[str, Any]:
    """Trace.facts (profile/trace.py). policy: the live plan's policy; None: no plan is live."""
    hello, system = link.hello, os.uname()
    return {
        "sentineld": __version__,
        "pid": link.pid,
        "torch": text_of(hello.get("torch", ""), 64),
        "threads": text_of(hello.get("threads", ""), 16),
        "managed": policy is not None,
        "policy": policy or "",
        "unmanaged_bytes": link.segment.words().unmanaged_bytes,
        "kernel": system.release,
        "machine": system.machine,
        "cpus": os.cpu_count() or 0,
        "recorded_unix_ns": time.time_ns(),
        # A record's time plus this offset is a Unix time, which other tracers use.
        "unix_minus_monotonic_ns": time.time_ns() - time.monotonic_ns(),
        "faults_recorded": faults_recorded,
        "notes": list(notes),
    }
