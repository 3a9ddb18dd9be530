# SPDX-License-Identifier: Apache-2.0
"""The command group."""

from __future__ import annotations

from pathlib import Path

import click

from sentineld import __version__
from sentineld.cli.doctor import doctor
from sentineld.cli.manage import attach, detach, meter
from sentineld.cli.output import Daemon
from sentineld.cli.record import record
from sentineld.cli.report import report
from sentineld.cli.show import plan, status, tensors
from sentineld.config import Config
from sentineld.entry import run_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sentinelctl")
@click.option(
    "--socket",
    type=click.Path(path_type=Path, readable=False),
    envvar="SENTINELD_CONTROL_SOCKET",
    default=Path(Config.control_socket),
    show_default=True,
    help="The daemon's control socket.",
)
@click.pass_context
def sentinelctl(context: click.Context, socket: Path) -> None:
    """Manage tiered memory for training processes."""
    context.obj = Daemon(socket)


for command in (status, attach, detach, meter, tensors, plan, record, report, doctor):
    sentinelctl.add_command(command)


def main() -> None:
    """The entry point. Errors end as one line on stderr and their own exit status."""
    run_command(sentinelctl)
