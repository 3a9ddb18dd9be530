# SPDX-License-Identifier: Apache-2.0
"""Whoever moves or takes a watched process's pages is seen and named, by the real kernel's doing.

inside/disturbances.py makes it happen and reports; here it is judged.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from .guest import TREE, Guest

# The kernel does these things in its own time; test_sessions.py has one of them end to end.
pytestmark = [pytest.mark.guest, pytest.mark.long]

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def report(guest: Guest) -> dict[str, Any]:
    command = f"cd {TREE} && PYTHONPATH={TREE} python3 tests/vm/inside/disturbances.py"
    found: dict[str, Any] = json.loads(guest.run(command, timeout=900).stdout.splitlines()[-1])
    return found


def pages(rows: Rows, result: str = "pages", **wanted: object) -> int:
    """Sum over the rows that are as wanted."""
    chosen = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return sum(row[result] for row in chosen)


def test_nothing_is_lacking_here(report: dict[str, Any]) -> None:
    missing = ("not observed", "not counted", "not attached")
    assert not [note for note in report["notes"] if any(text in note for text in missing)]
    assert report["dropped"]["disturbed_pages"] == 0


def test_the_daemon_s_own_moves_are_nobody_else_s(report: dict[str, Any]) -> None:
    assert report["daemon_and_stranger"]["own"] == []


def test_another_process_is_named_with_what_it_moved(report: dict[str, Any]) -> None:
    found = report["daemon_and_stranger"]
    theirs = {"by": "python3", "own": False, "deed": "syscall_or_cpuset"}
    assert pages(found["rows"], **theirs, from_node=0, to_node=1) == 292
    # the kernel tries each of those that are held more than once
    kept = pages(found["rows"], "kept", **theirs, from_node=0, to_node=0)
    assert kept >= 8
    assert kept % 8 == 0
    assert pages(found["rows"]) == 292
    pid = next(row["pid"] for row in found["rows"])
    assert found["words"].startswith(
        f"python3 (process {pid}) moved 292 of its pages from node 0 to 1; to stop it: "
    )


def test_a_tool_s_moves_are_told_by_direction(report: dict[str, Any]) -> None:
    rows = report["daemon_and_stranger"]["after_tool"]
    # those that the daemon and the other process had moved, as far as they aren't held
    assert pages(rows, by="migratepages", from_node=1, to_node=0) >= 592
    assert pages(rows, by="migratepages", from_node=0) == 0


def test_pages_taken_out_of_memory_are_told_and_so_is_their_return(report: dict[str, Any]) -> None:
    found = report["reclaim"]
    assert pages(found["rows"], by="python3", deed="reclaim", from_node=0) == 500
    assert found["found"]["major"] == 400
    assert found["faults"]["major"] >= 400


def test_demotion_is_told(report: dict[str, Any]) -> None:
    found = report["demotion"]
    demoted = pages(found["rows"], by="sh", deed="demotion", from_node=0, to_node=1)
    assert demoted >= 500
    assert "direct reclaim for sh" in found["words"]
    assert "demotion_enabled" in found["words"]


def test_the_kernel_s_own_thread_is_named(report: dict[str, Any]) -> None:
    found = report["kswapd"]
    assert pages(found["rows"], by="kswapd0", deed="demotion", from_node=0, to_node=1) > 0
    assert "kswapd0 demoted" in found["words"]


def test_numa_balancing_is_told_with_its_faults(report: dict[str, Any]) -> None:
    found = report["balancing"]
    moved = pages(found["rows"], deed="numa_misplaced", from_node=1, to_node=0)
    assert moved > 0
    # each page that it moved was found by a fault
    assert found["found"]["hint"] >= moved
    assert found["faults"]["hint"] >= found["found"]["hint"]
    assert found["words"].startswith("NUMA balancing moved ")


def test_huge_pages_made_of_small_ones_are_told(report: dict[str, Any]) -> None:
    found = report["collapse"]
    gathered = pages(found["rows"], by="khugepaged", deed="collapse")
    assert gathered >= 512
    assert gathered % 512 == 0
    assert "khugepaged collapsed" in found["words"]


def test_waits_for_pages_in_motion_are_told(report: dict[str, Any]) -> None:
    found = report["motion"]
    assert found["faults"]["in_motion"] > 0
    assert found["found"]["in_motion"] > 0
    assert pages(found["rows"], by="python3", deed="syscall_or_cpuset") > 0
