# SPDX-License-Identifier: Apache-2.0
"""Runs the workload under each policy, on the machine with the two tiers.

    python3 -m tests.demo.guest_run

Needs root, a running sentineld and two memory nodes. It talks to the program
that started it (tests/demo/__main__.py) by lines: JSON objects on standard
output, and for each that asks something one line on standard input.

    {"event": "say", "text"}                      progress
    {"event": "count", "policy", "tensors": [[start, end]]}
                                                  asks: "ok" once counting is on, else "none"
    {"event": "counted"}                          asks: "ok" once it is off
    {"event": "run", ...}                         one policy's result
    {"event": "done", ...}                        figures of the whole
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
FAST_PARTS = 5
"""The budget is the peak divided by this: 20 %."""

RESERVE_BYTES = 512 << 10
"""Left besides the budget for what is not tensors: the interpreter's heap."""

UNMANAGED_STEPS = 20
SENTINEL_METERED_STEPS = 4
SETTLE_SECONDS = 90.0
SETTLED_PART = 0.01
"""Kernel tiering has settled when a step moves less than this part of the peak."""

_COUNTING = threading.Lock()
_TELLING = threading.Lock()

ON_SLOW_NODE = ("numactl", f"--preferred={SLOW_NODE}")


def tell(event: str, **values: Any) -> None:
    """Send one line."""
    with _TELLING:
        print(json.dumps({"event": event, **values}), flush=True)


def say(text: str) -> None:
    """Send one line of progress."""
    tell("say", text=text)


def ask(event: str, **values: Any) -> str:
    """Send one line and wait for the answer; one thread at a time."""
    tell(event, **values)
    return sys.stdin.readline().strip()


@contextlib.contextmanager
def importing(policy: str, prefix: tuple[str, ...] = ()) -> Iterator[Trainer]:
    """A trainer that is about to import; killed in the end.

    It imports on the slow node, so that it takes no fast memory from a trainer that runs beside it.
    """
    trainer = Trainer(policy, prefix)
    try:
        memory.confine(trainer.pid, SLOW_NODE)
        yield trainer
    finally:
        trainer.kill()


def attach(trainer: Trainer, fast: str) -> None:
    """Attach after its imports; it has built nothing yet. The policy is its name."""
    trainer.wait_imported()
    memory.free_to_choose(trainer.pid)
    control.attach(trainer.pid, trainer.name, fast)
    say(f"{trainer.name}: imported and attached")


class Balloon:
    """Occupies node 0 but for so many bytes, as tests/demo/balloon.py tells."""

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
        """Of the program."""
        return self._process.pid

    def leave(self, leave_bytes: int) -> dict[str, Any]:
        """Inflate or deflate, and keep it so; what was reached."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        print(leave_bytes, file=process.stdin, flush=True)
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"balloon: {process.stderr.read()}")
        told: dict[str, Any] = json.loads(line)
        left, others = (told[key] / 2**20 for key in ("left_bytes", "others_bytes"))
        say(f"{left:.1f} MiB left on node {FAST_NODE}, {others:.1f} of them taken")
        return told

    def end(self) -> None:
        """Give all back."""
        self._process.communicate()


def warm_page_cache() -> None:
    """Read the framework's libraries into page cache on the slow node.

    So that code which a trainer first runs later takes no fast memory from its tensors.
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
    """Have the host's plugin count from the trainer's last step's end, which is now, to the next.

    It knows tensors by virtual address alone: tensors of another process at the
    same addresses would count, too.
    """
    if not _COUNTING.acquire(blocking=False):
        _COUNTING.acquire()
        trainer.wait_step()
    try:
        if ask("count", policy=policy, tensors=memory.tensor_ranges(trainer.pid)) == "ok":
            trainer.wait_step()
            ask("counted")
    finally:
        _COUNTING.release()


def meter_and_count(policy: str, trainer: Trainer, steps: int = 1) -> list[dict[str, Any]]:
    """What was metered; the step before it is counted, while its pages are made ready for that."""
    with ThreadPoolExecutor(1) as pool:
        metering = pool.submit(control.meter, trainer.pid, steps)
        count_one_step(policy, trainer)
        return metering.result()


def result(
    policy: str, trainer: Trainer, metered: list[dict[str, Any]], seconds: float, **more: Any
) -> dict[str, Any]:
    """Send one policy's result; seconds: of a step that nobody metered or counted."""
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
    tell("run", **row)
    return row


def wait_managed(policy: str, trainer: Trainer) -> dict[str, Any]:
    """The session once it is managed."""
    trainer.wait_step()
    say(f"{policy}: the first step is done")
    session = control.wait_managed(trainer.pid)
    say(f"{policy}: managed after {len(trainer.steps)} steps")
    return session


def run_unlimited(name: str, policy: str, prefix: tuple[str, ...] = ()) -> int:
    """All-fast or all-slow: no balloon, no budget worth the name. Gives the peak in bytes."""
    with importing(policy, prefix) as trainer:
        attach(trainer, "100%")
        trainer.go()
        peak_bytes: int = wait_managed(policy, trainer)["peak_bytes"]
        seconds = trainer.wait_step().seconds
        result(name, trainer, meter_and_count(name, trainer), seconds)
        return peak_bytes


