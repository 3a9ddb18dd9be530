# SPDX-License-Identifier: Apache-2.0
"""Planning in a child process, so that the daemon stays small and answers at once.

`python -m sentineld.planner.child` reads a pickled request from its standard input
and writes a pickled answer; both ends are this program's own.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import sentineld
from sentineld.base.errors import SentinelError
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.check import verify
from sentineld.plan.correct import Correction
from sentineld.plan.spare import Spare
from sentineld.policies.bounds.fast_share import Bound, best_share
from sentineld.policies.registry import policy
from sentineld.simulate.loop import plan_again, spare_plan

log = logging.getLogger(__name__)

Request = tuple[str, str, Profile, Tiers, int, Plan | None]
""""plan", "bound", "again" or "spare", the policy's name, and what they need; the last two the live
plan, too."""


def plan_in_child(
    name: str, profile: Profile, tiers: Tiers, budget_bytes: int, timeout_s: float
) -> Plan:
    """The policy's plan, verified. Raises SentinelError."""
    plan: Plan = _ask_child(("plan", name, profile, tiers, budget_bytes, None), timeout_s)
    return plan


def bound_in_child(profile: Profile, tiers: Tiers, budget_bytes: int, timeout_s: float) -> Bound:
    """What no plan can do better at this budget and migration rate. Raises SentinelError."""
    bound: Bound = _ask_child(("bound", "", profile, tiers, budget_bytes, None), timeout_s)
    return bound


def plan_again_in_child(
    name: str, correction: Correction, budget_bytes: int, live: Plan, timeout_s: float
) -> Plan | None:
    """The policy's plan for what was measured under the live one, if its steps are faster. Raises
    SentinelError."""
    request = ("again", name, correction.profile, correction.tiers, budget_bytes, live)
    plan: Plan | None = _ask_child(request, timeout_s)
    return plan


def spare_in_child(
    name: str, profile: Profile, tiers: Tiers, budget_bytes: int, live: Plan, timeout_s: float
) -> Spare | None:
    """What to have beside the live plan, for want of bandwidth; None, and a word in the log, where
    that can't be had."""
    if not len(live.moves):
        return None
    try:
        request = ("spare", name, profile, tiers, budget_bytes, live)
        spare: Spare | None = _ask_child(request, timeout_s)
    except SentinelError as error:
        log.info("no spare plan: %s", error)
        return None
    return spare


def _ask_child(request: Request, timeout_s: float) -> Any:
    package_parent = str(Path(sentineld.__file__).parent.parent)
    paths = [package_parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sentineld.planner.child"],
            input=pickle.dumps(request),
            stdout=subprocess.PIPE,
            timeout=timeout_s,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
    except subprocess.TimeoutExpired:
        raise SentinelError(
            "failed", f"planning took over {timeout_s:g} s", "raise plan_timeout_s"
        ) from None
    except (OSError, subprocess.CalledProcessError) as error:
        raise SentinelError(
            "failed", f"the planning process failed: {error}", "see journalctl -u sentineld"
        ) from None
    answer = pickle.loads(done.stdout)
    if isinstance(answer, SentinelError):
        raise answer
    return answer


def _answer(request: Request) -> Plan | Bound | Spare | None:
    kind, name, profile, tiers, budget_bytes, live = request
    if kind == "bound":
        return best_share(profile, budget_bytes, tiers.migration_bytes_per_s)
    chosen = policy(name)
    if live is not None:
        ask = spare_plan if kind == "spare" else plan_again
        return ask(chosen, profile, tiers, budget_bytes, live)
    plan = chosen.plan(profile, tiers, budget_bytes)
    verify(plan, profile, budget_bytes if chosen.charges_budget else None)
    return plan


def main() -> None:
    """The child."""
    answer: Plan | Bound | Spare | SentinelError | None
    try:
        answer = _answer(pickle.load(sys.stdin.buffer))
    except SentinelError as error:
        answer = error
    sys.stdout.buffer.write(pickle.dumps(answer))


if __name__ == "__main__":
    main()
