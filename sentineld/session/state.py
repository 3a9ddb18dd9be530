# SPDX-License-Identifier: Apache-2.0
"""State files: what the next daemon needs to take up a session that this one leaves.

Named by a process's pid and start time, so that a reused pid never inherits a
plan: NAME.json with the attach's parameters and what there is to know of its plans,
and for each of these NAME.LAYOUT.npz with profile and plan. There are two while one
takes the other's place: which of them is live, the process's own words tell.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from sentineld.base.errors import SentinelError
from sentineld.plan.store import load_plan, save_plan
from sentineld.session.live.shapes import Planned, Shape

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedPlan:
    """layout_id: of its layout, by which a live plan is known. threads, sequence: of its shape.
    migration_bytes_per_s: see Planned. entered: it was live, and lasting tensors have been brought
    where it begins with them. fast, policy: what it was asked for; "": as the session's."""

    layout_id: int
    budget_bytes: int
    threads: int
    sequence: str
    migration_bytes_per_s: float = 0.0
    entered: bool = False
    fast: str = ""
    policy: str = ""


@dataclass(frozen=True)
class Saved:
    """A session's parameters. emulated: the preset of its emulated tiers, "" for the machine's own.
    plans: the live one and the one that is to be; none while it is profiled."""

    fast: str
    policy: str
    emulated: str = ""
    plans: tuple[SavedPlan, ...] = ()


class Left(NamedTuple):
    """What a daemon has left of a session. planned: its live plan; entered: see SavedPlan."""

    saved: Saved
    planned: Planned | None
    entered: bool


class StateFiles:
    """The sessions' folder below the daemon's state directory. What can't be written is said in the
    log: the session goes on, and a daemon that follows attaches the process again at worst."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "sessions"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SentinelError(
                "bad-config", f"can't use {state_dir}: {error.strerror}", "set state_dir"
            ) from None
        self._prune()

    def attached(self, name: str, saved: Saved) -> None:
        """A session that has no plan any more, or not yet."""
        with self._writing(name):
            self._write(name, replace(saved, plans=()))

    def entering(self, name: str, saved: Saved, layout_id: int, planned: Planned) -> None:
        """A plan that is about to be sent, beside the live one if there is one."""
        shape = planned.shape
        row = SavedPlan(
            layout_id,
            planned.budget_bytes,
            shape.threads,
            shape.sequence,
            planned.migration_bytes_per_s,
            fast=saved.fast,
            policy=saved.policy,
        )
        before = self._read(name)
        plans = [] if before is None else [_asked_for(one, before) for one in before.plans]
        with self._writing(name):
            save_plan(self._plan_file(name, layout_id), planned.plan, planned.profile)
            # The parameters last, so that a plan named there is whole.
            self._write(name, replace(saved, plans=(*plans, row)))

    def live(self, name: str, layout_id: int) -> None:
        """That plan is live, and no other one will be."""
        saved = self._read(name)
        if saved is None:
            return
        with self._writing(name):
            kept = tuple(
                replace(row, entered=True) for row in saved.plans if row.layout_id == layout_id
            )
            self._write(name, replace(saved, plans=kept))

    def load(self, name: str, layout_id: int) -> Left | None:
        """What there is of a session in whose process this layout is live (0: none is).

        None without parameters. What is damaged is reported and not used.
        """
        saved = self._read(name)
        if saved is None:
            return None
        row = next((row for row in saved.plans if row.layout_id == layout_id), None)
        if row is None:
            return Left(saved, None, False)
        # The plan that is to be, and never was, may have been for another budget.
        row = _asked_for(row, saved)
        saved = replace(saved, fast=row.fast, policy=row.policy)
        try:
            plan, profile = load_plan(self._plan_file(name, layout_id))
        except (OSError, SentinelError) as error:
            log.warning("the plan of session %s can't be read: %s", name, error)
            return Left(saved, None, False)
        planned = Planned(
            shape=Shape(row.threads, row.sequence),
            profile=profile,
            charged=profile,
            plan=plan,
            budget_bytes=row.budget_bytes,
            plan_duration_s=None,
            migration_bytes_per_s=row.migration_bytes_per_s,
        )
        return Left(saved, planned, row.entered)

    def forget(self, name: str) -> None:
        """Remove a session's files."""
        self._remove(self._folder.glob(f"{name}.*"))

    def _plan_file(self, name: str, layout_id: int) -> Path:
        return self._folder / f"{name}.{layout_id}.npz"

    def _read(self, name: str) -> Saved | None:
        try:
            found = json.loads((self._folder / f"{name}.json").read_text())
            # The files of earlier daemons name one plan, in another way: it is made again.
            plans = tuple(SavedPlan(**row) for row in found.get("plans", []))
            return Saved(found["fast"], found["policy"], found.get("emulated", ""), plans)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            log.warning("state of session %s is damaged: %s", name, error)
            return None

    def _write(self, name: str, saved: Saved) -> None:
        part = self._folder / f"{name}.json.part"
        part.write_text(json.dumps(asdict(saved)))
        part.rename(self._folder / f"{name}.json")
        named = {self._plan_file(name, row.layout_id) for row in saved.plans}
        self._remove(file for file in self._folder.glob(f"{name}.*npz*") if file not in named)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            log.warning("the state of session %s can't be written: %s", name, error)

    def _prune(self) -> None:
        self._remove(
            file
            for file in self._folder.iterdir()
            if not (pid := file.name.split("-")[0]).isdigit() or not os.path.exists(f"/proc/{pid}")
        )

    @staticmethod
    def _remove(files: Iterable[Path]) -> None:
        for file in list(files):
            file.unlink(missing_ok=True)


def _asked_for(row: SavedPlan, saved: Saved) -> SavedPlan:
    """The row with what its plan was asked for; earlier daemons' rows leave that to the session."""
    return replace(row, fast=row.fast or saved.fast, policy=row.policy or saved.policy)
