# SPDX-License-Identifier: Apache-2.0
"""Checks of tiers and of the kernel's own memory policies."""

from __future__ import annotations

import re
from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.doctor.findings import Finding, Status, System
from sentineld.host.sysfs import chosen, read_text
from sentineld.host.tiers import discover

DEFAULT_MAX_MAP_COUNT = 65530
SYSCTL_FOLDERS = ("etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d")
"""The first hides files of the same name in the others; sysctl.d(5)."""
TUNED_FOLDERS = ("etc/tuned", "etc/tuned/profiles", "usr/lib/tuned", "usr/lib/tuned/profiles")

VIRTIO_BALLOON_F_REPORTING = 5
"""The feature's bit, include/uapi/linux/virtio_balloon.h."""
LIST_FRACTION = "proc/sys/vm/percpu_pagelist_high_fraction"
LIST_FRACTION_MIN = 8
"""mm/page_alloc.c: an eighth of a zone is the most that the lists of all its CPUs may hold."""

_NUMA_BALANCING = re.compile(r"^\s*-?kernel[./]numa_balancing\s*=", re.MULTILINE)


def tiers(system: System) -> Finding:
    """A fast and a slow tier."""
    if preset := system.tiers.get("emulated"):
        return Finding("tiers", Status.OK, f"emulated (preset {preset}); from the configuration")
    try:
        found = discover(system.root / "sys", system.tiers)
    except SentinelError as error:
        return Finding("tiers", Status.FAIL, error.message, error.hint, error.code)
    listed = ", ".join(
        f"node {'+'.join(map(str, tier.nodes))} ({format_bytes(tier.capacity_bytes)})"
        for tier in found.tiers
    )
    return Finding("tiers", Status.OK, f"{listed}; from {found.source}")


def numa_balancing(system: System) -> Finding:
    """The kernel's own page migration, which would compete with the daemon's."""
    value = system.text("proc/sys/kernel/numa_balancing")
    if value in (None, "0"):
        return Finding("numa_balancing", Status.OK, "kernel.numa_balancing is off")
    kind = "tiering" if value == "2" else "balancing"
    cause = f"kernel.numa_balancing is {value}: NUMA {kind} moves pages and takes faults of its own"
    writer = _writer(system)
    if writer is None:
        return Finding("numa_balancing", Status.WARN, cause, "sysctl kernel.numa_balancing=0")
    return Finding(
        "numa_balancing",
        Status.WARN,
        f"{cause}; {writer} sets it",
        "sysctl kernel.numa_balancing=0, and change it there, too",
    )


def _writer(system: System) -> str | None:
    """Who sets kernel.numa_balancing: tuned's active profile, else a sysctl file; else None
    (the kernel's own default, or somebody by hand)."""
    profile = system.text("etc/tuned/active_profile")
    for name in (profile or "").split():
        for folder in TUNED_FOLDERS:
            if _NUMA_BALANCING.search(system.text(f"{folder}/{name}/tuned.conf") or ""):
                return f"tuned's profile {name}"
    # The file that comes last by name wins, and /etc hides a file of the same name elsewhere.
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
    """Reclaim that moves pages to slower nodes behind the plan's back."""
    if system.text("sys/kernel/mm/numa/demotion_enabled") != "true":
        return Finding("demotion", Status.OK, "the kernel demotes nothing by itself")
    return Finding(
        "demotion",
        Status.WARN,
        "the kernel may demote pages that the plan wants fast",
        "echo false > /sys/kernel/mm/numa/demotion_enabled",
    )


def huge_pages(system: System) -> Finding:
    """Transparent huge pages: tensors' memory says for itself where it has them, so any mode will
    do."""
    modes = system.text("sys/kernel/mm/transparent_hugepage/enabled") or ""
    mode = chosen(modes) or "not built in"
    but = "" if mode in ("never", "not built in") else ", but for what a plan names"
    return Finding("huge_pages", Status.OK, f"{mode}; tensor memory is kept in small pages{but}")


def max_map_count(system: System) -> Finding:
    """Mappings a process may have: each policy range is one."""
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
    """Swap takes pages from both tiers."""
    if len((system.text("proc/swaps") or "").splitlines()) > 1:
        return Finding(
            "swap",
            Status.WARN,
            "swap is on: pages of a full node may leave memory altogether",
            "swapoff -a, or vm.swappiness=0",
        )
    return Finding("swap", Status.OK, "off")


def reports_free_memory(root: Path) -> bool:
    """Whether a hypervisor is told, through a virtio balloon, of memory that has been free for 2 s
    (mm/page_reporting.c), and takes it away."""
    balloons = root.glob("sys/bus/virtio/drivers/virtio_balloon/virtio*/features")
    return any(
        (read_text(balloon) or "")[VIRTIO_BALLOON_F_REPORTING:].startswith("1")
        for balloon in balloons
    )


def free_memory(system: System) -> Finding:
    """Memory that a hypervisor takes back while nobody uses it: each step's births wait for it."""
    if not reports_free_memory(system.root):
        return Finding("free_memory", Status.OK, "no virtio balloon reports it to a hypervisor")
    fraction = int(system.text(LIST_FRACTION) or 0)
    reported = "the kernel reports free memory to the hypervisor"
    if fraction:
        kept = f"{reported}, but the CPUs' lists keep up to 1/{fraction} of it"
        return Finding("free_memory", Status.OK, kept)
    return Finding(
        "free_memory",
        Status.WARN,
        f"{reported}, which takes it back after 2 s: pages that a step gives back and makes anew"
        " cost several times as much",
        f"sysctl vm.percpu_pagelist_high_fraction={LIST_FRACTION_MIN}",
    )
