# SPDX-License-Identifier: Apache-2.0
"""Checks of the tiers and of the kernel's own memory management."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.doctor.findings import Finding, Status, System, TierKind
from sentineld.host.sysfs import chosen, read_text
from sentineld.host.tiers import discover

DEFAULT_MAX_MAP_COUNT = 65530
SYSCTL_FOLDERS = ("etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d")
"""If several folders have a file of the same name, the file in the first of these folders is used;
see sysctl.d(5)."""
TUNED_FOLDERS = ("etc/tuned", "etc/tuned/profiles", "usr/lib/tuned", "usr/lib/tuned/profiles")

VIRTIO_BALLOON_F_REPORTING = 5
"""Bit number of the feature in include/uapi/linux/virtio_balloon.h."""
LIST_FRACTION = "proc/sys/vm/percpu_pagelist_high_fraction"
LIST_FRACTION_MIN = 8
"""Smallest value of LIST_FRACTION, other than 0, that the kernel accepts (mm/page_alloc.c). With
this value, the per-CPU lists hold up to an eighth of a zone."""

_NUMA_BALANCING = re.compile(r"^\s*-?kernel[./]numa_balancing\s*=", re.MULTILINE)


def tiers(system: System) -> Finding:
    """Whether there is a fast and a slow tier. The tiers of a running daemon may differ from the
    configuration, because of the option --tiers or because the daemon lacks a permission."""
    if not isinstance(system.daemon, SentinelError):
        return _daemons_tiers(system.daemon)
    if preset := system.tiers.get("emulated"):
        return Finding("tiers", Status.OK, f"emulated (preset {preset}); set in the configuration")
    if folder := system.tiers.get("paged"):
        return Finding("tiers", Status.OK, f"paged: files in {folder} are tier 1")
    if system.tier_kind is TierKind.SWAP:
        if _swap_is_on(system):
            return Finding("tiers", Status.OK, "the kernel's swap is tier 1")
        cause, fix = "no swap is enabled", "enable swap, for example on zram"
        return Finding("tiers", Status.FAIL, cause, fix, "no-second-tier")
    try:
        found = discover(system.root / "sys", system.tiers)
    except SentinelError as error:
        return Finding("tiers", Status.FAIL, error.message, error.hint, error.code)
    listed = _listed((tier.nodes, tier.capacity_bytes) for tier in found.tiers)
    return Finding("tiers", Status.OK, f"{listed}; from {found.source}")


def _daemons_tiers(status: Mapping[str, Any]) -> Finding:
    """The tiers of the running daemon."""
    if not status["tiers"]:
        cause = next(iter(status["problems"]), "the daemon has no tiers")
        return Finding("tiers", Status.FAIL, cause, code="no-second-tier")
    if preset := status["emulated"]:
        return Finding("tiers", Status.OK, f"emulated (preset {preset}), in the running daemon")
    if folder := status["paged"]:
        cause = f"paged: files in {folder} are tier 1, in the running daemon"
        return Finding("tiers", Status.OK, cause)
    if status["swap"]:
        return Finding("tiers", Status.OK, "the kernel's swap is tier 1, in the running daemon")
    listed = _listed((tier["nodes"], tier["capacity_bytes"]) for tier in status["tiers"])
    return Finding("tiers", Status.OK, f"{listed}; from {status['tiers_source']}")


def _listed(tiers: Iterable[tuple[Iterable[int], int]]) -> str:
    """The tiers as text, from the nodes and the capacity of each."""
    return ", ".join(
        f"node {'+'.join(map(str, nodes))} ({format_bytes(capacity_bytes)})"
        for nodes, capacity_bytes in tiers
    )


def numa_balancing(system: System) -> Finding:
    """Whether NUMA balancing is off; its page migration competes with the daemon's."""
    value = system.text("proc/sys/kernel/numa_balancing")
    if value in (None, "0"):
        return Finding("numa_balancing", Status.OK, "kernel.numa_balancing is off")
    kind = "tiering" if value == "2" else "balancing"
    cause = f"kernel.numa_balancing is {value}: NUMA {kind} migrates pages and causes page faults"
    writer = _writer(system)
    if writer is None:
        return Finding("numa_balancing", Status.WARN, cause, "sysctl kernel.numa_balancing=0")
    return Finding(
        "numa_balancing",
        Status.WARN,
        f"{cause}; set by {writer}",
        "sysctl kernel.numa_balancing=0, and change it there too",
    )


