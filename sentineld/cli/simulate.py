# SPDX-License-Identifier: Apache-2.0
"""The verb simulate: replays a recorded step under a policy. Needs no daemon."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget, format_bytes
from sentineld.cli.output import json_option, print_json
from sentineld.cli.progress import Progress
from sentineld.host.presets import PRESETS, named_tiers
from sentineld.host.tiers import with_figures
from sentineld.model.tiers import Overlap
from sentineld.policies.bounds.of_policy import bound_seconds_of
from sentineld.policies.registry import policy as policy_by_name
from sentineld.profile.trace import profile_of
from sentineld.profile.trace_file import load_trace
from sentineld.simulate.disturbance import Disturbance
from sentineld.simulate.simulate import PLANNING_S, STEPS_MAX
from sentineld.simulate.simulate import simulate as run_simulation

trace_argument = click.argument("trace", type=click.Path(path_type=Path, dir_okay=False))
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Number of the training's threads; scales a preset's bandwidths.  [default: as recorded]",
)

tiers_option = click.option(
    "--tiers",
    "tiers_name",
    default="cxl",
    show_default=True,
    metavar="PRESET|FILE",
    help=f"Preset ({', '.join(PRESETS)}), or a .toml file whose [tiers] gives the bandwidths.",
)
fast_option = click.option(
    "--fast",
    default="20%",
    show_default=True,
    help="Fast memory: a share of the peak, such as 20%, or a size, such as 48MiB.",
)


@click.command()
@trace_argument
@click.option("--policy", default="auto", show_default=True, help="Policy that makes the plan.")
@tiers_option
@fast_option
@threads_option
@click.option(
    "--overlap",
    type=click.Choice([overlap.value for overlap in Overlap]),
    default=None,
    help="Variant of the timing model: the part of a step that overlaps with accesses to slow "
    "memory. none: no part; compute: computation; tiers: accesses to fast memory.  [default: none, "
    "or as FILE says]",
)
@click.option(
    "--moves-yield/--no-moves-yield",
    default=None,
    help="Variant of the timing model: no page moves while the training accesses slow memory.  "
    "[default: no, or as FILE says]",
)
@click.option(
    "--noise", default=0.0, help="Relative standard deviation of a stretch's time across steps."
)
@click.option(
    "--interference", default=0.0, help="Share of the migration bandwidth that other programs use."
)
@click.option(
    "--skew",
    default=0.0,
    help="Like --noise, but with the same deviations in every step: a systematic error of the "
    "profile.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, help="Seed for --noise and --skew.")
@click.option(
    "--correct/--no-correct",
    default=True,
    show_default=True,
    help="Correct the plan if times or bandwidth differ from the plan's assumptions.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=STEPS_MAX,
    show_default=True,
    help="Maximum number of steps to simulate under the plan; the simulation ends earlier if the "
    "steps repeat exactly.",
)
@click.option(
    "--bound/--no-bound", default=True, help="Also compute the step-time bound (needs scipy)."
)
@json_option
def simulate(
    trace: Path,
    policy: str,
    tiers_name: str,
    fast: str,
    threads: int | None,
    overlap: str | None,
    moves_yield: bool | None,
    noise: float,
    interference: float,
    skew: float,
    seed: int,
    correct: bool,
    steps: int,
    bound: bool,
    as_json: bool,
) -> None:
    """Replay the step of TRACE under a policy, in virtual time.

    `sentinelctl record` writes TRACE. The simulated training starts without a plan,
    is profiled, gets its plan, and continues until its steps repeat exactly or --steps
    steps have passed. A step's time, waits, births and moves are means over the steady
    steps: the steps that repeat, or the second half of all steps if none repeat.
    docs/reference/timing.md describes the timing model.
    """
    chosen, budget = policy_by_name(policy), FastBudget.parse(fast)
    disturbance = Disturbance(noise, interference, seed, skew)
    recorded = load_trace(trace)
    threads = threads or recorded.threads
    tiers = named_tiers(tiers_name, threads)
    tiers = with_figures(tiers, {"overlap": overlap, "moves_yield": moves_yield})
    varied = tiers.overlap != Overlap.NONE
    if tiers.paged and (varied or tiers.moves_yield):
        raise SentinelError(
            "usage",
            f"{tiers_name} is paged, and paged tiers have no variants of the timing model",
            "leave out --overlap and --moves-yield",
        )
    if varied and (noise or skew):
        raise SentinelError(
            "usage",
            f"--noise and --skew cannot be combined with --overlap {tiers.overlap}",
            "leave out --noise and --skew: the overlap is known for the recorded times only",
        )
    profile = profile_of(recorded)
    budget_bytes = budget.resolve(profile.peak_bytes)
    planning_s = PLANNING_S if correct else None
    least: float | None = None
    with Progress(f"simulating {policy} on {tiers_name}") as progress:
        outcome = run_simulation(
            profile,
            chosen,
            tiers,
            budget_bytes,
            disturbance,
            steps,
            planning_s=planning_s,
            clock=time.perf_counter,
            threads=threads,
        )
        notes = list(outcome.notes)
        if bound:
            progress.say("computing the step-time bound")
            try:
                least = bound_seconds_of(chosen, profile, tiers, budget_bytes)
            except SentinelError as error:
                notes.append(str(error))
    answer = {
        "trace": str(trace),
        "tiers": tiers.source.removeprefix("preset:"),
        "overlap": tiers.overlap.value,
        "moves_yield": tiers.moves_yield,
        "threads": threads,
        "fast_fraction": budget_bytes / max(profile.peak_bytes, 1),
        "peak_bytes": profile.peak_bytes,
        **outcome.to_json(),
        "bound_seconds": least,
        "notes": notes,
    }
    if as_json:
        print_json(answer)
        return
    for line in _lines(answer):
        click.echo(line)


def _lines(answer: dict[str, Any]) -> list[str]:
    def slower(seconds: float) -> str:
        return f"{seconds:.4f} s, {seconds / answer['fast_only_seconds']:.3f} times all-fast"

    least = answer["bound_seconds"]
    variant = "" if answer["overlap"] == Overlap.NONE else f", overlap {answer['overlap']}"
    variant += ", moves yield" if answer["moves_yield"] else ""
    lines = [
        f"{answer['policy']} on {answer['tiers']}{variant}, {answer['threads']} threads, "
        f"{format_bytes(answer['budget_bytes'])} fast "
        f"({answer['fast_fraction']:.1%} of the peak)",
        f"step        {slower(answer['step_seconds'])}",
        f"all fast    {answer['fast_only_seconds']:.4f} s",
        f"all slow    {slower(answer['slow_only_seconds'])}",
        f"bound       {slower(least) if least is not None else 'unknown'}",
        f"waits       {answer['stall_seconds']:.4f} s; "
        f"{answer['stalled_steps']} of {answer['steps']} steps stalled",
        f"births      {answer['birth_seconds']:.4f} s",
        f"moves       {format_bytes(answer['bytes_promoted'])} up, "
        f"{format_bytes(answer['bytes_demoted'])} down, {answer['late_moves']} late",
        f"fast peak   {format_bytes(answer['peak_fast_bytes'])}",
        f"energy      {answer['joules']:.3f} J (modelled), "
        f"{answer['joules'] / answer['fast_only_joules']:.3f} times all-fast",
        f"planned in  {answer['plan_seconds']:.2f} s",
        "phases      "
        + ", ".join(
            f"{phase['steps']} steps of {phase['phase']} in {phase['seconds']:.2f} s"
            for phase in answer["phases"]
            if phase["steps"]
        )
        + ("; steps repeat from there on" if answer["repeats"] else ""),
    ]
    return [*lines, *(f"note: {note}" for note in answer["notes"])]
