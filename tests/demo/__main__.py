# SPDX-License-Identifier: Apache-2.0
"""Trains one model under five placement policies and reports the step time and the fast share of
each.

    python3 -m tests.demo [--output build/demo]

Exit status: 0 if the result satisfies all rules of tests/demo/rules.py, 1 if it breaks a rule, 2
if the demo could not run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.demo import machines, report, rules
from tests.demo.counter import Counter
from tests.demo.draw import draw
from tests.demo.progress import progress
from tests.vm.host import REPOSITORY, MachineError


def count_row(counter: Counter, seconds: float) -> dict[str, Any]:
    """Stop counting and return the counts as JSON values."""
    count = counter.stop()
    return {
        "tensor_fast_share": count.fast_share("tensors"),
        "machine_fast_share": count.machine_fast_share,
        "tensor_part_of_misses": count.tensor_part,
        "misses": count.misses,
        "elsewhere": count.elsewhere,
        "instructions": count.instructions,
        "modelled_seconds": count.seconds,
        "idle_seconds": count.idle_seconds,
        "seconds": round(seconds, 2),
    }


def run_all(machine: machines.Machine, begin: float) -> rules.Report:
    """Start guest_run.py, serve its requests and collect its results. Raises MachineError, or
    TimeoutError if the QEMU plugin (see counter.py) does not react."""
    process = subprocess.Popen(
        machine.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdin is not None
    assert process.stdout is not None
    runs: list[dict[str, Any]] = []
    done: dict[str, Any] = {}
    plugin: dict[str, Any] | None = None
    started = 0.0
    try:
        for line in process.stdout:
            event = json.loads(line)
            kind = event.pop("event")
            if kind == "progress":
                progress(event["text"], begin)
            elif kind == "count":
                if machine.counter is not None:
                    machine.counter.start([(low, high) for low, high in event["tensors"]])
                    started = time.monotonic()
                print("ok" if machine.counter else "none", file=process.stdin, flush=True)
            elif kind == "counted":
                assert machine.counter is not None
                plugin = count_row(machine.counter, time.monotonic() - started)
                print("ok", file=process.stdin, flush=True)
            elif kind == "run":
                runs.append(event | {"plugin": plugin})
                plugin = None
                progress(report.summary(event), begin)
            elif kind == "done":
                done = event
    except BaseException:
        process.kill()
        raise
    finally:
        process.stdin.close()
        status = process.wait()
    if status != 0 or not done:
        raise MachineError(f"guest_run.py ended with status {status} before its last run")
    seconds = round(time.monotonic() - begin, 1)
    return report.assemble(
        runs,
        done,
        machine=machine.description,
        modelled=machine.counter is not None,
        wall_seconds_of_runs=seconds,
    )


def main(arguments: list[str]) -> int:
    """Run the demo and return the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.demo", description=__doc__)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "build" / "demo")
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    try:
        with machines.choose() as machine:
            result = run_all(machine, begin)
            # Save the report within the context: when the context ends, it checks the guest's
            # kernel log and raises MachineError if the check fails.
            verdicts = rules.check(result)
            report.save(result, verdicts, options.output)
    except (MachineError, TimeoutError, subprocess.SubprocessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if verdicts[0].holds:
        draw("tests.demo.picture", result, options.output / "report.png")
    print(report.markdown(result, verdicts))
    progress(f"report in {options.output}", begin)
    return 0 if all(verdict.holds for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
