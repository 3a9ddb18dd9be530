# SPDX-License-Identifier: Apache-2.0
"""Moves, reclaim and collapses of pages are observed, with their causes, on a real kernel.

inside/disturbances.py causes and records these disturbances in the guest.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from .guest import TREE, Guest

# These tests are marked long because the kernel disturbs pages only after delays. Runs
# without long tests still test one disturbance, in test_sessions.py.
pytestmark = [pytest.mark.guest, pytest.mark.long]

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def report(guest: Guest) -> dict[str, Any]:
    command = f"cd {TREE} && PYTHONPATH={TREE} python3 tests/vm/inside/disturbances.py"
    found: dict[str, Any] = json.loads(guest.run(command, timeout=900).stdout.splitlines()[-1])
    return found


def pages(rows: Rows, result: str = "pages", **wanted: object) -> int:
    """Sum of the field named by `result` over the rows whose fields have the values in `wanted`."""
    chosen = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return sum(row[result] for row in chosen)


def test_all_probes_work_and_no_event_is_dropped(report: dict[str, Any]) -> None:
    missing = ("not observed", "not counted", "not attached")
    assert not [note for note in report["notes"] if any(text in note for text in missing)]
    assert report["dropped"]["disturbed_pages"] == 0


def test_the_daemons_moves_are_not_disturbances(report: dict[str, Any]) -> None:
    assert report["foreign_moves"]["own"] == []


def test_moves_are_attributed_to_the_process_that_made_them(report: dict[str, Any]) -> None:
    found = report["foreign_moves"]
    theirs = {"by": "python3", "own": False, "deed": "syscall_or_cpuset"}
    assert pages(found["rows"], **theirs, from_node=0, to_node=1) == 292
    # inside/disturbances.py starts a helper process, which tries to move 300 pages. 8 of them are
    # pinned; the kernel tries to move each pinned page several times.
    kept = pages(found["rows"], "kept", **theirs, from_node=0, to_node=0)
    assert kept >= 8
    assert kept % 8 == 0
    assert pages(found["rows"]) == 292
    pid = next(row["pid"] for row in found["rows"])
    assert found["words"].startswith(
        f"python3 (process {pid}) moved 292 of its pages from node 0 to 1; to stop it: "
    )


def test_moves_are_counted_by_direction(report: dict[str, Any]) -> None:
    rows = report["foreign_moves"]["after_tool"]
    # migratepages moves back all pages on node 1. Among them are the 300 that
    # inside/disturbances.py has moved there itself, and the 292 that its helper process has moved
    # there (300 except 8 pinned ones).
    assert pages(rows, by="migratepages", from_node=1, to_node=0) >= 592
    assert pages(rows, by="migratepages", from_node=0) == 0


def test_swapped_out_pages_and_their_faults_are_counted(report: dict[str, Any]) -> None:
    found = report["reclaim"]
    assert pages(found["rows"], by="python3", deed="reclaim", from_node=0) == 500
    assert found["recorded"]["major"] == 400
    assert found["faults"]["major"] >= 400


def test_demotion_by_reclaim_is_attributed(report: dict[str, Any]) -> None:
    found = report["demotion"]
    demoted = pages(found["rows"], by="sh", deed="demotion", from_node=0, to_node=1)
    assert demoted >= 500
    assert "direct reclaim for sh" in found["words"]
    assert "demotion_enabled" in found["words"]


def test_demotion_by_kswapd_is_attributed(report: dict[str, Any]) -> None:
    found = report["kswapd"]
    assert pages(found["rows"], by="kswapd0", deed="demotion", from_node=0, to_node=1) > 0
    assert "kswapd0 demoted" in found["words"]


def test_numa_balancing_is_attributed_and_its_faults_counted(report: dict[str, Any]) -> None:
    found = report["balancing"]
    moved = pages(found["rows"], deed="numa_misplaced", from_node=1, to_node=0)
    assert moved > 0
    # each moved page took a hint fault first
    assert found["recorded"]["hint"] >= moved
    assert found["faults"]["hint"] >= found["recorded"]["hint"]
    assert found["words"].startswith("NUMA balancing moved ")


def test_collapse_by_khugepaged_is_attributed(report: dict[str, Any]) -> None:
    found = report["collapse"]
    gathered = pages(found["rows"], by="khugepaged", deed="collapse")
    assert gathered >= 512
    assert gathered % 512 == 0
    assert "khugepaged collapsed" in found["words"]


def test_faults_on_migrating_pages_are_counted(report: dict[str, Any]) -> None:
    found = report["motion"]
    assert found["faults"]["in_motion"] > 0
    assert found["recorded"]["in_motion"] > 0
    assert pages(found["rows"], by="python3", deed="syscall_or_cpuset") > 0
