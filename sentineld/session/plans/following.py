# SPDX-License-Identifier: Apache-2.0
"""The plans that a process follows, one after the other: each one's way in, the time while it is
live, and what it is left for."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable

from sentineld.base.units import format_bytes
from sentineld.machine.machine import Machine
from sentineld.model.tiers import Tiers
from sentineld.observe.shimlink import ShimLink
from sentineld.policies.registry import policy
from sentineld.profile.steps import Step
from sentineld.session.intake.inbox import Inbox
from sentineld.session.live.divergence import Patience, Verdict
from sentineld.session.live.managed import Managed
from sentineld.session.live.shapes import Planned, Shape, Shapes
from sentineld.session.live.totals import Moves
from sentineld.session.plans.correcting import Corrected, Correcting, correcting
from sentineld.session.plans.entering import Entering
from sentineld.session.work.planning import PlanInput

log = logging.getLogger(__name__)


class Following:
    """Of one session. All calls but moves() come from its thread. Others may read the attributes:
    each is replaced as a whole, but for shapes, of which they may ask the length."""

    def __init__(
        self, link: ShimLink, machine: Machine, inbox: Inbox, on_exit: Callable[[str], None]
    ) -> None:
        """inbox: tells when a layout is live. on_exit: called from the mover's thread, with the
        reason, when it can't go on."""
        self.planned: Planned | None = None
        """The plan that is live or on its way; without one, the last that was either."""
        self.managed: Managed | None = None
        """While a plan is live."""
        self.shapes = Shapes()
        self.correcting: Correcting | None = None
        self.corrections: Counter[str] = Counter()
        """Corrected plans by cause."""
        self._link = link
        self._machine = machine
        self._inbox = inbox
        self._on_exit = on_exit
        self._patience = Patience()
        self._entering: Entering | None = None
        self._past = Moves()
        self._past_lock = threading.Lock()

    @property
    def tiers(self) -> Tiers:
        """As this session has come to know them."""
        assert self.correcting is not None, "attach requires tiers"
        return self.correcting.tiers

    @property
    def recording(self) -> bool:
        """Whether steps are recorded to correct the live plan by."""
        return self.correcting is not None and self.correcting.recording

    def moves(self) -> Moves:
        """What was moved since the session began, over all its plans; from any thread."""
        with self._past_lock:
            return self._past.plus(self.managed)

    def begin(self) -> None:
        """The process is attached: nothing is known of it, nor of its steps."""
        self.shapes, self._patience = Shapes(), Patience()
        self.correcting = correcting(self._link, self._machine)

    def forget_shapes(self) -> None:
        """What was planned up to now was for another goal."""
        self.shapes = Shapes()

    def prepare(self, planned: Planned, what: str) -> int:
        """The id of the layout by which send() will have the process know the plan. what: which
        plan it is, for people."""
        self.shapes.keep(planned)
        self.planned = planned
        self._entering = Entering(self._link, self._machine, self.tiers, self._inbox, planned, what)
        return self._entering.layout_id

    def send(self) -> None:
        """Send what was prepared; a live plan is followed until its layout is taken. Raises
        EOFError."""
        assert self._entering is not None
        self._entering.send()

    def enter(self) -> str | None:
        """Once the layout is live, bring the pages where the plan begins and follow it.

        What is live then, in words; None: not yet. Raises SentinelError, also if it takes too
        long, and ProcessLookupError.
        """
        planned = self.planned
        assert planned is not None
        assert self._entering is not None
        if not self._entering.done():
            if self.managed is None:
                self._entering.require_in_time()
            return None
        first = self.managed is None
        self._let_go()
        managed = self._manage(planned)
        if first or not policy(managed.plan.policy).charges_budget:
            # Later the budget is kept step by step, for which some plans are no good.
            managed.enter()
        self._start(planned, managed)
        what, self._entering = self._entering.what, None  # the layout that it sent is large
        return f"{what} is live, budget {format_bytes(planned.budget_bytes)}"

    def resume(self, planned: Planned, entered: bool) -> None:
        """Follow a plan that is live already. entered: lasting tensors are where it begins."""
        self.begin()
        self.planned = planned
        self.shapes.keep(planned)
        managed = self._manage(planned)
        if not entered:
            managed.enter()
        self._start(planned, managed)

    def _manage(self, planned: Planned) -> Managed:
        memory = self._machine.substrate.memory
        self.managed = Managed(
            self._link, planned, self.tiers, memory, self._on_exit, self._patience
        )
        return self.managed

    def _start(self, planned: Planned, managed: Managed) -> None:
        """Follow the schedule, and what the plan counts upon, from now on."""
        assert self.correcting is not None
        managed.start()
        self.correcting.entered(planned, managed, self._link.segment.words())

    def look(self) -> Verdict:
        """How the steps follow the live plan."""
        assert self.planned is not None
        assert self.managed is not None
        verdict = self.managed.follow(self._link.segment.words())
        threads = self._inbox.threads
        if verdict.leave or threads == self.planned.shape.threads or not self.managed.may_leave():
            return verdict
        return Verdict(True, f"it computes with {threads} threads now")

    def on_step(self, step: Step) -> None:
        """A whole step was recorded, maybe for a correction."""
        if self.correcting is not None:
            self.correcting.on_step(step)

    def corrected(self) -> Corrected | None:
        """Look at what the live plan counted upon: a corrected one, if there is one now."""
        assert self.correcting is not None
        corrected = self.correcting.look(self._link.segment.words())
        if corrected is not None:
            self.corrections = self.corrections + Counter([corrected.cause])
        return corrected

    def begin_recording(self) -> bool:
        """Whether the session is to begin to record steps, to correct the live plan by."""
        return self.correcting is not None and self.correcting.begin_recording()

    def stop_recording(self) -> None:
        """Somebody else records, and will end it."""
        if self.correcting is not None:
            self.correcting.stop_recording()

    def known(self) -> PlanInput:
        """What there is to plan by for another goal, beside the live plan."""
        planned = self.planned
        assert planned is not None
        # It comes and goes within a step: what the live plan left for it may be more than now.
        left_bytes = planned.budget_bytes - planned.plan.budget_bytes
        unmanaged_bytes = max(left_bytes, self._link.segment.words().unmanaged_bytes)
        return PlanInput(
            planned.shape, planned.profile, planned.charged, self.tiers, unmanaged_bytes
        )

    def leave(self, reason: str) -> Shape:
        """The live plan is to be given up for one that fits the steps: the shape that it was for.
        stop() is the caller's."""
        assert self.planned is not None
        assert self.managed is not None
        left, steps = self.planned.shape, self.managed.followed_steps()
        log.info("process %d leaves its plan after %d steps: %s", self._link.pid, steps, reason)
        self._patience.left(steps)
        self.shapes.left(left, steps)
        return left

    def stop(self) -> None:
        """Follow no plan; pages stay where they are."""
        if self.correcting is not None:
            self.correcting.left()
        self._let_go()

    def _let_go(self) -> None:
        if self.managed is None:
            return
        self.managed.stop()
        with self._past_lock:
            self._past, self.managed = self._past.plus(self.managed), None
