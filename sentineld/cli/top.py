# SPDX-License-Identifier: Apache-2.0
"""The verb top: the live view in the terminal."""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path

import click

from sentineld.base.errors import SentinelError
from sentineld.cli.output import Daemon
from sentineld.cli.record import DEFAULT_STEPS, record_into, recorded_line


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between two updates.",
)
@click.pass_obj
def top(daemon: Daemon, interval: float) -> None:
    """Watch the sessions live, and act on them.

    Shows all sessions, and the daemon's own CPU time and memory. For the chosen session, also shows
    the resident bytes by tier and layer, the moves in each direction, the late moves, and the step
    time, next to the predicted step time and the step time with all memory fast. Keys change the
    budget or the policy, detach the process, meter a step and record a trace; ? lists them.

    Needs a terminal and textual (Debian 13: python3-textual; elsewhere: pip install
    'sentineld[tui]'). If NO_COLOR is set, the view uses no colours.
    """
    if math.isnan(interval):  # FloatRange accepts it
        raise click.BadParameter("nan is not a number of seconds", param_hint="--interval")
    try:
        from sentineld.top.app import TopApp
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        if library not in ("textual", "rich"):
            raise
        raise SentinelError(
            "failed",
            f"sentinelctl top needs {library}, which is not installed or too old",
            "Debian 13: apt install python3-textual; elsewhere: pip install 'sentineld[tui]'",
        ) from None
    daemon.ask("status")  # an error ends the command before the terminal is taken over

    # The library Textual draws on stderr.
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise SentinelError(
            "usage", "sentinelctl top needs a terminal", "use sentinelctl status elsewhere"
        )

    TopApp(daemon, partial(record, daemon), interval).run()


def record(daemon: Daemon, pid: int, output: Path) -> str:
    """Record a trace into a file; returns a line about the file. Raises SentinelError."""
    record_into(daemon, pid, output, DEFAULT_STEPS)
    return recorded_line(output)
