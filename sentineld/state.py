# SPDX-License-Identifier: Apache-2.0
"""State files: what the next daemon needs to take up a session that this one leaves.

Two files a process, named by pid and start time, so that a reused pid never
inherits a plan: NAME.json with the attach's parameters and the layout's id,
NAME.npz with profile and plan.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sentineld.errors import SentinelError
from sentineld.plan.store import load_plan, save_plan
from sentineld.shapes import Planned, Shape

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Saved:
    """A session's parameters; layout_id 0 means that no plan was live. emulated: the preset of its
    emulated tiers, "" for the machine's own. threads, sequence: of the plan's shape."""

    fast: str
    policy: str
    budget_bytes: int
    layout_id: int
    emulated: str = ""
    threads: int = 0
    sequence: str = ""


class StateFiles:
    """The sessions' folder below the daemon's state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "sessions"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SentinelError(
                "bad-config", f"can't use {state_dir}: {error.strerror}", "set state_dir"
            ) from None
        self._prune()

    def save(self, name: str, saved: Saved, planned: Planned | None) -> None:
        """Write a session's files; the parameters last, so that a plan named there is whole."""
        if planned is not None:
            save_plan(self._folder / f"{name}.npz", planned.plan, planned.profile)
            shape = planned.shape
            saved = replace(saved, threads=shape.threads, sequence=shape.sequence)
        part = self._folder / f"{name}.json.part"
        part.write_text(json.dumps(asdict(saved)))
        part.rename(self._folder / f"{name}.json")

    def load(self, name: str) -> tuple[Saved, Planned | None] | None:
        """A session's files, or None. A damaged plan is reported and not used."""
        try:
            saved = Saved(**json.loads((self._folder / f"{name}.json").read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            log.warning("state of session %s is damaged: %s", name, error)
            return None
        if not saved.layout_id:
            return saved, None
        try:
            plan, profile = load_plan(self._folder / f"{name}.npz")
        except (OSError, SentinelError) as error:
            log.warning("the plan of session %s can't be read: %s", name, error)
            return saved, None
        shape = Shape(saved.threads, saved.sequence)
        return saved, Planned(shape, profile, profile, plan, saved.budget_bytes, 0.0)

    def forget(self, name: str) -> None:
        """Remove a session's files."""
        for suffix in ("json", "npz"):
            (self._folder / f"{name}.{suffix}").unlink(missing_ok=True)

    def _prune(self) -> None:
        for file in self._folder.iterdir():
            pid = file.name.split("-")[0]
            if not pid.isdigit() or not os.path.exists(f"/proc/{pid}"):
                file.unlink(missing_ok=True)
