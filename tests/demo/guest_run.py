# SPDX-License-Identifier: Apache-2.0
"""Runs the workload under each policy, on the machine with two memory tiers.

    python3 -m tests.demo.guest_run

Needs root, a running sentineld and two memory nodes. The demo (tests/demo/__main__.py)
reads events from this program's standard output, one JSON object a line. It replies to
a request with one line on this program's standard input.

    {"event": "progress", "text"}
    {"event": "count", "policy", "tensors": [[start, end]]}
                                  request; reply: "ok" when counting is on, "none" without a plugin
    {"event": "counted"}          request; reply: "ok" when counting is off
    {"event": "run", ...}         the result of one policy
    {"event": "done", ...}        the figures common to all runs
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.demo import control, memory
from tests.demo.rules import SENTINELD_MIN
from tests.demo.trainer import Trainer

FAST_NODE = 0
SLOW_NODE = 1
BUDGET_DIVISOR = 5
"""The budget is the peak divided by this number: 20 % of the peak."""

RESERVE_BYTES = 512 << 10
"""Fast memory in addition to the budget, for the interpreter's heap, which holds no tensors."""

UNMANAGED_STEPS = 20
SENTINEL_METERED_STEPS = 4
SETTLE_SECONDS = 90.0
SETTLED_SHARE = 0.01
"""Kernel tiering has settled when each of three steps in a row moves less than this share of the
peak."""

_COUNTER_LOCK = threading.Lock()
_OUTPUT_LOCK = threading.Lock()

ON_SLOW_NODE = ("numactl", f"--preferred={SLOW_NODE}")


def send(event: str, **values: Any) -> None:
    """Send an event."""
    with _OUTPUT_LOCK:
        print(json.dumps({"event": event, **values}), flush=True)


def say(text: str) -> None:
    """Report progress."""
    send("progress", text=text)


def request(event: str, **values: Any) -> str:
    """Send a request and return the reply. Not thread-safe."""
    send(event, **values)
    return sys.stdin.readline().strip()


@contextlib.contextmanager
def started_trainer(policy: str, prefix: tuple[str, ...] = ()) -> Iterator[Trainer]:
    """Start a trainer, which begins with its imports; kill it when the context ends.

    The imports allocate on the slow node only, to leave the fast memory to a trainer that runs at
    the same time.
    """
    trainer = Trainer(policy, prefix)
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
    say(f"{trainer.name}: imported and attached")


