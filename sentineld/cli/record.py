# SPDX-License-Identifier: Apache-2.0
"""The verb record: what a session does, as a file to keep."""

from __future__ import annotations

import os
from pathlib import Path

import click

from sentineld.base.units import format_bytes
from sentineld.cli.output import Daemon, json_option, print_json
from sentineld.profile.trace_file import read_trace, require_writable, save_trace
from sentineld.report.summary import summary_json, summary_lines


@click.command()
@click.argument("pid", type=click.IntRange(min=1))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The trace file to write (.npz); one of that name is replaced.",
)
@click.option(
    "--steps",
    type=click.IntRange(1, 100),
    default=2,
    show_default=True,
    help="Whole steps to record at their own speed, before the one whose accesses are seen.",
)
@json_option
@click.pass_obj
def record(daemon: Daemon, pid: int, output: Path, steps: int, as_json: bool) -> None:
    """Record some training steps of PID into a trace file.

    Waits for so many steps in a row that allocate alike, then has one more step
    seen by page sampling and by torch.profiler, which slows that step. PID is
    registered or managed: a registered process is let go of afterwards; a
    managed one is recorded inside its plan, and its pages go on moving.

    `sentinelctl report FILE` shows what is in the file.
    """
    require_writable(output)
    answer, fd = daemon.ask_file("record", pid=pid, steps=steps)
    with os.fdopen(fd, "rb") as file:
        trace = read_trace(file, "the daemon's trace")
    save_trace(trace, output)
    if as_json:
        print_json({"file": str(output), "notes": answer["notes"], **summary_json(trace)})
        return
    click.echo(f"recorded {output}, {format_bytes(output.stat().st_size)}")
    for line in summary_lines(trace):
        click.echo(line)
