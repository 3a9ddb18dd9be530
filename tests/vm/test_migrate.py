# SPDX-License-Identifier: Apache-2.0
"""Moves between the guest's two nodes: by system calls, and by the mover according to a plan."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from typing import Any

import pytest

from . import kernel_log
from .guest import TREE, Guest

pytestmark = [pytest.mark.guest, pytest.mark.second]

MIB = 1 << 20

Facts = dict[str, Any]


def run(guest: Guest, script: str, *arguments: str) -> Facts:
    command = f"cd {TREE} && PYTHONPATH={TREE} python3 tests/vm/inside/{script}"
    output = guest.run(" ".join([command, *arguments]), timeout=600).stdout
    facts: Facts = json.loads(output.splitlines()[-1])
    return facts


@pytest.fixture(scope="module")
def experiment(guest: Guest) -> Callable[[str], Facts]:
    return lambda name: run(guest, "moves.py", name)


def test_pages_move_to_the_slow_node_and_back_with_their_data(
    experiment: Callable[[str], Facts],
) -> None:
    facts = experiment("there_and_back")
    assert facts["seen"] == [4096, 4096, 4096]
    assert facts["statuses"] == [4096, 4096]
    assert facts["maps"] == 4096
    assert facts["intact"]


def test_each_kind_of_page_reports_its_status(experiment: Callable[[str], Facts]) -> None:
    facts = experiment("statuses")
    moved, absent, zero, shared, unmapped = facts["status"]
    assert moved == 1
    assert absent == -errno.ENOENT
    assert zero == -errno.EFAULT
    assert shared == -errno.EACCES
    assert unmapped == -errno.EFAULT
    assert facts["dead"] == "ProcessLookupError"


def test_huge_pages_move_without_a_split(experiment: Callable[[str], Facts]) -> None:
    facts = experiment("huge")
    assert facts["before"] == 16 * MIB
    assert facts["after"] == 16 * MIB
    assert facts["moved"] == 8 * 512
    assert facts["every_status"] == facts["every_seen"]
    assert facts["intact"]


def test_statuses_are_correct_if_the_node_is_full(
    guest: Guest, experiment: Callable[[str], Facts]
) -> None:
    # Keep the call trace of the failed page allocation off the console, where it would count as a
    # problem.
    guest.run("dmesg -n 4")
    try:
        facts = experiment("full")
    finally:
        guest.run("dmesg -n 7")
    log = guest.run("dmesg").stdout
    assert all("Call Trace:" in line for line in kernel_log.problems(log))
    assert facts["error"] == errno.ENOMEM
    assert facts["wrong"] == 0
    assert facts["moved"] * 4096 < facts["bytes"]
    assert facts["intact"]
    # The mover limits its moves to the free capacity of the node. Before the node was filled, the
    # capacity sufficed for all pages; now it does not.
    assert facts["room_before"] > facts["bytes"] > facts["room"]


def test_tiers_and_migration_bandwidth_are_measured(experiment: Callable[[str], Facts]) -> None:
    facts = experiment("calibrate")
    assert facts["source"] == "sysfs:memory_tiering"
    assert facts["nodes"] == [[0], [1]]
    assert facts["latency"][0] < facts["latency"][1]
    assert facts["demote"] > 0
    assert facts["promote"] > 0


STEPS = 3


@pytest.fixture(scope="module")
def managed(guest: Guest) -> Facts:
    return run(guest, "manage.py", str(STEPS))


@pytest.fixture(scope="module")
def armed(guest: Guest) -> Facts:
    return run(guest, "manage.py", str(STEPS), "armed")


@pytest.fixture(params=["managed", "armed"])
def outcome(request: pytest.FixtureRequest) -> Facts:
    facts: Facts = request.getfixturevalue(request.param)
    return facts


def test_the_data_is_intact_and_no_barrier_times_out(outcome: Facts) -> None:
    assert outcome["status"] == 0
    assert len(outcome["records"]) == 8 * STEPS
    assert all(record["passed"] for record in outcome["records"])


def test_persistent_tensors_start_in_their_initial_tiers(outcome: Facts) -> None:
    fast, slow = outcome["entered"]
    assert fast == 4 * MIB
    assert slow == 6 * MIB


def test_every_use_of_a_planned_tensor_is_fast(outcome: Facts) -> None:
    for record in outcome["records"]:
        assert not any(record["slow"].values()), record


def test_the_budget_holds_in_every_stretch(outcome: Facts) -> None:
    budget = 13 * MIB
    over = [record for record in outcome["records"] if record["fast"] > budget]
    assert not over
    # at some time, the tensors P (4 MiB), S (2 MiB) and one of Q and A (6 MiB each) are fast
    # together: 12 MiB; inside/stepper.py describes these tensors
    assert max(record["fast"] for record in outcome["records"]) >= 12 * MIB


def test_every_byte_of_the_schedule_is_accounted_for(outcome: Facts) -> None:
    totals = outcome["totals"]
    assert totals["demote/plan/moved"] == STEPS * 12 * MIB
    assert totals["promote/plan/moved"] == STEPS * 12 * MIB
    assert totals["promote/initial/moved"] == 4 * MIB
    assert not [entry for entry in totals if entry.endswith("/failed")]
    middle = [step for step in outcome["steps"] if step["step"] == 2]
    assert middle[0]["promoted_bytes"] == middle[0]["demoted_bytes"] == 12 * MIB


def test_sampling_misses_no_access_during_moves(armed: Facts) -> None:
    # Page accesses in a step (see inside/stepper.py): P (4 MiB) and S (2 MiB) in each of 8
    # stretches, Q (6 MiB) in one stretch, A (6 MiB) at its birth and in one later stretch. S is
    # born once, A in every step.
    per_step = (8 * (4 + 2) + 6 + 6 + 6) * MIB // 4096
    births = (2 + 6 * STEPS) * MIB // 4096
    assert armed["stats"]["hits"] + armed["stats"]["births"] == STEPS * per_step
    assert armed["stats"]["births"] == births
    assert armed["stats"]["lost"] == 0
    samples = armed["samples"]
    assert samples["pages"] == {"HEAP": 10 * MIB // 4096, "ARENA": 8 * MIB // 4096}
    # Every use is fast, so all records have node 0.
    assert samples["nodes"] == {"0": STEPS * per_step}


def test_the_mover_ends_when_the_process_is_gone(outcome: Facts) -> None:
    assert outcome["ended"] == ["the process is gone"]
