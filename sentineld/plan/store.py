# SPDX-License-Identifier: Apache-2.0
"""Store the plan and the profiles of a session in an .npz file, for a daemon that resumes it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.base.npz import DAMAGED_ERRORS
from sentineld.model.plan import (
    MOVE_DTYPE,
    PART_DTYPE,
    SLOT_DTYPE,
    Layout,
    Plan,
    Prediction,
    Region,
)
from sentineld.model.profile import ACCESS_DTYPE, STRETCH_DTYPE, TENSOR_DTYPE, Profile

STORE_VERSION = 7

_CHARGED = "charged_"
"""Prefix of the names of a second profile's tables, and the key of its texts."""
_PROFILE_DTYPES: dict[str, np.dtype[Any]] = {
    "tensors": TENSOR_DTYPE,
    "accesses": ACCESS_DTYPE,
    "stretches": STRETCH_DTYPE,
}
_DTYPES: dict[str, np.dtype[Any]] = {
    **_PROFILE_DTYPES,
    "slots": SLOT_DTYPE,
    "cuts": np.dtype("<u4"),
    "waits": np.dtype("<i4"),
    "parts": PART_DTYPE,
    "moves": MOVE_DTYPE,
    "initial": MOVE_DTYPE,
    "initial_tier": np.dtype("u1"),
    "late": np.dtype("?"),
}


class Stored(NamedTuple):
    """The content of a file."""

    plan: Plan
    profile: Profile
    charged: Profile  # see write_plan(); `profile` if the file has no other profile


def save_plan(path: Path, plan: Plan, profile: Profile, charged: Profile | None = None) -> None:
    """Write the plan and its profiles, as write_plan() does; the file is replaced atomically.
    Raises OSError."""
    part = path.with_name(path.name + ".writing")
    with part.open("wb") as file:
        write_plan(plan, profile, file, charged)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def write_plan(
    plan: Plan, profile: Profile, file: IO[bytes], charged: Profile | None = None
) -> None:
    """Write the plan and its profiles into an open file. charged: the profile from which emulated
    delays are computed, if it is not `profile`. Raises OSError."""
    texts: dict[str, Any] = {
        "policy": plan.policy,
        "budget_bytes": plan.budget_bytes,
        "regions": [asdict(region) for region in plan.layout.regions],
        "arena_bytes": plan.layout.arena_bytes,
        "heap_tier": plan.layout.heap_tier,
        "predicted": asdict(plan.predicted),
        "reasons": list(plan.reasons),
        "notes": list(plan.notes),
        **_texts(profile),
    }
    tables = {name: getattr(profile, name) for name in _PROFILE_DTYPES}
    if charged is not None and charged is not profile:
        texts[_CHARGED] = _texts(charged)
        tables |= {_CHARGED + name: getattr(charged, name) for name in _PROFILE_DTYPES}
    np.savez_compressed(
        file,
        version=np.array(STORE_VERSION),
        texts=np.array(json.dumps(texts)),
        **tables,
        slots=plan.layout.slots,
        cuts=plan.layout.cuts,
        waits=plan.layout.waits,
        parts=plan.layout.parts,
        moves=plan.moves,
        initial=plan.initial,
        initial_tier=plan.initial_tier,
        late=plan.late,
    )


def load_plan(path: Path) -> Stored:
    """Read the plan and its profiles.

    Raises FileNotFoundError, or SentinelError if the file is damaged or has another version.
    """
    try:
        with path.open("rb") as file:
            return read_plan(file, str(path))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _damaged(str(path), f"{type(error).__name__}: {error}") from None


def read_plan(file: IO[bytes], where: str) -> Stored:
    """Read the plan and its profiles from an open file.

    where: the name of the file, for the error. Raises SentinelError if the file is damaged or has
    another version.
    """
    try:
        with np.load(file, allow_pickle=False) as tables:
            if int(tables["version"]) != STORE_VERSION:
                raise _damaged(where, f"it has version {int(tables['version'])}")
            texts = json.loads(str(tables["texts"]))
            found = _tables(where, tables, _DTYPES)
            profile = _profile(texts, found)
            charged = profile
            if _CHARGED in texts:
                others = _tables(where, tables, _PROFILE_DTYPES, _CHARGED)
                charged = _profile(texts[_CHARGED], others)
            return Stored(_plan(texts, found), profile, charged)
    except DAMAGED_ERRORS as error:
        raise _damaged(where, f"{type(error).__name__}: {error}") from None


def _tables(
    where: str,
    stored: Mapping[str, npt.NDArray[Any]],
    dtypes: Mapping[str, np.dtype[Any]],
    prefix: str = "",
) -> dict[str, npt.NDArray[Any]]:
    """Read tables by name. prefix: of their names in the file."""
    found = {name: stored[prefix + name] for name in dtypes}
    for name, table in found.items():
        if table.dtype != dtypes[name] or table.ndim != 1:
            raise _damaged(where, f"the table {prefix}{name} has a wrong type or shape")
    return found


def _texts(profile: Profile) -> dict[str, Any]:
    return {
        "layers": list(profile.layers),
        "slot_count": profile.slot_count,
        "event_count": profile.event_count,
        "page_bytes": profile.page_bytes,
        "peak_bytes": profile.peak_bytes,
        "source": profile.source,
        "unattributed_pages": profile.unattributed_pages,
        "heap_base": profile.heap_base,
        "untold_pages": profile.untold_pages,
    }


def _plan(texts: dict[str, Any], tables: dict[str, npt.NDArray[Any]]) -> Plan:
    return Plan(
        policy=texts["policy"],
        budget_bytes=texts["budget_bytes"],
        layout=Layout(
            slots=tables["slots"],
            cuts=tables["cuts"],
            regions=tuple(Region(**region) for region in texts["regions"]),
            waits=tables["waits"],
            arena_bytes=texts["arena_bytes"],
            heap_tier=texts["heap_tier"],
            parts=tables["parts"],
        ),
        moves=tables["moves"],
        initial_tier=tables["initial_tier"],
        reasons=tuple(texts["reasons"]),
        predicted=Prediction(**texts["predicted"]),
        notes=tuple(texts["notes"]),
        initial=tables["initial"],
        late=tables["late"],
    )


def _profile(texts: dict[str, Any], tables: dict[str, npt.NDArray[Any]]) -> Profile:
    return Profile(
        tensors=tables["tensors"],
        accesses=tables["accesses"],
        stretches=tables["stretches"],
        layers=tuple(texts["layers"]),
        slot_count=texts["slot_count"],
        event_count=texts["event_count"],
        page_bytes=texts["page_bytes"],
        peak_bytes=texts["peak_bytes"],
        source=texts["source"],
        unattributed_pages=texts["unattributed_pages"],
        heap_base=texts["heap_base"],
        untold_pages=texts["untold_pages"],
    )


def _damaged(where: str, what: str) -> SentinelError:
    return SentinelError(
        "failed", f"{where} holds no valid plan: {what}", "a new plan will be made"
    )
