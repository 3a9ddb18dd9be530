# SPDX-License-Identifier: Apache-2.0
"""Which stretches are part of which pass. test_vdnn.py tests the layers, test_flashneuron.py the
saved tensors."""

from __future__ import annotations

from dataclasses import replace

from sentineld.model.protocol import Boundary
from sentineld.policies.rivals.passes import passes
from tests.unit.policies.rivals.laps import Life, lap


def found(*calls: tuple[Boundary, int]) -> str:
    """The pass of each stretch: F, B or -. calls: each stretch's boundary and layer."""
    profile = lap(len(calls), Life(16, (0, len(calls) - 1)))
    stretches = profile.stretches.copy()
    stretches["kind"], stretches["layer"] = zip(*calls, strict=True)
    forward, backward = passes(replace(profile, stretches=stretches))
    return "".join("F" if f else "B" if b else "-" for f, b in zip(forward, backward, strict=True))


def calls(kind: Boundary, *layers: int) -> list[tuple[Boundary, int]]:
    return [(kind, layer) for layer in layers]


F, B = Boundary.FORWARD, Boundary.BACKWARD
STEP, OPTIMIZER = (Boundary.STEP, 0), (Boundary.OPTIMIZER, 0)
CUT, OUTSIDE = (Boundary.CUT, 0), (Boundary.OUTSIDE, 0)


def test_a_cut_belongs_to_the_pass_around_it() -> None:
    one = STEP, CUT, (F, 1), OUTSIDE, (B, 1), CUT, OPTIMIZER, CUT, (F, 1), (B, 1)
    assert found(*one) == "FFFFBB--FB"


def test_gradient_accumulation_repeats_both_passes() -> None:
    one = [*calls(F, 1, 2), *calls(B, 2, 1)]
    assert found(STEP, *one, *one, OPTIMIZER) == "F" + 2 * "FFBB" + "-"


def test_layers_that_a_checkpoint_runs_again_are_part_of_the_backward_pass() -> None:
    one = [*calls(F, 1, 2, 3), *calls(B, 3), *calls(F, 1, 2), CUT, *calls(B, 2, 1)]
    assert found(STEP, *one, OPTIMIZER) == "FFFFBBBBBB-"
    assert found(STEP, *one, *one, OPTIMIZER) == "F" + 2 * "FFFBBBBBB" + "-"


def test_a_forward_pass_without_gradients_has_no_backward_pass() -> None:
    one = [*calls(F, 1, 2, 3, 1, 2, 3), *calls(B, 3, 2, 1)]
    assert found(STEP, *one, *one, OPTIMIZER) == "F" + 2 * "FFFFFFBBB" + "-"


def test_a_checkpoint_may_run_the_last_layers_again_before_any_backward_call() -> None:
    one = [*calls(F, 9, 1, 2, 1, 2), *calls(B, 2, 1)]
    assert found(STEP, *one, *one, OPTIMIZER) == "F" + 2 * "FFFFFBB" + "-"


def test_a_checkpointed_layer_may_be_called_several_times() -> None:
    one = [*calls(F, 1, 1, 9), *calls(B, 9), *calls(F, 1), *calls(B, 1), *calls(F, 1), *calls(B, 1)]
    assert found(STEP, *one, *one, OPTIMIZER) == "F" + 2 * "FFFBBBBB" + "-"


def test_two_networks_may_take_turns() -> None:
    one = [*calls(F, 1, 2), *calls(B, 2, 1), *calls(F, 3, 4), *calls(B, 4, 3)]
    assert found(STEP, *one, OPTIMIZER) == "FFFBBFFBB-"


def test_a_layer_without_a_backward_call_is_part_of_the_pass_of_its_run() -> None:
    frozen = 9
    one = [
        *calls(F, frozen),
        CUT,
        *calls(F, 1, 2),
        *calls(B, 2),
        *calls(F, frozen, 1),
        *calls(B, 1),
    ]
    assert found(STEP, *one, CUT, *one) == "FFFFFBBBBBFFFFBBBB"
