# SPDX-License-Identifier: Apache-2.0
"""Describes page moves, reclaim and huge-page collapses that the daemon did not cause, and how to
stop them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sentineld.base.text import printable
from sentineld.model.kernel_events import Disturbance


class _Words(NamedTuple):
    """Texts for one kind of disturbance."""

    says: str  # predicate of the message; the name of the cause precedes it
    fix: str  # the command or action that stops the disturbance


_WORDS = {
    "demotion": _Words(
        "demoted {pages} of its pages", "echo false > /sys/kernel/mm/numa/demotion_enabled"
    ),
    "numa_misplaced": _Words("moved {pages} of its pages", "sysctl kernel.numa_balancing=0"),
    "reclaim": _Words("reclaimed {pages} of its pages", "leave more memory free, or swapoff -a"),
    "compaction": _Words(
        "moved {pages} of its pages to make room for huge pages",
        "sysctl vm.compaction_proactiveness=0",
    ),
    "collapse": _Words(
        "collapsed {pages} of its pages into huge pages",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    ),
    "syscall_or_cpuset": _Words(
        "moved {pages} of its pages", "stop that program, or exclude the process from its targets"
    ),
    "damon": _Words("moved {pages} of its pages", "stop the scheme in /sys/kernel/mm/damon/admin"),
    "memory_hotplug": _Words(
        "moved {pages} of its pages to take memory offline", "keep the memory online"
    ),
    "contig_range": _Words(
        "moved {pages} of its pages to make contiguous memory",
        "reserve huge pages before the training starts",
    ),
    "longterm_pin": _Words(
        "moved {pages} of its pages to pin them", "pin memory before the process is attached"
    ),
    "memory_failure": _Words("moved {pages} of its pages off failing memory", "replace the memory"),
}
_UNNAMED = _Words("moved {pages} of its pages", "see sentinelctl status --json")

_OWN_REQUESTS = ("syscall_or_cpuset", "mempolicy_mbind", "longterm_pin", "collapse")
"""Kinds of moves that are not disturbances if the process itself requested them."""

_BY_ITS_THREAD = {
    "compaction": "echo never > /sys/kernel/mm/transparent_hugepage/defrag",
    "collapse": "stop that program, or exclude the process from its targets",
}
"""Fixes for disturbances that a program caused. If a kernel thread caused the disturbance, the fix
in _WORDS applies."""

_KERNEL_THREADS = ("kswapd", "kcompactd", "khugepaged", "kdamond", "kworker")


def is_disturbance(row: Disturbance) -> bool:
    """Whether the row is a disturbance, and not a move that the process itself requested."""
    return not (row["own"] and row["deed"] in _OWN_REQUESTS)


def by_reason(rows: Iterable[Disturbance]) -> dict[tuple[str, str], int]:
    """Disturbed pages by (reason, result).

    result: moved (includes reclaimed and collapsed pages), or kept (the pages could not be moved).
    """
    pages: dict[tuple[str, str], int] = defaultdict(int)
    for row in filter(is_disturbance, rows):
        pages[row["deed"], "moved"] += row["pages"]
        pages[row["deed"], "kept"] += row["kept"]
    return dict(pages)


def in_words(rows: Sequence[Disturbance]) -> str:
    """One line: the largest disturbance, its fix, and the number of pages of all other
    disturbances.

    Empty if there is no disturbance.
    """
    causes: dict[tuple[str, str], list[Disturbance]] = defaultdict(list)
    for row in rows:
        if is_disturbance(row) and row["pages"]:
            causes[row["deed"], _subject(row)].append(row)
    if not causes:
        return ""
    sizes = {cause: sum(row["pages"] for row in found) for cause, found in causes.items()}
    deed, subject = most = max(sizes, key=lambda cause: sizes[cause])
    says, fix = _WORDS.get(deed, _UNNAMED)
    if deed in _BY_ITS_THREAD and not subject.startswith(_KERNEL_THREADS):
        fix = _BY_ITS_THREAD[deed]
    line = f"{subject} {says.format(pages=sizes[most])}{_where(causes[most])}; to stop it: {fix}"
    others = len(causes) - 1
    if others:
        rest = sum(sizes.values()) - sizes[most]
        line += f" (and {rest} pages by {others} {'other' if others == 1 else 'others'})"
    return line


def _subject(row: Disturbance) -> str:
    """Names the program, kernel thread or feature of the kernel that caused a disturbance."""
    if row["deed"] == "numa_misplaced":
        return "NUMA balancing"
    by = printable(row["by"])  # untrusted: a thread can set its own name
    if by.startswith(_KERNEL_THREADS):
        return by
    program = "the process itself" if row["own"] else f"{by} (process {row['pid']})"
    if row["deed"] in ("demotion", "reclaim"):
        # Direct reclaim runs in the context of the task whose allocation found no free memory.
        return f"direct reclaim for {program}"
    return program


def _where(rows: list[Disturbance]) -> str:
    """Names the source and target node; empty if the nodes are not the same in all rows, or if a
    node is unknown."""
    ways = {(row["from_node"], row["to_node"]) for row in rows}
    source, target = ways.pop()
    if ways or source is None or target is None:
        return ""
    return f" within node {source}" if source == target else f" from node {source} to {target}"
