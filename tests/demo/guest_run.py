# SPDX-License-Identifier: Apache-2.0
"""Runs the workload under each policy, on the machine with two memory tiers.

    python3 -m tests.demo.guest_run

Needs root, a running sentineld and two memory nodes. The policies run one after the other, so that
none of them shares the machine with another one. The demo (tests/demo/__main__.py) starts this
program and reads its events (events.py).
"""

from __future__ import annotations

import statistics

from tests.demo import clocked_tiers, control, memory
from tests.demo.clock_device import find_clock
from tests.demo.events import say, send
from tests.demo.policy_run import (
    SETTLE_STEPS_MAX,
    TIMED_STEPS,
    WARM_UP_STEPS,
    Limited,
    attach,
    begin,
    limited,
    result,
    settle,
    started,
    time_steps,
)
from tests.demo.room import FAST_NODE, ON_SLOW_NODE, RESERVE_BYTES, SLOW_NODE, prepare_machine
from tests.demo.rules import KERNEL_RUNS_MIN, SENTINELD_MIN, STEADY_STEPS_MIN
from tests.demo.trainer import Trainer

POLICY = "auto"
"""sentineld's policy, the default one."""

BUDGET_DIVISOR = 5
"""The budget is the peak divided by this number: 20 % of the peak."""

UNMANAGED_STEPS = 20
SETTLED_SHARE = 0.01
SETTLED_STEPS = 3
"""Kernel tiering has settled when each of SETTLED_STEPS steps in a row moves less than
SETTLED_SHARE of the peak."""


def run_unlimited(
    name: str, policy: str, prefix: tuple[str, ...] = (), beside: Trainer | None = None
) -> tuple[int, float]:
    """Run all-fast or all-slow, with a budget of 100 % and without a balloon (balloon.py). Returns
    the peak in bytes, and the median of the timed steps in seconds.

    beside: another training that begins at the same time; steps are timed after its end.
    """
    with started(policy, prefix) as trainer:
        attach(trainer, "100%")
        if beside is not None:
            beside.wait_imported()
            beside.go()
        peak_bytes: int = begin(trainer)["peak_bytes"]
        trainer.wait_step(WARM_UP_STEPS)
        if beside is not None:
            beside.join(timeout_s=1800)
            trainer.wait_step()
        seconds = time_steps(name, trainer)
        result(name, trainer, seconds, control.meter(trainer.pid, 1))
        return peak_bytes, statistics.median(seconds)


def run_first_touch(run: Limited) -> None:
    """Run `first-touch`: the kernel places each page at its first touch, and no page moves."""
    trainer = run.trainer
    trainer.wait_step(WARM_UP_STEPS)
    seconds = time_steps("first-touch", trainer)
    metered = control.meter(trainer.pid, 1)
    result("first-touch", trainer, seconds, metered, balloon=run.balloon_reply)


def run_kernel_tiering(run: Limited, peak_bytes: int) -> None:
    """Run kernel tiering, which starts from the placement of `first-touch`."""
    trainer = run.trainer
    # Move other memory off the fast node first. Otherwise the kernel would demote this other memory
    # during the run, and tensors could use the freed memory in addition to the budget.
    memory.clear_node(FAST_NODE, SLOW_NODE, except_pids=(trainer.pid, run.balloon.pid))
    memory.set_kernel_tiering(True)
    switches = memory.kernel_tiering()
    try:
        by_step = warm_up_kernel_tiering(trainer, SETTLED_SHARE * peak_bytes)
        moved_before = memory.kernel_moved_bytes()
        seconds = time_steps("kernel tiering", trainer)
        moved_while_timed = memory.kernel_moved_bytes() - moved_before
        by_node = memory.tensor_bytes_by_node(trainer.pid)
    finally:
        memory.set_kernel_tiering(False)
    # Pages that NUMA balancing had made PROT_NONE before it was switched off cause hint faults
    # in the metered step.
    metered = control.meter(trainer.pid, 1)
    result(
        "kernel tiering",
        trainer,
        seconds,
        metered,
        # The moved bytes are those of the timed steps and of the step before them, in which the
        # clock began to run.
        moved_bytes=moved_while_timed // (TIMED_STEPS + 1),
        balloon=run.balloon_reply,
        switches=switches,
        tensor_bytes_by_node=by_node,
        warm_up_moved_bytes=by_step,
        settled=has_settled(by_step, SETTLED_SHARE * peak_bytes),
    )


