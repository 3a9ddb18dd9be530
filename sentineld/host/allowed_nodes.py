# SPDX-License-Identifier: Apache-2.0
"""The memory nodes that a process's cpuset and its own binding (MPOL_BIND) allow."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.base.proc_text import read_proc_text
from sentineld.host.sysfs import parse_list
from sentineld.model.tiers import Tiers

NODES_MAX = 1024


def cpuset_nodes(pid: int) -> frozenset[int]:
    """The nodes of a process's cpuset (Mems_allowed_list, proc(5)). Raises OSError."""
    status = read_proc_text(Path(f"/proc/{pid}/status"))
    found = re.search(r"^Mems_allowed_list:\s*(\S*)$", status, re.MULTILINE)
    return frozenset(parse_list(found[1])) if found else frozenset()


def bound_nodes(reported: object) -> frozenset[int] | None:
    """The nodes that a process reports as its memory binding; None if it reports no binding."""
    if not isinstance(reported, list) or not reported:
        return None
    return frozenset(node for node in reported[:NODES_MAX] if type(node) is int)


def require_allowed(
    pid: int, tiers: Tiers, cpuset: frozenset[int], bound: frozenset[int] | None
) -> None:
    """Raise SentinelError "not-permitted" if the tiers have nodes that the process may not use.

    Without this check, the daemon's move_pages() and the shim's mbind() would override the
    process's own binding.
    """
    wanted = [node for tier in tiers.tiers for node in tier.nodes]
    outside = _text(node for node in wanted if node not in cpuset)
    if outside:
        raise SentinelError(
            "not-permitted",
            f"the cpuset of process {pid} excludes the tiers' memory nodes {outside}",
            "add them to cpuset.mems of its cgroup, or name other nodes in the config's [tiers]",
        )
    if bound is None:
        return
    outside = _text(node for node in wanted if node not in bound)
    if outside:
        raise SentinelError(
            "not-permitted",
            f"process {pid} is bound to memory nodes {_text(bound)}, which exclude the tiers' nodes"
            f" {outside}",
            f"start it without a binding, or with numactl --membind={_text(wanted)}",
        )


def _text(nodes: Iterable[int]) -> str:
    return ",".join(map(str, sorted(set(nodes))))
