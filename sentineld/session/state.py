# SPDX-License-Identifier: Apache-2.0
"""State files, from which the next daemon restores this daemon's sessions.

A session has a file NAME.json, with the parameters of its attach and a row for each plan. Each plan
also has a file NAME.LAYOUT.npz, with the plan and its profiles. NAME is the process's pid and start
time, so that no process inherits a plan by reusing a pid. exec() keeps the pid and the start time,
so Resuming.begin() removes the files of an earlier program. LAYOUT is the id of the plan's layout.
While a plan replaces another, both plans are saved; the process's control words, in memory that it
shares with the daemon, identify the plan that is live.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about
from sentineld.observe.pidfd import start_time_ticks
from sentineld.plan.division import Terms
from sentineld.plan.store import load_plan, save_plan
from sentineld.session.live.shapes import Planned, Shape

log = logging.getLogger(__name__)

Nodes = tuple[tuple[int, ...], ...]
"""The node ids of each tier."""


@dataclass(frozen=True)
class SavedPlan:
    """A plan's row in NAME.json."""

    layout_id: int  # the control words have this id while the plan's layout is live
    budget_bytes: int
    threads: int  # threads, sequence and sizes_vary are the plan's shape
    sequence: str
    sizes_vary: bool = False
    migration_bytes_per_s: float = 0.0  # see Planned
    entered: bool = False  # whether the plan was entered completely; see Following.resume()
    fast: str = ""  # budget for which the plan was made; "": Saved.fast
    policy: str = ""  # goal's policy (a fallback policy may have made the plan); "": Saved.policy


@dataclass(frozen=True)
class Saved:
    """The content of NAME.json."""

    fast: str
    policy: str
    emulated: str = ""  # preset of emulated tiers; "": the tiers are not emulated
    paged: str = ""  # directory of the files of paged tiers; "": the tiers are not paged
    nodes: Nodes = ()  # the tiers' nodes; empty in files of earlier versions
    terms: Terms | None = None  # as Goal.terms; None: the budget is not shared
    plans: tuple[SavedPlan, ...] = ()  # the live plan and the plan being entered, if any
    rule: str = ""  # origin of the rule that attached the process; "": no rule did

    def resumable(self, emulated: str, paged: str, nodes: Nodes) -> bool:
        """Whether a daemon with these tiers can resume the plans. It can if the tiers have not
        changed since the plans were saved, and are not paged.

        If a tier had other nodes, the plans' figures and initial tiers would be wrong. On paged
        tiers, the process needs an eventfd of the new daemon and gets it only with a new layout.
        """
        same = self.emulated == emulated and self.nodes == nodes
        return same and not self.paged and not paged


class Restored(NamedTuple):
    """A session that an earlier daemon saved."""

    saved: Saved
    planned: Planned | None  # the live plan; None: no plan is live, or its file can't be read
    entered: bool  # see SavedPlan


