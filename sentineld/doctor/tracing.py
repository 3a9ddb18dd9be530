# SPDX-License-Identifier: Apache-2.0
"""Checks of what eBPF and process events need."""

from __future__ import annotations

import importlib.util
import os
import re

from sentineld.base.errors import SentinelError
from sentineld.doctor.findings import Finding, Status, System
from sentineld.observe.ebpf_loader import import_bcc

NEEDED_CAPABILITIES = {"SYS_PTRACE": 19, "PERFMON": 38, "BPF": 39}
"""Numbers of linux/capability.h; what the daemon's unit keeps of root's."""


def bcc(_: System) -> Finding:
    """The distribution's bcc, which shares its name with another project."""
    try:
        found = import_bcc()
    except SentinelError as error:
        return Finding("bcc", Status.FAIL, error.message, error.hint, error.code)
    return Finding("bcc", Status.OK, f"{getattr(found, '__version__', 'bcc')} with BPF")


def headers(system: System) -> Finding:
    """Kernel headers, for bcc and for DKMS."""
    named = os.environ.get("BCC_KERNEL_SOURCE")
    folder = system.root / "lib/modules" / system.release / "build"
    if named:
        folder = system.root / named.lstrip("/")
    if (folder / "include").is_dir():
        return Finding("headers", Status.OK, str(folder))
    return Finding(
        "headers",
        Status.FAIL,
        f"no kernel headers in {folder}",
        f"apt install linux-headers-{system.release}, or name some with BCC_KERNEL_SOURCE",
        "no-kernel-headers",
    )


def btf(system: System) -> Finding:
    """Type information of the kernel, for tools that load eBPF objects without headers."""
    if (system.root / "sys/kernel/btf/vmlinux").exists():
        return Finding("btf", Status.OK, "/sys/kernel/btf/vmlinux")
    return Finding(
        "btf", Status.WARN, "the kernel has no BTF", "use a kernel with CONFIG_DEBUG_INFO_BTF=y"
    )


def capabilities(system: System) -> Finding:
    """What root, and so the daemon, may do here; containers often may less."""
    found = re.search(
        r"^CapBnd:\s*([0-9a-f]+)$", system.text("proc/self/status") or "", re.MULTILINE
    )
    if found is None:
        return Finding("capabilities", Status.SKIP, "the capability sets can't be read")
    bounds = int(found[1], 16)
    missing = [name for name, bit in NEEDED_CAPABILITIES.items() if not bounds >> bit & 1]
    if missing:
        return Finding(
            "capabilities",
            Status.FAIL,
            f"not even root has CAP_{', CAP_'.join(missing)} here",
            "leave the container, or give it these capabilities",
            "not-permitted",
        )
    return Finding(
        "capabilities", Status.OK, f"CAP_{', CAP_'.join(NEEDED_CAPABILITIES)} can be had"
    )


def perf_paranoid(system: System) -> Finding:
    """perf events, by which bcc attaches software events and tracepoints."""
    value = system.text("proc/sys/kernel/perf_event_paranoid")
    if value is None:
        return Finding("perf", Status.SKIP, "the kernel has no perf events")
    if int(value) > 2:
        return Finding(
            "perf",
            Status.OK,
            f"kernel.perf_event_paranoid is {value}: only raw tracepoints attach, which suffice",
        )
    return Finding("perf", Status.OK, f"kernel.perf_event_paranoid is {value}")


def pyroute2(_: System) -> Finding:
    """The proc connector's library; without it process ends are seen by pidfds only."""
    if importlib.util.find_spec("pyroute2") is None:
        return Finding(
            "pyroute2", Status.WARN, "pyroute2 is not installed", "apt install python3-pyroute2"
        )
    return Finding("pyroute2", Status.OK, "installed")
