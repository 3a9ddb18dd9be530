# SPDX-License-Identifier: Apache-2.0
"""Simulations of whole trainings: properties of each policy and of each step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.host.presets import preset_tiers
from sentineld.model.profile import Profile
from sentineld.model.tiers import Overlap
from sentineld.model.timing import timing_of
from sentineld.plan.policy import DelayingReactor, Hardware, Policy, Reactive, Rewriting
from sentineld.plan.stall_trial import StallTrial
from sentineld.policies.bounds.of_policy import bound_seconds_of
from sentineld.policies.registry import names, policy
from sentineld.simulate.disturbance import Disturbance
from sentineld.simulate.replay import Replay, Step
from sentineld.simulate.script import scripts
from sentineld.simulate.simulate import simulate
from sentineld.simulate.world import World
from tests.unit.policies.random_profiles import random_profile
from tests.unit.policies.rivals.laps import Life, lap
from tests.unit.policies.tiering import VARIANTS, paged_tiers
from tests.unit.trainer import MIB, PAGE
from tests.unit.workloads import Network, profiled

NETWORK = Network(blocks=4, weight_bytes=MIB // 4, activation_bytes=MIB // 2, bytes_per_s=4e9)
SOFTWARE = [name for name in names() if not isinstance(policy(name), Hardware)]
CUTS = tuple(range(4, 60, 4))


@pytest.fixture(scope="module")
def training() -> Profile:
    return profiled(NETWORK, CUTS)[0]


def test_fast_only_takes_the_measured_time(training: Profile) -> None:
    found = simulate(training, policy("fast-only"), preset_tiers("cxl", 12), 5 * MIB)
    assert found.step_seconds == pytest.approx(found.fast_only_seconds, rel=1e-12)
    assert found.step_seconds == pytest.approx(training.stretches["time_ns"].sum() / 1e9)
    assert found.bytes_promoted == found.bytes_demoted == found.late_moves == 0


def test_all_slow_pays_for_every_access(training: Profile) -> None:
    found = simulate(training, policy("slow-only"), preset_tiers("cxl", 12), 5 * MIB)
    assert found.step_seconds == pytest.approx(found.slow_only_seconds, rel=1e-9)
    assert found.step_seconds > 1.1 * found.fast_only_seconds


def test_on_two_equal_tiers_only_waits_cost_time() -> None:
    training = profiled(replace(NETWORK, blocks=2), tuple(range(4, 30, 4)))[0]
    tiers, budget = preset_tiers("dram", 12), training.peak_bytes // 3
    compared, infeasible = set(), set()
    for name in SOFTWARE:
        if observing_takes_time(policy(name), training) or isinstance(policy(name), Rewriting):
            continue  # a rewriting policy may add work
        try:
            found = simulate(training, policy(name), tiers, budget, steps_max=12)
        except SentinelError as error:
            if "infeasible" not in error.message:
                raise
            infeasible.add(name)
            continue
        waited = found.fast_only_seconds + found.stall_seconds
        assert found.step_seconds == pytest.approx(waited, rel=1e-9), name
        compared.add(name)
    assert compared >= {"auto", "autotm", "interleave", "memtis", "sentinel+spill", "static"}
    # Only policies that never access pages in slow memory may find this budget too small.
    assert not any("+slow" in name or isinstance(policy(name), Reactive) for name in infeasible)


def observing_takes_time(chosen: Policy, profile: Profile) -> bool:
    """Whether a reactive policy's observation delays the training, as hint faults do."""
    return isinstance(chosen, Reactive) and any(
        isinstance(reactor, DelayingReactor) for _, reactor in chosen.reactors(profile)
    )


@pytest.mark.parametrize("share", [0.2, 0.3, 0.5])
def test_sentinel_beats_first_touch_and_is_near_its_prediction(
    training: Profile, share: float
) -> None:
    tiers, budget = preset_tiers("cxl", 12), int(training.peak_bytes * share)
    mine = simulate(training, policy("sentinel"), tiers, budget)
    other = simulate(training, policy("first-touch"), tiers, budget)
    assert mine.repeats
    assert other.repeats
    assert mine.step_seconds < other.step_seconds
    assert mine.step_seconds == pytest.approx(mine.predicted_seconds, rel=0.05)
    assert mine.peak_fast_bytes <= budget


