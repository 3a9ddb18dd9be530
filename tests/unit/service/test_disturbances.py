# SPDX-License-Identifier: Apache-2.0
"""Each disturbance is described in one line: what causes it, and how to stop it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sentineld.model.kernel_events import Disturbance
from sentineld.service import disturbances
from sentineld.service.disturbances import by_reason, in_words

KERNEL_REASONS = (
    "compaction",
    "memory_failure",
    "memory_hotplug",
    "syscall_or_cpuset",
    "mempolicy_mbind",
    "numa_misplaced",
    "contig_range",
    "longterm_pin",
    "demotion",
    "damon",
)
"""Reasons for migrations in the kernel's include/trace/events/migrate.h."""


def row(by: str, deed: str, pages: int, way: tuple[int | None, int | None] = (0, 1)) -> Disturbance:
    return Disturbance(
        by=by,
        pid=71,
        own=False,
        deed=deed,
        from_node=way[0],
        to_node=way[1],
        pages=pages,
        kept=0,
        last_ns=1,
    )


def own(found: Disturbance) -> Disturbance:
    return Disturbance(**{**found, "own": True})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            row("kswapd0", "demotion", 812),
            "kswapd0 demoted 812 of its pages from node 0 to 1; "
            "to stop it: echo false > /sys/kernel/mm/numa/demotion_enabled",
        ),
        (
            row("make", "demotion", 5),
            "direct reclaim for make (process 71) demoted 5 of its pages from node 0 to 1; "
            "to stop it: echo false > /sys/kernel/mm/numa/demotion_enabled",
        ),
        (
            row("\x1b[2Jx\n", "demotion", 5),
            "direct reclaim for ?[2Jx? (process 71) demoted 5 of its pages from node 0 to 1; "
            "to stop it: echo false > /sys/kernel/mm/numa/demotion_enabled",
        ),
        (
            own(row("python3", "reclaim", 9, (1, None))),
            "direct reclaim for the process itself reclaimed 9 of its pages; "
            "to stop it: leave more memory free, or swapoff -a",
        ),
        (
            own(row("python3", "numa_misplaced", 3, (1, 0))),
            "NUMA balancing moved 3 of its pages from node 1 to 0; "
            "to stop it: sysctl kernel.numa_balancing=0",
        ),
        (
            own(row("python3", "compaction", 9, (0, 0))),
            "the process itself moved 9 of its pages to make room for huge pages within node 0; "
            "to stop it: echo never > /sys/kernel/mm/transparent_hugepage/defrag",
        ),
        (
            row("migratepages", "syscall_or_cpuset", 600),
            "migratepages (process 71) moved 600 of its pages from node 0 to 1; "
            "to stop it: stop that program, or exclude the process from its targets",
        ),
        (
            row("kcompactd0", "compaction", 40, (0, 0)),
            "kcompactd0 moved 40 of its pages to make room for huge pages within node 0; "
            "to stop it: sysctl vm.compaction_proactiveness=0",
        ),
        (
            row("make", "compaction", 40, (0, 0)),
            "make (process 71) moved 40 of its pages to make room for huge pages within node 0; "
            "to stop it: echo never > /sys/kernel/mm/transparent_hugepage/defrag",
        ),
        (
            row("khugepaged", "collapse", 512, (None, None)),
            "khugepaged collapsed 512 of its pages into huge pages; "
            "to stop it: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
    ],
)
def test_each_disturbance_is_described_with_its_remedy(found: Disturbance, words: str) -> None:
    assert in_words([found]) == words


def test_the_largest_cause_is_named_and_the_others_counted() -> None:
    rows = [
        row("kswapd0", "demotion", 30),
        row("migratepages", "syscall_or_cpuset", 20, (0, 1)),
        row("migratepages", "syscall_or_cpuset", 25, (1, 0)),
    ]
    line = in_words(rows)
    assert line.startswith("migratepages (process 71) moved 45 of its pages; to stop it: ")
    assert line.endswith(" (and 30 pages by 1 other)")


@pytest.mark.parametrize("deed", ["syscall_or_cpuset", "mempolicy_mbind", "collapse"])
def test_a_process_moving_its_own_pages_is_no_disturbance(deed: str) -> None:
    rows = [own(row("python3", deed, 100))]
    assert in_words(rows) == ""
    assert by_reason(rows) == {}


def test_pages_that_did_not_move_are_counted_but_not_described() -> None:
    found = Disturbance(**{**row("numad", "syscall_or_cpuset", 0), "kept": 8})  # type: ignore[typeddict-item]
    assert in_words([found]) == ""
    assert by_reason([found, row("kswapd0", "syscall_or_cpuset", 2)]) == {
        ("syscall_or_cpuset", "moved"): 2,
        ("syscall_or_cpuset", "kept"): 8,
    }


@pytest.mark.parametrize("deed", [*KERNEL_REASONS, "reclaim", "collapse", "unknown", "17"])
def test_every_reason_has_a_description(deed: str) -> None:
    line = in_words([row("another", deed, 7)])
    assert re.search(r"\b7 of its pages\b.*; to stop it: \S", line)
    assert "\n" not in line


def test_remedies_equal_the_doctors_fixes() -> None:
    text = Path(disturbances.__file__).parents[1].joinpath("doctor", "memory.py").read_text()
    for deed in ("demotion", "numa_misplaced"):
        assert in_words([row("kswapd0", deed, 1)]).split("to stop it: ")[1] in text
