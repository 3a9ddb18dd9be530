# SPDX-License-Identifier: Apache-2.0
"""One model under all policies, a turn each in every round."""

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
from sentineld.simulate.simulate import simulate
from tests.bench.training.contestant import Contestant, Training, Turn
from tests.bench.training.figures import ALL_FAST
from tests.bench.usage import Usage

Json = dict[str, Any]

WARM_UP_STEPS = 3
"""Until pages that were elsewhere when the plan began are where it wants them."""
METERED_STEPS = 2
BIRTHS_BYTES = 64 << 20


@dataclass(frozen=True)
class Settings:
    """tiers: a preset. cpu: the trainings' own. settle: steps of a turn before the measured one."""

    policies: tuple[str, ...]
    tiers: str
    rounds: int
    settle: int
    cpu: int


class Standing:
    """A contestant that is being measured."""

    def __init__(self, one: Contestant) -> None:
        self.one = one
        self.turns: list[Turn] = []
        one.training.steps(WARM_UP_STEPS)
        plan, _ = one.saved()
        if len(plan.moves):
            one.settle()
        self._before = one.session()
        self._steps = 0

    def turn(self, settle: int) -> None:
        """Its turn of a round."""
        self.turns.append(self.one.turn(settle))
        self._steps += settle + 1

    def result(self) -> Json:
        """What was measured; owed and paid are the means of all steps of all turns, in seconds."""
        after, before = self.one.session(), self._before
        metered = self.one.meter(METERED_STEPS)
        plan, profile = self.one.saved()
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
            "plan": plan,
            "profile": profile,
        }


def seconds(used: list[Usage]) -> Json:
    """A list for each of what steps used: in seconds, "faults" aside."""
    columns = dict(zip(Usage._fields, zip(*used, strict=True), strict=True))
    faults = list(columns.pop("faults"))
    named = {name.removesuffix("_ns") + "_s": values for name, values in columns.items()}
    named["step_s"] = named.pop("time_s")
    in_s = {name: [value / 1e9 for value in values] for name, values in named.items()}
    return in_s | {"faults": faults}


def measure(model: str, settings: Settings, say: Callable[[str], None]) -> Json:
    """See figures.rows. Raises RuntimeError, OSError, SentinelError."""
    birth_ns = births_on(settings.cpu)
    results: dict[str, Json] = {}
    losses: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as ending:
        standing: dict[str, Standing] = {}
        for policy_name in settings.policies:
            folder = Path(name) / policy_name
            folder.mkdir()
            one = Contestant(model, policy_name, settings.tiers, settings.cpu, folder)
            ending.callback(one.close)
            note = one.manage()
            say(f"{model} {policy_name}: {note or 'managed'}")
            results[policy_name] = {"note": note}
            if not note:
                standing[policy_name] = Standing(one)
        order = list(standing)
        for turn in range(settings.rounds):
            for policy_name in order:
                standing[policy_name].turn(settings.settle)
            order.append(order.pop(0))
            say(f"{model}: round {turn + 1} of {settings.rounds}")
        for policy_name, one_standing in standing.items():
            results[policy_name] = one_standing.result()
            losses[policy_name] = one_standing.one.training.losses
    if ALL_FAST not in standing:
        raise RuntimeError(f"{model} under {ALL_FAST}: {results[ALL_FAST]['note']}")
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
            told = losses[policy_name]
            result["losses_equal"] = told == plain[: len(told)]
            _explain(result, fast_s, replace(tiers, birth_ns_per_byte=birth_ns))
    return raw


def births_on(cpu: int) -> float:
    """What a page made anew takes on this CPU, in ns a byte."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        return birth_ns_per_byte(BIRTHS_BYTES)
    finally:
        os.sched_setaffinity(0, before)


def plain_losses(model: str, steps: int, cpu: int) -> list[str]:
    """Of the training without anything of ours."""
    training = Training(model, cpu)
    try:
        training.steps(steps)
    finally:
        training.close()
    return training.losses


def at_pace(profile: Profile, step_s: float) -> Profile:
    """The profile of a machine on which the all-fast step takes so long."""
    stretches = profile.stretches.copy()
    factor = step_s * 1e9 / float(stretches["time_ns"].sum())
    stretches["time_ns"] = np.rint(stretches["time_ns"] * factor)
    return replace(profile, stretches=stretches)


def _bound_s(result: Json, fast_s: float, tiers: Tiers) -> float:
    plan: Plan = result["plan"]
    return bound_seconds(at_pace(result["profile"], fast_s), tiers, plan.budget_bytes)


def _explain(result: Json, fast_s: float, tiers: Tiers) -> None:
    """Add what the simulator says of the daemon's own plan at this run's pace, and what all the
    step's accesses cost on slow memory; take out what is no plain value."""
    plan: Plan = result.pop("plan")
    profile: Profile = result.pop("profile")
    outcome = simulate(
        at_pace(profile, fast_s), policy(plan.policy), tiers, plan.budget_bytes, plan=plan
    )
    result["predicted_s"] = outcome.step_seconds
    result["predicted_wait_s"] = outcome.stall_seconds
    result["predicted_birth_s"] = outcome.birth_seconds
    result["predicted_late_moves"] = outcome.late_moves
    result["model_s"] = float(timing_of(tiers).extra_ns(profile).sum()) / 1e9
