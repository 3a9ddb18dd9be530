# SPDX-License-Identifier: Apache-2.0
"""The eBPF probes on a real kernel, with the daemon's capabilities.

inside/ebpf.py makes known accesses and reports what the probes recorded.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from .guest import TREE, Guest

pytestmark = [pytest.mark.guest, pytest.mark.second]

CAPABILITIES = "-all,+bpf,+perfmon,+sys_ptrace"
"""The capabilities that sentineld.service grants."""
SCRIPT = f"{TREE}/tests/vm/inside/ebpf.py"


@pytest.fixture(scope="module")
def report(guest: Guest) -> dict[str, Any]:
    command = (
        f"cd {TREE} && PYTHONPATH={TREE} setpriv --bounding-set {CAPABILITIES} --inh-caps -all"
        f" python3 {SCRIPT}"
    )
    found: dict[str, Any] = json.loads(guest.run(command, timeout=600).stdout)
    return found


def test_the_compilers_process_and_memory_are_freed(report: dict[str, Any]) -> None:
    loaded = report["loaded"]
    before, after = loaded["rss_kib"]
    print(f"\nloaded in {loaded['load_seconds']:.1f} s, RSS {before} -> {after} KiB")
    assert loaded["children"] == []
    # if the process of inside/ebpf.py itself ran the compiler, its RSS would grow by over 100 MiB
    assert after - before < 16 << 10


def test_the_daemons_capabilities_suffice_for_all_programs(report: dict[str, Any]) -> None:
    assert report["loaded"]["notes"] == []


def test_exactly_one_record_per_fault(report: dict[str, Any]) -> None:
    records = [tuple(record) for record in report["faults"]["records"]]
    expected = [(page, "missing_write", True) for page in range(1000)]
    expected += [(page, "missing_read", False) for page in range(1000, 1500)]
    expected += [(page, "protection_write", True) for page in range(1400, 1500)]
    # faults in kernel mode, while read() fills the pages
    expected += [(page, "missing_write", True) for page in range(2000, 2100)]
    assert records == expected


def test_only_the_watched_process_is_counted_by_kind_of_fault(report: dict[str, Any]) -> None:
    faults = report["faults"]
    assert list(faults["counters"]) == [str(faults["observed"])]
    counted = faults["counters"][str(faults["observed"])]
    # the counters include the Python interpreter's faults outside the region of inside/target.py
    assert counted["missing_write"] >= 1000
    assert counted["missing_read"] >= 500
    assert counted["protection_write"] >= 100


def test_faults_are_counted_while_recording_is_off(report: dict[str, Any]) -> None:
    assert report["faults"]["drained_without_record"] == 0
    assert report["faults"]["counted_without_record"] >= 500


def test_migrations_are_counted_by_reason_and_mover(report: dict[str, Any]) -> None:
    moves = report["moves"]
    nothing = {"calls": 0, "succeeded": 0, "failed": 0}
    before, between, after = (
        moves[moment].get("syscall_or_cpuset", nothing) for moment in ("before", "between", "after")
    )
    # inside/ebpf.py tries to move 8 pinned pages, and then moves 992 other pages. move_pages()
    # returns the number of pages that did not move.
    assert moves["held"] == {"returned": 8, "arrived": 0}
    assert between["failed"] - before["failed"] == 8
    assert between["succeeded"] == before["succeeded"]
    assert moves["moved"] == {"returned": 0, "arrived": 992}
    assert after["succeeded"] - between["succeeded"] == 992
    assert after["failed"] == between["failed"]
    assert {row["reason"] for row in moves["movers"]} == {"syscall_or_cpuset"}
    assert sum(row["succeeded"] for row in moves["movers"]) == 992
    assert sum(row["failed"] for row in moves["movers"]) == 8
    assert {row["comm"] for row in moves["movers"]} == {"python3"}


def test_a_full_ring_drops_records_but_no_counts(report: dict[str, Any]) -> None:
    overflow = report["overflow"]
    print(f"\n{overflow['drained']} records drained in {overflow['drain_ms']:.1f} ms")
    assert overflow["counted"] >= 40_000
    assert overflow["dropped"] > 0
    assert overflow["drained"] + overflow["dropped"] == overflow["counted"]
    assert overflow["drained_after"] == 0


def test_the_tracepoint_fires_once_per_record_of_the_modules_log(
    report: dict[str, Any],
) -> None:
    check = report["cross_check"]
    counted = check["counted"]
    assert check["log_lost"] == 0
    assert check["log_accesses"] > 1000
    assert counted["accesses"] == check["log_accesses"]
    assert counted["writes"] == check["log_writes"]
    assert counted["epoch"] == check["log_epochs"][-1]


def test_only_watching_holds_a_reference_to_the_module(report: dict[str, Any]) -> None:
    before, watching, after = report["cross_check"]["references"]
    assert watching > before
    assert after == before


def test_unwatching_removes_all_counters(report: dict[str, Any]) -> None:
    assert report["left"] == {}


@pytest.mark.parametrize(
    ("prefix", "code"),
    [
        ("BCC_KERNEL_SOURCE=/nonexistent", "no-kernel-headers"),
        ("setpriv --bounding-set -bpf,-sys_admin --inh-caps -all", "not-permitted"),
        ("setpriv --bounding-set -perfmon,-sys_admin --inh-caps -all", "not-permitted"),
    ],
)
def test_load_errors_have_a_code(guest: Guest, prefix: str, code: str) -> None:
    script = (
        "from sentineld.base.errors import SentinelError\n"
        "from sentineld.observe.ebpf import EbpfProbes\n"
        "try: EbpfProbes().start(280)\n"
        "except SentinelError as error: print(error.code)\n"
    )
    result = guest.run(f"cd {TREE} && {prefix} python3 -", stdin=script)
    assert result.stdout.strip() == code
