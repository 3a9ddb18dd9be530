# SPDX-License-Identifier: Apache-2.0
"""The inputs of movers: a plan with its expected step, and the defaults of ProcessPorts."""

from __future__ import annotations

import numpy as np

from sentineld.migrate.ports import PlannedStep, ProcessPorts
from sentineld.migrate.process_memory import KernelMemory
from sentineld.model.plan import Space
from sentineld.plan.expected import ahead_of_time, expected_step, useful_until
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile, two_tiers


def test_a_planned_step_has_a_figure_for_each_move() -> None:
    plan, profile = toy_plan(), toy_profile()
    found = PlannedStep.of(plan, profile)
    assert found.plan is plan
    assert found.useful_until is not None
    assert found.ahead is not None
    assert len(found.useful_until) == len(found.ahead) == len(plan.moves)
    assert np.array_equal(found.useful_until, useful_until(profile, plan))
    assert np.array_equal(found.ahead, ahead_of_time(profile, plan))
    expected = expected_step(profile, plan.layout)
    assert np.array_equal(found.step.births, expected.births)


def test_a_process_may_have_neither_unmanaged_tensors_nor_a_position_to_read() -> None:
    published: list[int] = []
    ports = ProcessPorts(1, KernelMemory(1, two_tiers()), {Space.HEAP: (0, PAGE)}, published.append)
    assert ports.position is None
    assert ports.unmanaged_bytes() == 0
    ports.ended("the process exited")
    ports.publish(7)
    assert published == [7]
