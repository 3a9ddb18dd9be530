# SPDX-License-Identifier: Apache-2.0
"""Which sessions share the shared budget, and when their shares change."""

from __future__ import annotations

import pytest

from sentineld.base.errors import SentinelError
from sentineld.machine.shared import SharedBudget
from sentineld.plan.division import Curve, Terms

MIB = 1 << 20
STEEP = Curve((0, 64 * MIB), (1.25, 1.0))
FLAT = Curve((0, 64 * MIB), (1.125, 1.0))


def shared(*holders: str) -> SharedBudget:
    """A shared budget of 64 MiB. Each holder stands for a session whose process runs steps."""
    budget = SharedBudget(64 * MIB)
    for holder in holders:
        budget.join(holder, Terms())
        budget.count(holder)
    return budget


def test_shares_follow_starts_ends_and_curves() -> None:
    budget = shared("a")
    assert budget.share_bytes("a") == 64 * MIB
    budget.join("b", Terms())
    # The process of "b" has run no step yet, so "a" keeps its share.
    assert budget.share_bytes("a") == 64 * MIB
    assert budget.share_bytes("b") == 32 * MIB
    budget.count("b")
    assert budget.share_bytes("a") == budget.share_bytes("b") == 32 * MIB
    budget.learn("a", STEEP)
    assert budget.share_bytes("a") == 32 * MIB
    budget.learn("b", FLAT)
    assert (budget.share_bytes("a"), budget.share_bytes("b")) == (64 * MIB, 0)
    budget.leave("a")
    assert budget.share_bytes("b") == 64 * MIB
    assert not budget.shares("a")
    budget.leave("a")


def test_a_small_gain_changes_no_share() -> None:
    budget = shared("a", "b")
    budget.learn("a", Curve((0, 64 * MIB), (1.2, 1.0)))
    budget.learn("b", Curve((0, 64 * MIB), (1.2, 1.0)))
    before = budget.share_bytes("a"), budget.share_bytes("b")
    # With this curve, the sum of the slowdowns would be 0.1 % smaller if "a" had all 64 MiB. This
    # gain is less than GAIN_MIN (machine/shared.py).
    budget.learn("a", Curve((0, 64 * MIB), (1.205, 1.0)))
    assert (budget.share_bytes("a"), budget.share_bytes("b")) == before


def test_other_terms_take_effect() -> None:
    budget = shared("a", "b")
    budget.learn("a", STEEP)
    budget.learn("b", FLAT)
    budget.join("b", Terms(least_bytes=16 * MIB))
    assert (budget.share_bytes("a"), budget.share_bytes("b")) == (48 * MIB, 16 * MIB)
    budget.join("a", Terms(most_bytes=8 * MIB))
    assert (budget.share_bytes("a"), budget.share_bytes("b")) == (8 * MIB, 56 * MIB)


def test_the_sum_of_the_minimums_is_limited() -> None:
    budget = shared("a")
    budget.join("a", Terms(least_bytes=40 * MIB))
    with pytest.raises(SentinelError) as refused:
        budget.join("b", Terms(least_bytes=25 * MIB))
    assert refused.value.code == "budget-too-large"
    assert "the other sessions' minimums of 40.0 MiB exceed" in refused.value.message
    assert not budget.shares("b")
    with pytest.raises(SentinelError):
        budget.join("a", Terms(least_bytes=65 * MIB))
    budget.join("a", Terms(least_bytes=39 * MIB))
    budget.join("b", Terms(least_bytes=25 * MIB))


def test_a_share_is_explained() -> None:
    budget = shared("a", "b")
    unknown = budget.explain("a")
    assert unknown is not None
    assert (unknown.sessions, unknown.share_bytes, unknown.slowdown) == (2, 32 * MIB, None)
    budget.learn("a", STEEP)
    budget.learn("b", FLAT)
    found = budget.explain("b")
    assert found is not None
    assert (found.share_bytes, found.equal_bytes) == (0, 32 * MIB)
    assert (found.slowdown, found.equal_slowdown) == (1.125, 1.0625)
    assert found.relative_slowdown == 1.125 / 1.0625
    assert found.gain_per_mib == pytest.approx(0.125 / 64)
    assert budget.explain("c") is None


def test_a_session_gives_up_its_budget_when_it_leaves() -> None:
    budget = shared("a", "b")
    budget.budgets.reserve("a", 64 * MIB)
    with pytest.raises(SentinelError, match="left of the shared budget's"):
        budget.budgets.reserve("b", MIB)
    budget.leave("a")
    budget.budgets.reserve("b", 64 * MIB)


