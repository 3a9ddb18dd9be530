# SPDX-License-Identifier: Apache-2.0
"""The guests have the properties that the other guest tests rely on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from . import kernel_log
from .fixtures import FreshGuest
from .guest import TREE, Guest
from .host import REPOSITORY, MachineError
from .qemu import FAST, SLOW, SLOWEST, SLOWEST_NODE, NodeSpeed
from .rootfs import BUILD_PLACE, in_root

pytestmark = [pytest.mark.guest, pytest.mark.second]

TIERS = "cat $(ls -v /sys/devices/virtual/memory_tiering/memory_tier*/nodelist)"
"""Prints the nodes of each tier, fastest tier first."""

PATIENCE_S = 600

WARNING_MODULE = """
#include <linux/module.h>
static int __init warner_init(void) { WARN(1, "on purpose"); return 0; }
static void __exit warner_exit(void) {}
module_init(warner_init);
module_exit(warner_exit);
MODULE_LICENSE("GPL");
"""


def node_speed(guest: Guest, node: int, access: str) -> NodeSpeed:
    """The speed of a node for ACCESS ("read" or "write"), as sysfs reports it."""
    folder = f"/sys/devices/system/node/node{node}/access0/initiators"
    values = guest.run(f"cat {folder}/{access}_latency {folder}/{access}_bandwidth").stdout
    latency_ns, bandwidth_mib = (int(value) for value in values.split())
    return NodeSpeed(latency_ns, bandwidth_mib // 1024)


def test_each_node_is_a_memory_tier(guest: Guest) -> None:
    assert guest.run(TIERS).stdout.split() == ["0", "1"]
    assert guest.run("cat /sys/devices/system/node/has_memory").stdout.strip() == "0-1"
    assert guest.run("cat /sys/devices/system/node/has_cpu").stdout.strip() == "0"


@pytest.mark.parametrize("access", ["read", "write"])
def test_sysfs_has_the_speed_of_both_nodes(guest: Guest, access: str) -> None:
    assert node_speed(guest, 0, access) == FAST
    assert node_speed(guest, 1, access) == SLOW


def test_pages_move_between_the_nodes(guest: Guest) -> None:
    # This test moves data, but no code. QEMU writes slowly to pages that have contained executed
    # code, so programs that later reuse the pages from which code was moved would be slow.
    script = "import numpy, time; a = numpy.ones(1 << 23); print(flush=True); time.sleep(300)"
    process = guest.start(f"exec numactl --membind 0 python3 -c {script!r}")
    assert process.stdout is not None
    process.stdout.readline()
    pid, count = process.remote_pid, (1 << 26) // 4096
    guest.run(f"PYTHONPATH={TREE} python3 {TREE}/tests/vm/inside/move_pages.py {pid} {count} 0 1")
    pages = guest.run(f"grep -o 'N1=[0-9]*' /proc/{pid}/numa_maps").stdout.split()
    process.send_remote("KILL")
    process.wait(240)
    assert sum(int(entry.partition("=")[2]) for entry in pages) >= count


def test_the_repository_is_copied_without_ignored_files(guest: Guest) -> None:
    command = ["git", "ls-files", "tests/vm", "Makefile", "sentineld"]
    listing = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    names = listing.stdout.splitlines()
    found = guest.run(f"cd {TREE} && xargs -d '\\n' stat -c %n", stdin=listing.stdout, check=False)
    assert "Makefile" in names
    assert found.stdout.splitlines() == [name for name in names if (REPOSITORY / name).exists()]
    assert guest.run(f"ls {TREE}/build", check=False).returncode != 0


def test_a_warning_of_the_kernel_fails_the_check_once(guest: Guest, tmp_path: Path) -> None:
    (tmp_path / "warner.c").write_text(WARNING_MODULE)
    (tmp_path / "Makefile").write_text("obj-m := warner.o\n")
    make = f"make -C $(echo /lib/modules/*/build) M={BUILD_PLACE} modules"
    in_root(make, {tmp_path: BUILD_PLACE})
    guest.check_kernel_log()
    guest.put(tmp_path / "warner.ko", "/root/warner.ko")
    guest.run("insmod /root/warner.ko")
    with pytest.raises(MachineError, match="on purpose"):
        guest.check_kernel_log()
    assert any("WARNING:" in line for line in guest.kernel_problems())
    # a problem is reported only once, so that it does not fail the next test too
    guest.check_kernel_log()
    guest.run("rmmod warner && dmesg --clear")  # another test checks dmesg's output


def test_a_log_that_stays_incomplete_fails_the_check(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The brackets keep the pattern from matching the shell that runs pkill.
    writer = "-f '[r]ead -r mark'"
    guest.run(f"pkill -STOP {writer}")
    monkeypatch.setattr("tests.vm.guest.MARK_SECONDS", 1.0)
    try:
        with pytest.raises(MachineError, match="no mark arrived"):
            guest.check_kernel_log()
    finally:
        guest.run(f"pkill -CONT {writer}")
    monkeypatch.undo()
    guest.check_kernel_log()


@pytest.mark.pair
@pytest.mark.long
def test_two_guests_are_independent(guest: Guest) -> None:
    with Guest(fast_mib=1024, slow_mib=512) as other:
        assert other.port != guest.port
        guest.run("echo first > /root/name")
        other.run("echo second > /root/name")
        assert guest.run("cat /root/name").stdout == "first\n"
        assert other.run("cat /root/name").stdout == "second\n"
        other.check_kernel_log()
    guest.check_kernel_log()


@pytest.mark.long
def test_persistent_memory_is_a_third_tier(fresh_guest: FreshGuest) -> None:
    optane = fresh_guest("three-tier")
    assert optane.run(TIERS).stdout.split() == ["0", "1", str(SLOWEST_NODE)]
    assert optane.run("cat /sys/devices/system/node/has_memory").stdout.strip() == "0-2"
    assert node_speed(optane, SLOWEST_NODE, "read") == SLOWEST
    script = f"numactl --membind {SLOWEST_NODE} cat /proc/self/numa_maps"
    assert f" N{SLOWEST_NODE}=" in optane.run(script).stdout


def test_commands_run_and_files_are_copied(guest: Guest, tmp_path: Path) -> None:
    assert guest.run(["printf", "%s", "two  words"]).stdout == "two  words"
    assert guest.run("exit 7", check=False).returncode == 7
    with pytest.raises(MachineError, match="status 3"):
        guest.run("exit 3")
    with pytest.raises(subprocess.TimeoutExpired):
        guest.run("sleep 300", timeout=2)
    assert guest.run("pgrep -x sleep", check=False).stdout == ""

    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "data").write_bytes(bytes(range(256)))
    guest.put(tmp_path / "folder", "/root/put/there")
    guest.get("/root/put/there/data", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == bytes(range(256))
    with pytest.raises(MachineError, match="cannot read"):
        guest.get("/root/put/no-such-file", tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "line",
    [
        "[   12.3] WARNING: CPU: 0 PID: 417 at mm/migrate.c:1 f+0x1/0x2",
        "[   12.3] BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "[   12.3] Oops: general protection fault, probably for non-canonical address: 0000",
        "[   12.3] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
        "[   12.3] watchdog: BUG: soft lockup - CPU#0 stuck for 23s! [python3:417]",
        "[   12.3] INFO: task python3:417 blocked for more than 120 seconds.",
        "[   12.3] Call Trace:",
        "[   12.3] mm/pgtable-generic.c:54: bad pmd 00000000f7d1a3c2(00000000deadbeef)",
        "[   12.3] mm/memory.c:417: bad pte 00000000f7d1a3c2(00000000deadbeef)",
        "[   12.3] get_swap_device: Bad swap file entry 3ffffffffffff",
        "[   12.3] __swap_duplicate: Bad swap offset entry 00000417",
        "[   12.3] _swap_info_get: Unused swap offset entry 00000417",
    ],
)
def test_kernel_problems_are_found(line: str) -> None:
    assert kernel_log.problems(f"fine\n{line}\nfine\n") == [line]


@pytest.mark.parametrize(
    ("writer", "arrives"), [("exec cat", True), ("exec sleep 1000", False), ("true", False)]
)
def test_a_log_is_complete_only_if_the_mark_arrives(
    tmp_path: Path, writer: str, arrives: bool
) -> None:
    file = tmp_path / "log"
    file.touch()
    marks = kernel_log.Marks(["/bin/sh", "-c", f"{writer} >> {file}"], file.read_text)
    try:
        for _ in range(2):
            assert marks.arrives(PATIENCE_S if arrives else 0.2) is arrives
    finally:
        marks.close()


def test_harmless_lines_are_no_problems() -> None:
    log = (
        "[    0.0] Linux version 6.12.117+deb13-amd64 (gcc-14)\n"
        "[    4.1] sentinel: loading out-of-tree module taints kernel.\n"
        "[    4.1] python3[417]: segfault at 0 ip 0 sp 0 error 4\n"
        "[    5.0] rcu: Hierarchical SRCU implementation.\n"
    )
    assert kernel_log.problems(log) == []


@pytest.mark.parametrize(
    ("line", "stale"),
    [
        ("[    4.3] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI", True),
        ("[    4.3] int3: 0000 [#1] PREEMPT SMP NOPTI", True),
        ("[    4.3] Oops: general protection fault: 0000 [#1] PREEMPT SMP NOPTI", False),
        ("[    4.3] traps: a.out[7] trap int3 ip:1 sp:2 error:0", False),
    ],
)
def test_the_emulators_breakpoint_bug_is_recognised(line: str, stale: bool) -> None:
    assert kernel_log.hit_stale_breakpoint(line) is stale
