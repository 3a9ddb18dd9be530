# SPDX-License-Identifier: Apache-2.0
"""Names and kinds of tensors, and phases of a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.profile import Kind
from sentineld.model.records import TensorName
from sentineld.profile.trace import profile_of
from sentineld.report.labels import label, layer_label, phases, stretch_places
from sentineld.report.tensors import tensor_rows
from tests.unit.traces import SMALL, WEIGHTS, recorded

TRACE = recorded()
PROFILE = profile_of(TRACE)
LABELS = label(TRACE, PROFILE)
ROWS = tensor_rows(PROFILE, LABELS)


def test_parameters_have_the_framework_s_names() -> None:
    named = {row.name: row for row in ROWS if row.kind == "parameter"}
    assert len(named) == WEIGHTS
    assert named["1.weight2"].bytes == SMALL.weight_bytes
    # Optimizer state has no name here and is labelled by its address.
    states = [row for row in ROWS if row.kind == "persistent"]
    assert len(states) == 2 * WEIGHTS
    assert all(row.name.startswith("at 0x") for row in states)


def test_other_tensors_are_named_by_the_layer_of_their_birth() -> None:
    names = [row.name for row in ROWS if row.kind not in ("parameter", "persistent")]
    assert len(set(names)) == len(names)
    assert "0.gate forward #1" in names
    assert "after 0.value forward #1" in names


def test_names_of_reused_addresses_are_ignored() -> None:
    gone = int(np.flatnonzero(PROFILE.tensors["kind"] == Kind.SCRATCH)[0])
    address = int(PROFILE.tensors["address"][gone])
    names = {address: TensorName("gradient", "w")}
    assert label(replace(TRACE, names=names), PROFILE).names[gone] == LABELS.names[gone]


def test_gradients_across_the_step_s_end_are_named() -> None:
    wrapping = np.flatnonzero(PROFILE.tensors["wraps"])
    address = int(PROFILE.tensors["address"][wrapping[0]])
    labels = label(replace(TRACE, names={address: TensorName("gradient", "w")}), PROFILE)
    assert labels.names[wrapping[0]] == "w (gradient)"
    assert labels.kind(int(wrapping[0])) == "gradient"


def test_phases_cover_the_step() -> None:
    found = phases(PROFILE)
    assert [phase.name for phase in found] == ["begin", "forward", "backward", "optimizer"]
    assert [phase.first for phase in found[1:]] == [phase.past for phase in found[:-1]]
    assert (found[0].first, found[-1].past) == (0, PROFILE.stretch_count)


def test_cuts_have_their_layer_s_name() -> None:
    places = stretch_places(PROFILE)
    cuts = [place for place in places if ", cut " in place]
    assert len(cuts) == len(TRACE.cuts)
    assert all("forward" in place or "backward" in place for place in cuts)


def test_long_names_of_layers_keep_their_end() -> None:
    layers = tuple(f"a.long.path.to.{name}" for name in PROFILE.layers)
    shown = [layer_label(replace(PROFILE, layers=layers), at, 12) for at in range(5)]
    assert all(len(name) <= 12 for name in shown)
    assert any(name.endswith("0.gate") for name in shown)
