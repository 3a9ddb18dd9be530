# SPDX-License-Identifier: Apache-2.0
"""Noise, skew and interference (the fields of Disturbance). The seed determines the factors by
which noise and skew multiply the times of stretches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.simulate.disturbance import FACTOR_MIN, Disturbance

seeds = st.integers(0, 1 << 32)


def drawn(disturbance: Disturbance, count: int, run: int = 0) -> list[list[float]]:
    """The factors of `count` steps of three stretches each."""
    factors = disturbance.steps(3, run)
    steps = [factors.next() for _ in range(count)]
    assert all(step is not None for step in steps)
    return [step.tolist() for step in steps if step is not None]


@pytest.mark.parametrize(
    "values",
    [{"noise": -0.1}, {"noise": 2.1}, {"skew": -1.0}, {"skew": 3.0}],
)
def test_impossible_deviations_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(SentinelError, match=r"noise .*skew") as error:
        Disturbance(**values)  # type: ignore[arg-type]
    assert (error.value.code, error.value.hint) == ("usage", "give 0 to 2 for each")


@pytest.mark.parametrize("share", [-0.1, 1.0, 7.0])
def test_interference_leaves_some_bandwidth(share: float) -> None:
    with pytest.raises(SentinelError, match="an interference of") as error:
        Disturbance(interference=share)
    assert error.value.hint == "give 0 to less than 1"


def test_each_kind_disturbs() -> None:
    assert not Disturbance(seed=9).disturbs
    for one in (Disturbance(noise=0.1), Disturbance(skew=0.1), Disturbance(interference=0.1)):
        assert one.disturbs


def test_without_noise_and_skew_all_times_are_as_profiled() -> None:
    assert Disturbance(interference=0.5).steps(3, 1).next() is None


@given(seeds)
def test_skew_is_the_same_in_all_steps_and_runs(seed: int) -> None:
    skewed = Disturbance(skew=0.3, seed=seed)
    first, second = drawn(skewed, 2)
    assert first == second == drawn(skewed, 1, run=1)[0]
    assert first == skewed.skew_factors(3).tolist()
    assert len(set(first)) == 3


@given(seeds)
def test_noise_differs_by_step_and_run_and_repeats_with_its_seed(seed: int) -> None:
    noisy = Disturbance(noise=0.3, seed=seed)
    first, second = drawn(noisy, 2)
    assert first != second
    assert drawn(noisy, 2) == [first, second]
    assert drawn(noisy, 1, run=1)[0] != first


@given(seeds)
def test_noise_multiplies_the_skew(seed: int) -> None:
    noise, skew = Disturbance(noise=0.3, seed=seed), Disturbance(skew=0.3, seed=seed)
    both = Disturbance(noise=0.3, skew=0.3, seed=seed)
    expected = np.array(drawn(noise, 1)[0]) * np.array(drawn(skew, 1)[0])
    assert drawn(both, 1)[0] == pytest.approx(expected.tolist())


@given(seeds, st.floats(0.0, 2.0))
def test_no_stretch_becomes_too_short(seed: int, noise: float) -> None:
    factors = Disturbance(noise=noise, seed=seed).steps(200, 1).next()
    assert factors is None or factors.min() >= FACTOR_MIN


def test_factors_scatter_by_the_deviation_around_one() -> None:
    factors = Disturbance(noise=0.2, seed=3).steps(10_000, 1).next()
    assert factors is not None
    assert factors.mean() == pytest.approx(1.0, abs=0.01)
    assert factors.std() == pytest.approx(0.2, rel=0.05)