def _writer(system: System) -> str | None:
    """The place that sets kernel.numa_balancing: tuned's active profile or a sysctl file.

    None if neither sets it; the value is then the kernel's default, or was set by hand.
    """
    profile = system.text("etc/tuned/active_profile")
    for name in (profile or "").split():
        for folder in TUNED_FOLDERS:
            if _NUMA_BALANCING.search(system.text(f"{folder}/{name}/tuned.conf") or ""):
                return f"the tuned profile {name}"
    # The last file by name takes effect; a file in /etc replaces files of the same name elsewhere.
    files = {
        path.name: path
        for folder in reversed(SYSCTL_FOLDERS)
        for path in (system.root / folder).glob("*.conf")
    }
    setting = [
        path for _, path in sorted(files.items()) if _NUMA_BALANCING.search(read_text(path) or "")
    ]
    return f"/{setting[-1].relative_to(system.root)}" if setting else None


def demotion(system: System) -> Finding:
    """Whether reclaim may demote pages. If so, it may demote even pages that a plan keeps in
    fast memory."""
    if system.text("sys/kernel/mm/numa/demotion_enabled") != "true":
        return Finding("demotion", Status.OK, "the kernel does not demote pages")
    return Finding(
        "demotion",
        Status.WARN,
        "the kernel may demote pages that the plan keeps in fast memory",
        "echo false > /sys/kernel/mm/numa/demotion_enabled",
    )


def huge_pages(system: System) -> Finding:
    """The mode of transparent huge pages; any mode works, because the shim selects small or huge
    pages by madvise()."""
    modes = system.text("sys/kernel/mm/transparent_hugepage/enabled") or ""
    mode = chosen(modes) or "not built in"
    exception = "" if mode in ("never", "not built in") else ", except where a plan uses huge pages"
    return Finding("huge_pages", Status.OK, f"{mode}; tensor memory uses small pages{exception}")


def max_map_count(system: System) -> Finding:
    """Whether vm.max_map_count is at least the kernel's default. Sessions need many mappings,
    because each range with a memory policy is a mapping of its own."""
    value = int(system.text("proc/sys/vm/max_map_count") or DEFAULT_MAX_MAP_COUNT)
    if value < DEFAULT_MAX_MAP_COUNT:
        return Finding(
            "max_map_count",
            Status.WARN,
            f"vm.max_map_count is {value}, below the kernel's default",
            f"sysctl vm.max_map_count={DEFAULT_MAX_MAP_COUNT}",
        )
    return Finding("max_map_count", Status.OK, f"vm.max_map_count is {value}")


def swap(system: System) -> Finding:
    """Whether swap is off, unless it is the slow tier. If swap is on, the kernel may reclaim pages
    of both tiers."""
    if system.tier_kind is TierKind.SWAP:
        return Finding("swap", Status.SKIP, "swap is tier 1")
    if _swap_is_on(system):
        return Finding(
            "swap",
            Status.WARN,
            "swap is on: the kernel may swap out pages of a full node",
            "swapoff -a, or vm.swappiness=0",
        )
    return Finding("swap", Status.OK, "off")


def _swap_is_on(system: System) -> bool:
    return len((system.text("proc/swaps") or "").splitlines()) > 1


def reports_free_memory(root: Path) -> bool:
    """Whether the kernel reports free memory to the hypervisor through a virtio balloon.

    mm/page_reporting.c reports memory that was free for 2 s; the hypervisor takes it back.
    """
    balloons = root.glob("sys/bus/virtio/drivers/virtio_balloon/virtio*/features")
    return any(
        (read_text(balloon) or "")[VIRTIO_BALLOON_F_REPORTING:].startswith("1")
        for balloon in balloons
    )


def free_memory(system: System) -> Finding:
    """Whether a hypervisor takes back free memory. If so, page births are slow in each step."""
    if not reports_free_memory(system.root):
        return Finding(
            "free_memory", Status.OK, "no virtio balloon reports free memory to a hypervisor"
        )
    fraction = int(system.text(LIST_FRACTION) or 0)
    reported = "the kernel reports free memory to the hypervisor"
    if fraction:
        kept = f"{reported}, but the per-CPU lists keep up to 1/{fraction} of it"
        return Finding("free_memory", Status.OK, kept)
    return Finding(
        "free_memory",
        Status.WARN,
        f"{reported}, which takes it back after 2 s: page faults on memory that a step frees and"
        " allocates again take several times as long",
        f"sysctl vm.percpu_pagelist_high_fraction={LIST_FRACTION_MIN}",
    )
