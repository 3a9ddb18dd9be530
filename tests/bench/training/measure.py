# SPDX-License-Identifier: Apache-2.0
"""Measures one model under all policies, one turn per policy in each round."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from sentineld.host.presets import preset_tiers
from sentineld.migrate.births import birth_ns_per_byte
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.policies.bounds.step_time import bound_seconds
from sentineld.policies.registry import policy
from sentineld.simulate.simulate import Outcome, simulate
from tests.bench.training.figures import ALL_FAST
from tests.bench.training.managed import WARM_UP_STEPS, ManagedTraining, Setup, Turn
from tests.bench.training_process import Training, pinned
from tests.bench.usage import Usage

Json = dict[str, Any]

METERED_STEPS = 2
BIRTHS_BYTES = 64 << 20


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    policies: tuple[str, ...]
    tiers: str  # name of a preset
    rounds: int
    settle: int  # unmeasured steps of a turn before the measured one
    cpu: int  # CPU of the trainings


class Measurement:
    """The measured turns of one managed training."""

    def __init__(self, managed: ManagedTraining) -> None:
        self.managed = managed
        self.turns: list[Turn] = []
        managed.training.steps(WARM_UP_STEPS)
        plan, _ = managed.saved()
        if len(plan.moves):
            managed.settle()
        self._before = managed.session()
        self._steps = 0

    def turn(self, settle: int) -> None:
        """Run this training's turn of a round."""
        self.turns.append(self.managed.turn(settle))
        self._steps += settle + 1

    def result(self) -> Json:
        """Return the measured figures. owed_s and paid_s are the delays for slow pages that the
        shim should inject and did inject: means over all steps of all turns."""
        after, before = self.managed.session(), self._before
        metered = self.managed.meter(METERED_STEPS)
        plan, profile = self.managed.saved()
        return {
            "note": "",
            **seconds([turn.used for turn in self.turns]),
            "daemon_s": [turn.daemon_s for turn in self.turns],
            "span_s": [turn.span_s for turn in self.turns],
            "owed_s": (after["delay_owed_ns"] - before["delay_owed_ns"]) / self._steps / 1e9,
            "paid_s": (after["delay_paid_ns"] - before["delay_paid_ns"]) / self._steps / 1e9,
            "moved_bytes": round(median(step["moved_bytes"] for step in metered)),
            "late_moves": round(median(step["late_moves"] for step in metered)),
            "diverged_steps": after["diverged_steps"],
            "energy": after["energy"],
            "plan": plan,
            "profile": profile,
        }


def seconds(used: list[Usage]) -> Json:
    """Return a list per field of Usage, with times in seconds."""
    columns = dict(zip(Usage._fields, zip(*used, strict=True), strict=True))
    faults = list(columns.pop("faults"))
    named = {name.removesuffix("_ns") + "_s": values for name, values in columns.items()}
    named["step_s"] = named.pop("time_s")
    in_s = {name: [value / 1e9 for value in values] for name, values in named.items()}
    return in_s | {"faults": faults}


def measure(model: str, settings: Settings, say: Callable[[str], None]) -> Json:
    """Return the raw figures for figures.rows(). Raises RuntimeError, OSError or SentinelError if
    the model cannot be measured, for example because it is not managed under ALL_FAST."""
    birth_ns = births_on(settings.cpu)
    results: dict[str, Json] = {}
    losses: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as ending:
        measurements: dict[str, Measurement] = {}
        for policy_name in settings.policies:
            folder = Path(name) / policy_name
            folder.mkdir()
            setup = Setup(policy_name, f"emulated:{settings.tiers}", prefix=pinned(settings.cpu))
            managed = ManagedTraining(model, setup, folder)
            ending.callback(managed.close)
            note = managed.manage()
            say(f"{model} {policy_name}: {note or 'managed'}")
            results[policy_name] = {"note": note}
            if not note:
                measurements[policy_name] = Measurement(managed)
        if ALL_FAST not in measurements:
            raise RuntimeError(f"{model} under {ALL_FAST}: {results[ALL_FAST]['note']}")
        order = list(measurements)
        for turn in range(settings.rounds):
            for policy_name in order:
                measurements[policy_name].turn(settings.settle)
            order.append(order.pop(0))
            say(f"{model}: round {turn + 1} of {settings.rounds}")
        for policy_name, measurement in measurements.items():
            results[policy_name] = measurement.result()
            losses[policy_name] = measurement.managed.training.losses
    plain = plain_losses(model, max(map(len, losses.values())), settings.cpu)
    fast_s = median(results[ALL_FAST]["step_s"])
    tiers = preset_tiers(settings.tiers, 1)
    raw = {
        "tiers": settings.tiers,
        "birth_ns_per_byte": birth_ns,
        "bound_extra_s": _bound_s(results[ALL_FAST], fast_s, tiers) - fast_s,
        "policies": results,
    }
    for policy_name, result in results.items():
        if policy_name in losses:
            own_losses = losses[policy_name]
            result["losses_equal"] = own_losses == plain[: len(own_losses)]
            _add_predictions(result, fast_s, replace(tiers, birth_ns_per_byte=birth_ns))
    return raw


def births_on(cpu: int) -> float:
    """Return the cost of births (page faults on new pages) on this CPU, in ns per byte."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        return birth_ns_per_byte(BIRTHS_BYTES)
    finally:
        os.sched_setaffinity(0, before)


def plain_losses(model: str, steps: int, cpu: int) -> list[str]:
    """Return the losses of the training without shim and daemon."""
    training = Training(model, pinned(cpu))
    try:
        training.steps(steps)
    finally:
        training.close()
    return training.losses


def scaled_to(profile: Profile, step_s: float) -> Profile:
    """Scale the profile's times so that the all-fast step takes step_s."""
    stretches = profile.stretches.copy()
    factor = step_s * 1e9 / float(stretches["time_ns"].sum())
    stretches["time_ns"] = np.rint(stretches["time_ns"] * factor)
    return replace(profile, stretches=stretches)


def simulated(plan: Plan, profile: Profile, fast_s: float, tiers: Tiers) -> Outcome:
    """Simulate the plan on a machine on which the all-fast step takes fast_s seconds."""
    by, scaled = policy(plan.policy), scaled_to(profile, fast_s)
    return simulate(scaled, by, tiers, plan.budget_bytes, plan=plan)


def _bound_s(result: Json, fast_s: float, tiers: Tiers) -> float:
    plan: Plan = result["plan"]
    return bound_seconds(scaled_to(result["profile"], fast_s), tiers, plan.budget_bytes)


def _add_predictions(result: Json, fast_s: float, tiers: Tiers) -> None:
    """Replace the result's plan and profile with figures computed from them.

    The figures are the simulator's prediction for the plan at this run's speed, and the delay
    that the timing model gives if all accesses go to slow memory.
    """
    plan: Plan = result.pop("plan")
    profile: Profile = result.pop("profile")
    outcome = simulated(plan, profile, fast_s, tiers)
    result["predicted_s"] = outcome.step_seconds
    result["predicted_wait_s"] = outcome.stall_seconds
    result["predicted_birth_s"] = outcome.birth_seconds
    result["predicted_late_moves"] = outcome.late_moves
    result["model_s"] = float(timing_of(tiers).extra_ns(profile).sum()) / 1e9