def warm_up_kernel_tiering(trainer: Trainer, limit_bytes: float) -> list[int]:
    """Let the kernel's tiering run for WARM_UP_STEPS steps, and then until it has settled, but for
    at most SETTLE_STEPS_MAX steps. Returns the bytes that it moved in each step.

    limit_bytes: see has_settled().
    """
    by_step: list[int] = []
    before = memory.kernel_moved_bytes()
    while len(by_step) < WARM_UP_STEPS or (
        len(by_step) < SETTLE_STEPS_MAX and not has_settled(by_step, limit_bytes)
    ):
        trainer.wait_step()
        after = memory.kernel_moved_bytes()
        by_step.append(after - before)
        before = after
    return by_step


def has_settled(moved_bytes: list[int], limit_bytes: float) -> bool:
    """Whether each of the last SETTLED_STEPS steps moved less than limit_bytes."""
    last = moved_bytes[-SETTLED_STEPS:]
    return len(last) == SETTLED_STEPS and max(last) < limit_bytes


def configure_tiers(dilation: float) -> dict[str, float]:
    """Make the daemon plan for the modelled clock, if there is one; see clocked_tiers.py. Returns
    facts for the report."""
    clock = find_clock()
    if clock is None:
        return {}
    measured = clocked_tiers.measured_bytes_per_s(clock)
    tiers = clocked_tiers.modelled_tiers(measured)
    assumed = tiers.migration_bytes_per_s
    say(
        f"modelled clock: moves {measured / 1e6:.0f} MB/s, and the plan may use "
        f"{assumed / 1e6:.0f} MB/s; the guest's time is {dilation:.1f} times as long"
    )
    clocked_tiers.configure(tiers, dilation)
    return {
        "measured_bytes_per_s": measured,
        "assumed_bytes_per_s": assumed,
        "dilation": dilation,
    }


def run_sentineld(budget_bytes: int) -> None:
    """Manage the training; meter it while its pages move, then time it.

    Metering comes first, because the daemon may correct its plan during the timed steps: while the
    plugin keeps its clock, moves take 10 to 20 times as long in the guest's time, which the daemon
    measures.
    """
    with limited(POLICY, budget_bytes) as run:
        trainer = run.trainer
        settling = settle(trainer)
        say(f"sentineld: {settling}")
        metered = control.meter(trainer.pid, STEADY_STEPS_MIN)
        trainer.wait_step()
        before = control.session(trainer.pid)
        seconds = time_steps("sentineld", trainer)
        session = control.session(trainer.pid)
        by_node = memory.tensor_bytes_by_node(trainer.pid)
        least = min(step["fast_share"] for step in metered)
        plan = control.plan(trainer.pid, bound=least < SENTINELD_MIN)
        result(
            "sentineld",
            trainer,
            seconds,
            metered,
            balloon=run.balloon_reply,
            plan=plan,
            session_before_timing=before,
            session=session,
            tensor_bytes_by_node=by_node,
            **settling,
        )


def main() -> None:
    """Prepare the machine and do all runs."""
    prepare_machine()
    say("all-fast, and the unmanaged run on the slow node during its warm-up")
    unmanaged = Trainer("unmanaged", ON_SLOW_NODE, shim=False, steps=UNMANAGED_STEPS)
    try:
        peak_bytes, step_s = run_unlimited("all-fast", "fast-only", beside=unmanaged)
    finally:
        unmanaged.kill()
    say("all-slow")
    run_unlimited("all-slow", "slow-only", ON_SLOW_NODE)
    budget_bytes = peak_bytes // BUDGET_DIVISOR
    say(f"peak {peak_bytes} bytes, budget {budget_bytes} bytes")
    for number in range(1, KERNEL_RUNS_MIN + 1):
        say(f"first-touch, and run {number} of {KERNEL_RUNS_MIN} of kernel tiering")
        with limited("first-touch", budget_bytes) as run:
            profiled_step_s = control.session(run.trainer.pid)["fast_step_ns"] / 1e9
            if number == 1:
                run_first_touch(run)
            run_kernel_tiering(run, peak_bytes)
    # profiled_step_s is from the latest run, because the guest's time of a step depends on the
    # host's load.
    clocked = configure_tiers(profiled_step_s / step_s)
    say("sentineld")
    run_sentineld(budget_bytes)
    send(
        "done",
        peak_bytes=peak_bytes,
        budget_bytes=budget_bytes,
        reserve_bytes=RESERVE_BYTES,
        timed_steps=TIMED_STEPS,
        warm_up_steps=WARM_UP_STEPS,
        unmanaged_losses=unmanaged.losses,
        clocked=clocked,
    )


if __name__ == "__main__":
    main()
