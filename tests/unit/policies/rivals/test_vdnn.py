# SPDX-License-Identifier: Apache-2.0
"""vDNN's offloads and prefetches, checked by hand.

passes.py defines the step: a forward and a backward pass over six layers. The inputs of layers 2, 3
and 4 have gaps between two uses that are long enough for a swap.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.host.presets import preset_tiers
from sentineld.model.plan import Plan
from sentineld.model.profile import Kind, Profile
from sentineld.plan.check import verify
from sentineld.policies.registry import policy
from sentineld.policies.rivals.passes import layers_of
from sentineld.policies.rivals.swaps import open_book
from sentineld.policies.rivals.vdnn import Mode, Vdnn, offload, prefetches
from sentineld.simulate.simulate import simulate
from tests.conftest import examples
from tests.unit.policies.random_profiles import random_profiles
from tests.unit.policies.rivals.laps import PAGE, moving
from tests.unit.policies.rivals.passes import PAGES, checkpointed, passes
from tests.unit.policies.tiering import paged_tiers

ROOM = 3 * PAGES * PAGE
"""Room for three inputs. In stretch 6, five inputs are alive, so two have to be offloaded."""


def with_heavy(*layers: int) -> Profile:
    """The step of passes.py, but in the forward pass, the given layers take three times as long as
    the others."""
    profile = passes()
    stretches = profile.stretches.copy()
    stretches["time_ns"][list(layers)] *= 3
    return replace(profile, stretches=stretches)


def moved(plan: Plan) -> list[tuple[int, int, int]]:
    """(layer whose input moves, boundary, tier) of each move."""
    return [(int(m["tensor"]) + 2, int(m["boundary"]), int(m["tier"])) for m in plan.moves]


def offloaded(profile: Profile, mode: Mode) -> set[int]:
    """The layers whose inputs the mode offloads."""
    book = open_book(profile, moving(64), ROOM)
    offload(book, mode, at_once=True)
    return {swap.gap.tensor + 2 for swap in book.swaps}


def test_offloads_follow_the_last_forward_use_and_the_next_layer_waits() -> None:
    # A layer is heavy if it takes at least the mean time of the layers. Each layer takes a second,
    # so all layers are heavy. A layer then prefetches for the next layer only, so each input
    # returns in the layer before its use in the backward pass.
    profile = passes()
    plan = policy("vdnn").plan(profile, moving(64), ROOM)
    verify(plan, profile, ROOM)
    assert moved(plan) == [(2, 3, 1), (3, 4, 1), (4, 5, 1), (4, 8, 0), (3, 9, 0), (2, 10, 0)]
    # The next layer waits for each offload. Three inputs fill the room in stretch 3, so the birth
    # there waits for the last offload before it, which began at boundary 5 of the previous step.
    # This offload is complete by then.
    assert plan.layout.waits.tolist() == [-1, -1, -1, 5, 3, 4, 5, -1, -1, -1, -1, -1, -1, -1]
    # A transfer takes a second, as a layer does, so the waits do not lengthen the step.
    found = simulate(profile, policy("vdnn"), moving(64), ROOM)
    assert found.step_seconds == pytest.approx(14)


def test_a_slow_offload_delays_the_next_layer() -> None:
    # A transfer takes two seconds. The offloads of inputs 4 and 3 each delay one layer by a second.
    # Input 4 returns in stretches 7 and 8, since stretch 8 alone is too short. Input 3 returns in
    # stretches 6 and 9. Input 2 could return in stretch 10, but no earlier stretch has time for the
    # rest of its transfer. So input 2 is not offloaded, and four inputs have to fit in the budget.
    profile, room = passes(), 4 * PAGES * PAGE
    plan = policy("vdnn").plan(profile, moving(32), room)
    verify(plan, profile, room)
    assert {layer for layer, _, _ in moved(plan)} == {3, 4}
    assert [(layer, at) for layer, at, tier in moved(plan) if not tier] == [
        (3, 6),
        (4, 7),
        (4, 8),
        (3, 9),
    ]
    found = simulate(profile, policy("vdnn"), moving(32), room)
    assert found.step_seconds == pytest.approx(16, abs=0.1)
    # G10 takes the bandwidth into account, so no layer waits.
    other = simulate(profile, policy("g10"), moving(32), room)
    assert other.step_seconds == pytest.approx(14)


def test_the_prefetch_window_ends_at_a_heavy_layer() -> None:
    # In the backward pass, only stretch 10 (layer 3) is heavy. Layer 6 prefetches input 4 across
    # the light layer 5, and layer 5 prefetches input 3 across layer 4. The window of layer 4
    # (stretch 9) ends at the heavy layer 3, so layer 3 itself prefetches input 2.
    layers = layers_of(with_heavy(3))
    assert [layer for layer, heavy in enumerate(layers.heavy.tolist()) if heavy] == [3, 10]
    assert prefetches(layers, [9, 10, 11]) == {9: 7, 10: 8, 11: 10}
    # If all layers are heavy, a layer prefetches the inputs of the next layer only.
    assert prefetches(layers_of(passes()), [9, 10, 11]) == {9: 8, 10: 9, 11: 10}


def test_modes_choose_inputs_of_no_heavy_or_all_layers() -> None:
    assert offloaded(with_heavy(3), Mode.NONE) == set()
    assert offloaded(with_heavy(3), Mode.CONV) == {3}
    assert offloaded(with_heavy(3), Mode.ALL) == {2, 3, 4}


def test_inputs_of_every_pass_are_offloaded() -> None:
    profile = passes(times=2)
    plan = policy("vdnn").plan(profile, moving(64), ROOM)
    verify(plan, profile, ROOM)
    once = policy("vdnn").plan(passes(), moving(64), ROOM)
    again = [(layer + 5, at + 12, tier) for layer, at, tier in moved(once)]
    assert moved(plan) == moved(once) + again


def test_inputs_of_checkpointed_layers_are_offloaded() -> None:
    profile = checkpointed()
    assert offloaded(profile, Mode.ALL) == {2, 3, 4, 5}
    verify(policy("vdnn").plan(profile, moving(64), ROOM), profile, ROOM)


def test_the_prefetch_window_ends_with_its_pass() -> None:
    layers = replace(layers_of(passes(times=2)), heavy=np.zeros(26, np.bool_))
    # Layer 21 is in the second backward pass, which begins in stretch 19.
    assert prefetches(layers, [11, 21]) == {11: 7, 21: 19}


def test_the_first_sufficient_mode_is_kept() -> None:
    # With mode conv, the inputs of layers 3 and 4 are offloaded. Four inputs are fast in stretch 4,
    # and in stretch 7, where input 4 returns.
    profile = with_heavy(3, 4)
    for inputs, mode in ((5, "none"), (4, "conv"), (3, "all")):
        room = inputs * PAGES * PAGE
        plan = policy("vdnn").plan(profile, moving(64), room)
        verify(plan, profile, room)
        assert plan.notes[0].endswith(f"mode {mode}")


def test_only_activations_are_offloaded() -> None:
    profile = passes()
    tensors = profile.tensors.copy()
    tensors["kind"][0] = Kind.GRADIENT
    assert offloaded(replace(profile, tensors=tensors), Mode.ALL) == {3, 4}


def test_on_paged_tiers_no_layer_waits() -> None:
    profile, tiers = passes(), paged_tiers(70, 70)
    plan = policy("vdnn").plan(profile, tiers, ROOM)
    verify(plan, profile, ROOM)
    assert simulate(profile, policy("vdnn"), tiers, ROOM).step_seconds == pytest.approx(14, abs=0.1)


def test_without_room_for_three_inputs_it_is_infeasible() -> None:
    room = 2 * PAGES * PAGE
    with pytest.raises(SentinelError, match="infeasible as published: offloading"):
        policy("vdnn").plan(passes(), moving(64), room)
    plan = policy("vdnn+slow").plan(passes(), moving(64), room)
    verify(plan, passes(), room)
    assert plan.predicted.peak_fast_bytes <= room
    assert plan.predicted.fast_share < 1


class OneMode(Vdnn):
    """The vDNN policy, restricted to the mode that offloads all inputs, even if another mode is
    faster."""

    sweep = (Mode.ALL,)


@settings(max_examples=examples(ci=6, long=333))
@given(
    profile=random_profiles(tensors_max=80),
    share=st.sampled_from([0.1, 0.4, 0.9, 1.5]),
    preset=st.sampled_from(["cxl", "nvme"]),
)
def test_plans_with_offloads_are_valid(profile: Profile, share: float, preset: str) -> None:
    tiers, room = preset_tiers(preset, 1), int(profile.peak_bytes * share)
    try:
        plan = OneMode("vdnn+slow", True).plan(profile, tiers, room)
    except SentinelError as error:
        if "infeasible" in error.message:
            return
        raise
    verify(plan, profile, room)
