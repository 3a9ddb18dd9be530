# SPDX-License-Identifier: Apache-2.0
"""A minimal daemon: it profiles a training, plans with the real planner, and moves no pages."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from sentineld.host.presets import preset_tiers
from sentineld.model.plan import Layout
from sentineld.model.profile import Profile
from sentineld.model.protocol import Flag, Mode
from sentineld.model.records import OP_ACCESS_DTYPE, SAMPLE_DTYPE
from sentineld.model.tiers import Tiers
from sentineld.plan.cuts import choose_cuts, provisional_layout
from sentineld.plan.huge import with_huge_pages
from sentineld.plan.layout_wire import pack_layout
from sentineld.policies.registry import policy
from sentineld.profile.attribution import build_profile
from sentineld.profile.lifetimes import allocation_profile
from sentineld.profile.steps import Step, StepCutter, identical
from tests.bench.shim.stepped import SteppedTraining
from tests.integration.shim.daemon_side import Daemon, send_layout, wait_for

FAST_FRACTION = 0.2
STEPS_MAX = 12
"""Limit for two numbers of steps: the steps until two consecutive ones allocate identically, and
the further steps until the access step is complete."""


def one_node() -> Tiers:
    """Return two tiers for planning; both consist of this machine's first node."""
    tiers = preset_tiers("cxl", 1)
    return replace(tiers, tiers=tuple(replace(tier, nodes=(0,)) for tier in tiers.tiers))


class Manager:
    """Starts and serves one training. Call accept() first."""

    def __init__(self, model: str, folder: Path) -> None:
        folder.mkdir()
        self._daemon = Daemon(folder / "shim.sock")
        self.training = SteppedTraining(model, socket_path=folder / "shim.sock")
        self._layouts = 0

    def accept(self) -> None:
        """Wait for the training's shim to connect. Raises OSError."""
        self._daemon.accept()

    def record(self) -> None:
        """Start recording steps; call drain() after each."""
        self._daemon.flags(Flag.RECORD)

    def drain(self) -> int:
        """Discard the records that the shim has written; return their number."""
        return len(self._daemon.drain())

    def profile(self) -> Profile:
        """Record two identical allocation steps and an access step; return the profile."""
        cutter = StepCutter()
        self._daemon.drain()
        self.record()
        with self.training.stepping():
            steps = self._collect(cutter, lambda steps: len(steps) > 1 and identical(*steps[-2:]))
            before = steps[-1]
            budget = int(allocation_profile(before, ()).peak_bytes * FAST_FRACTION)
            cuts = choose_cuts(before, budget)
            self._send(provisional_layout(before, cuts))
            self._daemon.send({"type": "profile_ops"})
            answer = self._daemon.receive("accesses")
            descriptor = self._daemon.take_descriptor()
            number = answer["step"]
            steps = self._collect(cutter, lambda steps: any(one.number == number for one in steps))
        self._daemon.flags(0)
        with open(descriptor, "rb") as file:
            file.seek(0)  # the shim shares the file offset and has left it at the end
            ops = np.frombuffer(file.read(), OP_ACCESS_DTYPE)
        return build_profile(
            next(one for one in steps if one.number == number),
            np.empty(0, SAMPLE_DTYPE),
            ops,
            (),
            cuts=cuts,
            timed=before,
            heap_base=self._daemon.word("heap_base"),
        )

    def replay(self, profile: Profile, name: str) -> Layout:
        """Plan with a policy, wait until the training replays the plan, and return the layout."""
        budget = int(profile.peak_bytes * FAST_FRACTION)
        plan = policy(name).plan(profile, one_node(), budget)
        layout = with_huge_pages(plan, profile.page_bytes)
        with self.training.stepping():
            self._send(layout)
            wait_for(lambda: self._daemon.word("mode") == Mode.REPLAY)
            self._daemon.wait_steps(2)
        return layout

    def diverged_steps(self) -> int:
        """Return the number of diverged steps so far."""
        return self._daemon.word("diverged_steps")

    def outside_bytes(self) -> int:
        """Return the live bytes outside heap and arena: those of small tensors, plus those of
        tensors for which neither heap nor arena has room."""
        return self._daemon.word("small_bytes") + self._daemon.word("fallback_bytes")

    def close(self) -> None:
        """End the training, then close the daemon's connection and socket."""
        self.training.close()
        self._daemon.close()

    def _collect(self, cutter: StepCutter, enough: Callable[[list[Step]], bool]) -> list[Step]:
        """Collect completed steps until enough(steps) is true.

        Pass the same cutter for all steps of a profile, because it matches a tensor's birth in one
        step with its death in the next.
        """
        steps: list[Step] = []
        while not enough(steps):
            if len(steps) > STEPS_MAX:
                raise RuntimeError(f"the expected step did not occur within {STEPS_MAX} steps")
            time.sleep(0.01)
            steps += cutter.feed(self._daemon.drain())
        return steps

    def _send(self, layout: Layout) -> None:
        self._layouts += 1
        data = pack_layout(layout, self._layouts, one_node(), len(layout.waits))
        answer = send_layout(self._daemon, data, self._layouts)
        if not answer["ok"]:
            raise RuntimeError(f"the shim refused a layout: {answer['error']}")
