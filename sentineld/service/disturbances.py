# SPDX-License-Identifier: Apache-2.0
"""Who else moves or takes a session's pages, in words, and how to make them stop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sentineld.model.kernel_events import Disturbance


class _Deed(NamedTuple):
    """What was done, after the mover's name and before the places; and what to do about it."""

    says: str
    fix: str


_DEEDS = {
    "demotion": _Deed(
        "demoted {pages} pages of it", "echo false > /sys/kernel/mm/numa/demotion_enabled"
    ),
    "numa_misplaced": _Deed("moved {pages} pages of it", "sysctl kernel.numa_balancing=0"),
    "reclaim": _Deed(
        "took {pages} pages of it out of memory", "leave more memory free, or swapoff -a"
    ),
    "compaction": _Deed(
        "moved {pages} pages of it to make room for huge ones",
        "sysctl vm.compaction_proactiveness=0",
    ),
    "collapse": _Deed(
        "gathered {pages} pages of it into huge ones",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    ),
    "syscall_or_cpuset": _Deed(
        "moved {pages} pages of it", "end that program, or have it leave the process alone"
    ),
    "damon": _Deed("moved {pages} pages of it", "end the scheme in /sys/kernel/mm/damon/admin"),
    "memory_hotplug": _Deed(
        "moved {pages} pages of it to take memory offline", "leave the memory online"
    ),
    "contig_range": _Deed(
        "moved {pages} pages of it to make contiguous memory",
        "reserve huge pages before the training begins",
    ),
    "longterm_pin": _Deed(
        "moved {pages} pages of it to pin them", "pin memory before the process is attached"
    ),
    "memory_failure": _Deed("moved {pages} pages of it off failing memory", "replace the memory"),
}
_UNNAMED = _Deed("moved {pages} pages of it", "see sentinelctl status --json")

_OWN_DEEDS = ("syscall_or_cpuset", "mempolicy_mbind", "longterm_pin", "collapse")
"""What a process asks for itself is no fight; what the kernel does in its time may be one."""

_BY_ITS_THREAD = {
    "compaction": "echo never > /sys/kernel/mm/transparent_hugepage/defrag",
    "collapse": "end that program, or have it leave the process alone",
}
"""What the kernel's thread for it does by itself has a switch; this stops it in others' time."""

_KERNEL_THREADS = ("kswapd", "kcompactd", "khugepaged", "kdamond", "kworker")


def is_fight(row: Disturbance) -> bool:
    """Whether somebody else than the process itself and the daemon did this."""
    return not (row["own"] and row["deed"] in _OWN_DEEDS)


def by_reason(rows: Iterable[Disturbance]) -> dict[tuple[str, str], int]:
    """Pages by (reason, result) of what others did; result: moved (or gone), or kept."""
    pages: dict[tuple[str, str], int] = defaultdict(int)
    for row in filter(is_fight, rows):
        pages[row["deed"], "moved"] += row["pages"]
        pages[row["deed"], "kept"] += row["kept"]
    return dict(pages)


def in_words(rows: Sequence[Disturbance]) -> str:
    """One line on what others did: the one that did most by name, with what to do about it, and
    how much the rest did. Empty if nobody did anything."""
    parties: dict[tuple[str, str], list[Disturbance]] = defaultdict(list)
    for row in rows:
        if is_fight(row) and row["pages"]:
            parties[row["deed"], _who(row)].append(row)
    if not parties:
        return ""
    sizes = {party: sum(row["pages"] for row in found) for party, found in parties.items()}
    deed, who = most = max(sizes, key=lambda party: sizes[party])
    says, fix = _DEEDS.get(deed, _UNNAMED)
    if deed in _BY_ITS_THREAD and not who.startswith(_KERNEL_THREADS):
        fix = _BY_ITS_THREAD[deed]
    line = f"{who} {says.format(pages=sizes[most])}{_where(parties[most])}; to stop it: {fix}"
    others = len(parties) - 1
    if others:
        rest = sum(sizes.values()) - sizes[most]
        line += f" (and {rest} pages by {others} {'other' if others == 1 else 'others'})"
    return line


def _who(row: Disturbance) -> str:
    if row["deed"] == "numa_misplaced":
        return "NUMA balancing"
    if row["by"].startswith(_KERNEL_THREADS):
        return row["by"]
    who = "itself" if row["own"] else f"{row['by']} (process {row['pid']})"
    if row["deed"] in ("demotion", "reclaim"):
        # The kernel does it in the time of whoever asks for memory when there is none.
        return f"direct reclaim for {who}"
    return who


def _where(rows: list[Disturbance]) -> str:
    """The nodes, where all went the same way."""
    ways = {(row["from_node"], row["to_node"]) for row in rows}
    source, target = ways.pop()
    if ways or source is None or target is None:
        return ""
    return f" within node {source}" if source == target else f" from node {source} to {target}"
