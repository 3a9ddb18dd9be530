# SPDX-License-Identifier: Apache-2.0
"""Checks of the kernel and of sentineld's kernel module."""

from __future__ import annotations

import gzip
import lzma
import os
import re
from pathlib import Path

from sentineld.doctor.findings import Finding, Status, System

OLDEST_KERNEL = (6, 1)
_SIGNATURE = b"~Module signature appended~\n"


def kernel(system: System) -> Finding:
    """Whether the module supports the kernel's version, architecture and preemption model."""
    release = system.release
    found = re.match(r"(\d+)\.(\d+)", release)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    machine = system.text("proc/sys/kernel/arch") or os.uname().machine
    if version < OLDEST_KERNEL:
        return Finding(
            "kernel",
            Status.FAIL,
            f"kernel {release or 'unknown'} is too old",
            "run Linux 6.1 or later",
        )
    if machine != "x86_64":
        return Finding(
            "kernel",
            Status.WARN,
            f"kernel {release} on {machine}: the module supports x86_64 only",
            "use an x86-64 machine",
        )
    if system.text("sys/kernel/realtime") == "1":
        return Finding(
            "kernel",
            Status.WARN,
            f"kernel {release} is PREEMPT_RT, which the module does not support",
            "boot a kernel without PREEMPT_RT",
        )
    return Finding("kernel", Status.OK, f"{release} on {machine}")


def module(system: System) -> Finding:
    """Whether the module is loaded; if not, whether it is built and, under lockdown, signed."""
    if re.search(r"^sentinel ", system.text("proc/modules") or "", re.MULTILINE):
        return Finding("module", Status.OK, "sentinel is loaded")
    file = _module_file(system)
    if file is None:
        return Finding(
            "module",
            Status.WARN,
            f"no sentinel module is built for kernel {system.release}",
            f"make install with linux-headers-{system.release} installed (DKMS builds it)",
        )
    if _lockdown(system) and _is_unsigned(file):
        return Finding(
            "module",
            Status.WARN,
            "the kernel is locked down (Secure Boot) and the module is not signed",
            "enrol DKMS's key: mokutil --import /var/lib/dkms/mok.pub, then reboot",
        )
    return Finding(
        "module",
        Status.FAIL,
        "sentinel is built but not loaded",
        "modprobe sentinel",
        "module-not-loaded",
    )


def device(system: System) -> Finding:
    """Whether this user may open /dev/sentinel."""
    path = system.root / "dev/sentinel"
    if not path.exists():
        return Finding("device", Status.SKIP, f"{path} exists only while the module is loaded")
    if not os.access(path, os.R_OK | os.W_OK):
        return Finding(
            "device",
            Status.WARN,
            f"{path} is not accessible to this user; the daemon opens it as root",
            "run doctor as root to check it",
        )
    return Finding("device", Status.OK, f"{path} is accessible")


def ftrace(system: System) -> Finding:
    """Whether ftrace is enabled. The module needs it to hook the kernel's fault handler."""
    if system.text("proc/sys/kernel/ftrace_enabled") == "0":
        return Finding(
            "ftrace",
            Status.WARN,
            "kernel.ftrace_enabled is 0: the module cannot hook the fault handler",
            "sysctl kernel.ftrace_enabled=1",
        )
    return Finding("ftrace", Status.OK, "kernel.ftrace_enabled is not 0")


def _module_file(system: System) -> Path | None:
    folder = system.root / "lib/modules" / system.release
    for pattern in ("updates/**/sentinel.ko*", "extra/**/sentinel.ko*", "kernel/**/sentinel.ko*"):
        for path in sorted(folder.glob(pattern)):
            return path
    return None


def _lockdown(system: System) -> bool:
    text = system.text("sys/kernel/security/lockdown") or ""
    return "[integrity]" in text or "[confidentiality]" in text


def _is_unsigned(file: Path) -> bool:
    """Whether the module is known to have no signature. False for a file compressed by zstd, which
    is not examined, because not every supported Python can decompress zstd."""
    content = file.read_bytes()
    if file.suffix == ".xz":
        content = lzma.decompress(content)
    elif file.suffix == ".gz":
        content = gzip.decompress(content)
    elif file.suffix != ".ko":
        return False
    return not content.endswith(_SIGNATURE)
