# SPDX-License-Identifier: Apache-2.0
"""Entering a plan: send its layout and wait for the process's answer."""

from __future__ import annotations

import time
from functools import partial

from sentineld.machine.machine import Machine
from sentineld.model.tiers import Tiers
from sentineld.observe.shim_link import ShimLink
from sentineld.plan.huge import with_huge_pages
from sentineld.plan.layout_wire import Tables
from sentineld.plan.pager_moves import without_waits
from sentineld.plan.populate import populated
from sentineld.session.intake.claims import require_arena
from sentineld.session.intake.inbox import Inbox
from sentineld.session.live.sending import new_layout_id, send_layout
from sentineld.session.live.shapes import Planned

LAYOUT_WAIT_S = 120.0
"""If the process has not taken a layout after this time, the status reason says so."""


class Entering:
    """Sends the layout of one plan, and waits until the layout is live."""

    def __init__(
        self,
        link: ShimLink,
        machine: Machine,
        tiers: Tiers,
        inbox: Inbox,
        planned: Planned,
        what: str,
    ) -> None:
        """what: the name of the plan in the status reason, for example "the corrected plan". Raises
        SentinelError for an impossible layout."""
        self.what = what
        self.layout_id = new_layout_id()
        layout = planned.plan.layout
        require_arena(layout.arena_bytes)
        substrate = machine.substrate
        tables = Tables(
            substrate.accesses(layout, planned.charged, tiers),
            substrate.fast_pages(planned.plan, planned.budget_bytes, planned.profile.page_bytes),
            substrate.moves(planned.plan, planned.profile),
        )
        if sizes := machine.huge_pages():
            # Moves on emulated tiers change the residency map only, so they never split a huge
            # page.
            whole_moves = bool(substrate.emulated)
            layout = with_huge_pages(planned.plan, planned.profile.page_bytes, sizes, whole_moves)
        if tables.moves is not None:
            layout = without_waits(layout)
        layout = populated(layout, planned.profile, planned.shape.threads)
        self._inbox = inbox
        self._expected_s = float("inf")
        self._provision = partial(substrate.provision, link, layout)
        self._send = partial(send_layout, link, layout, tiers, self.layout_id, tables)

    def send(self) -> None:
        """Send the layout. Raises SentinelError or EOFError."""
        with self._provision() as provision:
            self._send(provision)
        self._inbox.expect_layout(self.layout_id)
        self._expected_s = time.monotonic() + LAYOUT_WAIT_S

    def done(self) -> bool:
        """Whether the layout is live."""
        return self._inbox.layout_live

    def overdue(self) -> bool:
        """Whether the process has not taken the layout for LAYOUT_WAIT_S. This is no error: the
        process takes it when a training step ends, and no step ends during an evaluation."""
        return not self.done() and time.monotonic() > self._expected_s
