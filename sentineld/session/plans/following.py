# SPDX-License-Identifier: Apache-2.0
"""Enters, follows and leaves the plans of a process, one after the other."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable

from sentineld.base.log_events import LogEvent, about
from sentineld.base.units import format_bytes
from sentineld.machine.machine import Machine
from sentineld.model.tiers import Tiers
from sentineld.observe.shim_link import ShimLink
from sentineld.plan.slack import sizes_of
from sentineld.policies.registry import policy
from sentineld.profile.steps import Step
from sentineld.session.intake.inbox import Inbox
from sentineld.session.live.divergence import Patience, Verdict
from sentineld.session.live.managed import Managed
from sentineld.session.live.shapes import Planned, Shape, Shapes
from sentineld.session.live.step_energy import EnergyUse
from sentineld.session.live.totals import Moves
from sentineld.session.plans.correcting import Corrected, Correcting, correcting
from sentineld.session.plans.entering import Entering
from sentineld.session.work.planning import PlanInput

log = logging.getLogger(__name__)


class Following:
    """The plans of one session. Only the session's thread calls the methods, except moves(). Other
    threads may read the attributes: each assignment replaces the whole object. They may not read
    `shapes`, except its length, because this object is changed in place."""

    def __init__(
        self, link: ShimLink, machine: Machine, inbox: Inbox, on_exit: Callable[[str], None]
    ) -> None:
        """inbox: receives the process's answers to layouts.

        on_exit: called from the mover's thread if the mover can't continue, with the reason.
        """
        self.planned: Planned | None = None
        """The plan that is being entered or was entered last, even if that plan has been left
        since."""
        self.managed: Managed | None = None
        """The live plan; None: no plan is live."""
        self.energy: EnergyUse | None = None
        """The energy of the steps under the live plan; None: no plan is followed."""
        self.shapes = Shapes()
        self.correcting: Correcting | None = None
        self.corrections: Counter[str] = Counter()
        """Number of corrected plans by cause."""
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
        """The machine's tiers, with the bandwidth and fault latency that the live plan assumes."""
        assert self.correcting is not None, "attach requires tiers"
        return self.correcting.tiers

    @property
    def recording(self) -> bool:
        """Whether steps are recorded in order to correct the live plan."""
        return self.correcting is not None and self.correcting.recording

    def moves(self) -> Moves:
        """Moves since the session began, under all its plans. May be called from any thread."""
        with self._past_lock:
            return self._past.plus(self.managed)

    def begin(self) -> None:
        """Begin a new attach: forget the plans and the corrected assumptions of an earlier attach,
        and reset Patience (live/divergence.py)."""
        self.shapes, self._patience = Shapes(), Patience()
        self.correcting = correcting(self._link, self._machine)

    def forget_shapes(self) -> None:
        """Forget the plans kept for shapes: they were made for another budget or policy, or for
        other placements of tensors. The live plan is still followed."""
        self.shapes = Shapes()

    def prepare(self, planned: Planned, what: str) -> int:
        """Prepare a plan for send(); returns the id of its layout. what: the name of the plan in
        the status reason, for example "the corrected plan"."""
        self.shapes.keep(planned)
        self.planned = planned
        self._entering = Entering(self._link, self._machine, self.tiers, self._inbox, planned, what)
        return self._entering.layout_id

    def send(self) -> None:
        """Send the prepared layout. If a plan is live, it is followed until the process takes the
        new layout. Raises SentinelError or EOFError."""
        assert self._entering is not None
        self._entering.send()

    def enter(self) -> str | None:
        """If the layout is live, begin to follow the plan. If necessary, first move the persistent
        tensors to the plan's initial tiers.

        Returns the status reason; None: the layout is not live yet. Raises ProcessLookupError or
        SentinelError.
        """
        planned = self.planned
        assert planned is not None
        assert self._entering is not None
        if not self._entering.done():
            return None
        first = self.managed is None
        self._stop_managed()
        managed = self._manage(planned)
        if first or not policy(managed.plan.policy).charges_budget:
            # Managed.enter() is not needed if another plan was live before and the new plan's
            # policy keeps to the budget: the new plan's moves soon reduce the fast pages to the
            # budget.
            managed.enter()
        self._start(planned, managed)
        what, self._entering = self._entering.what, None  # frees the layout, which is large
        return f"{what} is live, budget {format_bytes(planned.budget_bytes)}"

    def overdue(self) -> bool:
        """See Entering.overdue()."""
        return self._entering is not None and self._entering.overdue()

    def resume(self, planned: Planned, entered: bool) -> None:
        """Follow a plan that is live already. entered: whether the earlier daemon entered the plan
        completely; if not, the persistent tensors are first moved to the plan's initial tiers."""
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
        """Begin to follow the schedule and to check the plan's assumptions."""
        assert self.correcting is not None
        managed.start()
        machine = self._machine
        rapl = None if machine.substrate.emulated else machine.rapl
        self.energy = EnergyUse(self._link, planned, managed.mover.ledger, self.tiers, rapl)
        if planned.shape.sizes_vary:
            self.correcting.left()  # a plan for varying sizes is never corrected
        else:
            self.correcting.entered(planned, managed, self._link.segment.words())

    def look(self) -> Verdict:
        """Check whether the steps follow the live plan."""
        assert self.planned is not None
        assert self.managed is not None
        verdict = self.managed.follow(self._link.segment.words())
        threads = self._inbox.threads
        if verdict.leave or threads == self.planned.shape.threads or not self.managed.may_leave():
            return verdict
        return Verdict(True, f"the process now computes with {threads} threads")

    def on_step(self, step: Step) -> None:
        """Handle a complete recorded step, whose times a correction may need."""
        if self.correcting is not None:
            self.correcting.on_step(step)

    def corrected(self) -> Corrected | None:
        """Check the live plan's assumptions; returns a corrected plan if there is one now."""
        assert self.correcting is not None
        corrected = self.correcting.look(self._link.segment.words())
        if corrected is not None:
            self.corrections = self.corrections + Counter([corrected.cause])
        return corrected

    def begin_recording(self) -> bool:
        """Begin to measure the times of steps if they are needed to decide on a correction. Returns
        whether measuring has begun with this call; if so, the caller must make the shim record
        steps."""
        return self.correcting is not None and self.correcting.begin_recording()

    def stop_recording(self) -> None:
        """End the recording that begin_recording() began. This is called when a request begins, or
        is under way. Flag.RECORD stays set until the session clears it."""
        if self.correcting is not None:
            self.correcting.stop_recording()

    def plan_input(self) -> PlanInput:
        """The input for planning again, for example for another budget or policy. Call this only
        while a plan is live."""
        planned = self.planned
        assert planned is not None
        # The number of unmanaged bytes varies within a step. The live plan may therefore have
        # reserved room for more of them than there are now. Use the larger number.
        reserve_bytes = self._machine.substrate.reserve_bytes(planned.budget_bytes)
        reserved_bytes = planned.budget_bytes - planned.plan.budget_bytes - reserve_bytes
        unmanaged_bytes = max(reserved_bytes, self._link.segment.words().unmanaged_bytes)
        return PlanInput(
            planned.shape,
            planned.profile,
            planned.charged,
            self.tiers,
            unmanaged_bytes,
            sizes_of(planned.plan.layout) if planned.shape.sizes_vary else None,
        )

    def leave(self, reason: str) -> Shape:
        """Record that the live plan does not fit the steps; returns the plan's shape. The caller
        must then call stop()."""
        assert self.planned is not None
        assert self.managed is not None
        left, steps = self.planned.shape, self.managed.followed_steps()
        log.info(
            "process %d leaves its plan after %d steps: %s",
            self._link.pid,
            steps,
            reason,
            extra=about(LogEvent.PLAN_LEFT),
        )
        self._patience.left(steps)
        self.shapes.left(left, steps)
        return left

    def stop(self) -> None:
        """Stop following the plan; pages stay where they are.

        The process uses the plan's layout until it reads a message that ends this (`detach` or the
        next layout). No more moves are made, so all barriers are opened. They stay open until the
        next plan's mover starts and publishes the position up to which its moves are complete.
        """
        if self.correcting is not None:
            self.correcting.left()
        self._stop_managed()
        self._link.segment.open_barriers()

    def _stop_managed(self) -> None:
        if self.managed is None:
            return
        self.managed.stop()
        self.energy = None
        with self._past_lock:
            self._past, self.managed = self._past.plus(self.managed), None
