# SPDX-License-Identifier: Apache-2.0
"""When the measured latency of faults leads to another plan, and when it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.model.tiers import Tier, Tiers
from sentineld.model.timing import FAULT_BYTES
from sentineld.plan.fault_latency import (
    ENTERING_STEPS,
    FASTER_STEPS,
    LATENCY_MAX_NS,
    READS_MIN,
    RETRY_STEPS,
    STEPS_MAX,
    WINDOW_STEPS,
    FaultCounts,
    FaultLatency,
    fault_latency_of,
)

IDLE_NS, WAKE_NS, TRANSFER_NS = 50e3, 20e3, 100e3
IDLE_READ_NS = IDLE_NS + TRANSFER_NS - WAKE_NS
"""Time of a read for a fault in the pager, on an idle disk."""
STEP_NS = 2e9


def paged_tiers(latency_ns: float = IDLE_NS) -> Tiers:
    file = Tier((1,), 1 << 30, FAULT_BYTES * 1e9 / TRANSFER_NS, 1e9, latency_ns, wake_ns=WAKE_NS)
    return Tiers((Tier((0,), 1 << 30), file), 1e9, "paged", paged=True)


class Training:
    """Steps under a plan that assumes a latency."""

    def __init__(self, assumed_ns: float = IDLE_NS, nominal: Tiers | None = None) -> None:
        self.latency = FaultLatency(nominal or paged_tiers())
        self.counts = FaultCounts(steps=100)
        self.enter(assumed_ns)

    def enter(self, assumed_ns: float) -> None:
        self.latency.entered(paged_tiers(assumed_ns), self.counts)

    def run(
        self, steps: int, read_ns: float, faults: int = 1000, every: int = 1
    ) -> tuple[int, float | None]:
        """Run until another plan is wanted, but at most `steps` steps. Returns the number of steps
        and the latency that the other plan should assume (None: no other plan is wanted).
        every: number of steps between two calls of observe()."""
        for number in range(1, steps + 1):
            before = self.counts
            self.counts = FaultCounts(
                before.steps + 1,
                before.time_ns + STEP_NS,
                before.faults + faults,
                before.reads + faults,
                before.read_ns + faults * read_ns,
            )
            if number % every == 0:
                self.latency.observe(self.counts)
                wanted_ns = self.latency.wanted_ns()
                if wanted_ns is not None:
                    return number, wanted_ns
        return steps, None


def test_slow_faults_lead_to_another_plan() -> None:
    steps, wanted_ns = Training().run(50, 400e3)
    assert steps == WINDOW_STEPS + ENTERING_STEPS
    assert wanted_ns == pytest.approx(400e3 - TRANSFER_NS + WAKE_NS)


@pytest.mark.parametrize("every", [1, 2, 3, 5, 6, 9, 10, 20])
def test_the_first_steps_under_a_plan_do_not_count(every: int) -> None:
    training = Training()
    training.run(ENTERING_STEPS, 10e6, 8000, every=ENTERING_STEPS + 1)
    assert training.run(200, IDLE_READ_NS, 500, every)[1] is None


def test_a_deviation_that_changes_little_is_ignored() -> None:
    # If 1000 faults each take 40 us longer than assumed, a step of 2 s becomes 2 % longer. A
    # smaller deviation is ignored (SHARE in fault_latency.py).
    assert Training().run(50, IDLE_READ_NS + 39e3) == (50, None)
    assert Training().run(50, IDLE_READ_NS + 41e3)[1] is not None
    assert Training().run(50, IDLE_READ_NS + 350e3, faults=100) == (50, None)


def test_few_reads_give_no_latency() -> None:
    few = READS_MIN // WINDOW_STEPS
    assert Training().run(50, 40e6, faults=few)[1] is not None
    assert Training().run(50, 40e6, faults=few - 1) == (50, None)


def test_a_latency_has_limits() -> None:
    assert Training().run(50, 1e18)[1] == LATENCY_MAX_NS
    assert Training(assumed_ns=400e3).run(1000, -1e18)[1] == IDLE_NS
    slow_disk = paged_tiers(2 * LATENCY_MAX_NS)
    assert Training(nominal=slow_disk).run(50, 1e18)[1] == 2 * LATENCY_MAX_NS


def test_a_lower_latency_is_accepted_later_each_time_that_its_plan_goes_live() -> None:
    training, waited = Training(assumed_ns=300e3), []
    for _ in range(5):
        steps, wanted_ns = training.run(10_000, IDLE_READ_NS)
        assert wanted_ns == pytest.approx(IDLE_NS)
        waited.append(steps)
        training.latency.left(wanted_ns)
        training.enter(300e3)
    assert waited == [min(FASTER_STEPS * factor, STEPS_MAX) for factor in (1, 2, 4, 8, 16)]


def test_after_a_rejected_latency_the_next_attempts_come_later_and_later() -> None:
    training, waited = Training(), []
    assert training.run(50, 400e3)[1] is not None
    for turn in range(6):
        # If no better plan is found, the measured latency becomes the assumed one.
        training.latency.kept(320e3 if turn % 2 == 0 else 720e3)
        steps, wanted_ns = training.run(10_000, 800e3 if turn % 2 == 0 else 1200e3)
        assert wanted_ns is not None
        waited.append(steps)
    assert waited == [min(RETRY_STEPS * factor, STEPS_MAX) for factor in (1, 2, 4, 8, 16, 16)]
    training.latency.kept(1120e3)
    assert training.run(10_000, 1200e3) == (10_000, None)


@pytest.mark.parametrize(
    "nominal",
    [
        replace(paged_tiers(), paged=False),
        paged_tiers(0.0),
        Tiers((Tier((0,), 1), Tier((1,), 1, 0.0, 1e9, IDLE_NS)), 1e9, "paged", paged=True),
    ],
)
def test_without_the_figures_of_an_idle_disk_nothing_is_corrected(nominal: Tiers) -> None:
    assert Training(nominal=nominal).run(50, 400e3) == (50, None)


def test_only_paged_tiers_have_a_latency_of_faults() -> None:
    assert fault_latency_of(paged_tiers(7.0)) == 7.0
    assert fault_latency_of(replace(paged_tiers(7.0), paged=False)) is None
