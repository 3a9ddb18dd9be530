# SPDX-License-Identifier: Apache-2.0
"""The parts of a policy's run: start the training, warm it up, time its steps, meter them.

The QEMU plugin counts instructions and cache misses and keeps its clock only during the timed
steps, because the emulator is slower by a factor of 10 to 20 meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.demo import control, memory
from tests.demo.clock_device import find_clock
from tests.demo.events import request, say, send
from tests.demo.room import SLOW_NODE, Balloon, make_room
from tests.demo.trainer import Trainer

WARM_UP_STEPS = 10
"""Steps under a policy before its timed steps. The daemon corrects a new plan within fewer steps if
moves are slower than the plan assumes."""
TIMED_STEPS = 5
SETTLE_STEPS_MAX = 60
"""Steps after which a run goes on although it has not settled."""

TIMED_STEP_SECONDS = 1800.0
"""Time limit of a step while the plugin keeps its clock."""


@dataclass(frozen=True)
class Limited:
    """A training that is managed in a limited amount of fast memory."""

    trainer: Trainer
    balloon: Balloon
    balloon_reply: dict[str, Any]  # result of make_room()


@contextlib.contextmanager
def started(policy: str, prefix: tuple[str, ...] = ()) -> Iterator[Trainer]:
    """Start a training, which begins with its imports; kill it when the context ends.

    The imports allocate on the slow node only.
    """
    trainer = Trainer(policy, prefix, clock=find_clock())
    try:
        memory.confine(trainer.pid, SLOW_NODE)
        yield trainer
    finally:
        trainer.kill()


def attach(trainer: Trainer, fast: str) -> None:
    """Attach the trainer after its imports, before it builds the model. The trainer's name is also
    the name of the policy."""
    trainer.wait_imported()
    memory.unconfine(trainer.pid)
    control.attach(trainer.pid, trainer.name, fast)


def begin(trainer: Trainer) -> dict[str, Any]:
    """Let the trainer train until it is managed; returns its session."""
    trainer.go()
    trainer.wait_step()
    say(f"{trainer.name}: first step done")
    session = control.wait_managed(trainer.pid)
    say(f"{trainer.name}: managed after {len(trainer.steps)} steps")
    return session


@contextlib.contextmanager
def limited(policy: str, budget_bytes: int) -> Iterator[Limited]:
    """Start a training for which the fast node has only the budget and the reserve of make_room(),
    and wait until it is managed."""
    with contextlib.ExitStack() as stack:
        trainer = stack.enter_context(started(policy))
        balloon = Balloon()
        stack.callback(balloon.end)
        attach(trainer, str(budget_bytes))
        reply = make_room(balloon, budget_bytes)
        begin(trainer)
        yield Limited(trainer, balloon, reply)


def settle(trainer: Trainer) -> dict[str, Any]:
    """Wait until the daemon has kept one plan for WARM_UP_STEPS steps and is making no other plan.
    Wait for at most SETTLE_STEPS_MAX steps."""
    first = begun = control.session(trainer.pid)
    while True:
        trainer.wait_step()
        now = control.session(trainer.pid)
        if now["state"] != "managed":
            now = control.wait_managed(trainer.pid)
        if any(now[key] != begun[key] for key in ("layout_id", "corrections")):
            say(f"{trainer.name}: {now['reason']}")
            begun = now
        kept = now["step"] - begun["step"] >= WARM_UP_STEPS
        settled = kept and not control.planning()
        if settled or now["step"] - first["step"] >= SETTLE_STEPS_MAX:
            return {"settled": settled, "warm_up_steps": now["step"] - first["step"]}


def time_steps(policy: str, trainer: Trainer) -> list[float]:
    """The seconds of TIMED_STEPS steps under a policy; call this when a step has just ended.

    With the plugin, the seconds are those of the modelled clock (see prices.py). The plugin
    recognises tensors by virtual address, so it counts other processes' accesses at these addresses
    as accesses to tensors, too.
    """
    counted = request("count", tensors=memory.tensor_ranges(trainer.pid)) == "ok"
    # Do not time the step during which the clock began to run.
    begun = trainer.wait_step(timeout_s=TIMED_STEP_SECONDS)
    timed = range(begun.number + 1, begun.number + 1 + TIMED_STEPS)
    seconds = []
    for number in timed:
        seconds.append(trainer.wait_for(number, TIMED_STEP_SECONDS).seconds)
        say(f"{policy}: timed step of {seconds[-1]:.3f} s")
    if counted:
        request("counted")
    return seconds


def result(
    policy: str,
    trainer: Trainer,
    seconds: list[float],
    metered: list[dict[str, Any]],
    **more: Any,
) -> None:
    """Send the result of a policy's run. seconds: durations of the timed steps."""
    accesses = sum(step["accesses"] for step in metered)
    row = {
        "policy": policy,
        "fast_share": sum(step["fast_accesses"] for step in metered) / accesses,
        "moved_bytes": round(sum(step["moved_bytes"] for step in metered) / len(metered)),
        "peak_fast_bytes": max(step["charged_bytes_max"] for step in metered),
        "step_seconds": seconds,
        "losses": trainer.losses,
        "metered_steps": metered,
    }
    send("run", **(row | more))
