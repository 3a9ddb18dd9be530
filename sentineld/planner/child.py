# SPDX-License-Identifier: Apache-2.0
"""Planning in a child process, so that the daemon's memory stays small and it keeps answering.

`python -m sentineld.planner.child` reads one pickled request (requests.py) from its standard input
and writes the pickled answer, or the SentinelError, to its standard output. The parent starts the
child and is the only source of its input, so that unpickling is safe.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path

import sentineld
from sentineld.base.errors import SentinelError
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.correct import Correction
from sentineld.plan.spare import Spare
from sentineld.planner.requests import (
    Answer,
    BoundRequest,
    PlanRequest,
    ReplanRequest,
    Request,
    SpareRequest,
)
from sentineld.policies.bounds.fast_share import FastShareBound

log = logging.getLogger(__name__)


def plan_in_child(
    name: str, profile: Profile, tiers: Tiers, budget_bytes: int, timeout_s: float
) -> Plan:
    """Make a plan with the named policy and verify it. Raises SentinelError."""
    return _answer_of(PlanRequest(name, profile, tiers, budget_bytes), timeout_s)


def bound_in_child(
    profile: Profile, tiers: Tiers, budget_bytes: int, timeout_s: float
) -> FastShareBound:
    """Compute the fast-share bound at this budget and migration bandwidth. Raises SentinelError."""
    return _answer_of(BoundRequest(profile, tiers, budget_bytes), timeout_s)


def plan_again_in_child(
    name: str, correction: Correction, budget_bytes: int, live: Plan, timeout_s: float
) -> Plan | None:
    """Replan with the correction's profile and tiers.

    Returns None if the new plan's steps would not be faster than the live plan's. Raises
    SentinelError.
    """
    request = ReplanRequest(name, correction.profile, correction.tiers, budget_bytes, live)
    return _answer_of(request, timeout_s)


def spare_in_child(
    name: str, profile: Profile, tiers: Tiers, budget_bytes: int, live: Plan, timeout_s: float
) -> Spare | None:
    """Make the spare plan for the live plan. Returns None and logs the reason if it fails."""
    if not len(live.moves):
        return None
    try:
        return _answer_of(SpareRequest(name, profile, tiers, budget_bytes, live), timeout_s)
    except SentinelError as error:
        log.info("no spare plan: %s", error)
        return None


def _answer_of(request: Request[Answer], timeout_s: float) -> Answer:
    """Run the child for one request. Raises SentinelError if it fails or takes over timeout_s."""
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
    answer: Answer | SentinelError = pickle.loads(done.stdout)
    if isinstance(answer, SentinelError):
        raise answer
    return answer


def main() -> None:
    """Answer the request on standard input."""
    request: Request[object] = pickle.load(sys.stdin.buffer)
    answer: object
    try:
        answer = request.answer()
    except SentinelError as error:
        answer = error
    sys.stdout.buffer.write(pickle.dumps(answer))


if __name__ == "__main__":
    main()