@pytest.mark.parametrize("name", ["sentinel", "first-touch"])
def test_a_step_that_begins_in_an_earlier_state_repeats_that_step(
    training: Profile, name: str
) -> None:
    # simulate() relies on this property: it stops at the first step that begins in the same state
    # as an earlier step.
    timing, budget = timing_of(preset_tiers("cxl", 12)), training.peak_bytes // 4
    plan = policy(name).plan(training, preset_tiers("cxl", 12), budget)
    made = scripts(plan, training, timing)
    world = World(
        made.cells,
        budget // PAGE,
        timing.promote_ns_per_byte * PAGE,
        timing.demote_ns_per_byte * PAGE,
    )
    replay = Replay(made, world)
    replay.trial = StallTrial([], training.stretch_count)
    replay.begin()
    passed: list[Step] = []
    seen: dict[bytes, int] = {}
    while (first := seen.setdefault(world.state(), len(passed))) == len(passed):
        assert len(passed) < 50
        passed.append(replay.step())
    period = len(passed) - first
    for at in range(first, first + 3 * period):
        again, before = replay.step(), passed[first + (at - first) % period]
        assert again.ns == pytest.approx(before.ns, abs=2)
        assert again.slow_ns == pytest.approx(before.slow_ns, abs=2)
        one, other = (replace(step.counts, stall_ns=0, busy_ns=0) for step in (again, before))
        assert one == other
        assert again.counts.stall_ns == pytest.approx(before.counts.stall_ns, abs=2)
        assert again.counts.busy_ns == pytest.approx(before.counts.busy_ns, abs=2)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 1.5])
def test_first_touch_takes_its_predicted_time(training: Profile, share: float) -> None:
    tiers, budget = preset_tiers("cxl", 12), int(training.peak_bytes * share)
    found = simulate(training, policy("first-touch"), tiers, budget)
    assert found.step_seconds == pytest.approx(found.predicted_seconds, rel=1e-3)


def test_the_phases_of_a_training(training: Profile) -> None:
    found = simulate(
        training, policy("sentinel"), preset_tiers("cxl", 12), training.peak_bytes // 3
    )
    assert [name for name, _, _ in found.phases] == [
        "warm-up",
        "profile",
        "trial",
        "settling",
        "steady",
    ]
    assert [steps for _, steps, _ in found.phases][:2] == [2, 3]
    _, steps, seconds = found.phases[-1]
    assert seconds / steps == pytest.approx(found.step_seconds)
    assert found.to_json()["phases"][0]["phase"] == "warm-up"


def test_the_planning_time_is_that_of_the_callers_clock(training: Profile) -> None:
    tiers, ticks = preset_tiers("cxl", 12), iter([2.0, 5.0])
    found = simulate(training, policy("first-touch"), tiers, 5 * MIB, clock=lambda: next(ticks))
    assert found.plan_seconds == 3.0
    without = simulate(training, policy("first-touch"), tiers, 5 * MIB)
    assert without == replace(found, plan_seconds=0.0)


def test_noise_is_repeatable_and_costs_little(training: Profile) -> None:
    tiers, budget = preset_tiers("cxl", 12), training.peak_bytes // 3
    calm = simulate(training, policy("sentinel"), tiers, budget)
    noisy = [
        simulate(training, policy("sentinel"), tiers, budget, Disturbance(noise=0.25, seed=7), 40)
        for _ in range(2)
    ]
    assert noisy[0].step_seconds == noisy[1].step_seconds
    assert not noisy[0].repeats
    assert noisy[0].steps >= 40
    assert noisy[0].step_seconds == pytest.approx(calm.step_seconds, rel=0.15)
    assert noisy[0].peak_fast_bytes <= budget


def test_interference_makes_moves_late(training: Profile) -> None:
    tiers, budget = preset_tiers("cxl", 12), training.peak_bytes // 3
    calm = simulate(training, policy("sentinel"), tiers, budget)
    disturbance = Disturbance(interference=0.8)
    shared = simulate(training, policy("sentinel"), tiers, budget, disturbance, planning_s=None)
    assert shared.late_moves > calm.late_moves
    assert shared.step_seconds > calm.step_seconds
    assert shared.peak_fast_bytes <= budget


def test_invalid_inputs_are_refused(training: Profile) -> None:
    tiers = preset_tiers("cxl", 12)
    with pytest.raises(SentinelError, match="less than a page"):
        simulate(training, policy("sentinel"), tiers, PAGE - 1)
    with pytest.raises(SentinelError, match="infeasible as published"):
        simulate(training, policy("sentinel"), tiers, PAGE)
    empty = replace(training, accesses=training.accesses[:0])
    with pytest.raises(SentinelError, match="no accesses"):
        simulate(empty, policy("first-touch"), tiers, MIB)
    with pytest.raises(SentinelError, match="interference"):
        Disturbance(interference=1.0)


