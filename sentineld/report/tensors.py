# SPDX-License-Identifier: Apache-2.0
"""The table of tensors: size, life and accesses of each."""

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
"""What the table can be sorted by."""


@dataclass(frozen=True)
class TensorRow:
    """One tensor.

    boundaries, layers: how many stretches and distinct layers it lives through. bytes_read,
    bytes_written: in one step, as the framework tells them. page_accesses: sampled page x stretch
    pairs. hotness: bytes read and written for each of its bytes, in one step. faults: page faults
    of a step by class, on average; None where they were not recorded.
    """

    tensor: int
    name: str
    kind: str
    bytes: int
    born: str
    dies: str
    boundaries: int
    layers: int
    bytes_read: int
    bytes_written: int
    page_accesses: int
    hotness: float
    faults: dict[str, float] | None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "hotness": round(self.hotness, 3)}

    @property
    def fault_count(self) -> float:
        """Page faults of a step, of all classes."""
        return sum((self.faults or {}).values())


def tensor_rows(
    profile: Profile, labels: Labels, faults: TensorFaults | None = None
) -> list[TensorRow]:
    """All tensors in the profile's order."""
    tensors, accesses = profile.tensors, profile.accesses
    count = len(tensors)
    read, written, pages = (
        np.bincount(accesses["tensor"], accesses[name].astype(np.float64), minlength=count)
        for name in ("bytes_read", "bytes_written", "pages")
    )
    spans = lived_stretches(profile)
    layers = profile.stretches["layer"].astype(np.int64)
    places = stretch_places(profile)
    rows = []
    for index, tensor in enumerate(tensors):
        lasting = tensor["slot"] < 0
        touched = float(read[index] + written[index])
        rows.append(
            TensorRow(
                tensor=index,
                name=labels.names[index],
                kind=labels.kind(index),
                bytes=int(tensor["bytes"]),
                born="" if lasting else places[int(tensor["birth_stretch"])],
                dies="" if lasting else places[int(tensor["death_stretch"])],
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
    """Faults by class, from a row of TensorFaults."""
    return dict(zip(CLASSES, np.round(counts, 3).tolist(), strict=True))


def lived_stretches(profile: Profile) -> list[npt.NDArray[np.int64]]:
    """For each tensor the stretches in which it is alive, over the step's end where it wraps."""
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
            # Born and freed in the same stretch of two steps: there all the time.
            span = np.union1d(np.arange(birth, count), np.arange(0, min(death + 1, count)))
        else:
            span = np.arange(birth, death + 1)
        spans.append(span)
    return spans


def sort_rows(rows: list[TensorRow], column: str, reverse: bool = False) -> list[TensorRow]:
    """Rows by one of COLUMNS: the largest first, kinds in KINDS' order, names by the alphabet;
    equal ones by size. reverse turns all of it round."""
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
