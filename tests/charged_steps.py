# SPDX-License-Identifier: Apache-2.0
"""Meters steps under a live plan. The steps stay within the budget unless a barrier times out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TRIES = 8


def meter_within(
    most_bytes: int,
    meter: Callable[[], list[dict[str, Any]]],
    session: Callable[[], dict[str, Any] | None],
    timeouts_before: int | None = None,
) -> list[dict[str, Any]]:
    """Meter steps, and assert that at most most_bytes are charged in each.

    On a slow machine, a barrier can time out because the mover has not finished. A barrier also
    counts as timed out if the shim stops waiting because the daemon's heartbeat is stale. After a
    time-out, tensors are born although the moves that make room for them are not done. If steps
    exceed most_bytes after a time-out, all steps are metered again.

    session: returns the session's status.
    timeouts_before: the value of `barrier_timeouts` before an event that may have made barriers
        time out, such as a new budget; None: there was no such event shortly before this call.
    """

    def timeouts() -> int:
        found = session()
        assert found is not None
        return int(found["barrier_timeouts"])

    before = timeouts()
    # After a time-out, the shim waits at no barrier until the moves have caught up, so the next
    # metered steps may exceed the budget without another time-out.
    late = 0 if timeouts_before in (None, before) else 1
    for _ in range(TRIES):
        steps = meter()
        charged = [step["charged_bytes_max"] for step in steps]
        if max(charged) <= most_bytes:
            return steps
        now = timeouts()
        late = 1 if now > before else late - 1
        assert late >= 0, (
            f"charged {charged} bytes of {most_bytes}, no barrier timed out: {session()} {steps}"
        )
        before = now
    raise AssertionError(f"barriers timed out in {TRIES} series of metered steps")