class StateFiles:
    """The sessions' folder below the daemon's state directory. A failed write is only logged, and
    the session goes on. The next daemon may then attach the process again instead of resuming the
    plan, or fail to restore the session."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "sessions"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SentinelError(
                "bad-config", f"can't use {state_dir}: {error.strerror}", "set state_dir"
            ) from None
        self.prune()

    def attached(self, name: str, saved: Saved) -> None:
        """Save a session without a plan."""
        with self._writing(name):
            self._write(name, replace(saved, plans=()))

    def entering(self, name: str, saved: Saved, layout_id: int, planned: Planned) -> None:
        """Add a plan that is about to be sent; the live plan, if there is one, is kept."""
        shape = planned.shape
        row = SavedPlan(
            layout_id,
            planned.budget_bytes,
            shape.threads,
            shape.sequence,
            shape.sizes_vary,
            planned.migration_bytes_per_s,
            fast=saved.fast,
            policy=saved.policy,
        )
        before = self._read(name)
        plans = [] if before is None else [_with_goal(one, before) for one in before.plans]
        with self._writing(name):
            # Only emulated delays are computed from the profile `charged`.
            charged = planned.charged if saved.emulated else None
            file = self._plan_file(name, layout_id)
            save_plan(file, planned.plan, planned.profile, charged)
            # Write the row last, so that every plan with a row has a complete file.
            self._write(name, replace(saved, plans=(*plans, row)))

    def changed_terms(self, name: str, saved: Saved) -> None:
        """Record the session's new terms for the shared budget."""
        before = self._read(name)
        if before is not None:
            with self._writing(name):
                self._write(name, replace(before, terms=saved.terms))

    def live(self, name: str, layout_id: int) -> None:
        """Record that a plan is live, and drop the other plans."""
        saved = self._read(name)
        if saved is None:
            return
        with self._writing(name):
            kept = tuple(
                replace(row, entered=True) for row in saved.plans if row.layout_id == layout_id
            )
            self._write(name, replace(saved, plans=kept))

    def load(self, name: str, layout_id: int) -> Restored | None:
        """Restore a session. layout_id: the layout that is live in the process; 0: none.

        Returns None if the session's NAME.json is missing or damaged. If no plan is live, or if the
        live plan's file is damaged, the result has no plan. Damaged files are logged.
        """
        saved = self._read(name)
        if saved is None:
            return None
        row = next((row for row in saved.plans if row.layout_id == layout_id), None)
        if row is None:
            return Restored(saved, None, False)
        # The saved budget and policy may belong to a later plan that never became live, so take the
        # row's own.
        row = _with_goal(row, saved)
        saved = replace(saved, fast=row.fast, policy=row.policy)
        try:
            stored = load_plan(self._plan_file(name, layout_id))
        except (OSError, SentinelError) as error:
            log.warning(
                "the plan of session %s can't be read: %s",
                name,
                error,
                extra=about(LogEvent.STATE_NOT_KEPT),
            )
            return Restored(saved, None, False)
        planned = Planned(
            shape=Shape(row.threads, row.sequence, row.sizes_vary),
            profile=stored.profile,
            charged=stored.charged,
            plan=stored.plan,
            budget_bytes=row.budget_bytes,
            plan_duration_s=None,
            migration_bytes_per_s=row.migration_bytes_per_s,
        )
        return Restored(saved, planned, row.entered)

    def has(self, name: str) -> bool:
        """Whether the next daemon would find a session of this name."""
        return (self._folder / f"{name}.json").exists()

    def forget(self, name: str) -> None:
        """Remove a session's files."""
        self._remove(self._folder.glob(f"{name}.*"))

    def prune(self) -> None:
        """Remove the files of all processes that no longer exist. An exit closes the connection
        first, so Driver.end() may find that the process still exists, and keep its files; a later
        call removes them."""
        try:
            files = list(self._folder.iterdir())
        except OSError as error:
            _log_not_removed(error)
            return
        gone = {name for name in set(map(_name_of, files)) if not _exists(name)}
        self._remove(file for file in files if _name_of(file) in gone)

    def _plan_file(self, name: str, layout_id: int) -> Path:
        return self._folder / f"{name}.{layout_id}.npz"

    def _read(self, name: str) -> Saved | None:
        try:
            found = json.loads((self._folder / f"{name}.json").read_text())
            # Files of earlier versions have no rows. The process is then attached again and gets a
            # new plan.
            plans = tuple(SavedPlan(**row) for row in found.get("plans", []))
            return Saved(
                str(found["fast"]),
                str(found["policy"]),
                found.get("emulated", ""),
                found.get("paged", ""),
                tuple(tuple(nodes) for nodes in found.get("nodes", [])),
                _terms(found.get("terms")),
                plans,
                str(found.get("rule", "")),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            log.warning(
                "state of session %s is damaged: %s",
                name,
                error,
                extra=about(LogEvent.STATE_NOT_KEPT),
            )
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
            log.warning(
                "the state of session %s can't be written: %s",
                name,
                error,
                extra=about(LogEvent.STATE_NOT_KEPT),
            )

    @staticmethod
    def _remove(files: Iterable[Path]) -> None:
        for file in list(files):
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                _log_not_removed(error)


def _name_of(file: Path) -> str:
    """The name of the session that a file belongs to."""
    return file.name.split(".")[0]


def _exists(name: str) -> bool:
    """Whether the process of the session with this name still exists. True if this is unknown,
    because no descriptor is free."""
    pid, _, ticks = name.partition("-")
    try:
        return start_time_ticks(int(pid)) == int(ticks)
    except (SentinelError, ValueError):
        return False
    except OSError:
        return True


def _log_not_removed(error: OSError) -> None:
    log.warning(
        "a session's state can't be removed: %s", error, extra=about(LogEvent.STATE_NOT_KEPT)
    )


def _with_goal(row: SavedPlan, saved: Saved) -> SavedPlan:
    """The row with its budget and policy. A row that an earlier version wrote has neither, and gets
    those of `saved`."""
    return replace(row, fast=row.fast or saved.fast, policy=row.policy or saved.policy)


def _terms(found: Any) -> Terms | None:
    """The terms in NAME.json. Raises TypeError if they are damaged, or have a field of a later
    version."""
    if found is None:
        return None
    terms = Terms(**found)
    numbers = terms.weight, terms.least_bytes, terms.most_bytes or 0
    if not all(isinstance(one, int | float) for one in numbers):
        raise TypeError(f"the terms are {found}")
    return terms
