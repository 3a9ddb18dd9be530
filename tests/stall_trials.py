# SPDX-License-Identifier: Apache-2.0
"""Waits for the stall trials of a live session (sentineld/plan/stall_trial.py) to end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sentineld.plan.stall_trial import SETTLING_STEPS, STEPS_PER_BOUNDARY

Session = dict[str, Any]


def decisions_in_time(
    session: Callable[[], Session | None], wait: Callable[[Callable[[], Any]], Any]
) -> int:
    """Wait until the trials of all boundaries of a managed session have ended, and assert that they
    took no more steps than SETTLING_STEPS and STEPS_PER_BOUNDARY allow. Returns the number of
    boundaries that had a trial. It can be 0: a correction can replace the plan with one that has no
    late promotions.

    session: returns the session's status, or None if the daemon did not answer. wait: waits until
        a function returns a true value, and returns this value.
    """
    begun: Session = wait(session)
    undecided = begun

    def decided() -> Session | None:
        nonlocal begun, undecided
        now = session()
        if now is None or now["state"] != "managed":
            return None
        if now["layout_id"] != begun["layout_id"] or not begun["stalls"]:
            begun = undecided = (
                now  # A correction has entered another plan, with trials of its own.
            )
        if not now["stalls"]["undecided"]:
            return now
        undecided = now
        return None

    now: Session = wait(decided)
    # On a busy machine, steps can pass between the last trial's end and the status that shows it.
    # So the steps are counted until the last status that has an undecided boundary.
    tried, steps = sum(now["stalls"].values()), undecided["step"] - begun["step"]
    print(f"{tried} boundaries in {steps} steps: {now['stalls']}")
    # The first trial can begin up to one step after the settling steps, and the status can be one
    # step old.
    assert steps <= SETTLING_STEPS + STEPS_PER_BOUNDARY * tried + 2
    return tried
