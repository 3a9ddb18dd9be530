# SPDX-License-Identifier: Apache-2.0
"""Checks of the kernel and its module."""

from __future__ import annotations

import lzma
import os
import re
from pathlib import Path

from sentineld.doctor.findings import Finding, Status, System

OLDEST_KERNEL = (6, 1)
_SIGNATURE = b"~Module signature appended~\n"


def kernel(system: System) -> Finding:
    """Version, architecture and preemption that the module supports."""
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
            f"kernel {release} on {machine}: the module exists for x86_64 only",
            "use an x86-64 machine",
        )
    if system.text("sys/kernel/realtime") == "1":
        return Finding(
            "kernel",
            Status.WARN,
            f"kernel {release} is PREEMPT_RT, where the module does not load",
            "boot a kernel without PREEMPT_RT",
        )
    return Finding("kernel", Status.OK, f"{release} on {machine}")


def module(system: System) -> Finding:
    """Whether the module is loaded, or at least could be; the check `backend` says what runs
    without it."""
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
    if _lockdown(system) and not _is_signed(file):
        return Finding(
            "module",
            Status.WARN,
            "Secure Boot's lockdown refuses the module, which is not signed",
            "enrol DKMS's key: mokutil --import /var/lib/dkms/mok.pub, then reboot",
        )
    return Finding(
        "module",
        Status.FAIL,
        "sentinel is built, not loaded",
        "modprobe sentinel",
        "module-not-loaded",
    )


def device(system: System) -> Finding:
    """Whether /dev/sentinel may be opened from here."""
    path = system.root / "dev/sentinel"
    if not path.exists():
        return Finding("device", Status.SKIP, f"{path} appears when the module is loaded")
    if not os.access(path, os.R_OK | os.W_OK):
        return Finding(
            "device",
            Status.WARN,
            f"{path} is not for this user; the daemon opens it as root",
            "run doctor as root to be sure",
        )
    return Finding("device", Status.OK, f"{path} may be opened")


def ftrace(system: System) -> Finding:
    """The module hooks one kernel function by ftrace."""
    if system.text("proc/sys/kernel/ftrace_enabled") == "0":
        return Finding(
            "ftrace",
            Status.WARN,
            "kernel.ftrace_enabled is 0, so the module can't attach",
            "sysctl kernel.ftrace_enabled=1",
        )
    return Finding("ftrace", Status.OK, "not switched off")


def _module_file(system: System) -> Path | None:
    folder = system.root / "lib/modules" / system.release
    for pattern in ("updates/**/sentinel.ko*", "extra/**/sentinel.ko*", "kernel/**/sentinel.ko*"):
        for path in sorted(folder.glob(pattern)):
            return path
    return None


def _lockdown(system: System) -> bool:
    text = system.text("sys/kernel/security/lockdown") or ""
    return "[integrity]" in text or "[confidentiality]" in text


def _is_signed(file: Path) -> bool:
    content = file.read_bytes()
    if file.suffix == ".xz":
        content = lzma.decompress(content)
    return content.endswith(_SIGNATURE)
