# SPDX-License-Identifier: Apache-2.0
"""The totals of moved, skipped and failed bytes: for all steps together, and for each step."""

from __future__ import annotations

from sentineld.migrate.ledger import KEPT_STEPS, LAST_BATCHES, Entry, Ledger, StepTotals


def test_bytes_are_kept_by_direction_reason_and_result_and_by_step() -> None:
    ledger = Ledger()
    ledger.begin_step(7)
    ledger.moved("promote", "plan", 10, late=False)
    ledger.moved("promote", "plan", 5, late=True)
    ledger.moved("demote", "plan", 20, late=False)
    ledger.begin_step(8)
    ledger.moved("demote", "heal", 1, late=False)
    ledger.skipped("promote", "late", 30)
    ledger.skipped("promote", "already-there", 40)
    ledger.failed("demote", "busy", 50)
    ledger.late_move()
    ledger.call(1000)
    assert ledger.totals() == {
        ("promote", "plan", "moved"): 15,
        ("demote", "plan", "moved"): 20,
        ("demote", "heal", "moved"): 1,
        ("promote", "late", "skipped"): 30,
        ("promote", "already-there", "skipped"): 40,
        ("demote", "busy", "failed"): 50,
    }
    assert ledger.totals()[Entry("demote", "heal", "moved")] == 1
    assert ledger.step(7) == StepTotals(7, promoted_bytes=15, demoted_bytes=20, late_bytes=5)
    assert ledger.step(7).moved_bytes == 35
    assert ledger.step(8) == StepTotals(
        8, demoted_bytes=1, cancelled_bytes=30, failed_bytes=50, late_moves=1, call_ns=1000
    )
    assert ledger.step(9) == StepTotals(9)
    assert (ledger.late_moves, ledger.calls) == (1, 1)
    assert (ledger.moved_bytes(), ledger.moved_bytes("promote")) == (36, 15)


def test_moves_before_the_first_step_count_for_step_0() -> None:
    ledger = Ledger()
    ledger.moved("promote", "initial", 10, late=False)
    assert ledger.steps() == (StepTotals(0, promoted_bytes=10),)


def test_old_steps_are_forgotten_and_totals_are_not() -> None:
    ledger = Ledger()
    for step in range(KEPT_STEPS + 10):
        ledger.begin_step(step)
        ledger.moved("demote", "plan", 1, late=False)
    assert len(ledger.steps()) == KEPT_STEPS
    assert ledger.steps()[0].step == 10
    assert ledger.moved_bytes() == KEPT_STEPS + 10


def test_bytes_and_time_of_large_batches() -> None:
    ledger = Ledger()
    assert ledger.large_batches() == (0, 0)
    ledger.paced(1 << 20, 2_000_000)
    ledger.paced(3 << 20, 4_000_000)
    assert ledger.large_batches() == (4 << 20, 6_000_000)


def test_a_batch_during_which_the_mover_was_stopped_is_not_measured() -> None:
    ledger = Ledger()
    for _ in range(5):
        ledger.paced(1000, 10_000_000)
    ledger.paced(1000, 400_000_000)  # slow, but below STOPPED_NS
    assert ledger.large_batches() == (6000, 450_000_000)
    ledger.paced(1000, 2_000_000_000)
    assert ledger.large_batches() == (6000, 450_000_000)
    ledger.paced(100_000, 1_000_000_000)  # a large batch
    assert ledger.large_batches() == (106_000, 1_450_000_000)


def test_memory_that_becomes_slow_is_measured_after_some_batches() -> None:
    ledger = Ledger()
    for _ in range(LAST_BATCHES):
        ledger.paced(1000, 10_000_000)
    for _ in range(LAST_BATCHES):
        ledger.paced(1000, 1_000_000_000)
    slow = ledger.large_batches()[0] - LAST_BATCHES * 1000
    assert slow >= LAST_BATCHES // 2 * 1000
