# SPDX-License-Identifier: Apache-2.0
"""sentinelctl doctor in a guest, with each prerequisite present and absent."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from sentineld.base.errors import EXIT_STATUS

from .fixtures import FreshGuest
from .guest import TREE, Guest
from .rootfs import MODULE

pytestmark = [pytest.mark.guest, pytest.mark.second]

MAIN = "from sentineld.cli.main import main; main()"
SENTINELCTL = f"env PYTHONPATH={TREE} python3 -c '{MAIN}' --socket /run/none.sock doctor"

Checks = dict[str, dict[str, Any]]


def doctor(guest: Guest, wrapper: str = "") -> tuple[int, Checks]:
    """Run doctor; return its exit status and its checks by name.

    wrapper: command line to put before doctor's.
    """
    result = guest.run(f"cd {TREE} && {wrapper} {SENTINELCTL} --json", check=False)
    checks = json.loads(result.stdout)["checks"]
    return result.returncode, {check["check"]: check for check in checks}


@contextlib.contextmanager
def changed(guest: Guest, do: str, undo: str) -> Iterator[Checks]:
    """Run DO, yield doctor's checks, and run UNDO at the end of the block."""
    guest.run(do)
    try:
        yield doctor(guest)[1]
    finally:
        guest.run(undo)


def test_only_the_stopped_daemon_fails(guest: Guest) -> None:
    status, checks = doctor(guest)
    failing = [name for name, check in checks.items() if check["status"] == "fail"]
    assert failing == ["daemon"]
    assert status == EXIT_STATUS["daemon-unreachable"]
    assert checks["tiers"]["cause"].endswith("from sysfs:memory_tiering")
    assert checks["module"]["cause"] == "sentinel is loaded"
    assert checks["backend"]["cause"].startswith("module is used: reads and writes, by page")
    for name in ("backend", "device", "headers", "bcc", "cpuset", "memory_limit"):
        assert checks[name]["status"] == "ok", checks[name]


@pytest.mark.long
def test_an_unsigned_module_under_lockdown_is_explained(fresh_guest: FreshGuest) -> None:
    # Lockdown can't be lifted before the next boot.
    guest = fresh_guest(fast_mib=1024, slow_mib=512)
    guest.put_tree()
    guest.put_artifacts()
    guest.run("echo integrity > /sys/kernel/security/lockdown")
    folder = "/lib/modules/$(uname -r)/updates/dkms"
    guest.run(f"mkdir -p {folder} && cp {TREE}/{MODULE} {folder}")
    assert "not permitted" in guest.run(f"insmod {TREE}/{MODULE}", check=False).stderr
    _, checks = doctor(guest)
    assert checks["module"]["status"] == "warn"
    assert "is locked down (Secure Boot) and the module is not signed" in checks["module"]["cause"]
    assert "mokutil --import" in checks["module"]["fix"]


def test_settings_of_the_kernel_are_reported_with_the_fix(guest: Guest) -> None:
    # Run doctor once for all these settings, because each run takes ten seconds of CPU time.
    build = "/lib/modules/$(uname -r)/build"
    file = "/etc/sysctl.d/60-tiering.conf"
    huge = "/sys/kernel/mm/transparent_hugepage/enabled"
    mode = guest.run(f"cat {huge}").stdout.partition("[")[2].partition("]")[0]
    before = {
        name: guest.run(f"sysctl -n {name}").stdout.strip()
        for name in ("kernel.numa_balancing", "kernel.perf_event_paranoid", "vm.max_map_count")
    }
    do = f"""
        set -e
        mv {build} {build}.away
        echo kernel.numa_balancing=2 > {file}
        sysctl -q -p {file}
        echo madvise > {huge}
        sysctl -q vm.max_map_count=9000 kernel.perf_event_paranoid=3
        # The kernel refuses this change while the module has a session.
        sysctl -q kernel.ftrace_enabled=0
    """
    settings = " ".join(f"{name}={value}" for name, value in before.items())
    undo = f"""
        mv {build}.away {build}
        rm -f {file}
        echo {mode} > {huge}
        sysctl -q {settings} kernel.ftrace_enabled=1
    """
    with changed(guest, do, undo) as checks:
        assert checks["headers"]["status"] == "warn"
        assert checks["headers"]["code"] == "no-kernel-headers"
        assert checks["headers"]["fix"].startswith("apt install linux-headers-6")
        assert checks["ftrace"]["fix"] == "sysctl kernel.ftrace_enabled=1"
        assert checks["max_map_count"]["cause"].startswith("vm.max_map_count is 9000")
        assert checks["max_map_count"]["fix"] == "sysctl vm.max_map_count=65530"
        perf = checks["perf"]["cause"]
        assert "is 3: only raw tracepoints can be attached, which is sufficient" in perf
        assert checks["numa_balancing"]["cause"].endswith(f"; set by {file}")
        huge_pages = checks["huge_pages"]["cause"]
        assert huge_pages.startswith("madvise; tensor memory uses small pages")


