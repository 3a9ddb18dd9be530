# SPDX-License-Identifier: Apache-2.0
"""Turns an error of sentineld or sentinelctl into a message on stderr and an exit status."""

from __future__ import annotations

import os
import sys

import click

from sentineld.base.errors import SentinelError


def run_command(command: click.Command) -> None:
    """Run a click command with this process's arguments."""
    try:
        command.main(standalone_mode=False)
    except SentinelError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_status)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except BrokenPipeError:
        # The reader closed the pipe. Without this redirection the flush at exit would fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
