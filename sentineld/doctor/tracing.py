# SPDX-License-Identifier: Apache-2.0
"""Checks of the prerequisites of eBPF and process events."""

from __future__ import annotations

import importlib.util
import os
import re

from sentineld.base.errors import SentinelError
from sentineld.doctor.findings import Finding, Status, System
from sentineld.observe.ebpf_loader import import_bcc

NEEDED_CAPABILITIES = {"SYS_PTRACE": 19, "PERFMON": 38, "BPF": 39}
"""Capabilities that the daemon's unit keeps, with their numbers in linux/capability.h."""


def _lacking(system: System) -> Status:
    """The status of a check if something that only eBPF needs is missing."""
    return {"off": Status.SKIP, "required": Status.FAIL}.get(system.ebpf, Status.WARN)


def bcc(system: System) -> Finding:
    """Whether bcc is installed. The package bcc on PyPI is a different project."""
    try:
        found = import_bcc()
    except SentinelError as error:
        return Finding("bcc", _lacking(system), error.message, error.hint, error.code)
    return Finding("bcc", Status.OK, f"{getattr(found, '__version__', 'bcc')} with BPF")


def headers(system: System) -> Finding:
    """Whether kernel headers are installed, for bcc and DKMS."""
    named = os.environ.get("BCC_KERNEL_SOURCE")
    folder = system.root / "lib/modules" / system.release / "build"
    if named:
        folder = system.root / named.lstrip("/")
    if (folder / "include").is_dir():
        return Finding("headers", Status.OK, str(folder))
    return Finding(
        "headers",
        _lacking(system),
        f"no kernel headers in {folder}",
        f"apt install linux-headers-{system.release}, or set BCC_KERNEL_SOURCE to their directory",
        "no-kernel-headers",
    )


def btf(system: System) -> Finding:
    """Whether the kernel has BTF type information."""
    if (system.root / "sys/kernel/btf/vmlinux").exists():
        return Finding("btf", Status.OK, "/sys/kernel/btf/vmlinux")
    return Finding(
        "btf", Status.WARN, "the kernel has no BTF", "use a kernel with CONFIG_DEBUG_INFO_BTF=y"
    )


def capabilities(system: System) -> Finding:
    """Whether root has the capabilities that the daemon needs; containers often restrict them."""
    found = re.search(
        r"^CapBnd:\s*([0-9a-f]+)$", system.text("proc/self/status") or "", re.MULTILINE
    )
    if found is None:
        return Finding("capabilities", Status.SKIP, "cannot read the capability sets")
    bounds = int(found[1], 16)
    missing = [name for name, bit in NEEDED_CAPABILITIES.items() if not bounds >> bit & 1]
    if missing:
        return Finding(
            "capabilities",
            Status.FAIL,
            f"root lacks CAP_{', CAP_'.join(missing)} here",
            "run outside of the container, or grant it these capabilities",
            "not-permitted",
        )
    return Finding("capabilities", Status.OK, f"root has CAP_{', CAP_'.join(NEEDED_CAPABILITIES)}")


def perf_paranoid(system: System) -> Finding:
    """Whether perf events are restricted. Any setting works, because the daemon's probes need raw
    tracepoints only."""
    value = system.text("proc/sys/kernel/perf_event_paranoid")
    if value is None:
        return Finding("perf", Status.SKIP, "the kernel has no perf events")
    if int(value) > 2:
        return Finding(
            "perf",
            Status.OK,
            f"kernel.perf_event_paranoid is {value}: only raw tracepoints can be attached, "
            "which is sufficient",
        )
    return Finding("perf", Status.OK, f"kernel.perf_event_paranoid is {value}")


def pyroute2(_: System) -> Finding:
    """Whether pyroute2 is installed. Without it, the daemon observes exits of processes, but not
    forks and execs."""
    if importlib.util.find_spec("pyroute2") is None:
        return Finding(
            "pyroute2", Status.WARN, "pyroute2 is not installed", "apt install python3-pyroute2"
        )
    return Finding("pyroute2", Status.OK, "installed")
