# SPDX-License-Identifier: Apache-2.0
"""The table of tensors: size, lifetime and accesses."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sentineld.model.profile import Profile
from sentineld.profile.faults import CLASSES, TensorFaults
from sentineld.report.labels import KINDS, Labels, stretch_places

COLUMNS = (
    "bytes",
    "boundaries",
    "layers",
    "kind",
    "reads",
    "writes",
    "pages",
    "faults",
    "hotness",
    "name",
)
"""Columns by which the table can be sorted."""


@dataclass(frozen=True)
class TensorRow:
    """One tensor. Accesses and faults are per step."""

    tensor: int  # row in the profile's tensors
    name: str
    kind: str
    bytes: int
    born: str  # name of the stretch of its birth; empty if allocated before the step
    dies: str  # name of the stretch of its death; empty if allocated before the step
    boundaries: int  # number of stretches in its lifetime
    layers: int  # number of distinct layers in its lifetime
    # Bytes that the framework reported. For an access that only the module saw: the bytes of the
    # accessed pages; see build_profile().
    bytes_read: int
    bytes_written: int  # as for bytes_read
    page_accesses: int  # as in ACCESS_DTYPE
    hotness: float  # (bytes_read + bytes_written) / bytes
    faults: dict[str, float] | None  # mean number by class (CLASSES); None: not recorded

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "hotness": round(self.hotness, 3)}

    @property
    def fault_count(self) -> float:
        """Page faults of all classes per step; 0 if faults were not recorded."""
        return sum((self.faults or {}).values())


def tensor_rows(
    profile: Profile, labels: Labels, faults: TensorFaults | None = None
) -> list[TensorRow]:
    """Rows of all tensors, in the profile's order."""
    tensors, accesses = profile.tensors, profile.accesses
    count = len(tensors)
    read, written, pages = (
        np.bincount(accesses["tensor"], accesses[name].astype(np.float64), minlength=count)
        for name in ("bytes_read", "bytes_written", "page_accesses")
    )
    spans = lived_stretches(profile)
    layers = profile.stretches["layer"].astype(np.int64)
    places = stretch_places(profile)
    rows = []
    for index, tensor in enumerate(tensors):
        persistent = tensor["slot"] < 0
        touched = float(read[index] + written[index])
        rows.append(
            TensorRow(
                tensor=index,
                name=labels.names[index],
                kind=labels.kind(index),
                bytes=int(tensor["bytes"]),
                born="" if persistent else places[int(tensor["birth_stretch"])],
                dies="" if persistent else places[int(tensor["death_stretch"])],
                boundaries=len(spans[index]),
                layers=len(np.unique(layers[spans[index]])),
                bytes_read=int(read[index]),
                bytes_written=int(written[index]),
                page_accesses=int(pages[index]),
                hotness=touched / max(int(tensor["bytes"]), 1),
                faults=None if faults is None else faults_json(faults.by_tensor[index]),
            )
        )
    return rows


def faults_json(counts: npt.NDArray[np.float64]) -> dict[str, float]:
    """Faults by class from a row of TensorFaults, rounded."""
    return dict(zip(CLASSES, np.round(counts, 3).tolist(), strict=True))


def lived_stretches(profile: Profile) -> list[npt.NDArray[np.int64]]:
    """The stretches in which each tensor is live, across the step's end if the tensor wraps."""
    count = profile.stretch_count
    tensors = profile.tensors
    spans = []
    for birth, death, wraps in zip(
        tensors["birth_stretch"].tolist(),
        tensors["death_stretch"].tolist(),
        tensors["wraps"].tolist(),
        strict=True,
    ):
        if wraps:
            # The tensor lives across the step's end into the next step. If it is born and freed in
            # the same stretch, it is therefore live in all stretches.
            span = np.union1d(np.arange(birth, count), np.arange(0, min(death + 1, count)))
        else:
            span = np.arange(birth, death + 1)
        spans.append(span)
    return spans


def sort_rows(rows: list[TensorRow], column: str, reverse: bool = False) -> list[TensorRow]:
    """Sort rows by one of COLUMNS. Rows with equal values are sorted by size, largest first.

    Numbers are sorted largest first, kinds in the order of KINDS, names alphabetically; reverse
    inverts the order.
    """
    keys: dict[str, Any] = {
        "bytes": lambda row: -row.bytes,
        "boundaries": lambda row: -row.boundaries,
        "layers": lambda row: -row.layers,
        "kind": lambda row: KINDS.index(row.kind),
        "reads": lambda row: -row.bytes_read,
        "writes": lambda row: -row.bytes_written,
        "pages": lambda row: -row.page_accesses,
        "faults": lambda row: -row.fault_count,
        "hotness": lambda row: -row.hotness,
        "name": lambda row: row.name,
    }
    key = keys[column]
    return sorted(rows, key=lambda row: (key(row), -row.bytes, row.tensor), reverse=reverse)
