# SPDX-License-Identifier: Apache-2.0
"""The command group, and the one place where an error becomes a line and a status."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from sentineld import __version__
from sentineld.cli.doctor import doctor
from sentineld.cli.manage import attach, detach, meter
from sentineld.cli.output import Daemon
from sentineld.cli.show import plan, status, tensors
from sentineld.config import Config
from sentineld.errors import SentinelError


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


for command in (status, attach, detach, meter, tensors, plan, doctor):
    sentinelctl.add_command(command)


def main() -> None:
    """The entry point. Errors end as one line on stderr and their own exit status."""
    try:
        sentinelctl.main(standalone_mode=False)
    except SentinelError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_status)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone; stdout must not be flushed again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
