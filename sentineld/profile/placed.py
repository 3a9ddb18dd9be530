# SPDX-License-Identifier: Apache-2.0
"""The tiers on which the script has placed a step's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sentineld.model.arrays import Table
from sentineld.model.profile import Profile
from sentineld.model.protocol import NOT_IN_SEQUENCE, Event, Placement
from sentineld.model.records import Records


def note_placements(tensors: Table, records: Records) -> None:
    """Set the column `placed` of a step's tensors (TENSOR_DTYPE) from the step's PLACED records. Of
    several records of a tensor, the last one counts. Invalid records are ignored.

    Tensors that the step allocates are found by their cursor, older ones by their address.
    """
    found = records[(records["event"] == Event.PLACED) & (records["detail"] <= max(Placement))]
    row_of_slot = np.flatnonzero(tensors["slot"] >= 0)
    slots = tensors["slot"][row_of_slot].tolist()
    row_of = dict(zip(slots, row_of_slot.tolist(), strict=True))
    by_address = _lasting(tensors)
    for address, value, placement in zip(
        found["address"].tolist(), found["value"].tolist(), found["detail"].tolist(), strict=True
    ):
        row = by_address.get(address) if value == NOT_IN_SEQUENCE else row_of.get(value)
        if row is not None:
            tensors["placed"][row] = placement


def with_placements(profile: Profile, placed: Mapping[int, int]) -> Profile:
    """The profile with these placements of the tensors that were allocated before the step. Returns
    `profile` itself if nothing changes.

    placed: protocol.Placement by address; tensors without an entry are not placed.
    """
    tensors = profile.tensors.copy()
    for address, row in _lasting(tensors).items():
        tensors["placed"][row] = placed.get(address, Placement.AUTO)
    same = np.array_equal(tensors["placed"], profile.tensors["placed"])
    return profile if same else replace(profile, tensors=tensors)


def _lasting(tensors: Table) -> dict[int, int]:
    """The rows of the tensors that were allocated before the step, by address."""
    rows = np.flatnonzero(tensors["slot"] < 0)
    return dict(zip(tensors["address"][rows].tolist(), rows.tolist(), strict=True))