@pytest.mark.parametrize("name", ["damon", "ial", "tpp", "memtis", "numab", "vtmm"])
def test_reactive_policies_are_no_slower_than_first_touch(training: Profile, name: str) -> None:
    # Each policy also tries the published interval between two ticks of its reactor, 0.1 s to 5 s.
    # With most of these intervals, pages rarely or never move in the simulated time, so the steps
    # resemble those of first touch.
    tiers, budget = preset_tiers("cxl", 12), training.peak_bytes // 3
    found = simulate(training, policy(name), tiers, budget, steps_max=30)
    still = simulate(training, policy("first-touch"), tiers, budget)
    assert found.step_seconds <= still.step_seconds * (1 + 1e-9)
    assert found.peak_fast_bytes <= budget
    assert any("interval of" in note for note in found.notes)


def test_memory_mode_is_hardware(training: Profile) -> None:
    tiers = preset_tiers("cxl", 12)
    found, large = (
        simulate(training, policy("memory-mode"), tiers, size)
        for size in (training.peak_bytes // 3, 4 * training.peak_bytes)
    )
    assert found.kind == "hardware"
    # A cache that holds everything is filled once, so fills do not lengthen a steady step.
    assert large.step_seconds == pytest.approx(large.fast_only_seconds)
    assert found.step_seconds > found.fast_only_seconds
    assert found.bytes_promoted > 0


@settings(max_examples=25)
@given(
    st.sampled_from([name for name in SOFTWARE if name != "fast-only"]),
    st.integers(1, 4),
    st.integers(16, 80),
    st.integers(16, 80),
    st.floats(0.05, 1.2),
    st.sampled_from(["cxl", "optane", "remote", "dram"]),
    st.sampled_from([1, 12]),
    st.sampled_from([0.0, 0.6]),
    st.sampled_from(list(VARIANTS)),
)
def test_no_policy_beats_the_bound_or_exceeds_its_budget(
    name: str,
    blocks: int,
    weight_pages: int,
    activation_pages: int,
    share: float,
    preset: str,
    threads: int,
    interference: float,
    variant: str,
) -> None:
    network = Network.of_pages(blocks, weight_pages, activation_pages, 2e9)
    profile = profiled(network, (3, 7, 12, 20))[0]
    tiers = replace(preset_tiers(preset, threads), **VARIANTS[variant])
    budget = int(profile.peak_bytes * share)
    disturbance = Disturbance(interference=interference)
    try:
        found = simulate(profile, policy(name), tiers, budget, disturbance, 30)
    except SentinelError as error:
        if "infeasible" not in error.message:
            raise
        return
    assert found.peak_fast_bytes <= budget
    least = bound_seconds_of(policy(name), profile, tiers, budget)
    assert least <= found.step_seconds * (1 + 1e-6)
    if timing_of(tiers).overlap != Overlap.TIERS:
        assert found.fast_only_seconds <= found.step_seconds * (1 + 1e-12)
        assert found.fast_only_seconds * (1 - 1e-9) <= least
    assert least <= found.slow_only_seconds * (1 + 1e-9)


def test_steps_wait_for_the_writes_that_their_accesses_cause() -> None:
    # Stretch 0 fetches 64 pages in 1 s and changes them. Writing them takes another 4 s. Because 16
    # frames are free (the whole budget), the last 16 pages need not be written before stretch 1
    # begins: stretch 1 hides the 1 s that their writes take. The computation of stretch 0 hides
    # another 1 s of the writes, and the process stalls for the remaining 2 s.
    profile, tiers = lap(2, Life(64, (0,), written_in=(0,))), paged_tiers(64.0, 16.0)
    found = simulate(profile, policy("slow-only"), tiers, 16 * PAGE)
    assert found.repeats
    assert found.step_seconds == pytest.approx(5.0)
    assert found.stall_seconds == pytest.approx(2.0)


def test_writes_do_not_pile_up_from_step_to_step() -> None:
    profile = random_profile(3, 60, 20)
    budget = int(profile.peak_bytes * 0.4)
    found = simulate(profile, policy("static"), preset_tiers("nvme", 1), budget)
    assert found.repeats
    assert found.stall_seconds > 0