def test_settings_of_the_process_and_numa_tiering_are_reported_with_the_fix(guest: Guest) -> None:
    before = guest.run("sysctl -n kernel.numa_balancing").stdout.strip()
    scope = "systemd-run --quiet --scope -p MemoryMax=700M -p AllowedMemoryNodes=0"
    guest.run("sysctl -q kernel.numa_balancing=2")
    try:
        _, checks = doctor(guest, f"{scope} setpriv --bounding-set=-bpf,-sys_ptrace")
    finally:
        guest.run(f"sysctl -q kernel.numa_balancing={before}")
    balancing = checks["numa_balancing"]
    assert balancing["status"] == "warn"
    assert "kernel.numa_balancing is 2: NUMA tiering migrates pages" in balancing["cause"]
    assert balancing["fix"].startswith("sysctl kernel.numa_balancing=0")
    assert balancing["cause"].endswith("causes page faults")
    limit = checks["memory_limit"]
    assert limit["status"] == "warn"
    assert "memory.max = 700.0 MiB, less than the tiers'" in limit["cause"]
    assert "MemoryMax=infinity" in limit["fix"]
    cpuset = checks["cpuset"]
    assert cpuset["status"] == "warn"
    assert cpuset["cause"] == "a process started here may only use node 0, not 1"
    assert ".scope, or AllowedMemoryNodes= of its unit" in cpuset["fix"]
    assert checks["capabilities"]["code"] == "not-permitted"
    assert "CAP_SYS_PTRACE, CAP_BPF" in checks["capabilities"]["cause"]


def test_the_best_remaining_backend_is_used(guest: Guest) -> None:
    """First, only the module is missing. Second, DAMON is unusable, too, because /sys is read-only.
    Third, the userfaultfd system call is refused, too."""
    with changed(guest, "rmmod sentinel", f"insmod {TREE}/{MODULE}") as checks:
        assert checks["module"]["status"] == checks["backend"]["status"] == "warn"
        assert checks["module"]["fix"].startswith(("make install", "modprobe sentinel"))
        cause = checks["backend"]["cause"]
        assert cause.startswith("damon is used: accesses, without distinguishing reads from writes")
        assert cause.endswith("not module: /dev/sentinel does not exist")
        assert checks["backend"]["fix"].startswith("modprobe sentinel")
        no_damon = "unshare --mount bash -c 'mount -o remount,bind,ro /sys && exec \"$@\"' doctor"
        cause = doctor(guest, no_damon)[1]["backend"]["cause"]
        assert cause.startswith("pagemap-scan is used: writes only, by page")
        assert cause.endswith("not damon: /sys/kernel/mm/damon/admin/kdamonds is not writable")
        no_userfaultfd = "systemd-run --quiet --pipe --wait -p SystemCallFilter=~userfaultfd "
        no_userfaultfd += (
            f"-p SystemCallErrorNumber=EPERM -p ReadOnlyPaths=/sys -p WorkingDirectory={TREE}"
        )
        cause = doctor(guest, no_userfaultfd)[1]["backend"]["cause"]
        assert cause.startswith("soft-dirty is used: writes only, by page")
        assert "not pagemap-scan: the kernel has no PAGEMAP_SCAN" in cause
        assert "userfaultfd: Operation not permitted" in cause
