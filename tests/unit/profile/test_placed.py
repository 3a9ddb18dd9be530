# SPDX-License-Identifier: Apache-2.0
"""Placements in a step's records and in a process's messages become part of the profile."""

from __future__ import annotations

import numpy as np

from sentineld.model.profile import Profile
from sentineld.model.protocol import NOT_IN_SEQUENCE, Event, Placement
from sentineld.model.records import OP_ACCESS_DTYPE, RECORD_DTYPE, SAMPLE_DTYPE
from sentineld.profile.attribution import build_profile
from sentineld.profile.lifetimes import step_lifetimes
from sentineld.profile.placed import note_placements, with_placements
from tests.unit.profile.toys import toy

AUTO, FAST, SLOW = Placement
PARAMETER = 3
"""Row of the toy's only tensor that was allocated before the step."""


def records(*rows: tuple[int, int, int]) -> np.ndarray:
    """PLACED records: (address, cursor, placement)."""
    made = np.zeros(len(rows), RECORD_DTYPE)
    made["event"] = Event.PLACED
    for name, column in zip(("address", "value", "detail"), zip(*rows, strict=True), strict=True):
        made[name] = column
    return made


def address() -> int:
    return int(step_lifetimes(toy()).tensors["address"][PARAMETER])


def noted(*rows: tuple[int, int, int]) -> list[int]:
    tensors = step_lifetimes(toy()).tensors
    note_placements(tensors, records(*rows))
    found: list[int] = tensors["placed"].tolist()
    return found


def test_tensors_of_the_step_are_found_by_cursor_and_others_by_address() -> None:
    assert noted((1, 1, FAST), (address(), NOT_IN_SEQUENCE, SLOW)) == [0, FAST, 0, SLOW]


def test_the_last_record_of_a_tensor_counts() -> None:
    assert noted((1, 0, FAST), (1, 0, SLOW), (1, 2, FAST), (1, 2, AUTO)) == [SLOW, 0, 0, 0]


def test_invalid_records_are_ignored() -> None:
    assert noted((1, 0, 9), (1, 3, FAST), (1, NOT_IN_SEQUENCE, FAST), (1, 7, SLOW)) == [0] * 4


def test_a_profile_contains_the_placements_of_its_step() -> None:
    step = toy()
    object.__setattr__(step, "records", np.concatenate([step.records, records((1, 2, SLOW))]))
    profile = built(step)
    assert profile.tensors["placed"].tolist() == [0, 0, SLOW, 0]


def built(step: object) -> Profile:
    nothing = np.empty(0, SAMPLE_DTYPE), np.empty(0, OP_ACCESS_DTYPE)
    return build_profile(step, *nothing, ("", "a"))  # type: ignore[arg-type]


def test_a_message_replaces_the_placements_of_older_tensors() -> None:
    profile = built(toy())
    slow = with_placements(profile, {address(): SLOW, 12345: FAST})
    assert slow.tensors["placed"].tolist() == [0, 0, 0, SLOW]
    assert profile.tensors["placed"].tolist() == [0] * 4
    assert with_placements(slow, {address(): SLOW}) is slow
    assert with_placements(slow, {}).tensors["placed"].tolist() == [0] * 4