class Balloon:
    """The process that occupies most of node 0 (tests/demo/balloon.py)."""

    def __init__(self) -> None:
        command = [*ON_SLOW_NODE, sys.executable, "-m", "tests.demo.balloon"]
        self._process = subprocess.Popen(
            [*command, "--node", str(FAST_NODE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def leave(self, leave_bytes: int) -> dict[str, Any]:
        """Make the balloon leave `leave_bytes` on the node (see balloon.py), wait until it has
        done so, and return its reply."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        print(leave_bytes, file=process.stdin, flush=True)
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"balloon: {process.stderr.read()}")
        reply: dict[str, Any] = json.loads(line)
        left, others = (reply[key] / 2**20 for key in ("left_bytes", "others_bytes"))
        say(f"{left:.1f} MiB left on node {FAST_NODE}, {others:.1f} MiB of it in use")
        return reply

    def end(self) -> None:
        """Free all memory and wait for the exit."""
        self._process.communicate()


def warm_page_cache() -> None:
    """Read the framework's libraries into the page cache of the slow node.

    Otherwise, library code that a trainer runs for the first time during the training would be read
    into fast memory.
    """
    folder = subprocess.run(
        [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('torch').origin)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    libraries = {
        path.resolve() for path in Path(folder).parent.rglob("*.so*") if path.is_file()
    } | {path.resolve() for path in Path("/usr/lib/x86_64-linux-gnu").glob("libtorch*.so*")}
    command = ["numactl", f"--membind={SLOW_NODE}", "cat", "--", *map(str, sorted(libraries))]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def count_one_step(policy: str, trainer: Trainer) -> None:
    """Have the QEMU plugin (counter.py) count the accesses of one step; call this when a step has
    just ended.

    The plugin recognises tensors by virtual address, so it also counts accesses of other
    processes at these addresses.
    """
    if not _COUNTER_LOCK.acquire(blocking=False):
        _COUNTER_LOCK.acquire()
        trainer.wait_step()
    try:
        if request("count", policy=policy, tensors=memory.tensor_ranges(trainer.pid)) == "ok":
            trainer.wait_step()
            request("counted")
    finally:
        _COUNTER_LOCK.release()


def meter_and_count(policy: str, trainer: Trainer, steps: int = 1) -> list[dict[str, Any]]:
    """Meter steps, and have the plugin count one step. This is the step just before the metered
    ones, in which the daemon prepares the metering, or a later step if the plugin is busy."""
    with ThreadPoolExecutor(1) as pool:
        metering = pool.submit(control.meter, trainer.pid, steps)
        count_one_step(policy, trainer)
        return metering.result()


def result(
    policy: str, trainer: Trainer, metered: list[dict[str, Any]], seconds: float, **more: Any
) -> dict[str, Any]:
    """Send the result of one policy.

    seconds: duration of a step that was neither metered nor counted.
    """
    accesses = sum(step["accesses"] for step in metered)
    row = {
        "policy": policy,
        "fast_share": sum(step["fast_accesses"] for step in metered) / accesses,
        "moved_bytes": round(sum(step["moved_bytes"] for step in metered) / len(metered)),
        "peak_fast_bytes": max(step["charged_bytes_max"] for step in metered),
        "step_seconds": seconds,
        "losses": trainer.losses,
        "metered_steps": metered,
        **more,
    }
    send("run", **row)
    return row


def wait_managed(policy: str, trainer: Trainer) -> dict[str, Any]:
    """Wait until the trainer is managed; returns its session."""
    trainer.wait_step()
    say(f"{policy}: first step done")
    session = control.wait_managed(trainer.pid)
    say(f"{policy}: managed after {len(trainer.steps)} steps")
    return session


def run_unlimited(name: str, policy: str, prefix: tuple[str, ...] = ()) -> int:
    """Run all-fast or all-slow, without a balloon and with a budget of 100 %. Returns the peak in
    bytes."""
    with started_trainer(policy, prefix) as trainer:
        attach(trainer, "100%")
        trainer.go()
        peak_bytes: int = wait_managed(policy, trainer)["peak_bytes"]
        seconds = trainer.wait_step().seconds
        result(name, trainer, meter_and_count(name, trainer), seconds)
        return peak_bytes


def settle(trainer: Trainer, peak_bytes: int) -> dict[str, Any]:
    """Run under kernel tiering until it moves hardly any pages, but for at most SETTLE_SECONDS."""
    begin = time.monotonic()
    moved_before = memory.kernel_moved_bytes()
    moved_a_step: list[int] = []
    settled = False
    while not settled and time.monotonic() - begin < SETTLE_SECONDS:
        trainer.wait_step()
        moved = memory.kernel_moved_bytes()
        moved_a_step.append(moved - moved_before)
        moved_before = moved
        quiet = [bytes_ < SETTLED_SHARE * peak_bytes for bytes_ in moved_a_step[-3:]]
        # if no page has moved so far, tiering has not begun, so it cannot have settled
        settled = len(quiet) == 3 and all(quiet) and any(moved_a_step)
    return {
        "settle_seconds": round(time.monotonic() - begin, 1),
        "settled": settled,
        "settle_moved_bytes": moved_a_step,
    }


def make_room(balloon: Balloon, budget_bytes: int) -> dict[str, Any]:
    """Leave only the budget and the reserve free on node 0; call this before the model is built."""
    memory.clear_node(FAST_NODE, SLOW_NODE, except_pids=(balloon.pid,))
    return balloon.leave(budget_bytes + RESERVE_BYTES)


def run_first_touch(trainer: Trainer, balloon_state: dict[str, Any]) -> None:
    """Run `first-touch`: the kernel places each page at its first touch, and no page moves."""
    wait_managed("first-touch", trainer)
    seconds = trainer.wait_step().seconds
    metered = meter_and_count("first-touch", trainer)
    result("first-touch", trainer, metered, seconds, balloon=balloon_state)


def run_kernel_tiering(trainer: Trainer, balloon: Balloon, peak_bytes: int) -> None:
    """Run kernel tiering in the process of `first-touch`, whose placement is the starting point."""
    # Move other memory off the fast node first. Otherwise the kernel would demote this other memory
    # during the run, and tensors could use the freed memory in addition to the budget.
    memory.clear_node(FAST_NODE, SLOW_NODE, except_pids=(trainer.pid, balloon.pid))
    memory.set_kernel_tiering(True)
    switches = memory.kernel_tiering()
    try:
        settling = settle(trainer, peak_bytes)
        before_freeze = memory.tensor_bytes_by_node(trainer.pid)
    finally:
        memory.set_kernel_tiering(False)
    seconds = trainer.steps[-1].seconds
    # NUMA balancing is off now; pages that it had already made PROT_NONE cause hint faults in the
    # metered step
    metered = meter_and_count("kernel tiering", trainer)
    for step in metered:
        step["moved_bytes"] = settling["settle_moved_bytes"][-1]
    result(
        "kernel tiering",
        trainer,
        metered,
        seconds,
        switches=switches,
        tensor_bytes_by_node=before_freeze,
        **settling,
    )


def run_sentinel(trainer: Trainer, balloon_state: dict[str, Any]) -> None:
    """Manage the training, and meter it while its pages move."""
    wait_managed("sentineld", trainer)
    seconds = trainer.wait_step().seconds
    metered = meter_and_count("sentineld", trainer, SENTINEL_METERED_STEPS)
    least = min(step["fast_share"] for step in metered)
    plan = control.plan(trainer.pid, bound=least < SENTINELD_MIN)
    session = control.session(trainer.pid)
    by_node = memory.tensor_bytes_by_node(trainer.pid)
    result(
        "sentineld",
        trainer,
        metered,
        seconds,
        balloon=balloon_state,
        plan=plan,
        session=session,
        tensor_bytes_by_node=by_node,
    )


def run_both_unlimited() -> int:
    """Run all-fast and all-slow at the same time, on one CPU each. Returns the peak in bytes."""
    with ThreadPoolExecutor(2) as pool:
        fast = pool.submit(run_unlimited, "all-fast", "fast-only")
        slow = pool.submit(run_unlimited, "all-slow", "slow-only", ON_SLOW_NODE)
        slow.result()
        return fast.result()


def run_limited(budget_bytes: int, peak_bytes: int) -> list[str]:
    """Run first-touch, kernel tiering and sentineld. Returns the losses of an unmanaged run.

    One CPU executes first-touch and then kernel tiering. Meanwhile, another CPU executes the
    unmanaged run and then the imports of sentineld's run.
    """
    with contextlib.ExitStack() as stack:
        first_touch = stack.enter_context(started_trainer("first-touch"))
        unmanaged = Trainer("unmanaged", ON_SLOW_NODE, shim=False, steps=UNMANAGED_STEPS)
        stack.callback(unmanaged.kill)
        balloon = Balloon()
        stack.callback(balloon.end)
        attach(first_touch, str(budget_bytes))
        unmanaged.wait_imported()
        balloon_state = make_room(balloon, budget_bytes)
        first_touch.go()
        unmanaged.go()
        run_first_touch(first_touch, balloon_state)
        say("kernel tiering, in the same process")
        planned = stack.enter_context(started_trainer("sentinel+spill"))
        run_kernel_tiering(first_touch, balloon, peak_bytes)
        first_touch.kill()
        unmanaged.join(timeout_s=300)
        attach(planned, str(budget_bytes))
        balloon_state = make_room(balloon, budget_bytes)
        planned.go()
        run_sentinel(planned, balloon_state)
        return unmanaged.losses


def main() -> None:
    """Prepare the machine and do all runs."""
    subprocess.run(["swapoff", "-a"], check=True)
    memory.restrict_huge_pages()
    memory.fix_watermarks()
    memory.set_kernel_tiering(False)
    memory.drop_caches()
    memory.compact()
    warm_page_cache()
    say("all-fast and all-slow")
    peak_bytes = run_both_unlimited()
    budget_bytes = peak_bytes // BUDGET_DIVISOR
    say(f"peak {peak_bytes} bytes, budget {budget_bytes} bytes")
    say("first-touch, and the unmanaged run on the slow node")
    unmanaged_losses = run_limited(budget_bytes, peak_bytes)
    send(
        "done",
        peak_bytes=peak_bytes,
        budget_bytes=budget_bytes,
        reserve_bytes=RESERVE_BYTES,
        unmanaged_losses=unmanaged_losses,
    )


if __name__ == "__main__":
    main()