def settle(trainer: Trainer, peak_bytes: int) -> dict[str, Any]:
    """Let kernel tiering work until its moves have died down, or the time is up."""
    begin = time.monotonic()
    moved_before = memory.kernel_moved_bytes()
    moved_a_step: list[int] = []
    settled = False
    while not settled and time.monotonic() - begin < SETTLE_SECONDS:
        trainer.wait_step()
        moved = memory.kernel_moved_bytes()
        moved_a_step.append(moved - moved_before)
        moved_before = moved
        quiet = [bytes_ < SETTLED_PART * peak_bytes for bytes_ in moved_a_step[-3:]]
        # nothing at all has moved: it has not begun
        settled = len(quiet) == 3 and all(quiet) and any(moved_a_step)
    return {
        "settle_seconds": round(time.monotonic() - begin, 1),
        "settled": settled,
        "settle_moved_bytes": moved_a_step,
    }


def make_room(balloon: Balloon, budget_bytes: int) -> dict[str, Any]:
    """Leave the budget and the reserve alone of node 0, before the model exists."""
    memory.clear_node(FAST_NODE, SLOW_NODE, but_pids=(balloon.pid,))
    return balloon.leave(budget_bytes + RESERVE_BYTES)


def run_first_touch(trainer: Trainer, held: dict[str, Any]) -> None:
    """The kernel places each page at its first touch, and nobody moves it."""
    wait_managed("first-touch", trainer)
    seconds = trainer.wait_step().seconds
    metered = meter_and_count("first-touch", trainer)
    result("first-touch", trainer, metered, seconds, balloon=held)


def run_kernel_tiering(trainer: Trainer, balloon: Balloon, peak_bytes: int) -> None:
    """In the same process, from first-touch's placement."""
    # The kernel demotes what is not tensors, too: without this it would have more than the budget.
    memory.clear_node(FAST_NODE, SLOW_NODE, but_pids=(trainer.pid, balloon.pid))
    memory.set_kernel_tiering(True)
    switches = memory.kernel_tiering()
    try:
        settling = settle(trainer, peak_bytes)
        before_freeze = memory.tensor_bytes_by_node(trainer.pid)
    finally:
        memory.set_kernel_tiering(False)
    seconds = trainer.steps[-1].seconds
    # this step touches what the kernel had armed for its own sampling, too
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


def run_sentinel(trainer: Trainer, held: dict[str, Any]) -> None:
    """The planned policy, metered while its pages move."""
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
        balloon=held,
        plan=plan,
        session=session,
        tensor_bytes_by_node=by_node,
    )


def run_both_unlimited() -> int:
    """All-fast and all-slow side by side, a CPU each. Gives the peak in bytes."""
    with ThreadPoolExecutor(2) as pool:
        fast = pool.submit(run_unlimited, "all-fast", "fast-only")
        slow = pool.submit(run_unlimited, "all-slow", "slow-only", ON_SLOW_NODE)
        slow.result()
        return fast.result()


def run_limited(budget_bytes: int, peak_bytes: int) -> list[str]:
    """First-touch, kernel tiering and sentineld. Gives the losses of a run without any of these.

    What can run on the other CPU does: that run beside first-touch, and then sentineld's imports.
    """
    with contextlib.ExitStack() as stack:
        first_touch = stack.enter_context(importing("first-touch"))
        unmanaged = Trainer("unmanaged", ON_SLOW_NODE, shim=False, steps=UNMANAGED_STEPS)
        stack.callback(unmanaged.kill)
        balloon = Balloon()
        stack.callback(balloon.end)
        attach(first_touch, str(budget_bytes))
        unmanaged.wait_imported()
        held = make_room(balloon, budget_bytes)
        first_touch.go()
        unmanaged.go()
        run_first_touch(first_touch, held)
        say("the kernel's tiering takes over")
        planned = stack.enter_context(importing("sentinel"))
        run_kernel_tiering(first_touch, balloon, peak_bytes)
        first_touch.kill()
        unmanaged.join(timeout_s=300)
        attach(planned, str(budget_bytes))
        held = make_room(balloon, budget_bytes)
        planned.go()
        run_sentinel(planned, held)
        return unmanaged.losses


def main() -> None:
    """All runs."""
    subprocess.run(["swapoff", "-a"], check=True)
    memory.only_asked_for_huge_pages()
    memory.fix_reserve()
    memory.set_kernel_tiering(False)
    memory.drop_caches()
    memory.compact()
    warm_page_cache()
    say("all-fast and all-slow")
    peak_bytes = run_both_unlimited()
    budget_bytes = peak_bytes // FAST_PARTS
    say(f"peak {peak_bytes} bytes, budget {budget_bytes} bytes")
    say("first-touch, and beside it the unmanaged run on the slow node")
    unmanaged_losses = run_limited(budget_bytes, peak_bytes)
    tell(
        "done",
        peak_bytes=peak_bytes,
        budget_bytes=budget_bytes,
        reserve_bytes=RESERVE_BYTES,
        unmanaged_losses=unmanaged_losses,
    )


if __name__ == "__main__":
    main()
