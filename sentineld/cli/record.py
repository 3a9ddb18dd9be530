# SPDX-License-Identifier: Apache-2.0
"""The verb record: writes a trace file of some steps of a process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from sentineld.base.units import format_bytes
from sentineld.cli.output import Daemon, json_option, print_json
from sentineld.cli.progress import session_progress
from sentineld.profile.trace import Trace
from sentineld.profile.trace_file import read_trace, require_writable, save_trace
from sentineld.report.summary import summary_json, summary_lines

DEFAULT_STEPS = 2


@click.command()
@click.argument("pid", type=click.IntRange(min=1))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Trace file to write (.npz); an existing file is replaced.",
)
@click.option(
    "--steps",
    type=click.IntRange(1, 100),
    default=DEFAULT_STEPS,
    show_default=True,
    help="Number of whole steps to record without sampling, before the profiled step.",
)
@json_option
@click.pass_obj
def record(daemon: Daemon, pid: int, output: Path, steps: int, as_json: bool) -> None:
    """Record training steps of PID into a trace file.

    Waits for --steps consecutive steps (at least 2) with identical allocations. Then
    page sampling and torch.profiler profile one more step and slow that step down. The
    state of the process must be registered or managed. A registered process stays
    registered afterwards; a managed process keeps its plan, and its pages keep moving.

    `sentinelctl report FILE` shows the file's contents.
    """
    require_writable(output)
    with session_progress(f"recording {pid}", daemon, pid):
        answer, trace = record_into(daemon, pid, output, steps)
    if as_json:
        print_json({"file": str(output), "notes": answer["notes"], **summary_json(trace)})
        return
    click.echo(recorded_line(output))
    for line in summary_lines(trace):
        click.echo(line)


def record_into(daemon: Daemon, pid: int, output: Path, steps: int) -> tuple[Any, Trace]:
    """Record a trace into a file; returns the daemon's answer and the trace. Raises
    SentinelError."""
    answer, fd = daemon.ask_file("record", pid=pid, steps=steps)
    with os.fdopen(fd, "rb") as file:
        trace = read_trace(file, "the daemon's trace")
    save_trace(trace, output)
    return answer, trace


def recorded_line(output: Path) -> str:
    """A line with the name and size of a file that was written."""
    return f"recorded {output}, {format_bytes(output.stat().st_size)}"
