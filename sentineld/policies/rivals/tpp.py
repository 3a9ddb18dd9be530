# SPDX-License-Identifier: Apache-2.0
"""Policy `tpp`: promote pages at hint faults; demote pages while free fast memory is low.

Based on transparent page placement (Maruf et al., ASPLOS 2023; Linux 5.18): each scan makes the
pages of the slow node fault at their next access. It does not do this for pages of the fast node. A
page that faults is promoted if it is on the active list, which means that it was accessed recently.
Any other page that faults is only marked. A page is therefore promoted only if it is accessed in
two consecutive scan periods. Demotion starts before the fast node is full, so that births find
room: if the free share of the fast tier is below a watermark, the least recently accessed pages are
demoted. Their number is such that the free share is back at the watermark after the promotions.
Published scan period: at least 1 s. The cost of faults is left out, which favours the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from sentineld.plan.policy import MoveRequest, Observation
from sentineld.policies.registry import register
from sentineld.policies.rivals.reactive import ReactivePolicy, Setting, move_requests, total

SCAN_S = 1.0
DEMOTE_BELOW = (0.02, 0.005, 0.1)
"""Values of the demotion watermark, as a share of the fast tier. The published one comes first; it
is above the allocation watermark."""

HEADROOM = 0.005
"""Share of the fast tier that promotions leave free."""


@register()
class Tpp(ReactivePolicy):
    """Policy `tpp`; see the module's docstring."""

    name = "tpp"
    published_s = SCAN_S

    def settings(self) -> Sequence[Setting]:
        """See ReactivePolicy."""
        return [
            (f"demotes below {share:.1%} free", partial(Scanner, demote_below=share))
            for share in DEMOTE_BELOW
        ]


class Scanner:
    """The state of the scans: the age of each cell, and whether the cell is marked."""

    def __init__(self, interval_ns: float, demote_below: float = DEMOTE_BELOW[0]) -> None:
        """demote_below: one of DEMOTE_BELOW."""
        self.interval_ns = interval_ns
        self._demote_below = demote_below
        self._age = np.zeros(0, np.int64)  # scans since each cell's last access
        self._marked = np.zeros(0, np.bool_)  # cells accessed in the previous period

    def tick(self, observation: Observation) -> list[MoveRequest]:
        """Promote the slow pages that were accessed in this and in the previous period, and demote
        the least recently accessed fast pages; see Reactor."""
        if not len(self._age):
            self._age = np.zeros(len(observation.fast), np.int64)
            self._marked = np.zeros(len(observation.fast), np.bool_)
        touched = observation.accesses > 0
        self._age = np.where(touched, 0, self._age + 1)
        cells = np.arange(len(touched))
        faulting = cells[touched & self._marked & (observation.slow > 0)]
        self._marked = touched
        low = int(observation.capacity_pages * self._demote_below)
        down: list[MoveRequest] = []
        if observation.free_pages < low:
            cold = cells[(self._age >= 1) & (observation.fast > 0)]
            cold = cold[np.argsort(-self._age[cold], kind="stable")]
            # Demotions make room for promotions as well as for births.
            wanted = low - observation.free_pages + int(observation.slow[faulting].sum())
            down = move_requests(
                cold.tolist(), observation.fast, 1, min(wanted, observation.move_pages // 2)
            )
        room = observation.free_pages + total(down) - int(observation.capacity_pages * HEADROOM)
        up = max(min(room, observation.move_pages - total(down)), 0)
        return [*down, *move_requests(faulting.tolist(), observation.slow, 0, up)]