def test_a_curve_that_is_no_longer_known_is_forgotten() -> None:
    budget = shared("a", "b")
    budget.learn("a", STEEP)
    budget.learn("b", FLAT)
    budget.learn("a", None)
    assert budget.share_bytes("a") == 32 * MIB
    share = budget.explain("a")
    assert share is not None
    assert share.slowdown is None


def test_a_predicted_time_of_0_is_explained() -> None:
    budget = shared("a")
    budget.learn("a", Curve((0, 64 * MIB), (0.0, 0.0)))
    share = budget.explain("a")
    assert share is not None
    assert (share.equal_slowdown, share.relative_slowdown) == (0.0, None)


def test_the_ranks_of_a_job_count_as_one_session() -> None:
    budget = shared("a")
    for rank, holder in enumerate(("first", "second")):
        budget.join(holder, Terms(), "training", rank)
        budget.count(holder)
    # The job gets half of the budget, and each of its two ranks gets half of that.
    assert budget.share_bytes("a") == 32 * MIB
    assert budget.share_bytes("first") == budget.share_bytes("second") == 16 * MIB
    share = budget.explain("first")
    assert share is not None
    assert (share.sessions, share.ranks, share.equal_bytes) == (2, 2, 16 * MIB)
    budget.join("third", Terms(), "training", 2)
    assert budget.share_bytes("third") == pytest.approx(32 * MIB / 3, abs=4096)
    budget.leave("second")
    budget.leave("third")
    assert budget.share_bytes("first") == 32 * MIB


def test_a_jobs_share_follows_the_curves_of_its_ranks() -> None:
    budget = shared("a")
    for rank, holder in enumerate(("first", "second")):
        budget.join(holder, Terms(), "training", rank)
        budget.count(holder)
    budget.learn("first", STEEP)
    assert budget.share_bytes("first") == budget.share_bytes("second")
    # For the same slowdown, the second rank needs half as much memory as the first.
    budget.learn("second", Curve((0, 32 * MIB), (1.25, 1.0)))
    first, second = budget.share_bytes("first"), budget.share_bytes("second")
    assert first == pytest.approx(2 * second, abs=2 * 4096)
    assert first + second <= 32 * MIB + 4096


def test_jobs_of_the_same_name_are_told_apart_by_their_ranks() -> None:
    """Two trainings have the same job name if, for example, they run in one Slurm allocation."""
    budget = shared("a")
    for holder, rank in (("first", 0), ("second", 1), ("other first", 0), ("other second", 1)):
        budget.join(holder, Terms(), "training", rank)
        budget.count(holder)
    assert budget.share_bytes("a") == pytest.approx(64 * MIB / 3, abs=4096)
    share = budget.explain("other second")
    assert share is not None
    assert (share.sessions, share.ranks) == (3, 2)


def test_the_shares_of_ranks_stay_while_others_join() -> None:
    budget = shared("a")
    for rank in range(3):
        budget.join(rank, Terms(), "training", rank)
        budget.count(rank)
        budget.learn(rank, Curve((0, (64 + rank) * MIB + 4096), (1.3, 1.0)))
    budget.learn("a", FLAT)
    before = [budget.share_bytes(rank) for rank in range(3)]
    for holder in "bcdefgh":
        budget.join(holder, Terms())
        assert [budget.share_bytes(rank) for rank in range(3)] == before


def test_a_session_with_a_size_uses_memory_that_no_curve_values() -> None:
    budget = shared("a", "b")
    needs_little = Curve((0, 8 * MIB), (1.25, 1.0))
    budget.learn("a", needs_little)
    budget.learn("b", needs_little, 40 * MIB)
    assert (budget.share_bytes("a"), budget.share_bytes("b")) == (8 * MIB, 40 * MIB)
    share = budget.explain("b")
    assert share is not None
    assert (share.spare_bytes, share.equal_bytes) == (32 * MIB, 8 * MIB)
    assert share.relative_slowdown == 1.0
    # Another session gets the spare memory as soon as it can use it.
    budget.learn("a", Curve((0, 60 * MIB), (1.25, 1.0)))
    assert budget.share_bytes("b") == 64 * MIB - budget.share_bytes("a")
    assert budget.share_bytes("a") > 50 * MIB
    budget.leave("a")
    assert budget.share_bytes("b") == 40 * MIB
    budget.learn("b", needs_little, 70 * MIB)
    assert budget.share_bytes("b") == 64 * MIB
